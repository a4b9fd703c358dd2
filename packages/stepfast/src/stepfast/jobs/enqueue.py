"""Ask for jobs, inside the caller's transaction: they exist when it commits, or never did."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from stepfast.clock import new_fence, new_id
from stepfast.database.statement import sql
from stepfast.errors import ContentionError, StepfastError
from stepfast.jobs.dependencies import drop_edges
from stepfast.jobs.keys import (
    SUCCESSOR_PREFIX,
    DuplicatePolicy,
    drop_successor,
    first_in_line,
    hand_over_key,
    keys_with_successor,
    release_key,
    remember_key,
    report_duplicate,
)
from stepfast.jobs.payload import to_json
from stepfast.jobs.state import Enqueued, NewJob

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from stepfast.database.connection import Transaction


StoreJob = Callable[[NewJob], Enqueued]  # another way to store a job whose key may be held
TRIES = 5
PORTION = 2_000_000  # characters of payload in one statement: by default MariaDB refuses packets above 16 MB

INSERT_JOB = sql("""
    INSERT INTO stepfast_job (id, queue, kind, state, priority, ready_at, created_at, updated_at, unique_key, trace, payload)
    VALUES (:id, :queue, :kind, :state, :priority, COALESCE(:run_at, {now} + :delay), {now}, {now}, :key, :trace, {json_of:payload})
    {keep_existing}
""")

# Thousands in one statement: the rows travel as one document, or as lists where the driver takes them.
# (PyMySQL joins rows into one VALUES list only if every value is a bare parameter; 5,000 jobs as a document take
# MariaDB 0.08 s against 0.5, SQLite 0.013 s against 0.028 for its own executemany.)
_ENQUEUE_MANY = """
    INSERT INTO stepfast_job (id, queue, kind, state, priority, ready_at, created_at, updated_at, unique_key, trace, payload)
    SELECT {row}, :queue, :kind, :state, :priority, COALESCE(:run_at, {{now}} + :delay), {{now}}, {{now}}, {key}, :trace, {payload}
      FROM {source}
"""
INSERT_JOBS = sql(
    _ENQUEUE_MANY.format(
        row="json_extract(value, '$[0]')",
        key="json_extract(value, '$[1]')",
        payload="json_extract(value, '$[2]')",
        source="json_each(:rows) WHERE true",
    )
    + " ON CONFLICT DO NOTHING",
    postgresql=_ENQUEUE_MANY.format(
        row="new.id",
        key="new.key",
        payload="CAST(new.payload AS JSON)",
        source="unnest(CAST(:ids AS TEXT[]), CAST(:keys AS TEXT[]), CAST(:payloads AS TEXT[])) AS new (id, key, payload)",
    )
    + " ON CONFLICT DO NOTHING",
    mariadb=_ENQUEUE_MANY.format(
        row="new.id",
        key="new.unique_key",
        payload="new.payload",
        source="JSON_TABLE(:rows, '$[*]' COLUMNS (id VARCHAR(128) PATH '$[0]', unique_key VARCHAR(128) PATH '$[1]', payload LONGTEXT PATH '$[2]')) AS new",
    )
    + " ON DUPLICATE KEY UPDATE id = stepfast_job.id",
)

# Without keys nothing can collide, and a speculative insert (ON CONFLICT) costs a fifth more. The scalar subqueries make
# PostgreSQL take the time once, not three times for every row: 4.8 µs a job against 7.8.
INSERT_KEYLESS_JOBS = sql(
    "",
    postgresql="""
    INSERT INTO stepfast_job (id, queue, kind, state, priority, ready_at, created_at, updated_at, trace, payload)
    SELECT new.id, :queue, :kind, :state, :priority, COALESCE(:run_at, (SELECT {now}) + :delay), (SELECT {now}), (SELECT {now}),
           CAST(:trace AS TEXT), CAST(new.payload AS JSON)
      FROM unnest(CAST(:ids AS TEXT[]), CAST(:payloads AS TEXT[])) AS new (id, payload)
""",
)

KEY_HOLDERS = sql("SELECT unique_key, id FROM stepfast_job WHERE unique_key {any_of:keys}")
# A lent transaction of MariaDB's may look at the past (REPEATABLE READ), where the holder is not yet there.
KEY_HOLDERS_NOW = sql("SELECT unique_key, id FROM stepfast_job WHERE unique_key {any_of:keys} {for_update}")

# Whoever was running the old payload loses its fence, and is told so at its next word. Step numbers go on rising:
# services outside must not take the new payload for a repetition of the old one.
REPLACE_JOB = sql("""
    UPDATE stepfast_job
       SET queue = :queue, kind = :kind, payload = {json_of:payload}, priority = :priority, state = :state,
           ready_at = COALESCE(:run_at, {now} + :delay), updated_at = {now}, fence = :fence, committed_fence = NULL,
           owner = NULL, leased_by = NULL, lease_until = NULL, cancel_at = NULL, held_by = NULL,
           step = step + 1, failures = 0, crashes = 0, cursor_json = NULL, progress = 0, progress_note = NULL,
           last_error = NULL, error_group = NULL, trace = :trace
     WHERE unique_key = :key AND state IN ('scheduled', 'ready', 'suspect', 'leased', 'held', 'waiting')
""")


def enqueue(tx: Transaction, job: NewJob, on_duplicate: DuplicatePolicy = "reject") -> Enqueued:
    """Store one job. A key that an unfinished (or remembered) job holds is met as `on_duplicate` says."""
    if job.key is not None and job.key_until is not None:
        remembered = remember_key(tx, "unique", job.key, job.id, job.key_until, window=job.key_window)
        if remembered != job.id:
            return _remembered(tx, job, job.key, remembered, on_duplicate)
    for again in range(TRIES):
        insert_job(tx, job)
        found = {} if job.key is None else _holders(tx, [job.key, SUCCESSOR_PREFIX + job.key], now=again > 0)
        holder = found.get(job.key or "")
        if job.key is not None and holder == job.id and SUCCESSOR_PREFIX + job.key in found:
            holder = first_in_line(tx, job.id, job.key, on_duplicate)
        if job.key is None or holder == job.id:
            wake_workers(tx, job)
            return Enqueued(job.id, created=True)
        if holder is not None and (on_duplicate != "replace" or _replace(tx, job)):
            if job.key_until is not None:
                hand_over_key(tx, "unique", job.key, job.id, holder)
            return report_duplicate(job, job.key, holder, on_duplicate)
        # The holder ended between our insert and our look: the key is free now.
    if job.key is not None and job.key_until is not None:
        release_key(tx, "unique", job.key, job.id)
    raise ContentionError(f"key {job.key!r} changed hands {TRIES} times while we looked; try again")


def _remembered(
    tx: Transaction, job: NewJob, key: str, remembered: str, on_duplicate: DuplicatePolicy
) -> Enqueued:
    """The key's time is not over. Replacing is possible while a job with it is unfinished; one that ended stays."""
    if on_duplicate != "replace":
        return report_duplicate(job, key, remembered, on_duplicate)
    holder = _holders(tx, [key]).get(key)
    replaced = holder is not None and _replace(tx, job)
    if holder is not None and replaced:
        return report_duplicate(job, key, holder, on_duplicate)
    return report_duplicate(job, key, remembered, "skip")


def insert_job(tx: Transaction, job: NewJob) -> None:
    """One row, unless its key is held."""
    tx.run(
        INSERT_JOB,
        id=job.id,
        queue=job.queue,
        kind=job.kind,
        state=_state(job),
        priority=job.priority,
        run_at=job.run_at,
        delay=job.delay + job.head_start,
        key=job.key,
        trace=job.trace,
        payload=job.payload,
    )


def enqueue_with_id(
    tx: Transaction,
    job: NewJob,
    keep: int,
    on_duplicate: DuplicatePolicy = "reject",
    join: StoreJob | None = None,
) -> Enqueued:
    """Store a job under an id the caller chose. The same id again is the same job, also long after it ended.

    An id whose key another job holds is not remembered, unless that job was given our payload.
    """
    mine = new_id()  # the job's id would be the same for all who ask, and could not tell who came first
    remembered = remember_key(tx, "id", job.id, mine, keep)
    if remembered != mine:
        return report_duplicate(job, job.id, tx.first(KNOWN_JOB, id=remembered) or job.id, "skip")
    if tx.first(KNOWN_JOB, id=job.id):
        return report_duplicate(job, job.id, job.id, "skip")
    try:
        answer = enqueue(tx, job, on_duplicate) if join is None else join(job)
    except StepfastError:
        if tx.poisoned is None:
            release_key(tx, "id", job.id, mine)
        raise
    if not answer.created:
        if on_duplicate == "replace" or join is not None:
            hand_over_key(tx, "id", job.id, mine, answer.id)
        else:
            release_key(tx, "id", job.id, mine)
    return answer


KNOWN_JOB = sql("""
    SELECT id FROM stepfast_job WHERE id = :id UNION ALL SELECT id FROM stepfast_archive WHERE id = :id
""")


JobRow = tuple[str, str | None, str]  # id, key, payload


def enqueue_many(
    tx: Transaction,
    like: NewJob,
    rows: Sequence[JobRow],
    on_duplicate: DuplicatePolicy = "reject",
    join: StoreJob | None = None,
) -> list[Enqueued]:
    """Store jobs of one kind, with the options of `like`, in one statement; keys may differ.

    Those whose keys are held are met as `on_duplicate` says, or are given to `join`.
    """
    if not rows:
        return []
    keys = [row[1] for row in rows if row[1] is not None]
    # Sorted keys: two batches that share some would otherwise lock each other out.
    ordered = sorted(rows, key=lambda row: row[1] or "") if keys else rows
    for portion in _portions(ordered):
        _insert_many(tx, like, portion, keyless=not keys)
    wake_workers(tx, like)
    if not keys:
        new = tuple.__new__  # what Enqueued(…) does in the end, without its Python
        return [new(Enqueued, (row[0], True, False)) for row in rows]
    holders = _holders(tx, keys)
    for key in () if join is not None else keys_with_successor(tx, keys):
        holders.pop(key, None)  # whoever is first in that line
    store = join or (lambda job: enqueue(tx, job, on_duplicate))
    # In their order: they lock too.
    settled = {row[0]: _settled(like, row, holders, store) for row in ordered}
    return [settled[row[0]] for row in rows]


def _portions(rows: Sequence[JobRow]) -> Iterator[Sequence[JobRow]]:
    if sum(len(row[2]) for row in rows) <= PORTION:
        yield rows
        return
    portion: list[JobRow] = []
    size = 0
    for row in rows:
        if portion and size + len(row[2]) > PORTION:
            yield portion
            portion, size = [], 0
        portion.append(row)
        size += len(row[2])
    yield portion


def _insert_many(tx: Transaction, like: NewJob, rows: Sequence[JobRow], *, keyless: bool) -> None:
    shared = {
        "queue": like.queue,
        "kind": like.kind,
        "state": _state(like),
        "priority": like.priority,
        "run_at": like.run_at,
        "delay": like.delay + like.head_start,
        "trace": like.trace,
    }
    if not tx.takes_lists:
        tx.run(INSERT_JOBS, **shared, rows=to_json(rows))
        return
    ids, keys, payloads = (list(column) for column in zip(*rows, strict=True))
    if keyless:
        tx.run(INSERT_KEYLESS_JOBS, **shared, ids=ids, payloads=payloads)
    else:
        tx.run(INSERT_JOBS, **shared, ids=ids, keys=keys, payloads=payloads)


def _settled(like: NewJob, row: JobRow, holders: dict[str, str], store: StoreJob) -> Enqueued:
    job_id, key, payload = row
    if key is None or holders.get(key) == job_id:
        return Enqueued(job_id, created=True)
    return store(replace(like, id=job_id, key=key, payload=payload))


def _holders(tx: Transaction, keys: list[str], *, now: bool = False) -> dict[str, str]:
    return {row[0]: row[1] for row in tx.rows(KEY_HOLDERS_NOW if now else KEY_HOLDERS, keys=keys)}


def _replace(tx: Transaction, job: NewJob) -> bool:
    matched = tx.run(
        REPLACE_JOB,
        queue=job.queue,
        kind=job.kind,
        payload=job.payload,
        priority=job.priority,
        state=_state(job),
        run_at=job.run_at,
        delay=job.delay,
        fence=new_fence(),
        key=job.key,
        trace=job.trace,
    )
    if matched == 1:
        drop_edges(tx, str(job.key))
        drop_successor(tx, str(job.key))
    wake_workers(tx, job)
    return matched == 1


def _state(job: NewJob) -> str:
    if job.waits:
        return "waiting"
    return "scheduled" if job.delay or job.run_at is not None else "ready"


def wake_workers(tx: Transaction, job: NewJob) -> None:
    """Tell the workers of its queue when this commits, if it may begin at once."""
    if _state(job) == "ready" and not job.head_start:
        tx.wakes.add(job.queue)
