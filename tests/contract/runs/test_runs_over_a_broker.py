"""Whatever a broker does to its messages, the run ends right: nothing is read twice, nothing is missing.

With a head start of an hour a page is taken only after its message; with a short one, a lost message costs that long.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from stepfast.notifications.settings import NotificationSettings
from stepfast.outbox.broker import broker_message
from stepfast.outbox.messages import stage
from stepfast.runs.run import RunState
from stepfast.transports.contract import TOO_OFTEN, TransportRefusedError, TransportUnavailableError
from stepfast.transports.memory import MemoryBroker
from stepfast.worker.broker_listener import broker_listeners
from tests.support import rows
from tests.support.broker import (
    CONSOLIDATE,
    WORK_ITEMS,
    broker_of,
    brokered,
    ended,
    inside,
    put,
    put_aside,
    there,
)
from tests.support.events import hearing, named
from tests.support.failing_runs import broken_at, run_row
from tests.support.feeds import Catalogue, price_ranges, target
from tests.support.run_facts import check_complete, pages

if TYPE_CHECKING:
    from stepfast import Stepfast
    from stepfast.transports.contract import Outgoing

Store = Callable[[MemoryBroker, str, "Outgoing"], None]

SHORT = "100ms"  # a head start that a test can wait for
SECOND = price_ranges(250, 500, 750)[1].name


def storing(
    monkeypatch: pytest.MonkeyPatch, store: Callable[[Store, MemoryBroker, str, Outgoing], None]
) -> None:
    """Let the broker do this to whatever is sent; the first argument is what it does when it is well."""
    well = MemoryBroker.store
    monkeypatch.setattr(MemoryBroker, "store", lambda *given: store(well, *given))


def test_a_run_is_read_page_by_page_as_the_messages_say(app: Stepfast) -> None:
    shop = brokered(app)
    run = app.runs.start("catalogue")

    with hearing() as told, app.worker(concurrency=4, poll_interval="20ms"):
        ended(app, run.id)

    check_complete(app, run.id, shop)
    assert there(app) == there(app, CONSOLIDATE) == []
    assert put_aside(app) == put_aside(app, CONSOLIDATE) == {}
    going_on = [it for it in pages(app, run.id) if it["decision"] not in ("end", "done")]
    sent = [it for it in named(told, "message.sent") if str(it["address"]).endswith(f"#{WORK_ITEMS}")]
    assert len(sent) == 4 + len(going_on) - 4  # one for each partition, and one behind each page but the last
    assert rows.count(app, "stepfast_outbox") == 0  # of what was sent, nothing is left


def test_several_workers_share_the_messages(app: Stepfast, another_app: Callable[[], Stepfast]) -> None:
    shop = brokered(app, items=300)
    colleague = another_app()
    colleague.feed(Catalogue(shop, transport=broker_of(app)))
    run = app.runs.start("catalogue")

    with app.worker(concurrency=2, worker_id="alice"), colleague.worker(concurrency=2, worker_id="bob"):
        ended(app, run.id)

    check_complete(app, run.id, shop)
    assert {it["worker_id"] for it in pages(app, run.id)} == {"alice", "bob"}


@pytest.mark.only_on("sqlite")
@pytest.mark.parametrize(("queues", "listens"), [((), True), (("default",), True), (("another",), False)])
def test_a_worker_listens_only_where_it_may_take_what_it_hears_of(
    app: Stepfast, queues: tuple[str, ...], *, listens: bool
) -> None:
    brokered(app)
    worker = app.worker(queues=queues)

    found = broker_listeners(app.database, app.feeds, worker.settings, worker._claimer, worker._vital)

    assert [it._queues for it in found] == ([[CONSOLIDATE, WORK_ITEMS]] if listens else [])


@pytest.mark.idempotency
def test_messages_that_come_twice_late_and_out_of_order_change_nothing(
    app: Stepfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = brokered(app)
    dice = random.Random(7)

    def store(well: Store, broker: MemoryBroker, queue: str, message: Outgoing) -> None:
        for number in range(3):
            late = datetime.now(UTC) + timedelta(seconds=dice.uniform(0, 0.2))
            well(broker, queue, replace(message, id=f"{message.id}/{number}", not_before=late))

    storing(monkeypatch, store)
    run = app.runs.start("catalogue")

    with app.worker(concurrency=4, poll_interval="20ms"):
        ended(app, run.id)
        rows.eventually(lambda: not there(app))  # what came late was understood, and acknowledged

    check_complete(app, run.id, shop)
    assert put_aside(app) == {}


def test_messages_that_a_broker_loses_only_cost_time(app: Stepfast, monkeypatch: pytest.MonkeyPatch) -> None:
    shop = brokered(app, head_start=SHORT)
    storing(monkeypatch, lambda *_: None)
    run = app.runs.start("catalogue")

    with app.worker(concurrency=4, poll_interval="20ms"):
        ended(app, run.id)

    check_complete(app, run.id, shop)


def test_messages_that_nobody_sends_only_cost_time(app: Stepfast) -> None:
    shop = brokered(app, head_start=SHORT)
    app._notifications = NotificationSettings(outbox_relay=False)
    run = app.runs.start("catalogue")

    with app.worker(concurrency=4, poll_interval="20ms"):
        ended(app, run.id)

    check_complete(app, run.id, shop)
    assert rows.count(app, "stepfast_outbox", "state <> 'waiting'") == 0


def test_a_full_queue_is_waited_out(app: Stepfast, monkeypatch: pytest.MonkeyPatch) -> None:
    shop = brokered(app)
    full = [True, True]

    def store(well: Store, broker: MemoryBroker, queue: str, message: Outgoing) -> None:
        if full:
            full.pop()
            raise TransportUnavailableError("memory", "the queue is full")
        well(broker, queue, message)

    storing(monkeypatch, store)
    run = app.runs.start("catalogue")

    with hearing() as told, app.worker(concurrency=4, poll_interval="20ms"):
        ended(app, run.id)

    check_complete(app, run.id, shop)
    assert [it["error"] for it in named(told, "message.failed")] == ["memory: the queue is full"] * 2
    assert rows.count(app, "stepfast_outbox", "state <> 'sent'") == 0


def test_a_broker_that_is_away_at_first_is_found_later(app: Stepfast) -> None:
    shop = brokered(app)
    inside(app).away = True
    run = app.runs.start("catalogue")

    with hearing() as told, app.worker(concurrency=4, poll_interval="20ms"):
        rows.eventually(lambda: named(told, "broker.lost") and named(told, "message.failed"))
        inside(app).away = False
        ended(app, run.id)

    check_complete(app, run.id, shop)
    assert named(told, "broker.recovered")


def test_a_run_goes_on_while_its_broker_is_away(app: Stepfast) -> None:
    shop = brokered(app, head_start=SHORT)
    inside(app).away = True
    run = app.runs.start("catalogue")

    with app.worker(concurrency=4, poll_interval="20ms"):
        ended(app, run.id)

    check_complete(app, run.id, shop)
    assert rows.count(app, "stepfast_outbox", "state <> 'waiting'") == 0


def test_a_message_that_the_broker_gave_up_is_removed_and_its_job_runs(
    app: Stepfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = brokered(app, head_start=SHORT)

    def store(well: Store, broker: MemoryBroker, queue: str, message: Outgoing) -> None:
        well(broker, queue, message)
        place = broker.find(queue)
        for number, it in list(place.live.kept.items()):
            if queue == WORK_ITEMS and number % 3 == 0:
                del place.live.kept[number]
                it.dead_reason = TOO_OFTEN
                place.dead.put(it, 0.0)

    storing(monkeypatch, store)
    monkeypatch.setattr("stepfast.worker.broker_listener.LETTERS_EVERY", 0.05)
    run = app.runs.start("catalogue")

    with hearing() as told, app.worker(concurrency=4, poll_interval="20ms"):
        ended(app, run.id)
        rows.eventually(lambda: not put_aside(app))

    check_complete(app, run.id, shop)
    assert sum(it["removed"] for it in named(told, "dead-letters.reconciled")) > 0  # type: ignore[misc]
    assert rows.count(app, "stepfast_dead_message") == 0


def test_a_message_that_is_refused_does_not_hold_up_the_others(
    app: Stepfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = brokered(app)
    monkeypatch.setattr("stepfast.outbox.destinations.FEW", 1)

    def store(well: Store, broker: MemoryBroker, queue: str, message: Outgoing) -> None:
        if message.id == "too large":
            raise TransportRefusedError("memory", "its body is too large")
        well(broker, queue, message)

    storing(monkeypatch, store)
    url = broker_of(app).url
    with app.transaction() as tx:
        for name in ("before", "too large", "behind"):
            stage(tx, broker_message(url, WORK_ITEMS, id=name, body="{}", subject=""))
    run = app.runs.start("catalogue")

    with app.worker(concurrency=4, poll_interval="20ms"):
        ended(app, run.id)

    check_complete(app, run.id, shop)
    (dead,) = rows.query(app, "SELECT headers FROM stepfast_outbox WHERE state = 'dead'")
    assert json.loads(dead["headers"])["message-id"] == "too large"
    assert rows.count(app, "stepfast_alert", "id LIKE 'broker failed:%'") == 1


def legacy(run_id: str, number: int) -> dict[str, Any]:
    """As it was sent before messages had an offset."""
    return {
        "type": "WORK_ITEM",
        "runId": run_id,
        "traceId": "t",
        "partitionId": f"partition-{number}",
        "minPrice": 0,
        "maxPrice": 250,
        "totalRecords": 25,
        "offsetStart": 0,
        "offsetEnd": 25,
    }


def test_messages_of_older_senders_are_understood(app: Stepfast) -> None:
    shop = brokered(app)
    app._notifications = NotificationSettings(outbox_relay=False)  # only theirs are sent
    run = app.runs.start("catalogue")

    with app.worker(concurrency=4, poll_interval="20ms"):
        rows.eventually(lambda: rows.count(app, "stepfast_partition") == 4)
        while run_row(app, run.id).state is RunState.FETCHING:
            put(app, *(legacy(run.id, number) for number in range(4)))
        put(app, {"type": "CONSOLIDATE", "runId": run.id, "traceId": "t"}, queue=CONSOLIDATE)
        ended(app, run.id)

    check_complete(app, run.id, shop)


def test_consolidate_with_force_publishes_a_run_that_failed(app: Stepfast) -> None:
    shop = brokered(app, items=100)
    shop.before = broken_at(("page", SECOND, 0))
    run = app.runs.start("catalogue")

    with app.worker(concurrency=4, poll_interval="20ms"):
        assert ended(app, run.id).state is RunState.FAILED
        put(app, {"type": "CONSOLIDATE", "runId": run.id, "traceId": "t", "force": False}, queue=CONSOLIDATE)
        rows.eventually(lambda: not there(app, CONSOLIDATE))
        assert run_row(app, run.id).state is RunState.FAILED
        forced = {"type": "CONSOLIDATE", "runId": run.id, "traceId": "t", "force": True}
        put(
            app, json.dumps(json.dumps(forced)), queue=CONSOLIDATE
        )  # as the SDK for JavaScript writes a string
        rows.eventually(lambda: run_row(app, run.id).state is RunState.PUBLISHED_PARTIAL)

    assert 0 < len(target(app)) < len(shop.items)
    (audit,) = rows.query(app, "SELECT who, why FROM stepfast_audit WHERE what = 'run.consolidate'")
    assert (audit["who"], audit["why"].split()[0]) == ("broker", "message")


def test_our_own_message_of_a_forced_run_forces_nothing_when_it_comes_late(app: Stepfast) -> None:
    shop = brokered(app)
    shop.before = broken_at(("page", SECOND, 0))
    run = app.runs.start("catalogue")

    with app.worker(concurrency=4, poll_interval="20ms"):
        ended(app, run.id)
        late = {"type": "CONSOLIDATE", "runId": run.id, "force": True, "schemaVersion": 1, "epoch": 0}
        put(app, late, queue=CONSOLIDATE)
        rows.eventually(lambda: not there(app, CONSOLIDATE))

    assert run_row(app, run.id).state is RunState.FAILED


def test_how_full_its_queues_are_is_told_while_metrics_are_shown(app: Stepfast) -> None:
    brokered(app)
    put(app, *[f"no JSON {n}" for n in range(3)], queue=WORK_ITEMS)
    with hearing() as told, app.worker():
        found = rows.eventually(lambda: named(told, "broker.measured")[1:2])

    assert found
    measured = {str(it["queue"]): it for it in named(told, "broker.measured")}
    assert set(measured) == {WORK_ITEMS, CONSOLIDATE}
    assert all(isinstance(it["ready"], int) and isinstance(it["dead"], int) for it in measured.values())
