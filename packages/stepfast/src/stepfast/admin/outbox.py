"""The outbox: messages, their destinations and alerts. List them, retry messages, or purge those that were given up.

Addresses are shown without secrets.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from stepfast.admin.audit import Actor, Command, Progress, record
from stepfast.admin.rows import now, reader
from stepfast.database.statement import sql
from stepfast.database.stored import stored_document, stored_fields, stored_state
from stepfast.database.wakeup import OUTBOX
from stepfast.errors import NotFoundError, StateError
from stepfast.outbox.messages import MessageState, as_shown, stands_behind
from stepfast.telemetry.masking import masked_document

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import datetime

    from stepfast.database.connection import Transaction
    from stepfast.database.database import Database


BATCH: Final = 200


@dataclass(frozen=True)
class MessageSummary:
    """A message in one line."""

    id: str
    state: MessageState
    channel: str
    address: str
    attempts: int
    created_at: datetime
    due_at: datetime  # when it is tried next, if it waits
    ended_at: datetime | None  # when it was sent, or given up
    job_id: str | None
    last_error: str | None


@dataclass(frozen=True)
class MessageDetail:
    """A message with everything that is stored about it."""

    message: MessageSummary
    destination: str
    key: str | None
    trace: str | None
    headers: dict[str, str]
    body: Any
    behind: str | None  # others that have to go first, if it waits


@dataclass(frozen=True)
class DestinationReport:
    """A destination, and the messages that wait for it in line."""

    destination: str
    channel: str
    address: str
    waiting: int
    dead: int
    oldest_at: datetime | None  # since when its first message waits
    due_at: datetime | None  # when its first message is tried next
    last_error: str | None  # of its first message


@dataclass(frozen=True)
class AlertReport:
    """An alert by its cause, and what became of it."""

    cause: str
    severity: str
    title: str
    state: str  # sent, waiting, dead, quiet (raised again in its quiet time), or unsent (no address is set)
    raised: int
    untold: int
    first_at: datetime
    last_at: datetime
    notified_at: datetime | None
    notify_at: datetime | None
    body: str
    last_error: str | None


@dataclass(frozen=True)
class DeadMessages:
    """Which of the messages that were given up are meant; an empty filter means all."""

    channel: str | None = None
    destination: str | None = None


# Look

_COLUMNS = "id, state, channel, address, attempts, created_at, due_at, ended_at, job_id, last_error"
_WHERE = "(:any_channel = 1 OR channel = :channel) AND (:any_state = 1 OR state = :state)"

# Four ways in, each along an index: the newest, those that wait, the latest of one end, those of one job.
NEWEST_MESSAGES = sql(f"SELECT {_COLUMNS} FROM stepfast_outbox WHERE {_WHERE} ORDER BY id DESC LIMIT :limit")
WAITING_MESSAGES = sql(f"""
    SELECT {_COLUMNS} FROM stepfast_outbox WHERE state = 'waiting' AND {_WHERE} ORDER BY id DESC LIMIT :limit
""")
ENDED_MESSAGES = sql(f"""
    SELECT {_COLUMNS} FROM stepfast_outbox WHERE state = :state AND ended_at IS NOT NULL AND {_WHERE}
     ORDER BY ended_at DESC, id DESC LIMIT :limit
""")
MESSAGES_OF_JOB = sql(f"""
    SELECT {_COLUMNS} FROM stepfast_outbox WHERE job_id = :job_id AND {_WHERE} ORDER BY id DESC LIMIT :limit
""")
SHOW_MESSAGE = sql(f"""
    SELECT {_COLUMNS}, destination, dedupe_key, trace, headers, body FROM stepfast_outbox WHERE id = :id
""")

UNSENT_BY_DESTINATION = sql("""
    SELECT destination, min(channel), min(address), sum(waiting), sum(dead)
      FROM (SELECT destination, channel, address, 1 AS waiting, 0 AS dead
              FROM stepfast_outbox WHERE state = 'waiting'
             UNION ALL
            SELECT destination, channel, address, 0, 1
              FROM stepfast_outbox WHERE state = 'dead' AND ended_at IS NOT NULL) unsent
     GROUP BY destination ORDER BY destination LIMIT :limit
""")
FIRST_WAITING = sql("""
    SELECT created_at, due_at, last_error FROM stepfast_outbox
     WHERE state = 'waiting' AND destination = :destination ORDER BY seq LIMIT 1
""")

LIST_ALERTS = sql("""
    SELECT id, severity, title, raised, untold, first_at, last_at, notified_at, notify_at, body, message_ids,
           CASE WHEN quiet_until > {now} THEN 1 ELSE 0 END
      FROM stepfast_alert ORDER BY last_at DESC LIMIT :limit
""")
MESSAGE_STATES = sql("SELECT id, state, last_error FROM stepfast_outbox WHERE id {any_of:ids}")


def _read_summary(*row: Any) -> MessageSummary:
    message_id, state, channel, address, *rest = row
    return reader(MessageSummary, state=MessageState)(
        message_id, state, channel, as_shown(channel, address), *rest
    )


def list_messages(
    tx: Transaction,
    state: MessageState | None = None,
    *,
    channel: str | None = None,
    job_id: str | None = None,
    limit: int = 50,
) -> list[MessageSummary]:
    """Messages that match, newest first (those of one state: the latest end first)."""
    filters = {
        "channel": channel,
        "any_channel": int(channel is None),
        "state": None if state is None else state.value,
        "any_state": int(state is None),
        "limit": limit,
    }
    if job_id is not None:
        return tx.all(MESSAGES_OF_JOB, _read_summary, **filters, job_id=job_id)
    way = {None: NEWEST_MESSAGES, MessageState.WAITING: WAITING_MESSAGES}.get(state, ENDED_MESSAGES)
    return tx.all(way, _read_summary, **filters)


def show_message(tx: Transaction, message_id: str) -> MessageDetail:
    """Everything about one message."""
    rows = tx.rows(SHOW_MESSAGE, id=message_id)
    if not rows:
        raise no_message(message_id)
    *columns, destination, key, trace, headers, body = rows[0]
    return MessageDetail(
        _read_summary(*columns),
        destination,
        key,
        trace,
        masked_document(stored_fields(headers)) if headers else {},
        masked_document(stored_document(body)),
        stands_behind(tx, message_id),
    )


def no_message(message_id: str) -> NotFoundError:
    return NotFoundError(
        f"there is no message {message_id}; those that were sent are forgotten, hints about pages at once, "
        "others after their retention time"
    )


def list_destinations(tx: Transaction, *, limit: int = 200) -> list[DestinationReport]:
    """Destinations for which something waits or was given up; by name."""
    read = reader(DestinationReport, waiting=int, dead=int)
    found = []
    for destination, channel, address, waiting, dead in tx.rows(UNSENT_BY_DESTINATION, limit=limit):
        head = tx.rows(FIRST_WAITING, destination=destination)
        first = head[0] if head else (None, None, None)
        found.append(read(destination, channel, as_shown(channel, address), waiting, dead, *first))
    return found


def list_alerts(tx: Transaction, *, limit: int = 50) -> list[AlertReport]:
    """Alerts by cause, the latest raised first, each with the state of its last messages."""
    rows = tx.rows(LIST_ALERTS, limit=limit)
    ids = [message_id for row in rows for message_id in _ids(row[-2])]
    states = {row[0]: (row[1], row[2]) for row in tx.rows(MESSAGE_STATES, ids=ids)} if ids else {}
    read = reader(AlertReport)
    found = []
    for cause, severity, title, *rest, message_ids, quiet in rows:
        notify_at = rest[5]
        messages = [states[message_id] for message_id in _ids(message_ids) if message_id in states]
        state = _alert_state(
            pending=notify_at is not None, quiet=bool(quiet), states={state for state, _ in messages}
        )
        last_error = next((error for _, error in messages if error), None)
        found.append(read(cause, severity, title, state, *rest, last_error))
    return found


def _ids(text: str | None) -> list[str]:
    return [message_id for message_id in (text or "").split(",") if message_id]


def _alert_state(*, pending: bool, quiet: bool, states: set[str]) -> str:
    """The worst state of its messages; those that are forgotten were sent."""
    if MessageState.DEAD in states:
        return "dead"
    if MessageState.WAITING in states:
        return "waiting"
    if pending:
        return "quiet" if quiet else "unsent"
    return "sent"


# Act

MESSAGE_STATE = sql("SELECT state FROM stepfast_outbox WHERE id = :id {for_update}")

# A revived message keeps its place: before everything that was staged after it.
_REVIVE_MESSAGE = """
    UPDATE stepfast_outbox
       SET state = 'waiting', attempts = 0, since_at = {{now}}, due_at = {{now}}, ended_at = NULL
     WHERE {which} AND state = 'dead'
"""
REVIVE_MESSAGE = sql(_REVIVE_MESSAGE.format(which="id = :id"))
REVIVE_MESSAGES = sql(_REVIVE_MESSAGE.format(which="id {any_of:ids}"))
HASTEN_MESSAGE = sql(
    "UPDATE stepfast_outbox SET due_at = {now} WHERE id = :id AND state = 'waiting' AND due_at > {now}"
)

PURGE_MESSAGES = sql("DELETE FROM stepfast_outbox WHERE id {any_of:ids} AND state = 'dead'")

_MATCHES = """
    state = 'dead' AND ended_at <= :until AND (:any_channel = 1 OR channel = :channel)
       AND (:any_destination = 1 OR destination = :destination)
"""
CHOOSE_DEAD = sql(f"""
    SELECT id FROM stepfast_outbox WHERE {_MATCHES} ORDER BY ended_at LIMIT :limit {{skip_locked}}
""")
COUNT_DEAD = sql(f"SELECT count(*) FROM stepfast_outbox WHERE {_MATCHES}")


def retry_message(tx: Transaction, message_id: str, *, by: Actor | None = None) -> None:
    """Try a dead message again with fresh tries, or one that waits for its time right now."""
    if tx.run(REVIVE_MESSAGE, id=message_id) == 1:
        was = MessageState.DEAD
    elif tx.run(HASTEN_MESSAGE, id=message_id) == 1:
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
    record(tx, by, "outbox.retry", message_id, detail={"was": was})


def purge_message(tx: Transaction, message_id: str, *, by: Actor | None = None) -> None:
    """Delete a message that was given up, for good."""
    if tx.run(PURGE_MESSAGES, ids=[message_id]) != 1:
        found = _state(tx, message_id)
        raise StateError(f"message {message_id} is {found}; only dead ones are purged")
    record(tx, by, "outbox.purge", message_id)


def count_dead_messages(tx: Transaction, which: DeadMessages | None = None) -> int:
    """How many messages that were given up match."""
    return int(tx.first(COUNT_DEAD, **_parameters(which or DeadMessages()), until=now(tx)))


def retry_dead_messages(
    database: Database,
    which: DeadMessages | None = None,
    progress: Progress | None = None,
    *,
    by: Actor | None = None,
) -> int:
    """Try again the messages that were given up until now and match; returns how many."""

    def revive(tx: Transaction, ids: Sequence[str]) -> int:
        tx.wakes.add(OUTBOX)
        return tx.run(REVIVE_MESSAGES, ids=list(ids))

    return _each_dead(database, "outbox.retry", which or DeadMessages(), revive, progress=progress, by=by)


def purge_dead_messages(
    database: Database,
    which: DeadMessages | None = None,
    progress: Progress | None = None,
    *,
    by: Actor | None = None,
) -> int:
    """Delete the messages that were given up until now and match, for good; returns how many."""

    def purge(tx: Transaction, ids: Sequence[str]) -> int:
        return tx.run(PURGE_MESSAGES, ids=list(ids))

    return _each_dead(database, "outbox.purge", which or DeadMessages(), purge, progress=progress, by=by)


def _each_dead(
    database: Database,
    what: str,
    which: DeadMessages,
    work: Callable[[Transaction, Sequence[str]], int],
    *,
    progress: Progress | None,
    by: Actor | None,
) -> int:
    """Walk over the messages that match. None is chosen twice: one that dies again dies after `until`."""
    with database.reading() as tx:
        until = now(tx)

    def choose(tx: Transaction, _: str | None) -> list[str]:
        return [row[0] for row in tx.rows(CHOOSE_DEAD, **_parameters(which), until=until, limit=BATCH)]

    detail = {"channel": which.channel, "destination": which.destination}
    command = Command(database, by, what, which.destination or which.channel or "all", detail)
    return command.each_batch(choose, work, progress)[1]


def _parameters(which: DeadMessages) -> dict[str, Any]:
    """The filter as parameters."""
    return {
        "channel": which.channel,
        "any_channel": int(which.channel is None),
        "destination": which.destination,
        "any_destination": int(which.destination is None),
    }


def _state(tx: Transaction, message_id: str) -> MessageState:
    found = tx.first(MESSAGE_STATE, id=message_id)
    if found is None:
        raise no_message(message_id)
    return stored_state(MessageState, found)
