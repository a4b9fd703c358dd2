"""The answer to an enqueue: which job will do it, and the way to what becomes of it."""

from __future__ import annotations

from collections.abc import Coroutine
from dataclasses import InitVar, dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from holdfast.steps.outcome import Continue, Done, Reject, Snooze

if TYPE_CHECKING:
    from holdfast.clock import Duration
    from holdfast.results.outcome import JobOutcome
    from holdfast.results.results import App, Results
    from holdfast.results.watching import Watch

R_co = TypeVar("R_co", covariant=True)  # what the handler returns
T = TypeVar("T")
Coro = Coroutine[Any, Any, T]
Answer = Done | Continue | Snooze | Reject | None  # says nothing about the result's type


@dataclass(frozen=True)
class EnqueuedJob(Generic[R_co]):
    """Which job will do it, and whether this call created it. Others hold the same job under the same id."""

    id: str
    created: bool
    app: InitVar[App]

    def __post_init__(self, app: App) -> None:
        object.__setattr__(self, "_app", app)  # no field: the value is the id

    @overload
    def wait(
        self: EnqueuedJob[Answer] | EnqueuedJob[Coro[Answer]], timeout: Duration | None = None
    ) -> JobOutcome[Any]: ...
    @overload
    def wait(self: EnqueuedJob[Coro[T]], timeout: Duration | None = None) -> JobOutcome[T]: ...
    @overload
    def wait(self: EnqueuedJob[T], timeout: Duration | None = None) -> JobOutcome[T]: ...
    def wait(self, timeout: Duration | None = None) -> JobOutcome[Any]:
        """Block this thread until the job has ended: done, dead or cancelled."""
        return self._ends.wait(self.id, timeout)

    @overload
    def result(
        self: EnqueuedJob[Answer] | EnqueuedJob[Coro[Answer]], timeout: Duration | None = None
    ) -> Coro[Any]: ...
    @overload
    def result(self: EnqueuedJob[Coro[T]], timeout: Duration | None = None) -> Coro[T]: ...
    @overload
    def result(self: EnqueuedJob[T], timeout: Duration | None = None) -> Coro[T]: ...
    def result(self, timeout: Duration | None = None) -> Coro[Any]:
        """Await the end of the job and get what its handler answered; raises if it has no result."""
        return self._ends.result(self.id, timeout)

    def watch(self, timeout: Duration | None = None) -> Watch:
        """What happens to the job, for `for` and `async for`, until it has ended."""
        return self._ends.watch(self.id, timeout)

    @property
    def _ends(self) -> Results:
        from holdfast.results.results import Results  # not for programs that only enqueue

        return Results(vars(self)["_app"])
