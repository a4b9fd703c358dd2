"""What a handler holds in its hands while it runs: where it stands, and how it speaks to the outside."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, Protocol

from holdfast.database.upsert import Upsert
from holdfast.errors import ConfigurationError, LeaseLostError, StepCancelled
from holdfast.steps.outcome import Effect, as_effect
from holdfast.steps.payload import decode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from holdfast.database.connection import Transaction, Value
    from holdfast.steps.lease import Lease

LONGEST_NOTE: Final = 500
LONGEST_LOG: Final = 8_000


class Halt(StrEnum):
    """Why a running step should stop."""

    CANCELLED = "cancelled"  # somebody asked
    REPLACED = "replaced"  # another worker has it now: nothing written here will count
    TIMED_OUT = "timed out"
    SHUTDOWN = "shutdown"  # the worker is stopping and its grace is over


@dataclass(frozen=True)
class Report:
    """Something the handler said while it ran: progress, or a line of its log."""

    lease: Lease
    percent: int | None
    note: str | None
    level: str | None
    message: str | None


class Reports(Protocol):
    """Where reports go: written soon, under the fence, without making the handler wait."""

    def put(self, report: Report, /) -> None: ...


class Step:
    """One leased execution of a job.

    Effects attached here happen in the step's own commit, with its outcome, or not at all.
    """

    def __init__(self, lease: Lease, reports: Reports, worker_id: str) -> None:
        self._lease = lease
        self._reports = reports
        self._halt: threading.Event | None = None  # made when a handler waits; most never do
        self._halted: Halt | None = None
        self._uncertain = False
        self.worker_id = worker_id
        self.effects: list[Effect] = []

    @property
    def job_id(self) -> str:
        return self._lease.job_id

    @property
    def kind(self) -> str:
        return self._lease.kind

    @property
    def queue(self) -> str:
        return self._lease.queue

    @property
    def number(self) -> int:
        """Which step of its job this is, from 0; `Continue` and a replacement of its payload add one."""
        return self._lease.step

    @property
    def attempt(self) -> int:
        """Which try of this step this is, from 1."""
        return self._lease.attempt

    @property
    def cursor(self) -> Any:
        """Where the step before this one said to go on; None in the first."""
        return None if self._lease.cursor is None else decode(self._lease.cursor)

    @property
    def idempotency_key(self) -> str:
        """The same for every try of this step: hand it to services outside the database."""
        return f"{self._lease.job_id}:{self._lease.step}"

    def progress(self, percent: float, note: str | None = None) -> None:
        """Say how far the job is, from 0 to 100; visible while it runs."""
        if not 0 <= percent <= 100:  # noqa: PLR2004 - a percentage
            raise ConfigurationError(f"step.progress({percent}): a percentage lies between 0 and 100")
        self.check()
        self._reports.put(
            Report(self._lease, round(percent), str(note)[:LONGEST_NOTE] if note else None, None, None)
        )

    def log(self, message: str, *, level: str = "info") -> None:
        """Add a line to the job's own log; visible while it runs, kept with the job."""
        self.check()
        self._reports.put(Report(self._lease, None, None, str(level)[:10], str(message)[:LONGEST_LOG]))

    def upsert(self, table: str, rows: Iterable[Mapping[str, Value]], *, key: str | Iterable[str]) -> None:
        """Write rows with the step's commit; rows that agree on `key` replace each other."""
        columns = (key,) if isinstance(key, str) else tuple(key)
        self.effects.append(Upsert(table, columns, tuple(rows)))

    def effect(self, effect: Effect | Callable[[Transaction], object]) -> None:
        """Do this in the step's own transaction: a function of it, or an object with `apply(tx)`."""
        self.effects.append(as_effect(effect))

    @property
    def halted(self) -> Halt | None:
        """Why this step should stop, or None. Async handlers are interrupted; plain ones look here."""
        return self._halted

    @property
    def lease_uncertain(self) -> bool:
        """The database has been silent for a whole lease: somebody else may start this step. Not yet known."""
        return self._uncertain

    def check(self) -> None:
        """Raise if this step was cancelled or replaced; call it between pieces of long plain work."""
        if self._halted is Halt.REPLACED:
            raise LeaseLostError(self._lease.job_id, self._lease.fence)
        if self._halted is not None:
            raise StepCancelled(f"job {self._lease.job_id}: {self._halted}")

    def wait(self, seconds: float) -> None:
        """Sleep in a plain handler, but wake up and raise as soon as the step should stop."""
        self._halt = self._halt or threading.Event()
        self.check()  # after the event exists: a halt is seen here or wakes us below
        self._halt.wait(seconds)
        self.check()

    def halt(self, why: Halt) -> None:
        """Tell the handler to stop. Called by the worker."""
        if self._halted is None:
            self._halted = why
            if self._halt is not None:
                self._halt.set()

    def doubt(self, *, uncertain: bool) -> None:
        self._uncertain = uncertain
