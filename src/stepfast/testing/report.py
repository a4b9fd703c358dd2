"""What a drain did: every call of a handler, and every job it touched."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from inspect import CORO_CREATED, getcoroutinestate
from typing import TYPE_CHECKING, Any

from stepfast.errors import StepfastError
from stepfast.steps.job import JobState
from stepfast.steps.outcome import Continue, Reject, Snooze, Wait

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Generator

    from stepfast.testing.stored import StoredJob


@dataclass
class Run:
    """One call of a handler."""

    job_id: str
    kind: str
    step: int  # which step of its job, from 0
    attempt: int  # which try of it, from 1
    answer: Any = None  # what it returned
    error: BaseException | None = None  # what it, or one of its effects, raised

    def __str__(self) -> str:
        return f"job {self.job_id} ({self.kind}, step {self.step}, attempt {self.attempt})"


@dataclass(frozen=True)
class Report:
    """What a drain did. In an async test, `await` it."""

    runs: tuple[Run, ...]  # in the order in which they began
    jobs: tuple[StoredJob, ...]  # all that were leased or ended, as they are now: first those that ended
    known: frozenset[tuple[str, str]]  # errors that jobs had met before

    @property
    def done(self) -> int:
        """Jobs that are done."""
        return self._count(JobState.DONE)

    @property
    def dead(self) -> int:
        """Jobs that are dead letters now."""
        return self._count(JobState.DEAD)

    @property
    def cancelled(self) -> int:
        return self._count(JobState.CANCELLED)

    @property
    def waiting(self) -> int:
        """Jobs that were begun and have not ended: they wait for a retry, a snooze, a limit, or the next drain."""
        return sum(not it.ended for it in self.jobs)

    @property
    def failed(self) -> int:
        """Runs that raised, or whose effects did."""
        return len(self.errors)

    @property
    def continued(self) -> int:
        """Runs that answered `Continue`."""
        return sum(isinstance(it.answer, Continue) for it in self.runs)

    @property
    def snoozed(self) -> int:
        """Runs that answered `Snooze`."""
        return sum(isinstance(it.answer, Snooze) for it in self.runs)

    @property
    def errors(self) -> list[BaseException]:
        """What was raised, in the order of the runs; also by those that were tried again with success."""
        return [it.error for it in self.runs if it.error is not None]

    @property
    def kinds(self) -> dict[str, Report]:
        """The same per kind of job."""
        names = {it.kind for it in self.runs} | {it.kind for it in self.jobs}
        return {name: self.of(name) for name in sorted(names)}

    def of(self, kind: str) -> Report:
        """The part that concerns one kind of job."""
        return replace(
            self,
            runs=tuple(it for it in self.runs if it.kind == kind),
            jobs=tuple(it for it in self.jobs if it.kind == kind),
        )

    def job(self, job_id: str) -> StoredJob:
        found = next((it for it in self.jobs if it.id == job_id), None)
        if found is None:
            raise StepfastError(f"this drain did not touch job {job_id}")
        return found

    def raise_errors(self) -> None:
        """Raise what the first job met that failed and is not done: its own exception, with the job's name in a note."""
        __tracebackhide__ = True
        failures = [(job, run) for job in self.jobs if (run := self._failure(job)) is not None]
        if not failures:
            return
        job, run = failures[0]
        error = run.error if isinstance(run.error, Exception) else StepfastError(f"{run} failed: {job.error}")
        error.add_note(f"{run} raised this; the job is {job.state} now")
        if len(failures) > 1:
            others = ", ".join(f"{run.kind} ({job.error})" for job, run in failures[1:6])
            error.add_note(f"{len(failures) - 1} other jobs failed, too: {others}")
        raise error

    def _failure(self, job: StoredJob) -> Run | None:
        """The run in which this job failed last, unless it has recovered or has ended as its handler wanted."""
        if job.state in {JobState.DONE, JobState.CANCELLED}:
            return None
        last = next((it for it in reversed(self.runs) if it.job_id == job.id), None)
        if (
            last is None
        ):  # not even called: nobody knows the kind, its arguments do not fit, it killed its worker
            unheard = job.error is not None and (job.id, job.error) not in self.known
            return Run(job.id, job.kind, job.step, job.failures + job.crashes) if unheard else None
        if last.error is None and isinstance(last.answer, Continue | Snooze | Wait | Reject):
            return None
        return last

    def _count(self, state: JobState) -> int:
        return sum(it.state is state for it in self.jobs)

    def __str__(self) -> str:
        parts = {
            "done": self.done,
            "dead": self.dead,
            "cancelled": self.cancelled,
            "waiting": self.waiting,
            "runs failed": self.failed,
        }
        return ", ".join(f"{count} {what}" for what, count in parts.items() if count) or "nothing to do"

    def __await__(self) -> Generator[Any, Any, Report]:
        """It is there already: a drain outside an event loop has run when it returns."""
        yield from ()
        return self


class PendingReport(Report):
    """The report of a drain inside an event loop, which begins when it is awaited."""

    _begin: Callable[[], Coroutine[Any, Any, Report]]
    _work: (
        Coroutine[Any, Any, Report] | None
    )  # made at once, so that Python warns of a drain that nobody awaits

    def __init__(self, begin: Callable[[], Coroutine[Any, Any, Report]]) -> None:
        object.__setattr__(self, "_begin", begin)
        object.__setattr__(self, "_work", begin())

    def __await__(self) -> Generator[Any, Any, Report]:
        return (self._work or self._begin()).__await__()

    def __getattr__(self, name: str) -> Any:
        if name in {it.name for it in fields(Report)}:
            self._need_no_warning()
            raise StepfastError("inside an event loop a drain has to be awaited: write `await drain(…)`")
        raise AttributeError(name)

    def _need_no_warning(self) -> None:
        """Whoever is told in a sentence needs not be told again when this is thrown away."""
        if self._work is not None and getcoroutinestate(self._work) == CORO_CREATED:
            self._work.close()
            object.__setattr__(self, "_work", None)

    def __repr__(self) -> str:
        return "<a drain that nobody awaited yet>"
