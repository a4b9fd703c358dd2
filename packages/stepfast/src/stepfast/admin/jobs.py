"""Jobs: list them, show everything about one, retry and cancel it, alone or with the tree of jobs after it.

Each action is a guarded statement, and is recorded in its own transaction: see `audit`. One that is refused raises an
error that names the state of the job, changes nothing and leaves no record. How an ended job is revived is in
`jobs/dead_letters.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from stepfast.admin.audit import Actor, actor_or_default, record
from stepfast.admin.rows import reader
from stepfast.clock import moment
from stepfast.database.statement import sql
from stepfast.database.stored import stored_document, stored_state
from stepfast.encryption import ENCRYPTED, is_sealed, opened
from stepfast.errors import ContentionError, NotFoundError, StateError
from stepfast.jobs import dead_letters
from stepfast.jobs.cancel import cancel_jobs
from stepfast.jobs.payload import to_json
from stepfast.jobs.state import ENDED, LIVE, JobState
from stepfast.jobs.wait import cursor_and_wait
from stepfast.suspects import READY_STATE
from stepfast.telemetry.masking import masked_document, without_secrets

if TYPE_CHECKING:
    from collections.abc import Collection
    from datetime import datetime

    from stepfast.database.connection import Transaction


MOST_OF_TREE: Final = 1_000  # jobs of one tree that are shown


@dataclass(frozen=True)
class JobSummary:
    """A job in one line."""

    id: str
    state: JobState
    kind: str
    queue: str
    priority: int
    key: str | None
    step: int
    attempts: int  # of its current step: failures and crashes, and the try that runs or succeeded
    failures: int
    crashes: int
    progress: int
    progress_note: str | None
    created_at: datetime
    ready_at: datetime
    leased_at: datetime | None  # when its latest lease began
    finished_at: datetime | None
    locked_by: str | None
    locked_until: datetime | None
    cancel_at: datetime | None  # when an operator asked it to stop while it was leased
    error_group: str | None
    last_error: str | None


@dataclass(frozen=True)
class LogLine:
    """A line of the job's log: written by its handler, or about what an operator did."""

    at: datetime
    level: str
    step: int
    message: str


@dataclass(frozen=True)
class Relative:
    """Another job, and the edge to it."""

    id: str
    state: str
    kind: str | None
    bond: str  # "after", or "member" of the group whose completion job is the child
    edge: str  # "open": the child waits. "met": it need not. "broken": the child ended because of the parent
    on_dead: str


@dataclass(frozen=True)
class TreeLine:
    """One job of a tree, in the order in which it is shown."""

    depth: int
    id: str
    state: str
    kind: str | None
    bond: str | None  # to the one above it; None: the job that was asked for
    edge: str | None
    on_dead: str | None
    again: bool = False  # it was shown above, with what comes after it


@dataclass(frozen=True)
class JobDetail:
    """A job with everything that is stored about it."""

    job: JobSummary
    payload: Any
    cursor: Any
    result: Any
    result_expired_at: datetime | None  # its result was kept until then
    logs: tuple[LogLine, ...]  # newest last
    parents: tuple[Relative, ...]  # what it comes after, the first hundred
    children: tuple[Relative, ...]  # what comes after it
    waits_for: str | None = None  # the event that a scheduled job waits for, until `ready_at`


@dataclass(frozen=True)
class TreeStopped:
    """What became of a tree that was cancelled."""

    state: JobState  # of the job that was named
    ended: int
    asked: int  # run, and were asked to stop


@dataclass(frozen=True)
class TreeRevived:
    """What became of a tree that was revived."""

    state: JobState  # of the job that was named
    revived: int


# Look

_LIVE_COLUMNS = """
    j.id, j.state, j.kind, j.queue, j.priority, j.unique_key, j.step,
    j.failures + j.crashes + CASE j.state WHEN 'leased' THEN 1 ELSE 0 END, j.failures, j.crashes, j.progress, j.progress_note,
    j.created_at, j.ready_at, j.leased_at, NULL,
    CASE j.state WHEN 'leased' THEN COALESCE(j.leased_by, w.worker_id) END,
    CASE j.state WHEN 'leased' THEN COALESCE(j.lease_until, w.alive_until) END,
    j.cancel_at, j.error_group, j.last_error
"""
ENDED_COLUMNS = """
    id, state, kind, queue, priority, unique_key, step,
    failures + crashes + CASE state WHEN 'done' THEN 1 ELSE 0 END, failures, crashes, progress, progress_note,
    created_at, ready_at, leased_at, finished_at, NULL, NULL, NULL, error_group, last_error
"""
_FILTER = """
    (:any_kind = 1 OR kind = :kind) AND (:any_queue = 1 OR queue = :queue) AND (:any_id = 1 OR id < :before)
"""

LIST_LIVE = sql(f"""
    SELECT {_LIVE_COLUMNS}
      FROM stepfast_job j LEFT JOIN stepfast_worker w ON w.incarnation = j.owner
     WHERE j.state {{any_of:states}} AND {_FILTER}
     ORDER BY j.id DESC LIMIT :limit
""")
LIST_ENDED = sql(f"""
    SELECT {ENDED_COLUMNS} FROM stepfast_archive
     WHERE state {{any_of:states}} AND {_FILTER}
     ORDER BY id DESC LIMIT :limit
""")

SHOW_LIVE = sql(f"""
    SELECT {_LIVE_COLUMNS}, j.payload, j.cursor_json, NULL, NULL
      FROM stepfast_job j LEFT JOIN stepfast_worker w ON w.incarnation = j.owner
     WHERE j.id = :id
""")
SHOW_ENDED = sql(f"""
    SELECT {ENDED_COLUMNS}, payload, cursor_json, result, result_expired_at FROM stepfast_archive WHERE id = :id
""")

JOB_LOGS = sql(
    "SELECT at, level, step, message FROM stepfast_log WHERE job_id = :id ORDER BY id DESC LIMIT :limit"
)

read_summary = reader(JobSummary, state=JobState)


def list_jobs(
    tx: Transaction,
    states: Collection[JobState] = (),
    *,
    kind: str | None = None,
    queue: str | None = None,
    limit: int = 50,
    before: str | None = None,
) -> list[JobSummary]:
    """Jobs in any of `states` (none given: all), newest id first; `before` is the last id of the page before."""
    wanted = set(states) or {*LIVE, *ENDED}
    filters = {
        "kind": kind,
        "any_kind": int(kind is None),
        "queue": queue,
        "any_queue": int(queue is None),
        "before": before,
        "any_id": int(before is None),
        "limit": limit,
    }
    found: dict[str, JobSummary] = {}
    # The archive second: a job that ends between the two looks is seen twice, and its end is what counts.
    for statement, among in ((LIST_LIVE, LIVE), (LIST_ENDED, ENDED)):
        if chosen := [state.value for state in among if state in wanted]:
            found |= {job.id: job for job in tx.all(statement, read_summary, **filters, states=chosen)}
    return sorted(found.values(), key=lambda job: job.id, reverse=True)[:limit]


def show_job(tx: Transaction, job_id: str, *, logs: int = 100, decrypt: bool = False) -> JobDetail:
    """Everything about one job, with the newest `logs` lines of its log."""
    # Twice: a job that is revived between the two looks has left the archive before we ask it.
    for statement in (SHOW_LIVE, SHOW_ENDED, SHOW_LIVE):
        if rows := tx.rows(statement, id=job_id):
            *columns, payload, cursor, result, expired_at = rows[0]
            job = read_summary(*columns)
            position, event = cursor_and_wait(cursor)
            return JobDetail(
                job,
                shown(payload, f"payload of {job.kind}", job_id, decrypt=decrypt),
                shown(position, f"cursor of {job.kind}", job_id, decrypt=decrypt),
                shown(result, f"result of {job.kind}", job_id, decrypt=decrypt),
                None if expired_at is None else moment(expired_at),
                _logs(tx, job_id, logs),
                tuple(parents_of(tx, job_id)),
                tuple(children_of(tx, job_id)),
                event if job.state is JobState.SCHEDULED else None,
            )
    raise no_job(job_id)


def no_job(job_id: str) -> NotFoundError:
    return NotFoundError(f"there is no job {job_id}; finished jobs are forgotten after their retention time")


def _logs(tx: Transaction, job_id: str, limit: int) -> tuple[LogLine, ...]:
    return tuple(reversed(tx.all(JOB_LOGS, reader(LogLine, at=moment), id=job_id, limit=limit)))


def shown(stored: str | None, purpose: str, owner: str, *, decrypt: bool = False) -> Any:
    """A payload, cursor, result or event as it may be shown: masked; if it is encrypted, only with `decrypt`."""
    if stored is None:
        return None
    if is_sealed(stored):
        if not decrypt:
            return ENCRYPTED
        stored = opened(stored, purpose, owner)
    return masked_document(stored_document(stored))


def shown_text(stored: str) -> str:
    """A stored text as it may be shown, unchanged where nothing in it is hidden: that of a JSON document, or any other."""
    if is_sealed(stored):
        return ENCRYPTED
    document = stored_document(stored)
    if document is stored:
        return without_secrets(stored)
    masked = masked_document(document)
    return stored if masked == document else to_json(masked)


_RELATIVES = """
    SELECT d.{other}, COALESCE(j.state, a.state, 'forgotten'), COALESCE(j.kind, a.kind), d.bond, d.state, d.on_dead
      FROM stepfast_dependency d LEFT JOIN stepfast_job j ON j.id = d.{other}
           LEFT JOIN stepfast_archive a ON a.id = d.{other}
     WHERE d.{own} = :id {which}
     ORDER BY d.{other} LIMIT :limit
"""
JOB_PARENTS = sql(_RELATIVES.format(other="parent_id", own="child_id", which=""))
GROUP_MEMBERS = sql(_RELATIVES.format(other="parent_id", own="child_id", which="AND d.bond = 'member'"))
JOB_CHILDREN = sql(_RELATIVES.format(other="child_id", own="parent_id", which=""))
STATE_AND_KIND = sql("""
    SELECT state, kind FROM stepfast_job WHERE id = :id UNION ALL SELECT state, kind FROM stepfast_archive WHERE id = :id
""")

_read_relative = reader(Relative)


def parents_of(tx: Transaction, job_id: str, limit: int = 100) -> list[Relative]:
    """The jobs that a job comes after."""
    return tx.all(JOB_PARENTS, _read_relative, id=job_id, limit=limit)


def children_of(tx: Transaction, job_id: str, limit: int = 100) -> list[Relative]:
    """The jobs that come after a job."""
    return tx.all(JOB_CHILDREN, _read_relative, id=job_id, limit=limit)


def tree_of(tx: Transaction, job_id: str, limit: int = MOST_OF_TREE) -> list[TreeLine]:
    """A job and all jobs after it, of a group also its members; the first `limit` of them."""
    found = tx.rows(STATE_AND_KIND, id=job_id)
    if not found:
        raise no_job(job_id)
    members = tx.all(GROUP_MEMBERS, _read_relative, id=job_id, limit=limit)
    lines = [TreeLine(0, job_id, found[0][0], found[0][1], None, None, None)]
    lines += [_tree_line(1, member) for member in members]
    seen = {line.id for line in lines}
    todo = [(1, child) for child in reversed(children_of(tx, job_id, limit))]
    while todo and len(lines) < limit:  # no recursion: a chain may be long
        depth, job = todo.pop()
        lines.append(_tree_line(depth, job, again=job.id in seen))
        if job.id not in seen:
            seen.add(job.id)
            todo += [(depth + 1, child) for child in reversed(children_of(tx, job.id, limit))]
    return lines


def _tree_line(depth: int, job: Relative, *, again: bool = False) -> TreeLine:
    return TreeLine(depth, job.id, job.state, job.kind, job.bond, job.edge, job.on_dead, again)


# Act

STATE_AND_QUEUE = sql("""
    SELECT state, queue FROM stepfast_job WHERE id = :id
    UNION ALL SELECT state, queue FROM stepfast_archive WHERE id = :id
""")

HASTEN_JOB = sql(f"""
    UPDATE stepfast_job SET state = {READY_STATE}, ready_at = {{now}}, updated_at = {{now}} WHERE id = :id AND state = 'scheduled'
""")


def cancel(tx: Transaction, job_id: str, reason: str | None = None, *, by: Actor | None = None) -> JobState:
    """End a waiting job at once; ask a leased one to stop. Returns the state it is in now."""
    by = (by or actor_or_default()).with_reason(reason)
    text = f"Cancelled: {by.reason}" if by.reason else "Cancelled by an operator"
    stopped = cancel_jobs(tx, [job_id], text)
    if not stopped.ended and not stopped.asked:
        found, _queue = job_state(tx, job_id)
        if found in LIVE:
            raise ContentionError(f"job {job_id} was revived while we looked; try again")
        raise StateError(f"job {job_id} is {found}: it has ended, there is nothing to cancel")
    state = JobState.CANCELLED if stopped.ended else JobState.LEASED
    record(tx, by, "job.cancel", job_id, detail={"state": state})
    return state


def retry(tx: Transaction, job_id: str, *, by: Actor | None = None) -> JobState:
    """Revive a dead or cancelled job, or let a scheduled one run now. Returns the state it is in now."""
    was, queue = job_state(tx, job_id)
    state = _retry(tx, job_id, was, queue)
    record(tx, by, "job.retry", job_id, detail={"was": was, "state": state})
    return state


def _retry(tx: Transaction, job_id: str, state: JobState, queue: str) -> JobState:
    match state:
        case JobState.DEAD | JobState.CANCELLED:
            dead_letters.revive(tx, job_id)
        case JobState.SCHEDULED if tx.run(HASTEN_JOB, id=job_id) == 1:
            tx.wakes.add(queue)
        case JobState.READY | JobState.SUSPECT | JobState.SCHEDULED:
            raise StateError(f"job {job_id} is {state}: it waits for a worker already")
        case JobState.HELD:
            raise StateError(
                f"job {job_id} is held: it runs as soon as its limit has room, or the job that holds its key has ended"
            )
        case JobState.WAITING:
            raise StateError(
                f"job {job_id} waits for the jobs that it comes after (stepfast jobs show {job_id}), and runs when they are done"
            )
        case JobState.LEASED:
            raise StateError(f"job {job_id} is leased: a worker is at it; cancel it first, or wait")
        case JobState.DONE:
            raise StateError(f"job {job_id} is done: enqueue a new one to do it again")
    return job_state(tx, job_id)[0]


def cancel_tree(
    tx: Transaction, job_id: str, reason: str | None = None, *, by: Actor | None = None
) -> TreeStopped:
    """End a job and all that comes after it; ask what runs to stop. Of a group also its members."""
    by = (by or actor_or_default()).with_reason(reason)
    text = f"Cancelled with the tree of {job_id}" + (f": {by.reason}" if by.reason else "")
    stopped = dead_letters.cancel_tree(tx, job_id, text)
    state = job_state(tx, job_id)[0]
    if not stopped.ended and not stopped.asked:
        raise StateError(f"job {job_id} is {state}, and nothing that comes after it is unfinished")
    touched = len(stopped.ended) + len(stopped.asked)
    record(tx, by, "job.cancel", job_id, touched=touched, detail={"state": state, "tree": touched})
    return TreeStopped(state, len(stopped.ended), len(stopped.asked))


def retry_tree(tx: Transaction, job_id: str, *, by: Actor | None = None) -> TreeRevived:
    """Revive a dead or cancelled job, and all that ended because of it; of a group also its members."""
    was = job_state(tx, job_id)[0]
    revived, refused = dead_letters.revive_tree(tx, job_id)
    if refused:
        raise StateError(
            f"{refused} of the tree of job {job_id} cannot be revived: unfinished jobs hold their keys; nothing was changed"
        )
    if not revived:
        raise StateError(
            f"job {job_id} is {was}, and nothing of its tree died or was cancelled because of it"
        )
    state = job_state(tx, job_id)[0]
    record(
        tx,
        by,
        "job.retry",
        job_id,
        touched=revived,
        detail={"was": was, "state": state, "tree": revived},
    )
    return TreeRevived(state, revived)


def job_state(tx: Transaction, job_id: str) -> tuple[JobState, str]:
    """The state and the queue of a job."""
    rows = tx.rows(STATE_AND_QUEUE, id=job_id)
    if not rows:
        raise no_job(job_id)
    return stored_state(JobState, rows[0][0]), rows[0][1]
