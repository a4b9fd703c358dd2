"""What became of a job, and what it answered, read as its handler's return type says."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from stepfast.clock import moment
from stepfast.database.statement import sql
from stepfast.errors import (
    JobCancelledError,
    JobFailedError,
    NotFoundError,
    ResultExpiredError,
    StateError,
)
from stepfast.results.reading import ANYTHING, Reading
from stepfast.steps.job import ENDED, JobState

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from stepfast.database.connection import Transaction

T_co = TypeVar("T_co", covariant=True)

# One statement, so that a job on its way from one table to the other is seen once.
LOOK = sql("""
    SELECT id, kind, state, failures + crashes + CASE state WHEN 'leased' THEN 1 ELSE 0 END, step, progress, progress_note,
           last_error, created_at, NULL, NULL, NULL
      FROM stepfast_job WHERE id {any_of:ids}
    UNION ALL
    SELECT id, kind, state, failures + crashes + CASE state WHEN 'done' THEN 1 ELSE 0 END, step, progress, progress_note,
           last_error, created_at, finished_at, result_expired_at, result
      FROM stepfast_archive WHERE id {any_of:ids}
""")


@dataclass(frozen=True)
class JobOutcome(Generic[T_co]):
    """Where a job stands; once it has ended, for good."""

    id: str
    kind: str
    state: JobState
    attempts: int  # of its last step: failures and crashes, and the try that runs or succeeded
    step: int
    progress: int  # percent
    note: str | None  # what it said about its progress
    error: str | None  # its last one
    created_at: datetime
    finished_at: datetime | None
    result_expired_at: datetime | None
    stored: str | None = field(repr=False)  # the result as JSON
    reading: Reading = field(default=ANYTHING, repr=False, compare=False)

    @property
    def ended(self) -> bool:
        return self.state in ENDED

    @property
    def result(self) -> T_co:
        """What the handler answered; raises where there is no result: dead, cancelled, expired, or not ended."""
        match self.state:
            case JobState.DONE:
                return self._result()
            case JobState.DEAD:
                raise JobFailedError(self.id, self.kind, self.attempts, self.error)
            case JobState.CANCELLED:
                raise JobCancelledError(self.id, self.kind, self.error)
            case _:
                raise StateError(f"job {self.id} is {self.state}: it has no result yet; wait for its end")

    def _result(self) -> T_co:
        if self.result_expired_at is not None and self.finished_at is not None:
            raise ResultExpiredError(self.id, self.kind, self.finished_at, self.result_expired_at)
        answer: T_co = self.reading.read(self.id, self.kind, self.stored)
        return answer


def look(
    tx: Transaction, ids: list[str], reading: Callable[[str], Reading] = lambda _: ANYTHING
) -> dict[str, JobOutcome[Any]]:
    """Where these jobs stand now; those that nobody knows are left out. `reading` finds the one of a kind."""
    return {row[0]: _outcome(row, reading(row[1])) for row in tx.rows(LOOK, ids=ids)}


def unknown(job_id: str) -> NotFoundError:
    return NotFoundError(
        f"there is no job {job_id}: finished jobs are forgotten after their retention time, and a job that was "
        "enqueued with tx exists when that transaction has committed"
    )


def _outcome(row: Any, reading: Reading) -> JobOutcome[Any]:
    id_, kind, state, attempts, step, progress, note, error, created_at, finished_at, expired_at, stored = row
    return JobOutcome(
        id=id_,
        kind=kind,
        state=JobState(state),
        attempts=attempts,
        step=step,
        progress=progress,
        note=note,
        error=error,
        created_at=moment(created_at),
        finished_at=None if finished_at is None else moment(finished_at),
        result_expired_at=None if expired_at is None else moment(expired_at),
        stored=stored,
        reading=reading,
    )
