"""Events from outside, and the jobs that wait for them.

An event is delivered to one wait, the oldest of its name. One that nobody waits for is kept for a while, for whoever
comes. Both sides lock the name first, so that an event and a wait that begin in the same moment cannot miss each
other. Nobody who holds a job asks for a name: the fence of the wait tells whether its job still waits, so a job that
was cancelled, replaced or went on by itself just leaves a row behind.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from stepfast.clock import Duration, duration, micros, new_id
from stepfast.database.statement import sql
from stepfast.encryption import keyring
from stepfast.errors import ConfigurationError, ContentionError
from stepfast.jobs.keys import remember_key
from stepfast.jobs.payload import encode
from stepfast.jobs.wait import arrived_cursor, checked_event
from stepfast.telemetry import happened

if TYPE_CHECKING:
    from stepfast.database.connection import Transaction


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

# Whoever still waits is scheduled under the fence of its wait. (Each claim, replacement and end writes a new one.)
LOCK_WAITING_JOB = sql("""
    SELECT cursor_json, queue, {now} FROM stepfast_job
     WHERE id = :id AND fence = :fence AND state = 'scheduled' {for_update}
""")
WAKE_JOB = sql("""
    UPDATE stepfast_job SET state = 'ready', ready_at = {now}, cursor_json = :cursor, updated_at = {now}
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


class _Told(NamedTuple):
    """What a job is told."""

    event_id: str
    payload: str
    sent_at: int | None = None  # None: now


@dataclass(frozen=True)
class Sent:
    """What became of an event: it went to a job, is kept for one, or both are None."""

    id: str
    job_id: str | None = None  # whom it woke
    kept: bool = False
    repeated: bool = False  # an event of this id was sent before: nothing happened now


def send(
    tx: Transaction, name: str, payload: str, keep: int, *, event_id: str | None = None, remembered: int = 0
) -> Sent:
    """Give the event to the oldest wait for it, or keep it for `keep` microseconds.

    With an id of the caller's own, the same id again changes nothing for `remembered` microseconds.
    """
    if event_id is not None:
        mine = new_id()  # the event's id would be the same for all who send it
        if remember_key(tx, SCOPE, event_id, mine, remembered) != mine:
            return Sent(event_id, repeated=True)
    known = event_id or new_id()
    _lock(tx, name)
    if (job_id := _deliver(tx, name, _Told(known, payload))) is not None:
        happened("event.delivered", job_id=job_id)
        return Sent(known, job_id=job_id)
    if keep <= 0:
        return Sent(known)
    tx.run(KEEP_EVENT, name=name, event_id=known, keep=keep, payload=payload)
    happened("event.kept", keep_s=keep / 1e6)
    return Sent(known, kept=True)


def await_event(tx: Transaction, job_id: str, fence: int, name: str, patience: int) -> None:
    """Let a job that is scheduled under `fence` wait; an event that is kept wakes it at once."""
    _lock(tx, name)
    if rows := tx.rows(OLDEST_KEPT_EVENT, name=name):
        kept, *told = rows[0]
        if _wake(tx, job_id, fence, _Told(*told)):
            tx.run(TAKE_EVENT, id=kept)
            happened("event.delivered", job_id=job_id)
            return
    tx.run(ADD_WAIT, name=name, job_id=job_id, fence=fence, patience=patience)


def any_old_events(tx: Transaction) -> bool:
    return bool(tx.rows(ANY_OLD_EVENTS, stale=STALE_AFTER, age=NAMES_KEPT))


def forget_old_events(tx: Transaction, limit: int) -> int:
    """Forget events that were kept long enough, waits that are over, and names that nobody uses; returns how many."""
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
    """Events that are kept although somebody waits for them."""
    return [str(row[0]) for row in tx.rows(MISSED_EVENTS, limit=BATCH)]


def deliver_kept(tx: Transaction, name: str) -> int:
    """Give what is kept of this name to those who wait for it; returns how many got something."""
    _lock(tx, name)
    brought = 0
    while rows := tx.rows(OLDEST_KEPT_EVENT, name=name):
        kept, *told = rows[0]
        if (job_id := _deliver(tx, name, _Told(*told))) is None:
            break
        tx.run(TAKE_EVENT, id=kept)
        happened("event.delivered", job_id=job_id)
        brought += 1
    return brought


def _lock(tx: Transaction, name: str) -> None:
    """Let nobody else send or await this event until we are done."""
    for _ in range(TRIES):
        tx.run(KNOW_EVENT_NAME, id=name)
        if tx.rows(LOCK_EVENT_NAME, id=name):
            return
        # It was forgotten between our insert and our lock: again.
    raise ContentionError(f"event {name!r} was forgotten {TRIES} times while we looked; try again")


def _deliver(tx: Transaction, name: str, told: _Told) -> str | None:
    """Wake the oldest that still waits; rows of those that do not are removed on the way."""
    while rows := tx.rows(OLDEST_WAITS, name=name, limit=BATCH):
        for wait, job_id, fence in rows:
            tx.run(END_WAIT, id=wait)
            if _wake(tx, job_id, fence, told):
                return str(job_id)
    return None


def _wake(tx: Transaction, job_id: str, fence: int, told: _Told) -> bool:
    rows = tx.rows(LOCK_WAITING_JOB, id=job_id, fence=fence)
    if not rows:
        return False
    stored, queue, now = rows[0]
    cursor = arrived_cursor(
        stored, told.event_id, now if told.sent_at is None else told.sent_at, told.payload
    )
    tx.run(WAKE_JOB, id=job_id, fence=fence, cursor=cursor)
    tx.wakes.add(queue)
    return True


# An event that is sent with the commit of a step, or in somebody's own transaction.

LONGEST_ID: Final = 180
REMEMBERED: Final = micros(duration("15d"))  # ids of events, as those of jobs
FOREVER: Final = micros(duration("3650d"))


@dataclass(frozen=True)
class SendEvent:
    """Gives an event to the oldest wait for it, or keeps it for the next."""

    name: str
    payload: str
    keep: int
    event_id: str | None
    remembered: int = REMEMBERED  # for how long the id is, in microseconds

    by_key = True  # each of its statements names its rows

    @staticmethod
    def of(
        name: str, payload: Any, keep: Duration, event_id: str | None = None, *, encrypted: bool = False
    ) -> SendEvent:
        """Checked here, where it is asked for, and not when it is too late."""
        text = encode(payload, "payload of the event")
        if encrypted:
            text = keyring().seal(text, f"event {name}")
        kept = micros(duration(keep, "keep"))
        if kept > FOREVER:
            raise ConfigurationError("keep: an event is kept for 3650 days at most")
        if event_id is not None and not 0 < len(event_id) <= LONGEST_ID:
            raise ConfigurationError(f"id of an event: a text of 1 to {LONGEST_ID} characters")
        return SendEvent(checked_event(name), text, kept, event_id)

    @property
    def turn(self) -> tuple[int, str]:
        """After the step's own rows, in the order of names."""
        return (1, self.name)

    def apply(self, tx: Transaction, /) -> None:
        self.send(tx)

    def send(self, tx: Transaction) -> Sent:
        return send(
            tx, self.name, self.payload, self.keep, event_id=self.event_id, remembered=self.remembered
        )
