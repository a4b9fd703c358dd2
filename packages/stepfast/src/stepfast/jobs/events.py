"""Events from outside, and the jobs that wait for them.

An event is delivered to one wait, the oldest of its name. Without a wait it is kept for a while, for the next one. Both
sides lock the name first, so that an event and a wait that begin in the same moment cannot miss each other. A transaction
that holds a job never asks for a name: the fence of the wait tells whether its job still waits, so a job that was
cancelled, replaced or went on by itself just leaves a row behind.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from stepfast.clock import Duration, duration, micros, new_id
from stepfast.database.lending import within
from stepfast.database.statement import sql
from stepfast.encryption import is_sealed, keyring
from stepfast.errors import ConfigurationError, ContentionError
from stepfast.jobs.keys import remember_key
from stepfast.jobs.payload import encode
from stepfast.jobs.wait import arrived_cursor, checked_event
from stepfast.suspects import READY_STATE
from stepfast.telemetry import when_committed

if TYPE_CHECKING:
    from stepfast.database.connection import Transaction
    from stepfast.database.database import Database
    from stepfast.database.lending import Lent


TRIES: Final = 5
BATCH: Final = 50  # waits that are looked at in one go
STALE_AFTER: Final = 60 * 1_000_000  # microseconds after the end of its patience no wait is of any use
NAMES_KEPT: Final = 3600 * 1_000_000
SCOPE: Final = "event"  # of the ids that are remembered

KNOW_EVENT_NAME = sql("INSERT INTO stepfast_event_name (id, at) VALUES (:id, {now}) {keep_existing}")
LOCK_EVENT_NAME = sql("SELECT id FROM stepfast_event_name WHERE id = :id {for_update}")

# Under the lock of the name, and as they are now: a lent transaction may look at the past.
OLDEST_KEPT_EVENT = sql("""
    SELECT id, event_id, payload, sent_at FROM stepfast_event
     WHERE name = :name AND until_at > {now} ORDER BY id LIMIT 1 {for_update}
""")
TAKE_EVENT = sql("DELETE FROM stepfast_event WHERE id = :id")
KEEP_EVENT = sql("""
    INSERT INTO stepfast_event (name, event_id, sent_at, until_at, payload)
    VALUES (:name, :event_id, {now}, {now} + :keep, :payload)
""")

ADD_WAIT = sql("""
    INSERT INTO stepfast_wait (name, job_id, fence, until_at) VALUES (:name, :job_id, :fence, {now} + :patience)
""")
OLDEST_WAITS = sql(
    "SELECT id, job_id, fence FROM stepfast_wait WHERE name = :name ORDER BY id LIMIT :limit {for_update}"
)
END_WAIT = sql("DELETE FROM stepfast_wait WHERE id = :id")

# A job that still waits is scheduled under the fence of its wait. (Each claim, replacement and end writes a new one.)
LOCK_WAITING_JOB = sql("""
    SELECT cursor_json, queue, {now} FROM stepfast_job
     WHERE id = :id AND fence = :fence AND state = 'scheduled' {for_update}
""")
WAKE_JOB = sql(f"""
    UPDATE stepfast_job SET state = {READY_STATE}, ready_at = {{now}}, cursor_json = :cursor, updated_at = {{now}}
     WHERE id = :id AND fence = :fence AND state = 'scheduled'
""")

_OVER = "SELECT id FROM {table} WHERE {column} <= {{now}} - :age {rest} ORDER BY {column} LIMIT :limit {{skip_locked}}"
OLD_EVENTS = sql(_OVER.format(table="stepfast_event", column="until_at", rest=""))
OLD_WAITS = sql(_OVER.format(table="stepfast_wait", column="until_at", rest=""))
OLD_NAMES = sql(
    _OVER.format(
        table="stepfast_event_name",
        column="at",
        rest="AND NOT EXISTS (SELECT 1 FROM stepfast_event e WHERE e.name = stepfast_event_name.id)"
        " AND NOT EXISTS (SELECT 1 FROM stepfast_wait w WHERE w.name = stepfast_event_name.id)",
    )
)
FORGET_EVENT = sql("DELETE FROM stepfast_event WHERE id = :id")
FORGET_WAIT = sql("DELETE FROM stepfast_wait WHERE id = :id")
FORGET_NAME = sql("DELETE FROM stepfast_event_name WHERE id = :id")
# A transaction that was lent to us at REPEATABLE READ sees no wait that began after it did, and keeps its event.
MISSED_EVENTS = sql("""
    SELECT DISTINCT e.name FROM stepfast_event e JOIN stepfast_wait w ON w.name = e.name
     WHERE e.until_at > {now} LIMIT :limit
""")
ANY_OLD_EVENTS = sql("""
    SELECT 1 WHERE EXISTS (SELECT 1 FROM stepfast_event WHERE until_at <= {now})
                OR EXISTS (SELECT 1 FROM stepfast_wait WHERE until_at <= {now} - :stale)
                OR EXISTS (SELECT 1 FROM stepfast_event_name
                            WHERE at <= {now} - :age
                              AND NOT EXISTS (SELECT 1 FROM stepfast_event e WHERE e.name = stepfast_event_name.id)
                              AND NOT EXISTS (SELECT 1 FROM stepfast_wait w WHERE w.name = stepfast_event_name.id))
""")


class _Delivery(NamedTuple):
    """An event on its way to a job."""

    event_id: str
    payload: str
    sent_at: int | None = None  # None: now


@dataclass(frozen=True)
class Sent:
    """What happened to an event: it woke a job, is kept for the next one, or was lost (`keep=0`)."""

    id: str
    job_id: str | None = None  # of the job that it woke
    kept: bool = False
    repeated: bool = False  # an event of this id was sent before: nothing happened now


def send(
    tx: Transaction,
    name: str,
    payload: str,
    keep: int,
    *,
    event_id: str | None = None,
    remembered: int = 0,
    drawn_id: str | None = None,
) -> Sent:
    """Give the event to the oldest wait for it, or keep it for `keep` microseconds.

    With an id of the caller's own, the same id again changes nothing for `remembered` microseconds. `drawn_id` is the
    event's id otherwise.
    """
    if event_id is not None:
        mine = new_id()  # the event's id is the same in all calls, and could not tell which came first
        if remember_key(tx, SCOPE, event_id, mine, remembered) != mine:
            return Sent(event_id, repeated=True)
    known = event_id or drawn_id or new_id()
    _lock(tx, name)
    if (job_id := _deliver(tx, name, _Delivery(known, payload))) is not None:
        when_committed(tx, "event.delivered", job_id=job_id)
        return Sent(known, job_id=job_id)
    if keep <= 0:
        return Sent(known)
    tx.run(KEEP_EVENT, name=name, event_id=known, keep=keep, payload=payload)
    when_committed(tx, "event.kept", keep_s=keep / 1e6)
    return Sent(known, kept=True)


def await_event(tx: Transaction, job_id: str, fence: int, name: str, patience: int) -> None:
    """Let a job that is scheduled under `fence` wait; an event that is kept wakes it at once."""
    _lock(tx, name)
    if rows := tx.rows(OLDEST_KEPT_EVENT, name=name):
        kept, *event = rows[0]
        if _wake(tx, job_id, fence, _Delivery(*event)):
            tx.run(TAKE_EVENT, id=kept)
            when_committed(tx, "event.delivered", job_id=job_id)
            return
    tx.run(ADD_WAIT, name=name, job_id=job_id, fence=fence, patience=patience)


def any_old_events(tx: Transaction) -> bool:
    """Whether there is something to forget; a look, so that an idle worker takes no lock."""
    return bool(tx.rows(ANY_OLD_EVENTS, stale=STALE_AFTER, age=NAMES_KEPT))


def forget_old_events(tx: Transaction, limit: int) -> int:
    """Forget events that were kept long enough, waits that are over, and unused names; returns how many."""
    removed = 0
    for old, forget, age in (
        (OLD_EVENTS, FORGET_EVENT, 0),
        (OLD_WAITS, FORGET_WAIT, STALE_AFTER),
        (OLD_NAMES, FORGET_NAME, NAMES_KEPT),
    ):
        rows = [{"id": row[0]} for row in tx.rows(old, age=age, limit=limit)]
        tx.run_many(forget, rows)
        removed += len(rows)
    return removed


def missed_events(tx: Transaction) -> list[str]:
    """Names of events that are kept although a job waits for them."""
    return [str(row[0]) for row in tx.rows(MISSED_EVENTS, limit=BATCH)]


def deliver_kept(tx: Transaction, name: str) -> int:
    """Deliver the kept events of this name to the jobs that wait for it; returns how many were delivered."""
    _lock(tx, name)
    delivered = 0
    while rows := tx.rows(OLDEST_KEPT_EVENT, name=name):
        kept, *event = rows[0]
        if (job_id := _deliver(tx, name, _Delivery(*event))) is None:
            break
        tx.run(TAKE_EVENT, id=kept)
        when_committed(tx, "event.delivered", job_id=job_id)
        delivered += 1
    return delivered


def _lock(tx: Transaction, name: str) -> None:
    """Lock the name: no other transaction sends or awaits this event until we are done."""
    for _ in range(TRIES):
        tx.run(KNOW_EVENT_NAME, id=name)
        if tx.rows(LOCK_EVENT_NAME, id=name):
            return
        # It was forgotten between our insert and our lock: again.
    raise ContentionError(f"event {name!r} was forgotten {TRIES} times while we looked; try again")


def _deliver(tx: Transaction, name: str, delivery: _Delivery) -> str | None:
    """Wake the oldest job that still waits; rows of jobs that do not are removed on the way."""
    while rows := tx.rows(OLDEST_WAITS, name=name, limit=BATCH):
        for wait, job_id, fence in rows:
            tx.run(END_WAIT, id=wait)
            if _wake(tx, job_id, fence, delivery):
                return str(job_id)
    return None


def _wake(tx: Transaction, job_id: str, fence: int, delivery: _Delivery) -> bool:
    rows = tx.rows(LOCK_WAITING_JOB, id=job_id, fence=fence)
    if not rows:
        return False
    stored, queue, now = rows[0]
    cursor = arrived_cursor(
        stored, delivery.event_id, now if delivery.sent_at is None else delivery.sent_at, delivery.payload
    )
    tx.run(WAKE_JOB, id=job_id, fence=fence, cursor=cursor)
    tx.wakes.add(queue)
    return True


# --- An event that is sent with the commit of a step, or in a transaction of the caller's.

LONGEST_ID: Final = 180
REMEMBERED: Final = micros(duration("15d"))  # ids of events, as those of jobs
FOREVER: Final = micros(duration("3650d"))


@dataclass(frozen=True)
class SendEvent:
    """The effect that delivers an event to the oldest wait for it, or keeps it for the next."""

    name: str
    payload: str
    keep: int
    event_id: str | None
    remembered: int = REMEMBERED  # how long the id is remembered, in microseconds
    drawn_id: str | None = (
        None  # of an encrypted event without an id of the caller's own: it is sealed for this one
    )

    by_key = True  # each of its statements names its rows

    @staticmethod
    def of(
        name: str, payload: Any, keep: Duration, event_id: str | None = None, *, encrypted: bool = False
    ) -> SendEvent:
        """Check the event where it is asked for, before anything is stored."""
        text = encode(payload, "payload of the event")
        kept = micros(duration(keep, "keep"))
        if kept > FOREVER:
            raise ConfigurationError("keep: an event is kept for 3650 days at most")
        if event_id is not None and not 0 < len(event_id) <= LONGEST_ID:
            raise ConfigurationError(f"id of an event: a text of 1 to {LONGEST_ID} characters")
        event = SendEvent(checked_event(name), text, kept, event_id)
        return event.sealed_event() if encrypted else event

    def sealed_event(self) -> SendEvent:
        """The same event, its payload encrypted; unchanged if it already is."""
        if is_sealed(self.payload):
            return self
        drawn = new_id() if self.event_id is None else None
        payload = keyring().seal(self.payload, f"event {self.name}", self.event_id or drawn)
        return replace(self, payload=payload, drawn_id=drawn)

    @property
    def turn(self) -> tuple[int, str]:
        """After the step's own rows, in the order of names."""
        return (1, self.name)

    def apply(self, tx: Transaction, /) -> None:
        self.send(tx)

    def send(self, tx: Transaction) -> Sent:
        return send(
            tx,
            self.name,
            self.payload,
            self.keep,
            event_id=self.event_id,
            remembered=self.remembered,
            drawn_id=self.drawn_id,
        )


class Events:
    """`app.events`: send events by name. Each goes to the oldest wait for it, or is kept for the next."""

    def __init__(self, database: Database, *, encrypted: bool = False) -> None:
        self._database = database
        self._encrypted = encrypted

    def send(
        self,
        name: str,
        payload: Any = None,
        *,
        keep: Duration = "1d",
        id: str | None = None,  # noqa: A002 - the word users know
        encrypted: bool | None = None,
        tx: Lent = None,
    ) -> Sent:
        """Wake the job that has waited longest for `name`, or keep the event for the next that waits.

        With `tx` it happens when that transaction commits. The same `id` again changes nothing. With `keep=0` the event
        is lost if no job waits.
        """
        sealed = self._encrypted if encrypted is None else encrypted
        event = SendEvent.of(name, payload, keep, id, encrypted=sealed)
        return within(self._database, tx, event.send)

    async def send_async(self, name: str, payload: Any = None, *, tx: Any = None, **options: Any) -> Sent:
        """`send`, awaited: `tx` may be an async connection, and the event loop is not held up."""
        from stepfast.database.lending_async import within_async  # asyncio: not for programs without a loop

        return await within_async(
            self._database, tx, lambda inner: self.send(name, payload, tx=inner, **options)
        )
