"""Where a job stands, and what it answered, read as its handler's return type says.

Results are kept for a while; then they are emptied, and the rest of the job stays until its retention is over.
"""

from __future__ import annotations

import inspect
import types
import typing
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

import msgspec

from stepfast.clock import moment
from stepfast.database.statement import sql
from stepfast.database.stored import stored_state
from stepfast.encryption import opened
from stepfast.errors import (
    JobCancelledError,
    JobFailedError,
    NotFoundError,
    ResultExpiredError,
    ResultTypeError,
    StateError,
)
from stepfast.jobs.archive import NOT_NEEDED, not_needed
from stepfast.jobs.outcome import Continue, Done, Reject, Snooze, Wait
from stepfast.jobs.payload import from_builtin
from stepfast.jobs.state import ENDED, JobState

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from stepfast.database.connection import Transaction
    from stepfast.jobs.kinds import Kinds


# --- A stored result, read into the type that its handler returns.

NO_RESULT: Final = (Continue, Snooze, Wait, Reject)  # answers after which the job has no result


class ResultReader:
    """Reads the results of one kind. Without a return annotation that says more, they stay plain JSON values."""

    def __init__(self, returns: Any = Any, *, plain: bool = True) -> None:
        self._plain = plain  # whether a result in plain text is read
        try:
            self._decoder = msgspec.json.Decoder(returns, dec_hook=from_builtin)
        except (TypeError, RuntimeError):  # a type that JSON cannot be read into: the values stay plain
            self._decoder = msgspec.json.Decoder(Any)

    def read(self, job_id: str, kind: str, stored: str | None) -> Any:
        """The result; `stored` is None where the handler answered with None."""
        if stored is None:
            return None
        try:
            return self._decoder.decode(opened(stored, f"result of {kind}", job_id, plain=self._plain))
        except (msgspec.MsgspecError, ValueError, TypeError) as error:
            raise ResultTypeError(job_id, kind, str(error)) from error


PLAIN_READER: Final = ResultReader()


def reader_of(kinds: Kinds, kind: str) -> ResultReader:
    """The reader of this kind's results; those of an unknown kind stay plain JSON values."""
    found = kinds.find(kind)
    return PLAIN_READER if found is None else _reader(found.handler, found.encrypted is not True)


@lru_cache(maxsize=1_024)
def _reader(handler: Callable[..., Any], plain: bool) -> ResultReader:  # noqa: FBT001 - a key of the cache
    return ResultReader(return_type(handler), plain=plain)


def return_type(handler: Callable[..., Any]) -> Any:
    """The type of the result of `handler`, as its annotation says; Any where it says nothing, or only `Done`."""
    note = _annotation(inspect.unwrap(handler))
    if typing.get_origin(note) in {typing.Union, types.UnionType}:
        parts = tuple(part for part in typing.get_args(note) if part not in NO_RESULT)
        note = typing.Union[parts] if parts else Any  # noqa: UP007 - the parts are known at run time only
    parts = typing.get_args(note) or (note,)
    return Any if Done in parts or note in NO_RESULT else note


def _annotation(function: Callable[..., Any]) -> Any:
    note = getattr(function, "__annotations__", {}).get("return", Any)
    if not isinstance(note, str):
        return note
    try:  # alone: a parameter's type may be imported for type checking only
        holder = type("holder", (), {"__annotations__": {"returned": note}})
        hints = typing.get_type_hints(
            holder,
            getattr(function, "__globals__", {}),
            inspect.getclosurevars(function).nonlocals,
            include_extras=True,
        )
    except (NameError, TypeError):
        return Any
    return hints["returned"]


# --- Where a job stands.

T_co = TypeVar("T_co", covariant=True)

# One statement, so that a job on its way from one table to the other is seen once.
LOOK_AT_JOBS = sql("""
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
    note: str | None  # what the handler said about its progress
    error: str | None  # its last one
    created_at: datetime
    finished_at: datetime | None
    result_expired_at: datetime | None
    stored: str | None = field(repr=False)  # the result as JSON
    reading: ResultReader = field(default=PLAIN_READER, repr=False, compare=False)

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


def read_outcomes(
    tx: Transaction, ids: list[str], reading: Callable[[str], ResultReader] = lambda _: PLAIN_READER
) -> dict[str, JobOutcome[Any]]:
    """Where these jobs stand now; unknown ids are left out. `reading` finds the reader of a kind."""
    return {row[0]: _outcome(row, reading(row[1])) for row in tx.rows(LOOK_AT_JOBS, ids=ids)}


def unknown_job(job_id: str) -> NotFoundError:
    """The error about a job that is not in the tables."""
    return NotFoundError(
        f"there is no job {job_id}: finished jobs are forgotten after their retention time, and a job that was "
        "enqueued with tx exists when that transaction has committed"
    )


def _outcome(row: Any, reading: ResultReader) -> JobOutcome[Any]:
    id_, kind, state, attempts, step, progress, note, error, created_at, finished_at, expired_at, stored = row
    return JobOutcome(
        id=id_,
        kind=kind,
        state=stored_state(JobState, state),
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


# --- Results expire. One that an unfinished job may still ask for (`step.parents`) is kept until that one has ended.

# MariaDB has no partial index: there the column that the index is about says which kind, where there is a result.
_EXPIRED = """
    SELECT id FROM stepfast_archive
     WHERE {kind} = :kind AND result IS NOT NULL AND finished_at < {{now}} - :age AND {needed}
     ORDER BY finished_at LIMIT :limit
"""
_ANYWHERE = _EXPIRED.format(kind="kind", needed=NOT_NEEDED)
_MARIADB = _EXPIRED.format(kind="result_kind", needed=NOT_NEEDED)
ANY_EXPIRED_RESULT = sql(_ANYWHERE, mariadb=_MARIADB)
EXPIRED_RESULTS = sql(_ANYWHERE + "{skip_locked}", mariadb=_MARIADB + "{skip_locked}")
EMPTY_RESULTS = sql("""
    UPDATE stepfast_archive SET result = NULL, result_expired_at = {now}
     WHERE id {any_of:ids} AND result IS NOT NULL
""")


def any_expired_results(tx: Transaction, kind: str, age: int) -> bool:
    """Whether results of this kind are older than `age`; a look, so that an idle worker takes no lock."""
    return bool(tx.rows(ANY_EXPIRED_RESULT, kind=kind, age=age, limit=1))


def expire_results(tx: Transaction, kind: str, age: int, limit: int) -> int:
    """Empty one batch of results older than `age`; returns how many."""
    ids = not_needed(tx, [row[0] for row in tx.rows(EXPIRED_RESULTS, kind=kind, age=age, limit=limit)])
    return tx.run(EMPTY_RESULTS, ids=ids) if ids else 0
