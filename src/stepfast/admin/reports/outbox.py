"""Messages and alerts: what waits, what was sent, what was given up, and why. Addresses are shown without secrets."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stepfast.admin.rows import reader
from stepfast.database.statement import sql
from stepfast.errors import NotFoundError
from stepfast.outbox.messages import as_shown
from stepfast.outbox.state import MessageState
from stepfast.outbox.waiting import stands_behind

if TYPE_CHECKING:
    from datetime import datetime

    from stepfast.database.connection import Transaction


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
    """A line in which messages stand."""

    destination: str
    channel: str
    address: str
    waiting: int
    dead: int
    oldest_at: datetime | None  # since when its first message waits
    due_at: datetime | None  # when that one is tried next
    last_error: str | None  # of that one


@dataclass(frozen=True)
class AlertReport:
    """A cause, and what became of it."""

    cause: str
    severity: str
    title: str
    state: str  # sent, waiting, dead, quiet (raised again, told later), or unsent (nobody knew where to)
    raised: int
    untold: int
    first_at: datetime
    last_at: datetime
    notified_at: datetime | None
    notify_at: datetime | None
    body: str
    last_error: str | None


_COLUMNS = "id, state, channel, address, attempts, created_at, due_at, ended_at, job_id, last_error"
_WHERE = "(:any_channel = 1 OR channel = :channel) AND (:any_state = 1 OR state = :state)"

# Four ways in, each along an index: the newest, those that wait, the latest of one end, those of one job.
NEWEST = sql(f"SELECT {_COLUMNS} FROM stepfast_outbox WHERE {_WHERE} ORDER BY id DESC LIMIT :limit")
WAITING = sql(f"""
    SELECT {_COLUMNS} FROM stepfast_outbox WHERE state = 'waiting' AND {_WHERE} ORDER BY id DESC LIMIT :limit
""")
ENDED = sql(f"""
    SELECT {_COLUMNS} FROM stepfast_outbox WHERE state = :state AND ended_at IS NOT NULL AND {_WHERE}
     ORDER BY ended_at DESC, id DESC LIMIT :limit
""")
OF_JOB = sql(f"""
    SELECT {_COLUMNS} FROM stepfast_outbox WHERE job_id = :job_id AND {_WHERE} ORDER BY id DESC LIMIT :limit
""")
SHOW = sql(f"""
    SELECT {_COLUMNS}, destination, dedupe_key, trace, headers, body FROM stepfast_outbox WHERE id = :id
""")

UNSENT = sql("""
    SELECT destination, min(channel), min(address), sum(waiting), sum(dead)
      FROM (SELECT destination, channel, address, 1 AS waiting, 0 AS dead
              FROM stepfast_outbox WHERE state = 'waiting'
             UNION ALL
            SELECT destination, channel, address, 0, 1
              FROM stepfast_outbox WHERE state = 'dead' AND ended_at IS NOT NULL) unsent
     GROUP BY destination ORDER BY destination LIMIT :limit
""")
HEAD = sql("""
    SELECT created_at, due_at, last_error FROM stepfast_outbox
     WHERE state = 'waiting' AND destination = :destination ORDER BY seq LIMIT 1
""")

ALERTS = sql("""
    SELECT id, severity, title, raised, untold, first_at, last_at, notified_at, notify_at, body, message_ids,
           CASE WHEN quiet_until > {now} THEN 1 ELSE 0 END
      FROM stepfast_alert ORDER BY last_at DESC LIMIT :limit
""")
STATES = sql("SELECT id, state, last_error FROM stepfast_outbox WHERE id {any_of:ids}")


def _summary(*row: Any) -> MessageSummary:
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
    asked = {
        "channel": channel,
        "any_channel": int(channel is None),
        "state": None if state is None else state.value,
        "any_state": int(state is None),
        "limit": limit,
    }
    if job_id is not None:
        return tx.all(OF_JOB, _summary, **asked, job_id=job_id)
    way = {None: NEWEST, MessageState.WAITING: WAITING}.get(state, ENDED)
    return tx.all(way, _summary, **asked)


def show_message(tx: Transaction, message_id: str) -> MessageDetail:
    rows = tx.rows(SHOW, id=message_id)
    if not rows:
        raise NotFoundError(
            f"there is no message {message_id}; those that were sent are forgotten, hints about pages at once, "
            "others after their retention time"
        )
    *columns, destination, key, trace, headers, body = rows[0]
    return MessageDetail(
        _summary(*columns),
        destination,
        key,
        trace,
        json.loads(headers) if headers else {},
        json.loads(body),
        stands_behind(tx, message_id),
    )


def list_destinations(tx: Transaction, *, limit: int = 200) -> list[DestinationReport]:
    """Destinations for which something waits or was given up; by name."""
    read = reader(DestinationReport, waiting=int, dead=int)
    found = []
    for destination, channel, address, waiting, dead in tx.rows(UNSENT, limit=limit):
        head = tx.rows(HEAD, destination=destination)
        first = head[0] if head else (None, None, None)
        found.append(read(destination, channel, as_shown(channel, address), waiting, dead, *first))
    return found


def list_alerts(tx: Transaction, *, limit: int = 50) -> list[AlertReport]:
    """Causes, the latest raised first, each with what became of its last telling."""
    rows = tx.rows(ALERTS, limit=limit)
    ids = [it for *_, message_ids, _ in rows for it in (message_ids or "").split(",") if it]
    states = {row[0]: (row[1], row[2]) for row in tx.rows(STATES, ids=ids)} if ids else {}
    read = reader(AlertReport)
    found = []
    for cause, severity, title, *rest, message_ids, quiet in rows:
        notify_at = rest[5]
        messages = [states[it] for it in (message_ids or "").split(",") if it in states]
        state = _alert_state(
            pending=notify_at is not None, quiet=bool(quiet), states={it[0] for it in messages}
        )
        error = next((it[1] for it in messages if it[1]), None)
        found.append(read(cause, severity, title, state, *rest, error))
    return found


def _alert_state(*, pending: bool, quiet: bool, states: set[str]) -> str:
    """The worst of what became of it; messages that are forgotten were sent."""
    if MessageState.DEAD in states:
        return "dead"
    if MessageState.WAITING in states:
        return "waiting"
    if pending:
        return "quiet" if quiet else "unsent"
    return "sent"
