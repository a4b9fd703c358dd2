"""One statement tells which of many dead letters are about work that the database knows."""

from __future__ import annotations

import json
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

from stepfast.clock import new_id
from stepfast.runs.messages import UnknownWork, UnreadableHint, judge_hints, read_hint
from stepfast.transports.contract import MOST_AT_ONCE, Delivery
from stepfast.worker.broker_listener import about_known_work
from tests.contract.runs.test_messages import PARTS, planned
from tests.support.broker import brokered

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stepfast import Stepfast
    from stepfast.database.connection import Transaction

HERE = ["catalogue"]


def letter(told: dict[str, Any] | str) -> Delivery:
    body = told if isinstance(told, str) else json.dumps(told)
    return Delivery(id=new_id(), body=body, queue="work-items", attempt=5, held_until=datetime.now(UTC))


def page(run_id: str, partition: int | str, **fields: Any) -> Delivery:
    return letter({"type": "WORK_ITEM", "runId": run_id, "partitionId": str(partition), "offset": 0} | fields)


def end(run_id: str, **fields: Any) -> Delivery:
    return letter({"type": "CONSOLIDATE", "runId": run_id} | fields)


def three_runs(app: Stepfast) -> list[str]:
    """Runs that are over, each with its partitions."""
    brokered(app)
    found = []
    for _ in range(3):
        found.append(planned(app).id)
        app.runs.cancel(found[-1])
    return found


@contextmanager
def watched(tx: Transaction) -> Iterator[list[str]]:
    """Statements that are executed meanwhile."""
    seen: list[str] = []

    def watch(phase: str, text: str) -> None:
        if phase == "before":
            seen.append(text)

    connection = tx._connection
    before, connection.watch = connection.watch, watch
    try:
        yield seen
    finally:
        connection.watch = before


def one_by_one(tx: Transaction, letters: list[Delivery], feeds: list[str]) -> list[bool]:
    """What each message would hear if it came alone to a worker that wants to run its job."""
    hints = [read_hint(it.body) for it in letters]
    return [
        not isinstance(it, UnreadableHint) and not isinstance(judge_hints(tx, [it], feeds)[0], UnknownWork)
        for it in hints
    ]


def test_a_whole_batch_takes_one_statement(app: Stepfast) -> None:
    runs = three_runs(app)
    batch = [page(runs[n % 3], n % PARTS) for n in range(MOST_AT_ONCE)]

    with app.reading() as tx, watched(tx) as seen:
        found = about_known_work(tx, batch, HERE)

    assert found == [True] * MOST_AT_ONCE
    assert len(seen) == 1


def test_letters_that_nobody_can_read_take_none(app: Stepfast) -> None:
    with app.reading() as tx, watched(tx) as seen:
        assert about_known_work(tx, [letter("no JSON"), letter({"type": "HELLO"})], HERE) == [False, False]
        assert about_known_work(tx, [], HERE) == []

    assert seen == []


@pytest.mark.parametrize("feeds", [HERE, []], ids=["here", "elsewhere"])
def test_each_letter_of_a_batch_hears_what_it_would_hear_alone(app: Stepfast, feeds: list[str]) -> None:
    one, other, _ = three_runs(app)
    stranger = new_id()
    batch = [
        page(one, 0),
        page(other, f"partition-{PARTS - 1}"),
        page(one, PARTS),  # there is no such partition, neither here
        page(other, PARTS + 5),  # nor there
        page(one, "price-1000"),
        page(stranger, 0),
        page(one, 1, epoch=99),
        page(one, 1, offset=10_000),
        letter("no JSON"),
        end(one),
        end(other, force=True),
        end(stranger),
        page(one, 0),  # once more
    ]

    with app.reading() as tx:
        found = about_known_work(tx, batch, feeds)
        assert found == one_by_one(tx, batch, feeds)
        assert about_known_work(tx, [end(one), end(stranger)], feeds) == [True, False]

    known_here = [True, True, False, False, False, False, True, True, False, True, True, False, True]
    known_elsewhere = [True, True, True, True, True, False, True, True, False, True, True, False, True]
    assert found == (known_here if feeds else known_elsewhere)


def test_a_partition_of_one_run_is_none_of_another(app: Stepfast) -> None:
    """Numbers that were named for one run are looked for in all of them: that must not mix them up."""
    runs = three_runs(app)
    with app.transaction() as tx:
        tx.execute(
            "DELETE FROM stepfast_partition WHERE run_id = :run_id AND number = 2", {"run_id": runs[0]}
        )
    with app.reading() as tx:
        found = about_known_work(tx, [page(runs[0], 2), page(runs[1], 2), page(runs[0], 1)], HERE)

    assert found == [False, True, True]
