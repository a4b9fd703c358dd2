"""The answer to an enqueue: which job will do it, and the way to its end.

Programs that only enqueue make thousands of these and never wait: waiting and watching are loaded when they are asked for.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from stepfast.jobs.outcome import Continue, Done, Reject, Snooze, Wait

if TYPE_CHECKING:
    from stepfast.app_protocol import AppLike
    from stepfast.clock import Duration
    from stepfast.results.outcome import JobOutcome
    from stepfast.results.watch import Watch


R_co = TypeVar("R_co", covariant=True)  # what the handler returns
T = TypeVar("T")
Coro = Coroutine[Any, Any, T]
Answer = Done | Continue | Snooze | Wait | Reject | None  # says nothing about the result's type


class EnqueuedJob(Generic[R_co]):
    """Which job will do it, and whether this call created it. Other callers may hold the same job under the same id."""

    __slots__ = (
        "_app",
        "created",
        "id",
    )  # by hand: a frozen dataclass takes 2 µs to make, and thousands are made

    def __init__(self, id: str, created: bool, app: AppLike) -> None:  # noqa: A002, FBT001 - the words users know
        self.id = id
        self.created = created
        self._app = app

    def __eq__(self, other: object) -> bool:
        return isinstance(other, EnqueuedJob) and (self.id, self.created) == (other.id, other.created)

    def __hash__(self) -> int:
        return hash((self.id, self.created))

    def __repr__(self) -> str:
        return f"EnqueuedJob(id={self.id!r}, created={self.created})"

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
        from stepfast.results.watch import wait_for

        return wait_for(self._app, self.id, timeout)

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
        from stepfast.results.watch import await_result

        return await_result(self._app, self.id, timeout)

    def watch(self, timeout: Duration | None = None) -> Watch:
        """What happens to the job, for `for` and `async for`, until it has ended."""
        from stepfast.results.watch import watch

        return watch(self._app, self.id, timeout)
