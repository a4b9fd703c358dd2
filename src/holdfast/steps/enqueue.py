"""Ask for jobs, inside the caller's transaction: they exist when it commits, or never did."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from holdfast.clock import new_fence
from holdfast.database.statement import sql
from holdfast.errors import ContentionError, DuplicateKeyError
from holdfast.steps.job import EnqueuedJob, NewJob
from holdfast.steps.keys import remember

if TYPE_CHECKING:
    from holdfast.database.connection import Transaction

OnDuplicate = Literal["reject", "skip", "replace"]
TRIES = 5

ENQUEUE = sql("""
    INSERT INTO holdfast_job (id, queue, kind, state, priority, ready_at, created_at, updated_at, unique_key, payload)
    VALUES (:id, :queue, :kind, :state, :priority, COALESCE(:run_at, {now} + :delay), {now}, {now}, :key, :payload)
    {keep_existing}
""")

# Thousands in one statement. SQLite runs the row form in-process; PyMySQL joins the rows into one VALUES list.
ENQUEUE_MANY = sql(
    """
    INSERT INTO holdfast_job (id, queue, kind, state, priority, ready_at, created_at, updated_at, unique_key, payload)
    VALUES (:id, :queue, :kind, :state, :priority, COALESCE(:run_at, {now} + :delay), {now}, {now}, :key, :payload)
    {keep_existing}
    """,
    postgresql="""
    INSERT INTO holdfast_job (id, queue, kind, state, priority, ready_at, created_at, updated_at, unique_key, payload)
    SELECT new.id, :queue, :kind, :state, :priority, COALESCE(:run_at, {now} + :delay), {now}, {now}, new.key, CAST(new.payload AS JSON)
      FROM unnest(CAST(:ids AS TEXT[]), CAST(:keys AS TEXT[]), CAST(:payloads AS TEXT[])) AS new (id, key, payload)
    ON CONFLICT DO NOTHING
    """,
)

HOLDERS = sql("SELECT unique_key, id FROM holdfast_job WHERE unique_key {any_of:keys}")

# Whoever was running the old payload loses its fence, and is told so at its next word.
REPLACE = sql("""
    UPDATE holdfast_job
       SET queue = :queue, kind = :kind, payload = :payload, priority = :priority, state = :state,
           ready_at = COALESCE(:run_at, {now} + :delay), updated_at = {now}, fence = :fence, committed_fence = NULL,
           owner = NULL, leased_by = NULL, lease_until = NULL, cancel_at = NULL,
           step = 0, failures = 0, crashes = 0, cursor_json = NULL, progress = 0, progress_note = NULL,
           last_error = NULL, error_group = NULL
     WHERE unique_key = :key AND state IN ('scheduled', 'ready', 'suspect', 'leased')
""")


def enqueue(tx: Transaction, job: NewJob, on_duplicate: OnDuplicate = "reject") -> EnqueuedJob:
    """Store one job. A key that an unfinished (or remembered) job holds is met as `on_duplicate` says."""
    if job.key is not None and job.key_until is not None:
        holder = remember(tx, "unique", job.key, job.id, job.key_until)
        if holder != job.id:
            return _duplicate(job.key, holder, "skip" if on_duplicate == "replace" else on_duplicate)
    for _ in range(TRIES):
        _insert(tx, job)
        holder = job.id if job.key is None else _holders(tx, [job.key]).get(job.key)
        if holder == job.id:
            _wake(tx, job)
            return EnqueuedJob(job.id, created=True)
        if holder is not None and (on_duplicate != "replace" or _replace(tx, job)):
            return _duplicate(str(job.key), holder, on_duplicate)
        # The holder ended between our insert and our look: the key is free now.
    raise ContentionError(f"key {job.key!r} changed hands {TRIES} times while we looked; try again")


def _insert(tx: Transaction, job: NewJob) -> None:
    tx.run(
        ENQUEUE,
        id=job.id,
        queue=job.queue,
        kind=job.kind,
        state=_state(job),
        priority=job.priority,
        run_at=job.run_at,
        delay=job.delay,
        key=job.key,
        payload=job.payload,
    )


def enqueue_with_id(tx: Transaction, job: NewJob, keep: int) -> EnqueuedJob:
    """Store a job under an id the caller chose. The same id again is the same job, also long after it ended."""
    holder = remember(tx, "id", job.id, job.id, keep)
    if holder == job.id and not tx.first(KNOWN, id=job.id):
        return enqueue(tx, job, "skip")
    return EnqueuedJob(job.id, created=False)


KNOWN = sql("""
    SELECT id FROM holdfast_job WHERE id = :id UNION ALL SELECT id FROM holdfast_archive WHERE id = :id
""")


def enqueue_many(
    tx: Transaction, jobs: Sequence[NewJob], on_duplicate: OnDuplicate = "reject"
) -> list[EnqueuedJob]:
    """Store jobs of one kind, with the same options, in one statement; keys may differ."""
    if not jobs:
        return []
    first = jobs[0]
    shared = {
        "queue": first.queue,
        "kind": first.kind,
        "state": _state(first),
        "priority": first.priority,
        "run_at": first.run_at,
        "delay": first.delay,
    }
    # Sorted keys: two batches that share some would otherwise lock each other out.
    ordered = sorted(jobs, key=lambda job: job.key or "") if any(job.key for job in jobs) else jobs
    if tx.takes_lists:
        tx.run(
            ENQUEUE_MANY,
            **shared,
            ids=[job.id for job in ordered],
            keys=[job.key for job in ordered],
            payloads=[job.payload for job in ordered],
        )
    else:
        tx.run_many(
            ENQUEUE_MANY,
            [{**shared, "id": job.id, "key": job.key, "payload": job.payload} for job in ordered],
        )
    _wake(tx, first)
    keys = [job.key for job in jobs if job.key is not None]
    if not keys:
        return [EnqueuedJob(job.id, created=True) for job in jobs]
    holders = _holders(tx, keys)
    return [_settled(tx, job, holders, on_duplicate) for job in jobs]


def _settled(tx: Transaction, job: NewJob, holders: dict[str, str], on_duplicate: OnDuplicate) -> EnqueuedJob:
    if job.key is None or holders.get(job.key) == job.id:
        return EnqueuedJob(job.id, created=True)
    return enqueue(tx, job, on_duplicate)


def _holders(tx: Transaction, keys: list[str]) -> dict[str, str]:
    return {row[0]: row[1] for row in tx.rows(HOLDERS, keys=keys)}


def _replace(tx: Transaction, job: NewJob) -> bool:
    matched = tx.run(
        REPLACE,
        queue=job.queue,
        kind=job.kind,
        payload=job.payload,
        priority=job.priority,
        state=_state(job),
        run_at=job.run_at,
        delay=job.delay,
        fence=new_fence(),
        key=job.key,
    )
    _wake(tx, job)
    return matched == 1


def _duplicate(key: str, holder: str, on_duplicate: OnDuplicate) -> EnqueuedJob:
    if on_duplicate == "reject":
        raise DuplicateKeyError(key, holder)
    return EnqueuedJob(holder, created=False)


def _state(job: NewJob) -> str:
    return "scheduled" if job.delay or job.run_at is not None else "ready"


def _wake(tx: Transaction, job: NewJob) -> None:
    if _state(job) == "ready":
        tx.wakes.add(job.queue)
