"""Calls that are merged into the job that holds their key: nothing is lost, and nothing runs twice for it.

A job that has not begun takes the call's payload in (`on_duplicate="merge"`), and may wait until no further call has
come for a while (`debounce`). A job that runs cannot: it gets a successor, which waits under a key of its own
("(after) …"), takes in all further calls, and becomes the holder of the key when the running one has ended (`Promotion` in
`worker/maintenance.py`). The unique index is the guard: only the holder of a key is ever run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from stepfast.clock import Duration, duration, micros, new_fence
from stepfast.database.statement import sql
from stepfast.encryption import handed_over
from stepfast.errors import ArgumentsError, ConfigurationError, ConstraintError, ContentionError
from stepfast.jobs.enqueue import JobRow, enqueue_many, insert_job, wake_workers
from stepfast.jobs.keys import LONGEST_KEY, SUCCESSOR_PREFIX, TRIES, keys_with_successor
from stepfast.jobs.payload import decode
from stepfast.jobs.state import Enqueued, NewJob
from stepfast.suspects import READY_STATE
from stepfast.telemetry import when_committed

if TYPE_CHECKING:
    from stepfast.database.connection import Transaction
    from stepfast.jobs.kinds import Kind


NO_BOUND: Final = 10**17  # microseconds: three thousand years
BATCH: Final = 100  # successors of one look
_WHY: Final = {
    "unique_for": "{} keeps every call, unique_for drops those that come late",
    "unique_per": "{} keeps every call, unique_per drops those that come late",
    "after": "with {} a job takes in calls that may each come after others",
    "delay": "{} says when the job begins",
    "run_at": "{} says when the job begins",
}


# --- What the options of a call mean; contradictions are refused in words.


@dataclass(frozen=True, kw_only=True)
class MergePolicy:
    """How a call is merged into the job that holds its key."""

    merge: Callable[[KeyHolder, NewJob], str]  # the job that waits, the new one → its payload for both
    quiet: int | None = None  # debounce: begin so many microseconds after the last call
    at_most: int = NO_BOUND  # ... but not later than so many after the first


def merge_policy(
    kind: Kind,
    key: str | None,
    on_duplicate: str | None,
    *,
    debounce: Duration | None = None,
    at_most: Duration | None = None,
    **others: Any,
) -> MergePolicy | None:
    """How the call is merged; None if it is not. `others` are options that contradict it. The key was checked."""
    if debounce is None:
        if at_most is not None:
            raise ConfigurationError("enqueue: at_most bounds a debounce; give debounce=… too")
        if on_duplicate != "merge" or key is None:
            return None
        _refuse(others, "on_duplicate='merge'", "unique_for", "unique_per", "after")
        _require_room(key)
        return MergePolicy(merge=partial(merge_payloads, kind))
    if key is None:
        raise ConfigurationError("enqueue: debounce needs a key: calls with the same one are one job")
    if on_duplicate not in {None, "replace", "merge"}:
        raise ConfigurationError(
            f"enqueue: debounce joins calls, on_duplicate={on_duplicate!r} does not; use 'replace' (the last payload wins) or 'merge'"
        )
    _refuse(others, "debounce", "unique_for", "unique_per", "after", "delay", "run_at")
    _require_room(key)
    quiet = micros(duration(debounce, "debounce"))
    bound = NO_BOUND if at_most is None else micros(duration(at_most, "at_most"))
    if bound < quiet:
        raise ConfigurationError(
            "enqueue: at_most is shorter than debounce; the job would never wait so long"
        )
    merge = newest_payload if on_duplicate != "merge" else partial(merge_payloads, kind)
    return MergePolicy(merge=merge, quiet=quiet, at_most=bound)


def _refuse(given: dict[str, Any], option: str, *names: str) -> None:
    for name in names:
        if given.get(name) is not None:
            raise ConfigurationError(
                f"enqueue: {_WHY[name].format(option)}; give {option} or {name}, not both"
            )


def _require_room(key: str) -> None:
    """Refuse a key that leaves no room for the prefix of its successor's."""
    if len(key) > (most := LONGEST_KEY - len(SUCCESSOR_PREFIX)):
        raise ConfigurationError(
            f"key {key[:40]!r}…: 1 to {most} characters where calls join, not {len(key)}"
        )


def merge_payloads(kind: Kind, holder: KeyHolder, job: NewJob) -> str:
    """The holder's payload for both calls, checked and stored as that of any call is."""
    given = [decode(kind.open(it.payload, "payload", it.id)) for it in (holder, job)]
    both = kind.merge(*given)
    if not isinstance(both, Mapping):
        raise ArgumentsError(
            kind.name, f"its merge returned {type(both).__name__}; return the arguments as a dict"
        )
    return kind.stored(kind.arguments.encode(both), holder.id)


def newest_payload(holder: KeyHolder, job: NewJob) -> str:
    """The holder's payload: that of the last call."""
    return handed_over(job.payload, f"payload of {job.kind}", job.id, holder.id)


# --- Store a call, or merge it.

# The text of the payload, whatever the caller's own connection makes of JSON.
LOOK_AT_HOLDER = sql("""
    SELECT id, state, cursor_json, fence, {text_of:payload} FROM stepfast_job WHERE unique_key = :key AND kind = :kind
""")
LOCK_HOLDER = sql("""
    SELECT id, state, cursor_json, fence, {text_of:payload} FROM stepfast_job WHERE unique_key = :key AND kind = :kind
    {for_update}
""")

# Services outside may have heard of a step that was tried: the new payload is another step for them.
MERGE_CALL = sql("""
    UPDATE stepfast_job
       SET payload = {json_of:payload}, priority = CASE WHEN priority < :priority THEN :priority ELSE priority END,
           step = CASE WHEN leased_at IS NULL THEN step ELSE step + 1 END, fence = :fence, updated_at = {now}
     WHERE id = :id AND fence = :was AND cursor_json IS NULL
       AND state IN ('scheduled', 'ready', 'suspect', 'held', 'waiting')
""")

# A job that waits for its next try keeps its time, and so does one that a limit holds.
POSTPONE_HOLDER = sql("""
    UPDATE stepfast_job
       SET state = CASE WHEN state = 'held' THEN 'held' ELSE 'scheduled' END,
           ready_at = CASE WHEN {now} + :quiet < created_at + :at_most THEN {now} + :quiet ELSE created_at + :at_most END,
           updated_at = {now}
     WHERE id = :id AND leased_at IS NULL AND state IN ('scheduled', 'ready', 'held')
""")

INSERT_SUCCESSOR = sql("""
    INSERT INTO stepfast_job (id, queue, kind, state, held_by, priority, ready_at, created_at, updated_at, unique_key, trace, payload)
    VALUES (:id, :queue, :kind, 'held', '(key)', :priority, COALESCE(:run_at, {now} + :delay), {now}, {now}, :key, :trace, {json_of:payload})
    {keep_existing}
""")


class KeyHolder(NamedTuple):
    """The job that holds a key."""

    id: str
    state: str
    cursor: str | None
    fence: int
    payload: str

    @property
    def has_begun(self) -> bool:
        """Whether a worker is at it, or was and will go on in the middle."""
        return self.cursor is not None or self.state == "leased"


def enqueue_merged(tx: Transaction, job: NewJob, policy: MergePolicy) -> Enqueued:
    """Store one job, or merge it into the one that holds its key, or into that one's successor."""
    assert job.key is not None  # noqa: S101 - without a key there is nothing to merge into
    for _ in range(TRIES):
        holder = _holder_or_new(tx, job, job.key)
        if holder is None:
            continue  # it ended between our insert and our look: the key is free now
        if holder.id == job.id:
            wake_workers(tx, job)
            return Enqueued(job.id, created=True)
        if not holder.has_begun:
            # One that waits for its next try may have a successor, which was asked for before us.
            successor = _lock_holder(tx, job.kind, SUCCESSOR_PREFIX + job.key)
            return _merge_into(tx, job, successor or holder, policy)
        successor = _successor_or_new(tx, job, SUCCESSOR_PREFIX + job.key)
        if successor is None:
            continue  # it has become the holder of the key itself
        if successor.id == job.id:
            when_committed(tx, "duplicate.deferred", job_id=job.id, kind=job.kind, queue=job.queue)
            return Enqueued(job.id, created=True)
        return _merge_into(tx, job, successor, policy)
    raise ContentionError(f"key {job.key!r} changed hands {TRIES} times while we looked; try again")


def enqueue_many_merged(
    tx: Transaction, like: NewJob, rows: Sequence[JobRow], policy: MergePolicy
) -> list[Enqueued]:
    """Store jobs of one kind in one statement; those whose keys are held, or have a successor, are merged one by one."""
    waited = keys_with_successor(tx, like.kind, [row[1] for row in rows if row[1] is not None])
    stored = enqueue_many(
        tx,
        like,
        [row for row in rows if row[1] not in waited],
        store=lambda job: enqueue_merged(tx, job, policy),
    )
    if not waited:
        return stored
    found = dict(zip((row[0] for row in rows if row[1] not in waited), stored, strict=True))
    for row in sorted((row for row in rows if row[1] in waited), key=lambda row: row[1] or ""):
        found[row[0]] = enqueue_merged(tx, replace(like, id=row[0], key=row[1], payload=row[2]), policy)
    return [found[row[0]] for row in rows]


def _holder_or_new(tx: Transaction, job: NewJob, key: str) -> KeyHolder | None:
    """The job that does the work of this key next: ours, if there is no other. Its row is locked, unless it has begun.

    A running job is not locked: its end must not wait for the caller's transaction. A successor whose turn has come, but
    which does not hold the key yet, comes before a new job: what was asked last must be done last.
    """
    holder = _look_at_holder(tx, job.kind, key)
    if holder is not None and holder.has_begun:
        return holder
    if holder is None:
        if (successor := _lock_holder(tx, job.kind, SUCCESSOR_PREFIX + key)) is not None:
            return successor
        insert_job(tx, job)
    return _lock_holder(tx, job.kind, key)


def _look_at_holder(tx: Transaction, kind: str, key: str) -> KeyHolder | None:
    return next(iter(tx.all(LOOK_AT_HOLDER, KeyHolder, key=key, kind=kind)), None)


def _lock_holder(tx: Transaction, kind: str, key: str) -> KeyHolder | None:
    return next(iter(tx.all(LOCK_HOLDER, KeyHolder, key=key, kind=kind)), None)


def _successor_or_new(tx: Transaction, job: NewJob, key: str) -> KeyHolder | None:
    """The one successor: ours, or that of a call that came before."""
    tx.run(
        INSERT_SUCCESSOR,
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
    return _lock_holder(tx, job.kind, key)


def _merge_into(tx: Transaction, job: NewJob, holder: KeyHolder, policy: MergePolicy) -> Enqueued:
    facts = {"id": holder.id, "was": holder.fence, "fence": new_fence(), "priority": job.priority}
    if tx.run(MERGE_CALL, **facts, payload=policy.merge(holder, job)) != 1:
        raise ContentionError(f"job {holder.id} began while we held it; try again")
    if policy.quiet is not None:
        tx.run(POSTPONE_HOLDER, id=holder.id, quiet=policy.quiet, at_most=policy.at_most)
    when_committed(tx, "duplicate.merged", job_id=holder.id, kind=job.kind, queue=job.queue)
    return Enqueued(holder.id, created=False)


# --- Successors take the key when its holder has ended.

# Successors whose key is free.
SUCCESSORS: Final = f"""
      FROM stepfast_job s
     WHERE s.held_by = '(key)' AND s.state = 'held'
       AND NOT EXISTS (SELECT 1 FROM stepfast_job h
                        WHERE h.unique_key = SUBSTR(s.unique_key, {len(SUCCESSOR_PREFIX) + 1}) AND h.kind = s.kind)
"""
FREE_SUCCESSORS = sql(f"""
    SELECT s.id, s.queue, s.unique_key {SUCCESSORS}
     ORDER BY s.priority DESC, s.ready_at, s.id
     LIMIT :limit
""")

PROMOTE_SUCCESSOR = sql(f"""
    UPDATE stepfast_job
       SET unique_key = :key, state = CASE WHEN ready_at > {{now}} THEN 'scheduled' ELSE {READY_STATE} END,
           held_by = NULL, updated_at = {{now}}
     WHERE id = :id AND state = 'held' AND held_by = '(key)'
""")


def free_successors(tx: Transaction, limit: int = BATCH) -> list[tuple[str, str, str]]:
    """Successors whose key is free: id, queue, and the key that waits for them."""
    return [
        (row[0], row[1], row[2].removeprefix(SUCCESSOR_PREFIX))
        for row in tx.rows(FREE_SUCCESSORS, limit=limit)
    ]


def promote_successor(tx: Transaction, job_id: str, queue: str, key: str) -> bool:
    """Let a successor be the holder of its key, and run; False if another call was faster."""
    try:
        with tx.savepoint():
            taken = tx.run(PROMOTE_SUCCESSOR, id=job_id, key=key) == 1
    except ConstraintError:
        return False
    if taken:
        tx.wakes.add(queue)
    return taken


def promote_successors(tx: Transaction) -> int:
    """Promote every successor whose turn it is, in one transaction; returns how many."""
    return sum(promote_successor(tx, *successor) for successor in free_successors(tx))
