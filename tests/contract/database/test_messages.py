"""Queues in the database: leases of messages, and message ids that are remembered.

What every transport promises is tested in tests/transports; here is what depends on the rows. Time is moved by writing it
into them.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from stepfast.clock import new_id
from stepfast.database.database import persist
from stepfast.transports import database as message_rows
from stepfast.transports.contract import TOO_OFTEN, Delivery, Outgoing
from tests.support import rows

if TYPE_CHECKING:
    from collections.abc import Callable

    from stepfast import Stepfast

HOLD = timedelta(seconds=30)
Q = "tasks"


def send(app: Stepfast, *messages: Outgoing, queue: str = Q) -> None:
    persist(app.database, lambda tx: message_rows.insert_messages(tx, queue, messages))


def message(message_id: str = "", **fields: Any) -> Outgoing:
    return Outgoing(id=message_id or new_id(), body="{}", **fields)


def take(app: Stepfast, limit: int = 10, *, most: int = 5, dead: bool = False) -> list[Delivery]:
    return persist(app.database, lambda tx: message_rows.take_messages(tx, Q, limit, HOLD, most, dead=dead))


def expire(app: Stepfast) -> None:
    rows.change(app, "UPDATE stepfast_message SET visible_at = 1 WHERE state IN ('ready', 'dead')")


def let_time_pass(app: Stepfast, seconds: int) -> None:
    """As if everything had been sent so long ago."""
    rows.change(
        app,
        "UPDATE stepfast_message SET sent_at = sent_at - :span, until_at = until_at - :span",
        span=seconds * rows.SECOND,
    )


def endings(held: Delivery) -> dict[str, Callable[[Any], bool]]:
    return {
        "renew": lambda tx: message_rows.renew_message(tx, held.receipt, HOLD),
        "release": lambda tx: message_rows.release_message(tx, held.receipt, timedelta(0)),
        "put_aside": lambda tx: message_rows.put_aside_message(tx, held.receipt, "late", ""),
        "complete": lambda tx: message_rows.complete_message(tx, held.receipt),
    }


ENDINGS = ["renew", "release", "put_aside", "complete"]


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_late_holder_changes_nothing(app: Stepfast, ending: str) -> None:
    send(app, message("m-1"))
    (late,) = take(app)
    expire(app)
    (current,) = take(app)
    before = rows.query(app, "SELECT * FROM stepfast_message")

    assert not persist(app.database, endings(late)[ending])

    assert rows.query(app, "SELECT * FROM stepfast_message") == before
    assert persist(app.database, endings(current)["complete"])


@pytest.mark.parametrize("ending", ENDINGS)
def test_who_held_it_for_too_long_changes_nothing_even_before_another_takes_it(
    app: Stepfast, ending: str
) -> None:
    send(app, message("m-1"))
    (late,) = take(app)
    expire(app)

    assert not persist(app.database, endings(late)[ending])

    assert [it.id for it in take(app)] == ["m-1"]


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_message_is_ended_once(app: Stepfast, ending: str) -> None:
    send(app, message("m-1"))
    (held,) = take(app)
    assert persist(app.database, endings(held)["complete"])

    assert not persist(app.database, endings(held)[ending])


def test_of_many_that_are_ended_together_a_lost_one_holds_up_no_other(app: Stepfast) -> None:
    send(app, message("a"), message("b"), message("c"))
    held = {it.id: it.receipt for it in take(app)}
    rows.change(app, "UPDATE stepfast_message SET visible_at = 1 WHERE message_id = 'b'")
    together = [held["c"], held["b"], held["a"], held["a"]]

    ended = persist(app.database, lambda tx: message_rows.complete_messages(tx, together))

    assert ended == [True, False, True, False]
    assert [it.id for it in take(app)] == ["b"]


def test_an_id_is_swallowed_for_ten_minutes_whatever_became_of_the_message(app: Stepfast) -> None:
    send(app, message("held"), message("done"), message("dead"))
    for it in take(app):
        if it.id in ("done", "dead"):
            persist(app.database, endings(it)["complete" if it.id == "done" else "put_aside"])
    let_time_pass(app, 9 * 60)

    send(app, message("held"), message("done"), message("dead"), message("new"))

    assert [it.id for it in take(app)] == ["new"]


def test_an_id_is_forgotten_after_ten_minutes_but_not_while_its_message_waits(app: Stepfast) -> None:
    send(app, message("waits"), message("done"), message("dead"))
    for it in take(app):
        if it.id in ("done", "dead"):
            persist(app.database, endings(it)["complete" if it.id == "done" else "put_aside"])
    expire(app)
    let_time_pass(app, 11 * 60)

    send(app, message("waits"), message("done"), message("dead"))

    assert sorted(it.id for it in take(app)) == ["dead", "done", "waits"]
    assert [it.id for it in take(app, dead=True)] == ["dead"]


def test_the_same_id_in_another_queue_is_another_message(app: Stepfast) -> None:
    send(app, message("m-1"))
    send(app, message("m-1"), queue="other")

    assert rows.count(app, "stepfast_message") == 2


def test_what_was_taken_and_never_handed_out_counts_as_no_delivery(app: Stepfast) -> None:
    send(app, message("m-1"))
    (held,) = take(app)

    persist(app.database, lambda tx: message_rows.give_back_messages(tx, [held.receipt]))

    (again,) = take(app)
    assert again.attempt == 1


def test_a_message_that_was_delivered_too_often_is_put_aside_and_the_next_one_comes(app: Stepfast) -> None:
    send(app, message("kills"), message("harmless"))
    for _ in range(2):
        take(app, 1, most=2)
        rows.change(app, "UPDATE stepfast_message SET visible_at = 1 WHERE message_id = 'kills'")

    assert [it.id for it in take(app, most=2)] == ["harmless"]

    (dead,) = take(app, dead=True)
    assert (dead.id, dead.dead_reason, dead.attempt) == ("kills", TOO_OFTEN, 3)


def test_a_message_whose_life_is_over_is_neither_delivered_nor_counted(app: Stepfast) -> None:
    send(app, message("short", lives_for=timedelta(minutes=1)), message("long"))
    let_time_pass(app, 61)

    assert persist(app.database, lambda tx: message_rows.queue_depth(tx, Q)).ready == 1
    assert [it.id for it in take(app)] == ["long"]


def test_a_dead_letter_stays_however_short_its_life_was_to_be(app: Stepfast) -> None:
    send(app, message("short", lives_for=timedelta(minutes=1)))
    (held,) = take(app)
    persist(app.database, endings(held)["put_aside"])
    let_time_pass(app, 3_600)

    persist(app.database, lambda tx: message_rows.prune_messages(tx, 100))

    assert [it.id for it in take(app, dead=True)] == ["short"]


def test_only_what_nobody_needs_to_remember_is_removed(app: Stepfast) -> None:
    send(app, *(message(it) for it in ("ready", "held", "dead", "old")))
    send(app, message("gone", lives_for=timedelta(minutes=1)))
    for it in take(app):
        if it.id in ("dead", "old"):
            persist(app.database, endings(it)["put_aside" if it.id == "dead" else "complete"])
    let_time_pass(app, 11 * 60)
    send(app, message("young"))
    for it in take(app):
        persist(app.database, endings(it)["complete"])

    removed = persist(app.database, lambda tx: message_rows.prune_messages(tx, 100))

    left = {row["message_id"] for row in rows.query(app, "SELECT message_id FROM stepfast_message")}
    assert (removed, left) == (2, {"ready", "held", "dead", "young"})


def test_depth_tells_what_is_ready_held_scheduled_and_dead(app: Stepfast) -> None:
    send(app, *(message() for _ in range(4)), message(not_before=datetime.now(UTC) + timedelta(hours=1)))
    first, second = take(app, 2)
    persist(app.database, endings(second)["put_aside"])

    found = persist(app.database, lambda tx: message_rows.queue_depth(tx, Q))

    assert first.attempt == 1
    assert (found.ready, found.held, found.scheduled, found.dead) == (2, 1, 1, 1)


def test_two_who_take_at_the_same_time_wait_for_nobody_and_share(
    app: Stepfast, another_app: Callable[[], Stepfast]
) -> None:
    if app.database.dialect.name == "sqlite":  # one writer: they take turns
        return
    send(app, *(message() for _ in range(4)))
    other = another_app()

    with app.database.transaction() as tx, other.database.transaction() as theirs:
        mine = message_rows.take_messages(tx, Q, 2, HOLD, 5, dead=False)
        rest = message_rows.take_messages(theirs, Q, 10, HOLD, 5, dead=False)

    assert len({it.id for it in mine} | {it.id for it in rest}) == 4
