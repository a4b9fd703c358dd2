"""Messages that cannot be understood become dead letters with a reason; dead letters of the broker are listed with ours."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from stepfast import Filter
from stepfast.admin import dead_letters as dead_messages
from stepfast.admin.dead_letters import purge_dead_letter, retry_dead_letter
from stepfast.clock import new_id
from stepfast.database.database import persist
from stepfast.errors import NotFoundError, UnreachableError
from stepfast.transports.contract import Delivery
from stepfast.transports.dead_messages import keep_dead_message
from stepfast.worker import broker_listener
from stepfast.worker.broker_listener import (
    GRACE,
    LETTERS_HOLD,
    HintListener,
    Reconciled,
    _write_down,
    reconcile,
)
from tests.contract.runs.test_messages import planned
from tests.support import rows
from tests.support.broker import (
    CONSOLIDATE,
    WORK_ITEMS,
    broker_of,
    brokered,
    inside,
    put,
    put_aside,
    run_now,
    staged,
    there,
    transport,
)
from tests.support.events import hearing, named

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from stepfast import Stepfast
    from stepfast.database.connection import Transaction
    from stepfast.worker.claimer import Claimer

SECOND = timedelta(seconds=1)


class Taker:
    """Claims nothing: it only looks up the jobs that a worker would claim."""

    def __init__(self, app: Stepfast, *, away: int = 0) -> None:
        self.app = app
        self.away = away  # so many questions are not answered
        self.named: list[str] = []

    def wanted(self) -> int:
        return 10

    def take_named(self, choose: Callable[[Transaction], tuple[Any, list[str]]]) -> Any:
        if self.away:
            self.away -= 1
            raise UnreachableError("the database is away")
        answer, ids = persist(self.app.database, choose)
        self.named += ids
        return answer


def listen(app: Stepfast, taker: Taker, until: Callable[[], object], queue: str = WORK_ITEMS) -> None:
    """Let it listen until something is seen."""

    async def work() -> None:
        async with transport(app) as it:
            await it.ensure(queue)
            hints = HintListener(it, queue, app.database, app.feeds, _as_claimer(taker))
            task = asyncio.create_task(hints.listen())
            await asyncio.to_thread(rows.eventually, until)
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    asyncio.run(work())


def _as_claimer(taker: Any) -> Claimer:
    found: Claimer = taker
    return found


def let_grow_old(app: Stepfast, by: timedelta, queue: str = WORK_ITEMS) -> None:
    """As if everything in the queue had been sent so long ago."""
    for it in inside(app).queues[queue].live.kept.values():
        it.sent_at -= by


# Messages


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("no JSON", "InvalidJson"),
        ({"type": "HELLO"}, "UnknownType"),
        ({"type": "WORK_ITEM", "schemaVersion": 9}, "UnknownSchemaVersion"),
        ({"type": "WORK_ITEM", "runId": 7}, "InvalidMessage"),
    ],
)
@pytest.mark.only_on("sqlite")
def test_what_is_not_understood_is_put_aside_with_the_reason(app: Stepfast, body: Any, reason: str) -> None:
    brokered(app)
    (message_id,) = put(app, body)

    with hearing() as told:
        listen(app, Taker(app), lambda: put_aside(app))

    assert put_aside(app) == {message_id: reason}
    assert [it["reason"] for it in named(told, "hint.refused")] == [reason]


def test_a_message_that_names_an_unknown_run_is_held_for_a_while_and_then_put_aside(app: Stepfast) -> None:
    brokered(app)
    known, unknown = planned(app), new_id()
    body = {"type": "WORK_ITEM", "runId": unknown, "partitionId": "partition-0", "offset": 0}
    (young,) = put(app, body)
    taker = Taker(app)

    put(app, body | {"runId": known.id})
    listen(app, taker, lambda: taker.named)
    while_young = put_aside(app)
    let_grow_old(app, GRACE + SECOND)
    listen(app, taker, lambda: put_aside(app))

    assert (while_young, put_aside(app)) == ({}, {young: "UnknownRun"})


def test_a_message_that_was_ahead_of_its_time_is_understood_later(
    app: Stepfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stepfast.worker.broker_listener.WAIT", timedelta(milliseconds=20))
    brokered(app)
    run = planned(app)
    rows.change(app, "UPDATE stepfast_partition SET run_id = 'elsewhere'")
    put(app, {"type": "WORK_ITEM", "runId": run.id, "partitionId": "partition-0", "offset": 0})
    taker = Taker(app)
    looked: list[int] = []

    def appears() -> bool:
        looked.append(1)
        if len(looked) == 3:
            rows.change(app, "UPDATE stepfast_partition SET run_id = :id", id=run.id)
        return bool(taker.named)

    listen(app, taker, appears)

    assert len(taker.named) == 1
    assert put_aside(app) == {}


def test_nothing_is_acknowledged_while_the_database_does_not_answer(
    app: Stepfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stepfast.worker.broker_listener.AWAY", 0.01)
    brokered(app)
    run = planned(app)
    put(app, {"type": "WORK_ITEM", "runId": run.id, "partitionId": "partition-0", "offset": 0})
    taker = Taker(app, away=3)
    seen: list[int] = []

    def answered() -> bool:
        if taker.away:
            seen.append(len(there(app)))
        return not there(app)

    with hearing() as told:
        listen(app, taker, answered)

    assert set(seen) <= {1}
    assert (len(named(told, "database.lost")), len(named(told, "database.recovered"))) == (1, 1)
    assert len(taker.named) == 1


def test_a_message_for_a_feed_that_is_not_here_is_left_to_others(app: Stepfast) -> None:
    brokered(app)
    run = planned(app)
    rows.change(app, "UPDATE stepfast_run SET feed = 'another'")
    put(app, {"type": "WORK_ITEM", "runId": run.id, "partitionId": "partition-0", "offset": 0})
    taker = Taker(app)

    def waiting() -> bool:
        return any(it.turn > 2 for it in inside(app).queues[WORK_ITEMS].live.kept.values())

    listen(app, taker, waiting)

    assert (taker.named, len(there(app)), put_aside(app)) == ([], 1, {})


# Dead letters


def dead(app: Stepfast, *given: Any, reason: str = "UnknownType") -> list[str]:
    """Messages that are in the broker's dead letters."""
    ids = put(app, *given)

    async def refuse() -> None:
        it = transport(app)
        for found in await it.receive(WORK_ITEMS, at_most=10, wait=SECOND, hold=LETTERS_HOLD):
            await it.dead_letter(found, reason, "nobody knows it")

    run_now(refuse())
    return ids


def take_over(app: Stepfast, known: bool = False) -> Any:  # noqa: FBT001, FBT002 - a case
    def judged(_: Transaction, letters: Sequence[Delivery]) -> list[bool]:
        return [known] * len(letters)

    return run_now(reconcile(transport(app), app.database, broker_of(app).url, WORK_ITEMS, judged))


def listed(app: Stepfast, **which: str) -> list[Any]:
    with app.reading() as tx:
        return dead_messages.list_dead_messages(tx, Filter(**which))


def test_a_brokers_dead_letter_is_in_our_list_with_its_origin_and_reason(app: Stepfast) -> None:
    brokered(app)
    ids = dead(app, {"type": "HELLO"}, "no JSON")

    done = take_over(app)

    assert (done.kept, done.removed) == (2, 0)
    assert put_aside(app) == {}
    found = listed(app)
    assert {it.message_id for it in found} == set(ids)
    assert {(it.origin, it.reason, it.detail, it.attempts) for it in found} == {
        ("memory:work-items", "UnknownType", "nobody knows it", 2)
    }
    assert {it.body for it in found} == {'{"type": "HELLO"}', "no JSON"}
    assert rows.count(app, "stepfast_alert", "id LIKE 'broker dead letters:%'") == 1


def test_a_letter_that_is_taken_over_twice_is_one(app: Stepfast) -> None:
    brokered(app)
    sent = datetime(2026, 1, 1, tzinfo=UTC)
    letter = Delivery(
        id="a", body="x\0", queue="q", attempt=5, held_until=sent, sent_at=sent, dead_reason="r"
    )

    for _ in range(2):
        persist(
            app.database,
            lambda tx: keep_dead_message(tx, letter, transport="service-bus", address="service-bus://"),
        )

    (found,) = listed(app)
    assert found.body == "x\ufffd"  # what all databases can store


def test_half_a_character_is_spelled_out_wherever_it_stands(app: Stepfast) -> None:
    """JSON can say it, and no database can store it."""
    brokered(app)
    half, spelled = "\ud800 half", "\\ud800 half"
    letter = Delivery(
        id=half,
        body=half,
        queue=WORK_ITEMS,
        attempt=1,
        held_until=datetime.now(UTC),
        subject=half,
        properties={half: half, "n": 1},
        dead_reason=half,
        dead_detail=half,
    )

    for _ in range(2):
        persist(app.database, lambda tx: _write_down(tx, [letter], "memory", "memory://", lambda *_: [False]))

    (found,) = listed(app)
    assert {found.message_id, found.body, found.subject, found.reason, found.detail} == {spelled}
    assert found.properties == {spelled: spelled, "n": 1}


def test_a_letter_about_work_that_the_database_knows_is_only_removed(app: Stepfast) -> None:
    brokered(app)
    dead(app, {"type": "WORK_ITEM"})

    done = take_over(app, known=True)

    assert (done.kept, done.removed, listed(app), put_aside(app)) == (0, 1, [], {})


def test_a_retry_sends_it_again_under_a_new_id(app: Stepfast) -> None:
    brokered(app)
    (message_id,) = dead(app, {"type": "WORK_ITEM", "again": True})
    take_over(app)
    (letter,) = listed(app)

    with app.transaction() as tx:
        retry_dead_letter(tx, letter.id)

    (sent,) = staged(app)
    assert (sent["id"], sent["again"]) == (f"{message_id}:retry-1", True)
    assert listed(app) == []
    assert rows.count(app, "stepfast_audit", "what = 'dead-letters.retry'") == 1
    with pytest.raises(NotFoundError), app.transaction() as tx:
        retry_dead_letter(tx, letter.id)  # whoever comes second sends nothing
    assert len(staged(app)) == 1


@pytest.mark.only_on("sqlite")
@pytest.mark.parametrize(
    ("was", "becomes"),
    [
        ("a", "a:retry-1"),
        ("a:retry-1", "a:retry-2"),
        ("a:retry-9", "a:retry-10"),
        ("x" * 128, "x" * 120 + ":retry-1"),
    ],
)
def test_the_id_of_a_retry_counts_and_fits(was: str, becomes: str) -> None:
    assert dead_messages.retried_id(was) == becomes


def test_those_that_match_are_retried_or_purged_with_our_own(app: Stepfast) -> None:
    brokered(app)
    dead(app, {"type": "WORK_ITEM", "n": 1}, reason="one")
    dead(app, {"type": "WORK_ITEM", "n": 2}, reason="two")
    dead(app, {"type": "WORK_ITEM", "n": 3}, reason="three")
    take_over(app)

    retried = app.operator.retry_dead_letters(Filter(error_group="one"))
    with app.transaction() as tx:
        (second,) = dead_messages.list_dead_messages(tx, Filter(error_group="two"))
        purge_dead_letter(tx, second.id)
    left = [it.reason for it in listed(app)]
    purged = app.operator.purge_dead_letters()

    assert (retried.retried, [it["n"] for it in staged(app)]) == (1, [1])
    assert (left, purged, listed(app)) == (["three"], 1, [])


def test_a_worker_takes_over_what_it_refused_itself(app: Stepfast, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stepfast.worker.broker_listener.LETTERS_EVERY", 0.05)
    brokered(app)
    (message_id,) = put(app, json.dumps({"type": "HELLO"}))

    with app.worker():
        (letter,) = rows.eventually(lambda: listed(app))

    assert (letter.message_id, letter.reason) == (message_id, "UnknownType")
    assert "type is 'HELLO'" in letter.detail


@pytest.mark.only_on("sqlite")
def test_a_worker_takes_over_a_letter_of_half_a_character(
    app: Stepfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stepfast.worker.broker_listener.LETTERS_EVERY", 0.05)
    brokered(app)
    put(app, "whole")
    (it,) = inside(app).queues[WORK_ITEMS].live.kept.values()
    it.message = replace(it.message, body="\ud800 half")  # others may send what we may not

    with hearing() as told, app.worker():
        (letter,) = rows.eventually(lambda: listed(app))

    assert (letter.body, letter.reason, named(told, "worker.failed")) == ("\\ud800 half", "InvalidJson", [])


@pytest.mark.only_on("sqlite")
def test_letters_that_cannot_be_taken_over_hold_up_nobody_and_are_told_of_once(
    app: Stepfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[str] = []

    async def fails_for_one(*given: Any) -> Reconciled:
        queue = given[3]
        tried.append(queue)
        if queue == CONSOLIDATE:  # which comes first
            raise ValueError("what nobody thought of")
        return await reconcile(*given)

    monkeypatch.setattr(broker_listener, "reconcile", fails_for_one)
    monkeypatch.setattr(broker_listener, "LETTERS_EVERY", 0.02)
    brokered(app)

    with hearing() as told, app.worker():
        put(app, {"type": "HELLO"})
        rows.eventually(lambda: listed(app) and tried.count(CONSOLIDATE) > 2)

    (failure,) = named(told, "worker.failed")
    assert failure["note"] == "dead letters of consolidate stay at the broker"
