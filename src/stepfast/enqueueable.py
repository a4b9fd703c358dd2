"""`enqueue` takes what the handler takes: what type checkers know of a job.

Python's types cannot mix a handler's parameters with options of ours in one call. So `job.enqueue(…)` with the
handler's arguments alone is checked in full, and so is `job.with_options(delay="10m").enqueue(…)`. Options may also
stand among the arguments, which reads well; then the arguments are checked when the call is made, not before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypedDict, TypeVar, Unpack, overload

from stepfast.errors import ArgumentsError

if TYPE_CHECKING:
    from datetime import datetime

    from stepfast.clock import Duration
    from stepfast.results.handle import EnqueuedJob
    from stepfast.steps.dedupe import Choice
    from stepfast.steps.dependencies import OnDead
    from stepfast.steps.kinds import Kind
    from stepfast.steps.tying import Parents

P = ParamSpec("P")  # what the handler takes, besides the step
R = TypeVar("R")  # what it returns


class EnqueueOptions(TypedDict, total=False):
    """The options of `enqueue`; no parameter of a handler may have one of these names."""

    tx: Any  # a transaction of Stepfast's, or a connection of your own
    key: str | None
    unique_for: Duration | None
    unique_per: Duration | None
    on_duplicate: Choice | None
    debounce: Duration | None
    at_most: Duration | None
    priority: int | None
    delay: Duration | None
    run_at: datetime | None
    queue: str | None
    id: str | None
    after: Parents | None
    on_dead: OnDead


class Enqueueable(Generic[P, R]):
    """The ways to ask for a job once, as they are typed."""

    kind: Kind

    # With the handler's arguments alone; then with one of the options at least.
    @overload
    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> EnqueuedJob[R]: ...
    @overload
    def enqueue(self, *, tx: Any, **rest: Any) -> EnqueuedJob[R]: ...
    @overload
    def enqueue(self, *, key: str | None, **rest: Any) -> EnqueuedJob[R]: ...
    @overload
    def enqueue(self, *, unique_for: Duration | None, **rest: Any) -> EnqueuedJob[R]: ...
    @overload
    def enqueue(self, *, unique_per: Duration | None, **rest: Any) -> EnqueuedJob[R]: ...
    @overload
    def enqueue(self, *, on_duplicate: Choice | None, **rest: Any) -> EnqueuedJob[R]: ...
    @overload
    def enqueue(self, *, debounce: Duration | None, **rest: Any) -> EnqueuedJob[R]: ...
    @overload
    def enqueue(self, *, at_most: Duration | None, **rest: Any) -> EnqueuedJob[R]: ...
    @overload
    def enqueue(self, *, priority: int | None, **rest: Any) -> EnqueuedJob[R]: ...
    @overload
    def enqueue(self, *, delay: Duration | None, **rest: Any) -> EnqueuedJob[R]: ...
    @overload
    def enqueue(self, *, run_at: datetime | None, **rest: Any) -> EnqueuedJob[R]: ...
    @overload
    def enqueue(self, *, queue: str | None, **rest: Any) -> EnqueuedJob[R]: ...
    @overload
    def enqueue(self, *, id: str | None, **rest: Any) -> EnqueuedJob[R]: ...
    @overload
    def enqueue(self, *, after: Parents | None, **rest: Any) -> EnqueuedJob[R]: ...
    @overload
    def enqueue(self, *, on_dead: OnDead, **rest: Any) -> EnqueuedJob[R]: ...

    def enqueue(self, *args: Any, **given: Any) -> EnqueuedJob[R]:
        """Ask for one job. With `tx` it exists when that transaction commits; without, when this returns.

        `key` is unique while the job is unfinished, and with `unique_for` for that long in any case (`unique_per`: until
        the window of that length is over, counted from 1970). A held key is met as `on_duplicate` says: "reject" (the
        default), "skip", "replace", or "merge" as the job's `merge=` does it. `debounce`: begin so long after the last
        call with the key, and `at_most` so long after the first.
        `id` makes the call idempotent: the same id again is the same job, also after it ended.
        `after`: run when these jobs are done. If one of them dies or is cancelled: "wait" until it is revived and
        done, "fail" with it, or "run" all the same.
        """
        return self._enqueue(**self.named(args, given))

    # The same, awaited.
    @overload
    async def enqueue_async(self, *args: P.args, **kwargs: P.kwargs) -> EnqueuedJob[R]: ...
    @overload
    async def enqueue_async(self, *, tx: Any, **rest: Any) -> EnqueuedJob[R]: ...
    @overload
    async def enqueue_async(self, *, key: str | None, **rest: Any) -> EnqueuedJob[R]: ...
    @overload
    async def enqueue_async(self, *, unique_for: Duration | None, **rest: Any) -> EnqueuedJob[R]: ...
    @overload
    async def enqueue_async(self, *, unique_per: Duration | None, **rest: Any) -> EnqueuedJob[R]: ...
    @overload
    async def enqueue_async(self, *, on_duplicate: Choice | None, **rest: Any) -> EnqueuedJob[R]: ...
    @overload
    async def enqueue_async(self, *, debounce: Duration | None, **rest: Any) -> EnqueuedJob[R]: ...
    @overload
    async def enqueue_async(self, *, at_most: Duration | None, **rest: Any) -> EnqueuedJob[R]: ...
    @overload
    async def enqueue_async(self, *, priority: int | None, **rest: Any) -> EnqueuedJob[R]: ...
    @overload
    async def enqueue_async(self, *, delay: Duration | None, **rest: Any) -> EnqueuedJob[R]: ...
    @overload
    async def enqueue_async(self, *, run_at: datetime | None, **rest: Any) -> EnqueuedJob[R]: ...
    @overload
    async def enqueue_async(self, *, queue: str | None, **rest: Any) -> EnqueuedJob[R]: ...
    @overload
    async def enqueue_async(self, *, id: str | None, **rest: Any) -> EnqueuedJob[R]: ...
    @overload
    async def enqueue_async(self, *, after: Parents | None, **rest: Any) -> EnqueuedJob[R]: ...
    @overload
    async def enqueue_async(self, *, on_dead: OnDead, **rest: Any) -> EnqueuedJob[R]: ...

    async def enqueue_async(self, *args: Any, **given: Any) -> EnqueuedJob[R]:
        """`enqueue`, awaited: `tx` may be an async connection, and the event loop is not held up."""
        return await self._enqueue_async(**self.named(args, given))

    def with_options(self, **options: Unpack[EnqueueOptions]) -> Chosen[P, R]:
        """The same job, enqueued with these options: `job.with_options(delay="10m", tx=tx).enqueue(order_id="A-17")`."""
        return Chosen(self, options)

    def named(self, args: tuple[Any, ...], given: dict[str, Any]) -> dict[str, Any]:
        """All of it by name, as it is stored."""
        if not args:
            return given
        names = self.kind.arguments.names
        if len(args) > len(names):
            raise ArgumentsError(
                self.kind.name,
                f"wrong arguments: {len(args)} were given; the handler takes: {', '.join(names) or 'nothing'}",
            )
        placed = dict(zip(names, args, strict=False))
        if doubled := placed.keys() & given.keys():
            raise ArgumentsError(self.kind.name, f"wrong arguments: {min(doubled)!r} was given twice")
        return {**placed, **given}

    def _enqueue(self, **given: Any) -> EnqueuedJob[R]:
        raise NotImplementedError

    async def _enqueue_async(self, **given: Any) -> EnqueuedJob[R]:
        raise NotImplementedError


class Chosen(Generic[P, R]):
    """A job with its options chosen: what is left to give is what the handler takes."""

    def __init__(self, job: Enqueueable[P, R], options: EnqueueOptions) -> None:
        self._job = job
        self._options = options

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> EnqueuedJob[R]:
        """Ask for one job."""
        return self._job._enqueue(**{**self._job.named(args, kwargs), **self._options})  # noqa: SLF001 - ours

    async def enqueue_async(self, *args: P.args, **kwargs: P.kwargs) -> EnqueuedJob[R]:
        """The same, awaited."""
        return await self._job._enqueue_async(**{**self._job.named(args, kwargs), **self._options})  # noqa: SLF001 - ours
