"""Store jobs inside the caller's transaction: they exist when it commits, or never did.

`enqueue` stores one, `enqueue_many` thousands in one statement, `enqueue_with_id` one under an id that the caller chose.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from stepfast.clock import new_fence, new_id
from stepfast.database.statement import sql
from stepfast.encryption import handed_over
from stepfast.errors import ContentionError, DuplicateIdError, StepfastError
from stepfast.jobs.keys import (
    SUCCESSOR_PREFIX,
    TRIES,
    DuplicatePolicy,
    drop_successor,
    first_in_line,
    hand_over_key,
    keys_with_successor,
    release_key,
    remember_key,
    remembered_kind,
    report_duplicate,
)
from stepfast.jobs.payload import to_json
from stepfast.jobs.state import Enqueued, NewJob

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from stepfast.database.connection import Transaction
    from stepfast.database.database import Database
    from stepfast.jobs.groups import OpenGroup


StoreJob = Callable[[NewJob], Enqueued]  # another way to store a job whose key may be held
JobRow = tuple[str, str | None, str]  # id, key, payload
# Characters of payload in one statement: by default MariaDB refuses packets above 16 MB.
PORTION: Final = 2_000_000

# The group whose block we are in. Here, because every enqueue asks for it; the rest of groups most programs do without.
OPEN_GROUP: Final[ContextVar[OpenGroup | None]] = ContextVar("stepfast_group", default=None)


def open_group(database: Database) -> OpenGroup | None:
    """The group whose block we are in, if any."""
    group = OPEN_GROUP.get()
    return None if group is None or group.closed or group.database is not database else group


INSERT_JOB = sql("""
    INSERT INTO stepfast_job (id, queue, kind, state, priority, ready_at, created_at, updated_at, unique_key, trace, payload)
    VALUES (:id, :queue, :kind, :state, :priority, COALESCE(:run_at, {now} + :delay), {now}, {now}, :key, :trace, {json_of:payload})
    {keep_existing}
""")


def enqueue(tx: Transaction, job: NewJob, on_duplicate: DuplicatePolicy = "reject") -> Enqueued:
    """Store one job. If an unfinished (or remembered) job holds its key, `on_duplicate` decides."""
    if job.key is not None:
        return _enqueue_keyed(tx, job, job.key, on_duplicate)
    insert_job(tx, job)
    wake_workers(tx, job)
    return Enqueued(job.id, created=True)


def insert_job(tx: Transaction, job: NewJob) -> None:
    """Insert one row, unless its key is held."""
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


def wake_workers(tx: Transaction, job: NewJob) -> None:
    """Wake the workers of its queue when this commits, if the job may begin at once."""
    if _state(job) == "ready" and not job.head_start:
        tx.wakes.add(job.queue)


def _state(job: NewJob) -> str:
    if job.waits:
        return "waiting"
    return "scheduled" if job.delay or job.run_at is not None else "ready"


# --- A job with a key.

KEY_HOLDERS = sql("SELECT unique_key, id FROM stepfast_job WHERE unique_key {any_of:keys} AND kind = :kind")
# A lent transaction of MariaDB's may look at the past (REPEATABLE READ), where the holder is not yet there.
KEY_HOLDERS_NOW = sql("""
    SELECT unique_key, id FROM stepfast_job WHERE unique_key {any_of:keys} AND kind = :kind {for_update}
""")

# A worker that runs the old payload loses its fence, and learns it at its next write. Step numbers go on rising:
# services outside must not take the new payload for a repetition of the old one.
REPLACE_JOB = sql("""
    UPDATE stepfast_job
       SET queue = :queue, payload = {json_of:payload}, priority = :priority, state = :state,
           ready_at = COALESCE(:run_at, {now} + :delay), updated_at = {now}, fence = :fence, committed_fence = NULL,
           owner = NULL, leased_by = NULL, lease_until = NULL, cancel_at = NULL, held_by = NULL,
           step = step + 1, failures = 0, crashes = 0, cursor_json = NULL, progress = 0, progress_note = NULL,
           last_error = NULL, error_group = NULL, trace = :trace
     WHERE id = :id AND unique_key = :key AND kind = :kind
       AND state IN ('scheduled', 'ready', 'suspect', 'leased', 'held', 'waiting')
""")


def _enqueue_keyed(tx: Transaction, job: NewJob, key: str, on_duplicate: DuplicatePolicy) -> Enqueued:
    if job.key_until is not None:
        remembered = remember_key(tx, *_memory(job, key), job.id, job.key_until, window=job.key_window)
        if remembered != job.id:
            return _meet_remembered(tx, job, key, remembered, on_duplicate)
    for again in range(TRIES):
        insert_job(tx, job)
        holders = _holders(tx, job.kind, [key, SUCCESSOR_PREFIX + key], now=again > 0)
        holder = holders.get(key)
        if holder == job.id and SUCCESSOR_PREFIX + key in holders:
            holder = first_in_line(tx, job, key, on_duplicate)
        if holder == job.id:
            wake_workers(tx, job)
            return Enqueued(job.id, created=True)
        if holder is not None and (on_duplicate != "replace" or _replace(tx, job, holder)):
            if job.key_until is not None:
                hand_over_key(tx, *_memory(job, key), job.id, holder)
            return report_duplicate(tx, job, key, holder, on_duplicate)
        # The holder ended between our insert and our look: the key is free now.
    if job.key_until is not None:
        release_key(tx, *_memory(job, key), job.id)
    raise ContentionError(f"key {key!r} changed hands {TRIES} times while we looked; try again")


def _memory(job: NewJob, key: str) -> tuple[str, str]:
    """The scope and the name under which the key is remembered; no kind has a space in its name."""
    return "unique", f"{job.kind} {key}"


def _meet_remembered(
    tx: Transaction, job: NewJob, key: str, remembered: str, on_duplicate: DuplicatePolicy
) -> Enqueued:
    """A key whose time is not over: an unfinished job with it may be replaced, one that ended stays."""
    if on_duplicate != "replace":
        return report_duplicate(tx, job, key, remembered, on_duplicate)
    holder = _holders(tx, job.kind, [key]).get(key)
    if holder is not None and _replace(tx, job, holder):
        return report_duplicate(tx, job, key, holder, on_duplicate)
    return report_duplicate(tx, job, key, remembered, "skip")


def _holders(tx: Transaction, kind: str, keys: list[str], *, now: bool = False) -> dict[str, str]:
    found = tx.rows(KEY_HOLDERS_NOW if now else KEY_HOLDERS, keys=keys, kind=kind)
    return {row[0]: row[1] for row in found}


def _replace(tx: Transaction, job: NewJob, holder: str) -> bool:
    """Give the holder of the key the new payload; False if it ended meanwhile."""
    matched = tx.run(
        REPLACE_JOB,
        id=holder,
        queue=job.queue,
        kind=job.kind,
        payload=handed_over(job.payload, f"payload of {job.kind}", job.id, holder),
        priority=job.priority,
        state=_state(job),
        run_at=job.run_at,
        delay=job.delay,
        fence=new_fence(),
        key=job.key,
        trace=job.trace,
    )
    if matched == 1:
        from stepfast.jobs.dependencies import drop_edges  # few programs replace

        drop_edges(tx, job.kind, str(job.key))
        drop_successor(tx, job.kind, str(job.key))
    wake_workers(tx, job)
    return matched == 1


# --- A job under an id that the caller chose.

KNOWN_JOBS = sql("""
    SELECT id, kind FROM stepfast_job WHERE id {any_of:ids} UNION ALL SELECT id, kind FROM stepfast_archive WHERE id {any_of:ids}
""")


def enqueue_with_id(
    tx: Transaction,
    job: NewJob,
    keep: int,
    on_duplicate: DuplicatePolicy = "reject",
    store: StoreJob | None = None,
) -> Enqueued:
    """Store a job under an id the caller chose. The same id again is the same job, also long after it ended.

    Ids are those of all kinds: the id of another kind's job is refused, since that job does not do this one's work. An id whose key another job holds is not remembered, unless that job was given our payload. With `store`, that stores
    the job instead of `enqueue`.
    """
    mine = new_id()  # the job's id is the same in all calls, and could not tell which of them came first
    remembered = remember_key(tx, "id", job.id, mine, keep, kind=job.kind)
    candidates = [job.id] if remembered == mine else [remembered, job.id]
    known = {row[0]: row[1] for row in tx.rows(KNOWN_JOBS, ids=candidates)}
    if known or remembered != mine:
        holder = (
            remembered if remembered in known else job.id
        )  # another job that was given our payload, or this one
        kind = known.get(holder) or remembered_kind(tx, "id", job.id)
        if kind is not None and kind != job.kind:
            if remembered == mine:
                release_key(tx, "id", job.id, mine)
            raise DuplicateIdError(job.id, kind, job.kind)
        return report_duplicate(tx, job, job.id, holder, "skip")
    try:
        stored = enqueue(tx, job, on_duplicate) if store is None else store(job)
    except StepfastError:
        if tx.poisoned is None:
            release_key(tx, "id", job.id, mine)
        raise
    if not stored.created:
        if on_duplicate == "replace" or store is not None:
            hand_over_key(tx, "id", job.id, mine, stored.id)
        else:
            release_key(tx, "id", job.id, mine)
    return stored


# --- Thousands in one statement: the rows travel as one document, or as lists where the driver takes them.
# (PyMySQL joins rows into one VALUES list only if every value is a bare parameter; 5,000 jobs as a document take
# MariaDB 0.08 s against 0.5, SQLite 0.013 s against 0.028 for its own executemany.)

_INSERT_JOBS = """
    INSERT INTO stepfast_job (id, queue, kind, state, priority, ready_at, created_at, updated_at, unique_key, trace, payload)
    SELECT {row}, :queue, :kind, :state, :priority, COALESCE(:run_at, {{now}} + :delay), {{now}}, {{now}}, {key}, :trace, {payload}
      FROM {source}
"""
INSERT_JOBS = sql(
    _INSERT_JOBS.format(
        row="json_extract(value, '$[0]')",
        key="json_extract(value, '$[1]')",
        payload="json_extract(value, '$[2]')",
        source="json_each(:rows) WHERE true",
    )
    + " ON CONFLICT DO NOTHING",
    postgresql=_INSERT_JOBS.format(
        row="new.id",
        key="new.key",
        payload="CAST(new.payload AS JSON)",
        source="unnest(CAST(:ids AS TEXT[]), CAST(:keys AS TEXT[]), CAST(:payloads AS TEXT[])) AS new (id, key, payload)",
    )
    + " ON CONFLICT DO NOTHING",
    mariadb=_INSERT_JOBS.format(
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


def enqueue_many(
    tx: Transaction,
    like: NewJob,
    rows: Sequence[JobRow],
    on_duplicate: DuplicatePolicy = "reject",
    store: StoreJob | None = None,
) -> list[Enqueued]:
    """Store jobs of one kind, with the options of `like`, in one statement; keys may differ.

    Jobs whose keys are held are stored one by one: by `store`, or as `on_duplicate` decides.
    """
    if not rows:
        return []
    keys = [row[1] for row in rows if row[1] is not None]
    # Sorted keys: two batches that share some would otherwise lock each other out.
    ordered = sorted(rows, key=lambda row: row[1] or "") if keys else rows
    for portion in _portions(ordered):
        _insert_jobs(tx, like, portion, keyless=not keys)
    wake_workers(tx, like)
    if not keys:
        new = tuple.__new__  # what Enqueued(…) does in the end, without its Python
        return [new(Enqueued, (row[0], True, False)) for row in rows]
    holders = _holders(tx, like.kind, keys)
    for key in () if store is not None else keys_with_successor(tx, like.kind, keys):
        holders.pop(key, None)  # `enqueue` finds the one that is first in line
    one_by_one = store or (lambda job: enqueue(tx, job, on_duplicate))
    # In their order: they lock too.
    stored = {row[0]: _stored(like, row, holders, one_by_one) for row in ordered}
    return [stored[row[0]] for row in rows]


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


def _insert_jobs(tx: Transaction, like: NewJob, rows: Sequence[JobRow], *, keyless: bool) -> None:
    shared = {
        "queue": like.queue,
        "kind": like.kind,
        "state": _state(like),
        "priority": like.priority,
        "run_at": like.run_at,
        "delay": like.delay + like.head_start,
        "trace": like.trace,
    }
    if not tx.takes_columns:
        tx.run(INSERT_JOBS, **shared, rows=to_json(rows))
        return
    ids, keys, payloads = (list(column) for column in zip(*rows, strict=True))
    if keyless:
        tx.run(INSERT_KEYLESS_JOBS, **shared, ids=ids, payloads=payloads)
    else:
        tx.run(INSERT_JOBS, **shared, ids=ids, keys=keys, payloads=payloads)


def _stored(like: NewJob, row: JobRow, holders: dict[str, str], store: StoreJob) -> Enqueued:
    """The job of this row, if it holds its key; else whatever `store` makes of it."""
    job_id, key, payload = row
    if key is None or holders.get(key) == job_id:
        return Enqueued(job_id, created=True)
    return store(replace(like, id=job_id, key=key, payload=payload))
