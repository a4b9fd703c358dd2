"""Jobs as the tables have them: for assertions, and for the report of a drain."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stepfast.clock import moment
from stepfast.database.statement import sql
from stepfast.encryption import ENCRYPTED, opened
from stepfast.errors import SealedError
from stepfast.jobs.payload import decode
from stepfast.jobs.state import ENDED, JobState
from stepfast.jobs.wait import cursor_in

if TYPE_CHECKING:
    from datetime import datetime

    from stepfast.database.connection import Transaction, Value


@dataclass(frozen=True)
class StoredJob:
    """A job as the database has it."""

    id: str
    kind: str
    queue: str
    state: JobState
    priority: int
    key: str | None
    step: int  # how many steps are committed
    failures: int  # of its current step
    crashes: int
    due_at: datetime  # when it may run, or could have run
    created_at: datetime
    error: str | None  # what went wrong last
    cursor: Any
    arguments: dict[str, Any]

    @property
    def ended(self) -> bool:
        return self.state in ENDED


_COLUMNS = """
    id, kind, queue, state, priority, unique_key, step, failures, crashes, ready_at, created_at, last_error, cursor_json, payload
"""

UNFINISHED_JOBS = sql(f"SELECT {_COLUMNS} FROM stepfast_job ORDER BY created_at, id")
FINISHED_JOBS = sql(f"SELECT {_COLUMNS} FROM stepfast_archive ORDER BY created_at, id")
FENCES_AND_ERRORS = sql("SELECT id, fence, last_error FROM stepfast_job")
JOBS_WITH_FENCES = sql(f"SELECT {_COLUMNS}, fence FROM stepfast_job ORDER BY created_at, id")
IDS_ENDED_SINCE = sql("""
    SELECT id FROM stepfast_archive
     WHERE state IN ('done', 'dead', 'cancelled') AND finished_at >= :since
""")
JOBS_ENDED_SINCE = sql(f"""
    SELECT {_COLUMNS} FROM stepfast_archive
     WHERE state IN ('done', 'dead', 'cancelled') AND finished_at >= :since
     ORDER BY created_at, id
""")
DATABASE_TIME = sql("SELECT {now}")


def unfinished(tx: Transaction) -> list[StoredJob]:
    """Jobs that have not ended, oldest first."""
    return tx.all(UNFINISHED_JOBS, stored_job)


def finished(tx: Transaction) -> list[StoredJob]:
    """Jobs that have ended and are still kept, oldest first."""
    return tx.all(FINISHED_JOBS, stored_job)


@dataclass(frozen=True)
class JobSnapshot:
    """The jobs at one moment; later, `touched` tells which of them were leased or ended since."""

    at: int
    fences: dict[str, int]  # of unfinished jobs
    errors: frozenset[tuple[str, str]]  # (job id, error) of unfinished jobs
    ended: frozenset[str]  # jobs that ended in the same microsecond

    @staticmethod
    def taken(tx: Transaction) -> JobSnapshot:
        at = int(tx.first(DATABASE_TIME))
        marks = tx.rows(FENCES_AND_ERRORS)
        return JobSnapshot(
            at,
            {row[0]: row[1] for row in marks},
            frozenset((row[0], row[2]) for row in marks if row[2] is not None),
            frozenset(row[0] for row in tx.rows(IDS_ENDED_SINCE, since=at)),
        )

    def touched(self, tx: Transaction) -> list[StoredJob]:
        """Jobs that were leased or ended since then, as they are now: each claim writes a new fence."""
        live = [
            stored_job(*row[:-1])
            for row in tx.rows(JOBS_WITH_FENCES)
            if row[-1] != self.fences.get(row[0], 0)  # a new job has the fence 0
        ]
        gone = [it for it in tx.all(JOBS_ENDED_SINCE, stored_job, since=self.at) if it.id not in self.ended]
        return gone + live


def stored_job(*row: Value) -> StoredJob:
    *plain, ready_at, created_at, error, cursor, payload = row
    job_id, kind, queue, state, priority, key, step, failures, crashes = plain
    return StoredJob(
        id=job_id,
        kind=kind,
        queue=queue,
        state=JobState(state),
        priority=priority,
        key=key,
        step=step,
        failures=failures,
        crashes=crashes,
        due_at=moment(ready_at),
        created_at=moment(created_at),
        error=error,
        cursor=_cursor(cursor, kind, job_id),
        arguments=_arguments(payload, kind, job_id),
    )


def _cursor(stored: str | None, kind: str, job_id: str) -> Any:
    found = cursor_in(stored)
    try:
        return None if found is None else decode(opened(found, f"cursor of {kind}", job_id))
    except SealedError:
        return ENCRYPTED


def _arguments(payload: str, kind: str, job_id: str) -> dict[str, Any]:
    """The arguments of a job; none if its payload is no object, as a foreign program may have written it."""
    try:
        found = decode(opened(payload, f"payload of {kind}", job_id))
    except (ValueError, SealedError):  # msgspec's own is one
        return {}
    return found if isinstance(found, dict) else {}
