"""Jobs: the newest of them, and everything there is to know about one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from stepfast.admin.audit import Actor, record, whoever
from stepfast.admin.rows import reader
from stepfast.clock import moment
from stepfast.database.statement import sql
from stepfast.encryption import ENCRYPTED, is_sealed, opened
from stepfast.errors import ContentionError, NotFoundError, StateError
from stepfast.jobs import dead_letters
from stepfast.jobs import dead_letters as trees
from stepfast.jobs.cancel import cancel_jobs
from stepfast.jobs.payload import decode
from stepfast.jobs.state import ENDED, LIVE, JobState
from stepfast.jobs.wait import cursor_in, has_arrived, waited_for
from stepfast.telemetry.masking import masked

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from datetime import datetime

    from stepfast.database.connection import Transaction
    from stepfast.database.statement import Statement


# What an operator may do. Each action is a guarded statement; who comes too late is told in which state the job is.
#
# Each writes down who did it, and why, in its own transaction. One that is refused or changes nothing writes nothing.
# Without a word from the caller it was `whoever()` runs this process.
#
# Whatever may concern thousands of rows goes in bounded batches, each in a transaction of its own: those functions take
# the database and not a transaction.


STATE = sql("""
    SELECT state, queue FROM stepfast_job WHERE id = :id
    UNION ALL SELECT state, queue FROM stepfast_archive WHERE id = :id
""")

HASTEN = sql("""
    UPDATE stepfast_job SET state = 'ready', ready_at = {now}, updated_at = {now} WHERE id = :id AND state = 'scheduled'
""")


def cancel(tx: Transaction, job_id: str, reason: str | None = None, *, by: Actor | None = None) -> JobState:
    """End a waiting job at once; ask a leased one to stop. Returns the state it is in now."""
    by = (by or whoever()).because(reason)
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
    record(tx, by or whoever(), "job.retry", job_id, detail={"was": was, "state": state})
    return state


def _retry(tx: Transaction, job_id: str, state: JobState, queue: str) -> JobState:
    match state:
        case JobState.DEAD | JobState.CANCELLED:
            dead_letters.revive(tx, job_id)
            return job_state(tx, job_id)[0]
        case JobState.SCHEDULED if tx.run(HASTEN, id=job_id) == 1:
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
    return JobState.READY


def job_state(tx: Transaction, job_id: str) -> tuple[JobState, str]:
    rows = tx.rows(STATE, id=job_id)
    if not rows:
        raise NotFoundError(
            f"there is no job {job_id}; finished jobs are forgotten after their retention time"
        )
    return JobState(rows[0][0]), rows[0][1]


# Who comes after whom: the parents and children of a job, and the tree below it.

MOST: Final = 1_000  # jobs of one tree that are shown
FORGOTTEN: Final = "forgotten"  # instead of a state: its retention time is over


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


_RELATIVES = """
    SELECT d.{other}, COALESCE(j.state, a.state, 'forgotten'), COALESCE(j.kind, a.kind), d.bond, d.state, d.on_dead
      FROM stepfast_dependency d LEFT JOIN stepfast_job j ON j.id = d.{other}
           LEFT JOIN stepfast_archive a ON a.id = d.{other}
     WHERE d.{own} = :id {which}
     ORDER BY d.{other} LIMIT :limit
"""
PARENTS = sql(_RELATIVES.format(other="parent_id", own="child_id", which=""))
MEMBERS = sql(_RELATIVES.format(other="parent_id", own="child_id", which="AND d.bond = 'member'"))
CHILDREN = sql(_RELATIVES.format(other="child_id", own="parent_id", which=""))
JOB = sql("""
    SELECT state, kind FROM stepfast_job WHERE id = :id UNION ALL SELECT state, kind FROM stepfast_archive WHERE id = :id
""")

_relative = reader(Relative)


def parents_of(tx: Transaction, job_id: str, limit: int = 100) -> list[Relative]:
    """What a job comes after."""
    return tx.all(PARENTS, _relative, id=job_id, limit=limit)


def children_of(tx: Transaction, job_id: str, limit: int = 100) -> list[Relative]:
    """What comes after a job."""
    return tx.all(CHILDREN, _relative, id=job_id, limit=limit)


def tree_of(tx: Transaction, job_id: str, most: int = MOST) -> list[TreeLine]:
    """A job, of a group also its members, and all that comes after it; the first `most` of them."""
    found = tx.rows(JOB, id=job_id)
    if not found:
        raise NotFoundError(
            f"there is no job {job_id}; finished jobs are forgotten after their retention time"
        )
    lines = [TreeLine(0, job_id, found[0][0], found[0][1], None, None, None)]
    lines += [_line(1, it) for it in _asked(tx, MEMBERS, job_id, most)]
    seen = {it.id for it in lines}
    todo = [(1, it) for it in reversed(_asked(tx, CHILDREN, job_id, most))]
    while todo and len(lines) < most:  # no recursion: a chain may be long
        depth, it = todo.pop()
        lines.append(_line(depth, it, again=it.id in seen))
        if it.id not in seen:
            seen.add(it.id)
            todo += [(depth + 1, below) for below in reversed(_asked(tx, CHILDREN, it.id, most))]
    return lines


def _asked(tx: Transaction, statement: Statement, job_id: str, most: int) -> Sequence[Relative]:
    return tx.all(statement, _relative, id=job_id, limit=most)


def _line(depth: int, it: Relative, *, again: bool = False) -> TreeLine:
    return TreeLine(depth, it.id, it.state, it.kind, it.bond, it.edge, it.on_dead, again)


# Payloads, cursors, results and events, as they may be shown: masked, and not at all where they are encrypted.


def shown(stored: str | None, purpose: str, *, decrypt: bool = False) -> Any:
    """The document without what the rules hide; of one that is encrypted only that it is, unless the key is used."""
    if stored is None:
        return None
    if is_sealed(stored):
        if not decrypt:
            return ENCRYPTED
        stored = opened(stored, purpose)
    return masked(decode(stored))


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
    cancel_at: datetime | None  # when somebody asked it to stop while it was leased
    error_group: str | None
    last_error: str | None


@dataclass(frozen=True)
class LogLine:
    """Something the job's handler said, or an operator did."""

    at: datetime
    level: str
    step: int
    message: str


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


_LIVE = """
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
    SELECT {_LIVE}
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
    SELECT {_LIVE}, j.payload, j.cursor_json, NULL, NULL
      FROM stepfast_job j LEFT JOIN stepfast_worker w ON w.incarnation = j.owner
     WHERE j.id = :id
""")
SHOW_ENDED = sql(f"""
    SELECT {ENDED_COLUMNS}, payload, cursor_json, result, result_expired_at FROM stepfast_archive WHERE id = :id
""")

LOGS = sql(
    "SELECT at, level, step, message FROM stepfast_log WHERE job_id = :id ORDER BY id DESC LIMIT :limit"
)


summary = reader(JobSummary, state=JobState)


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
    asked = {
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
            found |= {job.id: job for job in tx.all(statement, summary, **asked, states=chosen)}
    return sorted(found.values(), key=lambda job: job.id, reverse=True)[:limit]


def show_job(tx: Transaction, job_id: str, *, logs: int = 100, decrypt: bool = False) -> JobDetail:
    """Everything about one job, with the newest `logs` lines of its log."""
    # Twice: a job that is revived between the two looks has left the archive before we ask it.
    for statement in (SHOW_LIVE, SHOW_ENDED, SHOW_LIVE):
        if rows := tx.rows(statement, id=job_id):
            *columns, payload, cursor, result, expired_at = rows[0]
            job = summary(*columns)
            waits = job.state is JobState.SCHEDULED and not has_arrived(cursor)
            return JobDetail(
                job,
                shown(payload, f"payload of {job.kind}", decrypt=decrypt),
                shown(cursor_in(cursor), f"cursor of {job.kind}", decrypt=decrypt),
                shown(result, f"result of {job.kind}", decrypt=decrypt),
                None if expired_at is None else moment(expired_at),
                _logs(tx, job_id, logs),
                tuple(parents_of(tx, job_id)),
                tuple(children_of(tx, job_id)),
                waited_for(cursor) if waits else None,
            )
    raise NotFoundError(f"there is no job {job_id}; finished jobs are forgotten after their retention time")


def _logs(tx: Transaction, job_id: str, limit: int) -> tuple[LogLine, ...]:
    return tuple(reversed(tx.all(LOGS, reader(LogLine, at=moment), id=job_id, limit=limit)))


# What an operator may do with a job and all that comes after it: stop it, or bring it back.


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


def cancel_tree(
    tx: Transaction, job_id: str, reason: str | None = None, *, by: Actor | None = None
) -> TreeStopped:
    """End a job and all that comes after it; ask what runs to stop. Of a group also its members."""
    by = (by or whoever()).because(reason)
    text = f"Cancelled with the tree of {job_id}" + (f": {by.reason}" if by.reason else "")
    stopped = trees.cancel_tree(tx, job_id, text)
    state = _state_trees(tx, job_id)
    if not stopped.ended and not stopped.asked:
        raise StateError(f"job {job_id} is {state}, and nothing that comes after it is unfinished")
    touched = len(stopped.ended) + len(stopped.asked)
    record(tx, by, "job.cancel", job_id, touched=touched, detail={"state": state, "tree": touched})
    return TreeStopped(state, len(stopped.ended), len(stopped.asked))


def retry_tree(tx: Transaction, job_id: str, *, by: Actor | None = None) -> TreeRevived:
    """Revive a dead or cancelled job, and all that ended because of it; of a group also its members."""
    was = _state_trees(tx, job_id)
    revived, refused = trees.revive_tree(tx, job_id)
    if refused:
        raise StateError(
            f"{refused} of the tree of job {job_id} cannot be revived: unfinished jobs hold their keys; nothing was changed"
        )
    if not revived:
        raise StateError(
            f"job {job_id} is {was}, and nothing of its tree died or was cancelled because of it"
        )
    state = _state_trees(tx, job_id)
    record(
        tx,
        by or whoever(),
        "job.retry",
        job_id,
        touched=revived,
        detail={"was": was, "state": state, "tree": revived},
    )
    return TreeRevived(state, revived)


def _state_trees(tx: Transaction, job_id: str) -> JobState:
    found = tx.first(STATE, id=job_id)
    if found is None:
        raise NotFoundError(
            f"there is no job {job_id}; finished jobs are forgotten after their retention time"
        )
    return JobState(found)
