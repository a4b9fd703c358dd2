"""A call joins the job that holds its key: nothing is lost, and nothing runs twice for it.

A job that has not begun takes the call's payload in. One that runs cannot: it gets a successor, which waits
under a key of its own ("(after) …"), takes in all further calls, and becomes the holder of the key when the
running one has ended. The unique index is the guard: only the holder of a key is ever run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, NamedTuple

from stepfast.clock import new_fence
from stepfast.database.statement import sql
from stepfast.errors import ConstraintError, ContentionError, StateError
from stepfast.steps.duplicates import waited_for
from stepfast.steps.enqueue import TRIES, Row, enqueue_many, insert, wake
from stepfast.steps.job import Enqueued, NewJob
from stepfast.steps.keys import AFTER
from stepfast.telemetry import happened

if TYPE_CHECKING:
    from stepfast.database.connection import Transaction

NO_BOUND: Final = 10**17  # microseconds: three thousand years
BATCH: Final = 100  # successors of one look


@dataclass(frozen=True, kw_only=True)
class Join:
    """How a call joins the job that is there."""

    merge: Callable[[str, str], str]  # the payload that waits, the new one → the payload of both
    quiet: int | None = None  # debounce: begin so many microseconds after the last call
    at_most: int = NO_BOUND  # ... but not later than so many after the first


class Holder(NamedTuple):
    """The job that holds a key."""

    id: str
    kind: str
    state: str
    cursor: str | None
    fence: int
    payload: str

    @property
    def has_begun(self) -> bool:
        """Whether a worker is at it, or was and will go on in the middle."""
        return self.cursor is not None or self.state == "leased"


# The text of the payload, whatever the caller's own connection makes of JSON.
LOOK = sql(
    "SELECT id, kind, state, cursor_json, fence, {text_of:payload} FROM stepfast_job WHERE unique_key = :key"
)
LOCK = sql("""
    SELECT id, kind, state, cursor_json, fence, {text_of:payload} FROM stepfast_job WHERE unique_key = :key
    {for_update}
""")

# Who has tried this step already may have told services outside: the new payload is another step for them.
TAKE_IN = sql("""
    UPDATE stepfast_job
       SET payload = {json_of:payload}, priority = CASE WHEN priority < :priority THEN :priority ELSE priority END,
           step = CASE WHEN leased_at IS NULL THEN step ELSE step + 1 END, fence = :fence, updated_at = {now}
     WHERE id = :id AND fence = :was AND cursor_json IS NULL
       AND state IN ('scheduled', 'ready', 'suspect', 'held', 'waiting')
""")

# A job that waits for its next try keeps its time, and so does one that a limit holds.
WAIT_ON = sql("""
    UPDATE stepfast_job
       SET state = CASE WHEN state = 'held' THEN 'held' ELSE 'scheduled' END,
           ready_at = CASE WHEN {now} + :quiet < created_at + :at_most THEN {now} + :quiet ELSE created_at + :at_most END,
           updated_at = {now}
     WHERE id = :id AND leased_at IS NULL AND state IN ('scheduled', 'ready', 'held')
""")

SUCCEED = sql("""
    INSERT INTO stepfast_job (id, queue, kind, state, held_by, priority, ready_at, created_at, updated_at, unique_key, trace, payload)
    VALUES (:id, :queue, :kind, 'held', '(key)', :priority, COALESCE(:run_at, {now} + :delay), {now}, {now}, :key, :trace, {json_of:payload})
    {keep_existing}
""")

# Those whose key nobody holds.
SUCCESSORS: Final = f"""
      FROM stepfast_job s
     WHERE s.held_by = '(key)' AND s.state = 'held'
       AND NOT EXISTS (SELECT 1 FROM stepfast_job h WHERE h.unique_key = SUBSTR(s.unique_key, {len(AFTER) + 1}))
"""
FREE_TO_GO = sql(f"""
    SELECT s.id, s.queue, s.unique_key {SUCCESSORS}
     ORDER BY s.priority DESC, s.ready_at, s.id
     LIMIT :limit
""")

TAKE_KEY = sql("""
    UPDATE stepfast_job
       SET unique_key = :key, state = CASE WHEN ready_at > {now} THEN 'scheduled' ELSE 'ready' END,
           held_by = NULL, updated_at = {now}
     WHERE id = :id AND state = 'held' AND held_by = '(key)'
""")


def join(tx: Transaction, job: NewJob, how: Join) -> Enqueued:
    """Store one job, or let the one that holds its key do its work too."""
    assert job.key is not None  # noqa: S101 - without a key there is nobody to join
    for _ in range(TRIES):
        holder = _met(tx, job, job.key)
        if holder is None:
            continue  # it ended between our insert and our look: the key is free now
        if holder.id == job.id:
            wake(tx, job)
            return Enqueued(job.id, created=True)
        if not holder.has_begun:
            # One that waits for its next try may have a successor, which was asked for before us.
            return _taken_in(tx, job, _locked(tx, AFTER + job.key) or holder, how)
        successor = _succeeded(tx, job, AFTER + job.key)
        if successor is None:
            continue  # it has become the holder of the key itself
        if successor.id == job.id:
            happened("duplicate.deferred", job_id=job.id, kind=job.kind, queue=job.queue)
            return Enqueued(job.id, created=True)
        return _taken_in(tx, job, successor, how)
    raise ContentionError(f"key {job.key!r} changed hands {TRIES} times while we looked; try again")


def join_many(tx: Transaction, like: NewJob, rows: Sequence[Row], how: Join) -> list[Enqueued]:
    """Store jobs of one kind in one statement; those whose keys are held, or waited for, join one by one."""
    waited = waited_for(tx, [row[1] for row in rows if row[1] is not None])
    stored = enqueue_many(
        tx, like, [row for row in rows if row[1] not in waited], join=lambda job: join(tx, job, how)
    )
    if not waited:
        return stored
    found = dict(zip((row[0] for row in rows if row[1] not in waited), stored, strict=True))
    for row in sorted((row for row in rows if row[1] in waited), key=lambda row: row[1] or ""):
        found[row[0]] = join(tx, replace(like, id=row[0], key=row[1], payload=row[2]), how)
    return [found[row[0]] for row in rows]


def free_to_go(tx: Transaction, limit: int = BATCH) -> list[tuple[str, str, str]]:
    """Successors whose key nobody holds any more: id, queue, and the key that waits for them."""
    return [(row[0], row[1], row[2].removeprefix(AFTER)) for row in tx.rows(FREE_TO_GO, limit=limit)]


def take_key(tx: Transaction, job_id: str, queue: str, key: str) -> bool:
    """Let a successor be the holder of its key, and run; False if somebody else was faster."""
    try:
        with tx.savepoint():
            taken = tx.run(TAKE_KEY, id=job_id, key=key) == 1
    except ConstraintError:
        return False
    if taken:
        tx.wakes.add(queue)
    return taken


def let_successors_go(tx: Transaction) -> int:
    """Every successor whose turn it is, in one transaction; returns how many."""
    return sum(take_key(tx, *it) for it in free_to_go(tx))


def _met(tx: Transaction, job: NewJob, key: str) -> Holder | None:
    """Who does the work of this key next: our own job, if nobody else does. Its row is locked, unless it has begun.

    A running job is not locked: its end must not wait for the caller's transaction. A successor whose turn has come, but
    who has not been told yet, comes before a new job: what was asked last must be done last.
    """
    holder = _look(tx, key)
    if holder is not None and holder.has_begun:
        return holder
    if holder is None:
        if (successor := _locked(tx, AFTER + key)) is not None:
            return successor
        insert(tx, job)
    return _locked(tx, key)


def _look(tx: Transaction, key: str) -> Holder | None:
    return next(iter(tx.all(LOOK, Holder, key=key)), None)


def _locked(tx: Transaction, key: str) -> Holder | None:
    return next(iter(tx.all(LOCK, Holder, key=key)), None)


def _succeeded(tx: Transaction, job: NewJob, key: str) -> Holder | None:
    """The one successor: ours, or that of somebody who came before."""
    tx.run(
        SUCCEED,
        id=job.id,
        queue=job.queue,
        kind=job.kind,
        priority=job.priority,
        run_at=job.run_at,
        delay=job.delay,
        key=key,
        trace=job.trace,
        payload=job.payload,
    )
    return _locked(tx, key)


def _taken_in(tx: Transaction, job: NewJob, holder: Holder, how: Join) -> Enqueued:
    if holder.kind != job.kind:
        raise StateError(
            f"key {job.key!r} is held by job {holder.id} of kind {holder.kind!r}: a call of {job.kind!r} cannot join it; "
            "begin keys with the name of their kind"
        )
    facts = {"id": holder.id, "was": holder.fence, "fence": new_fence(), "priority": job.priority}
    if tx.run(TAKE_IN, **facts, payload=how.merge(holder.payload, job.payload)) != 1:
        raise ContentionError(f"job {holder.id} began while we held it; try again")
    if how.quiet is not None:
        tx.run(WAIT_ON, id=holder.id, quiet=how.quiet, at_most=how.at_most)
    happened("duplicate.merged", job_id=holder.id, kind=job.kind, queue=job.queue)
    return Enqueued(holder.id, created=False)
