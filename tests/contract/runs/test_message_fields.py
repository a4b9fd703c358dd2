"""The fields of messages about runs, and what happens to a message with other fields."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from stepfast import Bounds, Fixed, Range
from stepfast.clock import new_id
from stepfast.runs.broker import Broker
from stepfast.runs.feed import Feed
from stepfast.worker.broker_listener import GRACE
from tests.contract.runs.test_message_dead_letters import Taker, let_grow_old, listen
from tests.contract.runs.test_messages import planned
from tests.support import rows
from tests.support.broker import (
    CONSOLIDATE,
    WORK_ITEMS,
    bodies,
    broker_of,
    brokered,
    end_head_starts,
    ended,
    inside,
    put,
    put_aside,
    staged,
    there,
)
from tests.support.events import hearing, named
from tests.support.failing_runs import work_until_idle
from tests.support.feeds import Catalogue
from tests.support.run_facts import check_complete, check_counters, partitions, run_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from stepfast import Stepfast

BOTH = {"closed": "both"}
SHORT = "100ms"  # a head start that a test can wait for


def message(run_id: str, **changes: Any) -> dict[str, Any]:
    return {
        "type": "WORK_ITEM",
        "runId": run_id,
        "traceId": "t",
        "partitionId": "partition-0",
        "totalRecords": 25,
        "offset": 0,
        "limit": 10,
        "epoch": 0,
    } | changes


def heard(app: Stepfast, *messages: dict[str, Any]) -> tuple[list[str], list[Any]]:
    """Which jobs a worker would take when it hears these, and what it says to have skipped; none stays in the queue."""
    taker = Taker(app)
    put(app, *messages)
    with hearing() as told:
        listen(app, taker, lambda: not there(app))
    assert put_aside(app) == {}
    return taker.named, [it["reason"] for it in named(told, "hint.skipped")]


def test_a_first_message_asks_for_thirty_rows_from_the_first(app: Stepfast) -> None:
    brokered(app, page_size=Feed.page_size)

    planned(app)

    assert {(it["offset"], it["limit"], it["offsetStart"], it["offsetEnd"]) for it in staged(app)} == {
        (0, 30, 0, 30)
    }


@pytest.mark.parametrize(
    ("part", "fields"),
    [
        (Range.of(price=Bounds(0, 250)), {"minPrice": 0, "maxPrice": 250}),
        (
            Range.of(price=Bounds(0, 250), size=Bounds(1, 2)),
            {
                "minPrice": 0,
                "maxPrice": 250,
                "range": {"price": BOTH | {"from": 0, "to": 250}, "size": BOTH | {"from": 1, "to": 2}},
            },
        ),
        (Range.of(size=Bounds(1, None)), {"range": {"size": BOTH | {"from": 1, "to": None}}}),
        (Range.of(size=["s", "m"]), {"range": {"size": ["s", "m"]}}),
    ],
)
def test_a_range_of_prices_has_its_own_fields_and_any_other_stands_in_range(
    app: Stepfast, part: Range, fields: dict[str, Any]
) -> None:
    brokered(app, partitioner=Fixed([part]))

    planned(app)

    (found,) = staged(app)
    assert {name: found[name] for name in ("minPrice", "maxPrice", "range") if name in found} == fields


def test_the_feed_says_which_dimension_is_the_price(app: Stepfast) -> None:
    brokered(app, partitioner=Fixed([Range.of(dollars=Bounds(0, 250))]), price_dimension="dollars")

    planned(app)

    (found,) = staged(app)
    assert (found["minPrice"], found["maxPrice"]) == (0, 250)
    assert found["range"] == {"dollars": BOTH | {"from": 0, "to": 250}}, "which price it is, is told as well"


@pytest.mark.parametrize("total", [None, 0, 1_000_000, "many"])
def test_the_number_of_records_informs_and_decides_nothing(app: Stepfast, total: object) -> None:
    brokered(app)
    run = planned(app)

    taken, skipped = heard(app, message(run.id, totalRecords=total))

    assert (taken, skipped) == ([partitions(app, run.id)[0]["job_id"]], [])


@pytest.mark.idempotency
def test_a_message_for_another_row_than_the_next_is_acknowledged_skipped_and_told(app: Stepfast) -> None:
    brokered(app)
    run = planned(app)
    rows.change(app, "UPDATE stepfast_partition SET next_offset = 30")

    taken, skipped = heard(app, message(run.id, offset=0), message(run.id, offset=60))

    assert taken == []
    assert sorted(skipped) == [
        f"Offset mismatch, skipping duplicate: it is for row {n}, the partition goes on at 30"
        for n in (0, 60)
    ]


@pytest.mark.idempotency
def test_a_message_for_a_partition_that_has_ended_counts_nothing(app: Stepfast) -> None:
    shop = brokered(app)
    run = planned(app)
    while rows.count(app, "stepfast_job", "state = 'ready'"):
        end_head_starts(app)
        work_until_idle(app)
    last = partitions(app, run.id)[0]["next_offset"]
    before = run_of(app, run.id)

    taken, skipped = heard(app, message(run.id, offset=last), message(run.id, offset=0))

    assert (taken, skipped) == ([], ["the partition has ended"] * 2)
    assert run_of(app, run.id) == before
    check_counters(app, run.id)
    check_complete(app, run.id, shop)


def test_messages_of_a_run_that_was_cancelled_or_resumed_are_of_the_past(app: Stepfast) -> None:
    brokered(app)
    run = planned(app)
    app.runs.cancel(run.id)

    after_cancel = heard(app, message(run.id))
    app.runs.resume(run.id)
    after_resume = heard(app, message(run.id))

    assert after_cancel == ([], ["the partition has ended"])
    assert after_resume == ([], ["it is of epoch 0, the partition is in 2"])


def test_a_consolidation_of_an_unknown_run_is_put_aside_with_the_reason(app: Stepfast) -> None:
    brokered(app)
    (message_id,) = put(app, {"type": "CONSOLIDATE", "runId": new_id(), "traceId": "t"}, queue=CONSOLIDATE)
    let_grow_old(app, 2 * GRACE, CONSOLIDATE)

    listen(app, Taker(app), lambda: put_aside(app, CONSOLIDATE), CONSOLIDATE)

    assert put_aside(app, CONSOLIDATE) == {message_id: "UnknownRun"}


def test_a_queue_is_replaced_by_another_in_the_middle_of_a_run(
    app: Stepfast, another_app: Callable[[], Stepfast]
) -> None:
    """The old queue holds only hints: it need not be emptied, and nothing is lost with it. (F49)"""
    shop = brokered(app, head_start=SHORT)
    run = app.runs.start("catalogue")
    with app.worker(concurrency=2, poll_interval="20ms"):
        rows.eventually(lambda: len(shop.requests) > 8)
    old = broker_of(app)
    put(app, *(message(run.id, partitionId=f"partition-{number}") for number in range(4)))
    waiting = {it["partitionId"] for it in bodies(there(app))}
    inside(app).queues.pop(WORK_ITEMS)  # deleted with all that is in it
    new = Broker(old.url, "work-items-2", "consolidate-2", head_start=SHORT)
    successor = another_app()
    successor.feed(Catalogue(shop, transport=new))

    with successor.worker(concurrency=2, poll_interval="20ms"):
        ended(successor, run.id)
        rows.eventually(lambda: not there(app, new.work_items))

    assert len(waiting) == 4
    check_complete(successor, run.id, shop)
