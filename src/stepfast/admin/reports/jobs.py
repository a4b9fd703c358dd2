"""Jobs: the newest of them, and everything there is to know about one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stepfast.admin.reports.documents import shown
from stepfast.admin.reports.trees import Relative, children_of, parents_of
from stepfast.admin.rows import reader
from stepfast.clock import moment
from stepfast.database.statement import sql
from stepfast.errors import NotFoundError
from stepfast.steps.job import ENDED, LIVE, JobState
from stepfast.steps.waiting import cursor_in, has_arrived, waited_for

if TYPE_CHECKING:
    from collections.abc import Collection
    from datetime import datetime

    from stepfast.database.connection import Transaction


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
