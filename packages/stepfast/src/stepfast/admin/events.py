"""Events: which jobs wait for one, which events are kept, and sending one by hand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stepfast.admin.audit import Actor, record
from stepfast.admin.jobs import shown
from stepfast.admin.rows import reader
from stepfast.clock import moment
from stepfast.database.statement import sql

if TYPE_CHECKING:
    from datetime import datetime

    from stepfast.database.connection import Transaction
    from stepfast.jobs.events import SendEvent, Sent


@dataclass(frozen=True)
class WaitReport:
    """A job that waits for an event."""

    event: str
    job_id: str
    kind: str
    queue: str
    waits_until: datetime


@dataclass(frozen=True)
class KeptEvent:
    """An event that is kept for the next job that waits for it."""

    event: str
    id: str
    sent_at: datetime
    kept_until: datetime
    payload: Any


# A wait whose fence has moved on is over.
LIST_WAITS = sql("""
    SELECT w.name, w.job_id, j.kind, j.queue, j.ready_at
      FROM stepfast_wait w JOIN stepfast_job j ON j.id = w.job_id AND j.fence = w.fence AND j.state = 'scheduled'
     ORDER BY w.id LIMIT :limit
""")
LIST_KEPT = sql("""
    SELECT name, event_id, sent_at, until_at, payload FROM stepfast_event
     WHERE until_at > {now} ORDER BY id LIMIT :limit
""")


def list_waits(tx: Transaction, *, limit: int = 50) -> list[WaitReport]:
    """Jobs that wait for an event, the longest first."""
    return tx.all(LIST_WAITS, reader(WaitReport), limit=limit)


def list_kept_events(tx: Transaction, *, limit: int = 50) -> list[KeptEvent]:
    """Events that are kept, the oldest first."""
    return [
        KeptEvent(name, event_id, moment(sent), moment(until), shown(payload, f"event {name}", event_id))
        for name, event_id, sent, until, payload in tx.rows(LIST_KEPT, limit=limit)
    ]


def send_event(tx: Transaction, event: SendEvent, *, by: Actor | None = None) -> Sent:
    """Send an event. One that was sent before changes nothing, and is not recorded."""
    sent = event.send(tx)
    if not sent.repeated:
        record(tx, by, "event.send", event.name, detail={"job_id": sent.job_id, "id": sent.id})
    return sent
