"""What an operator may do about messages: try them again, or forget those that were given up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from stepfast.admin.audit import Actor, Command, record, whoever
from stepfast.admin.rows import now
from stepfast.database.statement import sql
from stepfast.database.wakeup import OUTBOX
from stepfast.errors import NotFoundError, StateError
from stepfast.outbox.state import MessageState

if TYPE_CHECKING:
    from stepfast.database.connection import Transaction
    from stepfast.database.database import Database

BATCH: Final = 200

Progress = Callable[[int], object]  # told how many are behind us

STATE = sql("SELECT state FROM stepfast_outbox WHERE id = :id {for_update}")

# It keeps its place: before everything that was staged after it.
_REVIVE = """
    UPDATE stepfast_outbox
       SET state = 'waiting', attempts = 0, since_at = {{now}}, due_at = {{now}}, ended_at = NULL
     WHERE {which} AND state = 'dead'
"""
REVIVE = sql(_REVIVE.format(which="id = :id"))
REVIVE_MANY = sql(_REVIVE.format(which="id {any_of:ids}"))
HASTEN = sql(
    "UPDATE stepfast_outbox SET due_at = {now} WHERE id = :id AND state = 'waiting' AND due_at > {now}"
)

PURGE = sql("DELETE FROM stepfast_outbox WHERE id {any_of:ids} AND state = 'dead'")

_MATCHES = """
    state = 'dead' AND ended_at <= :until AND (:any_channel = 1 OR channel = :channel)
       AND (:any_destination = 1 OR destination = :destination)
"""
CHOOSE = sql(f"""
    SELECT id FROM stepfast_outbox WHERE {_MATCHES} ORDER BY ended_at LIMIT :limit {{skip_locked}}
""")
COUNT = sql(f"SELECT count(*) FROM stepfast_outbox WHERE {_MATCHES}")


@dataclass(frozen=True)
class DeadMessages:
    """Which of those that were given up are meant; an empty filter means all."""

    channel: str | None = None
    destination: str | None = None


def retry_message(tx: Transaction, message_id: str, *, by: Actor | None = None) -> None:
    """Try a dead message again with fresh tries, or one that waits for its time right now."""
    if tx.run(REVIVE, id=message_id) == 1:
        was = MessageState.DEAD
    elif tx.run(HASTEN, id=message_id) == 1:
        was = MessageState.WAITING
    else:
        match _state(tx, message_id):
            case MessageState.SENT:
                raise StateError(f"message {message_id} is sent; stage a new one to say it again")
            case _:
                raise StateError(
                    f"message {message_id} is tried as soon as its turn comes; it needs no retry"
                )
    tx.wakes.add(OUTBOX)
    record(tx, by or whoever(), "outbox.retry", message_id, detail={"was": was})


def purge_message(tx: Transaction, message_id: str, *, by: Actor | None = None) -> None:
    """Delete a message that was given up, for good."""
    if tx.run(PURGE, ids=[message_id]) != 1:
        found = _state(tx, message_id)
        raise StateError(f"message {message_id} is {found}; only dead ones are purged")
    record(tx, by or whoever(), "outbox.purge", message_id)


def count_dead_messages(tx: Transaction, which: DeadMessages | None = None) -> int:
    return int(tx.first(COUNT, **_asked(which or DeadMessages()), until=now(tx)))


def retry_dead_messages(
    database: Database,
    which: DeadMessages | None = None,
    progress: Progress | None = None,
    *,
    by: Actor | None = None,
) -> int:
    """Try again what was given up until now and matches; returns how many."""

    def revive(tx: Transaction, ids: list[str]) -> int:
        tx.wakes.add(OUTBOX)
        return tx.run(REVIVE_MANY, ids=ids)

    return _each_batch(database, "outbox.retry", which or DeadMessages(), revive, progress=progress, by=by)


def purge_dead_messages(
    database: Database,
    which: DeadMessages | None = None,
    progress: Progress | None = None,
    *,
    by: Actor | None = None,
) -> int:
    """Delete what was given up until now and matches, for good; returns how many."""

    def purge(tx: Transaction, ids: list[str]) -> int:
        return tx.run(PURGE, ids=ids)

    return _each_batch(database, "outbox.purge", which or DeadMessages(), purge, progress=progress, by=by)


def _each_batch(
    database: Database,
    what: str,
    which: DeadMessages,
    work: Callable[[Transaction, list[str]], int],
    *,
    progress: Progress | None,
    by: Actor | None,
) -> int:
    """Each batch in a transaction of its own. None is chosen twice: what dies again dies after `until`."""
    with database.reading() as tx:
        until = now(tx)
    detail = {"channel": which.channel, "destination": which.destination}
    command = Command(database, by or whoever(), what, which.destination or which.channel or "all", detail)
    done = 0

    def batch(tx: Transaction) -> tuple[int, int | None]:
        ids = [row[0] for row in tx.rows(CHOOSE, **_asked(which), until=until, limit=BATCH)]
        count = work(tx, ids) if ids else 0
        return count, count or None

    while count := command.run(batch):
        done += count
        if progress is not None:
            progress(done)
    command.end()
    return done


def _asked(which: DeadMessages) -> dict[str, Any]:
    """The filter as parameters."""
    return {
        "channel": which.channel,
        "any_channel": int(which.channel is None),
        "destination": which.destination,
        "any_destination": int(which.destination is None),
    }


def _state(tx: Transaction, message_id: str) -> MessageState:
    found = tx.first(STATE, id=message_id)
    if found is None:
        raise NotFoundError(
            f"there is no message {message_id}; those that were sent are forgotten, hints about pages at once, "
            "others after their retention time"
        )
    return MessageState(found)
