"""A registered handler, and the ways to ask for it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial, update_wrapper
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Final,
    Generic,
    Literal,
    ParamSpec,
    Protocol,
    TypedDict,
    TypeVar,
    Unpack,
    overload,
)

from stepfast.clock import Duration, duration, instant, micros, new_id, new_ids
from stepfast.database.lending import Lent, within
from stepfast.errors import ArgumentsError, ConfigurationError
from stepfast.jobs.debounce import (
    OnDuplicate,
    check_key,
    duplicate_policy,
    enqueue_many_merged,
    enqueue_merged,
    merge_policy,
    remembered_for,
)
from stepfast.jobs.enqueue import enqueue, enqueue_many, enqueue_with_id
from stepfast.jobs.groups import Parents, read_after, store_with_edges
from stepfast.jobs.groups import open_group as group_around
from stepfast.jobs.kinds import (
    Kind,
    Kinds,
    Merge,
    checked_isolation,
    checked_merge,
    checked_name,
    checked_priority,
    is_async,
)
from stepfast.jobs.payload import Arguments
from stepfast.jobs.retry import Retry
from stepfast.jobs.state import Enqueued, NewJob
from stepfast.limits.limit import Limit, checked_limits
from stepfast.results.watch import EnqueuedJob
from stepfast.telemetry.traces import enqueuing

if TYPE_CHECKING:
    from stepfast.config import Size
    from stepfast.database.connection import Transaction
    from stepfast.database.database import Database
    from stepfast.jobs.dependencies import After, OnDead
    from stepfast.jobs.step import Step


# `enqueue` takes what the handler takes: what type checkers know of a job.
#
# Python's types cannot mix a handler's parameters with options of ours in one call. So `job.enqueue(…)` with the
# handler's arguments alone is checked in full, and so is `job.with_options(delay="10m").enqueue(…)`. Options may also
# stand among the arguments, which reads well; then the arguments are checked when the call is made, not before.

P = ParamSpec("P")  # what the handler takes, besides the step
R = TypeVar("R")  # what it returns


class EnqueueOptions(TypedDict, total=False):
    """The options of `enqueue`; no parameter of a handler may have one of these names."""

    tx: Any  # a transaction of Stepfast's, or a connection of your own
    key: str | None
    unique_for: Duration | None
    unique_per: Duration | None
    on_duplicate: OnDuplicate | None
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
    def enqueue(self, *, on_duplicate: OnDuplicate | None, **rest: Any) -> EnqueuedJob[R]: ...
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
    async def enqueue_async(self, *, on_duplicate: OnDuplicate | None, **rest: Any) -> EnqueuedJob[R]: ...
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


T = TypeVar("T")

OPTIONS: Final = frozenset(EnqueueOptions.__annotations__)
REMEMBER_IDS: Final = timedelta(days=15)  # longer than a broker keeps a message
CHUNK: Final = 5_000  # rows of one bulk statement


class App(Protocol):
    """What a job needs of its application."""

    @property
    def database(self) -> Database: ...
    @property
    def kinds(self) -> Kinds: ...


class Job(Enqueueable[P, R]):
    """A registered handler. Call it to run it right here; enqueue it to have it done."""

    def __init__(self, app: App, kind: Kind, handler: Callable[..., R]) -> None:
        self.app = app
        self.kind = kind
        self._handler = handler
        update_wrapper(self, handler)

    def __call__(self, *args: Any, **kwargs: Any) -> R:
        return self._handler(*args, **kwargs)

    def _enqueue(
        self,
        *,
        tx: Lent = None,
        key: str | None = None,
        unique_for: Duration | None = None,
        unique_per: Duration | None = None,
        on_duplicate: OnDuplicate | None = None,
        debounce: Duration | None = None,
        at_most: Duration | None = None,
        priority: int | None = None,
        delay: Duration | None = None,
        run_at: datetime | None = None,
        queue: str | None = None,
        id: str | None = None,  # noqa: A002 - the word users know
        after: Parents | None = None,
        on_dead: OnDead = "wait",
        **arguments: Any,
    ) -> EnqueuedJob[R]:
        tied = read_after(after, on_dead)
        choice, given = duplicate_policy(on_duplicate), {"unique_for": unique_for, "unique_per": unique_per}
        how = None
        if key is not None or debounce is not None or at_most is not None:
            others = {**given, "delay": delay, "run_at": run_at, "after": after}
            how = merge_policy(self.kind, key, on_duplicate, debounce=debounce, at_most=at_most, **others)
        asked = self._new(
            id=new_id() if id is None else checked_name("id", id),
            payload=self.kind.stored(self.kind.arguments.encode(arguments)),
            queue=queue,
            priority=priority,
            delay=delay if debounce is None else debounce,
            run_at=run_at,
            key=key,
            **given,
        )

        def store(inner: Transaction, job: NewJob) -> Enqueued:
            joined = None if how is None else partial(enqueue_merged, inner, how=how)
            if id is not None:
                return enqueue_with_id(inner, job, micros(REMEMBER_IDS), choice, joined)
            return enqueue(inner, job, choice) if joined is None else joined(job)

        with enqueuing(asked.kind, asked.queue) as trace:
            job = asked if trace is None else replace(asked, trace=trace)
            (stored,) = self._store(tx, tied, job, lambda inner, it: [store(inner, it)])
        return EnqueuedJob(stored.id, stored.created, self.app)

    def enqueue_many(
        self,
        calls: Iterable[Mapping[str, Any] | Prepared[P, R]],
        *,
        tx: Lent = None,
        keys: Sequence[str | None] | None = None,
        on_duplicate: OnDuplicate | None = None,
        priority: int | None = None,
        delay: Duration | None = None,
        run_at: datetime | None = None,
        queue: str | None = None,
        after: Parents | None = None,
        on_dead: OnDead = "wait",
    ) -> list[EnqueuedJob[R]]:
        """Ask for many jobs at once: all of them or, if one call's arguments are wrong, none."""
        tied = read_after(after, on_dead)
        choice = duplicate_policy(on_duplicate)
        payloads = self._payloads(list(calls))
        if isinstance(keys, str):
            raise ConfigurationError(
                f"enqueue_many: keys={keys!r} is one text; give a list with a key for each call"
            )
        if keys is not None and len(keys) != len(payloads):
            raise ConfigurationError(f"enqueue_many: {len(payloads)} calls but {len(keys)} keys")
        asked = self._new(id="", payload="", queue=queue, priority=priority, delay=delay, run_at=run_at)
        for key in keys or ():
            check_key(key)
        longest = max(filter(None, keys or ()), key=len, default=None)
        how = merge_policy(self.kind, longest, on_duplicate, after=after)
        rows = list(zip(new_ids(len(payloads)), keys or [None] * len(payloads), payloads, strict=True))

        def store(inner: Transaction, like: NewJob) -> list[Enqueued]:
            stored: list[Enqueued] = []
            for start in range(0, len(rows), CHUNK):
                some = rows[start : start + CHUNK]
                stored += (
                    enqueue_many(inner, like, some, choice)
                    if how is None
                    else enqueue_many_merged(inner, like, some, how)
                )
            return stored

        with enqueuing(asked.kind, asked.queue, len(rows)) as trace:
            like = asked if trace is None else replace(asked, trace=trace)
            stored = self._store(tx, tied, like, store)
        app = self.app
        return [EnqueuedJob(job_id, created, app) for job_id, created, _ in stored]

    def _payloads(self, calls: list[Mapping[str, Any] | Prepared[P, R]]) -> list[str]:
        plain = [it for it in calls if not isinstance(it, Prepared)]
        texts = self.kind.arguments.encode_many(plain)
        if self.kind.encrypted:
            texts = [self.kind.stored(it) for it in texts]
        if len(texts) == len(calls):
            return texts
        rest = iter(texts)
        return [it.payload_for(self) if isinstance(it, Prepared) else next(rest) for it in calls]

    def enqueue_waiting(self, tx: Transaction, payload: str, id: str | None) -> str:  # noqa: A002 - as in `enqueue`
        """Store a job that waits for whoever lets it go, as the completion of a group; returns its id."""
        asked = self._new(
            id=new_id() if id is None else checked_name("id", id),
            payload=payload,
            queue=None,
            priority=None,
            delay=None,
            run_at=None,
        )

        def store(inner: Transaction, job: NewJob) -> list[Enqueued]:
            waiting = replace(job, waits=True)
            return [
                enqueue(inner, waiting)
                if id is None
                else enqueue_with_id(inner, waiting, micros(REMEMBER_IDS))
            ]

        with enqueuing(asked.kind, asked.queue) as trace:
            (stored,) = self._store(tx, None, asked if trace is None else replace(asked, trace=trace), store)
        return stored.id

    def with_args(self, *args: P.args, **kwargs: P.kwargs) -> Prepared[P, R]:
        """This job with these arguments, for `enqueue_many`, or for a group that enqueues it when it completes."""
        return Prepared(self, self.kind.stored(self.kind.arguments.encode(self.named(args, kwargs))))

    async def _enqueue_async(self, *, tx: Any = None, **given: Any) -> EnqueuedJob[R]:
        from stepfast.database.lending_async import within_async  # asyncio: not for programs without a loop

        return await within_async(self.app.database, tx, lambda inner: self._enqueue(tx=inner, **given))

    async def enqueue_many_async(
        self, calls: Iterable[Mapping[str, Any] | Prepared[P, R]], *, tx: Any = None, **options: Any
    ) -> list[EnqueuedJob[R]]:
        """`enqueue_many`, awaited."""
        from stepfast.database.lending_async import within_async  # asyncio: not for programs without a loop

        return await within_async(
            self.app.database, tx, lambda inner: self.enqueue_many(calls, tx=inner, **options)
        )

    def _new(
        self,
        *,
        id: str,  # noqa: A002 - as in `enqueue`
        payload: str,
        queue: str | None,
        priority: int | None,
        delay: Duration | None,
        run_at: datetime | None,
        key: str | None = None,
        unique_for: Duration | None = None,
        unique_per: Duration | None = None,
    ) -> NewJob:
        if delay is not None and run_at is not None:
            raise ConfigurationError("enqueue: give delay or run_at, not both")
        period = remembered_for(key, unique_for, unique_per)
        return NewJob(
            id=id,
            queue=self.kind.queue if queue is None else checked_name("queue", queue),
            kind=self.kind.name,
            payload=payload,
            priority=self.kind.priority if priority is None else checked_priority(priority),
            delay=0 if delay is None else micros(duration(delay, "delay")),
            run_at=None if run_at is None else instant(run_at),
            key=key,
            key_until=period,
            key_window=1 if unique_per is None or period is None else period,
        )

    def _store(
        self,
        tx: Lent,
        after: After | None,
        job: NewJob,
        store: Callable[[Transaction, NewJob], list[Enqueued]],
    ) -> list[Enqueued]:
        group = group_around(self.app.database)
        if after is None and group is None:
            return within(self.app.database, tx, lambda inner: store(inner, job))
        return within(
            self.app.database,
            tx if group is None else group.checked(tx),
            lambda inner: store_with_edges(inner, job, after, group, partial(store, inner)),
        )


@dataclass(frozen=True)
class Prepared(Generic[P, R]):
    """A job with its arguments that nobody has enqueued yet."""

    job: Job[P, R]
    payload: str

    def payload_for(self, job: Job[..., Any]) -> str:
        """What is stored, if it is this job that is asked for."""
        if self.job is not job:
            raise ConfigurationError(f"enqueue_many of {job.kind.name!r} was given a {self.job.kind.name!r}")
        return self.payload

    def enqueue_waiting(self, tx: Transaction, id: str | None) -> str:  # noqa: A002 - the word users know
        """Store it for whoever lets it go; returns its id."""
        return self.job.enqueue_waiting(tx, self.payload, id)


# What may be said about a kind of job when its handler is registered, and the kind that comes of it.

DEFAULT_TIMEOUT: Final = timedelta(minutes=15)


class JobOptions(TypedDict, total=False):
    """The options of `@app.job(…)`."""

    name: str | None  # of the kind; None: that of the function
    queue: str
    priority: int
    retry: Retry | None
    timeout: Duration | None  # of one step; None: it may take for ever
    limits: Sequence[Limit]
    result_ttl: Duration | None  # how long results are kept; None: as the worker's results_kept says
    isolation: Literal["process"] | None  # "process": the handler runs in a process that can be killed
    memory: Size | None  # the most that such a process may hold
    encrypted: bool | None  # payload, cursor and result; None: as the application says
    merge: Merge  # of two calls with one key: "update" (the default), "append", or a function of both


def kind_of(handler: Callable[..., Any], options: JobOptions, *, encrypted: bool) -> Kind:
    """The kind that is registered; whatever does not fit is refused in words."""
    if unknown := options.keys() - JobOptions.__annotations__.keys():
        raise TypeError(f"job() got an unexpected keyword argument {min(unknown)!r}")
    name = checked_name("job name", options.get("name") or handler.__name__)
    arguments = Arguments(name, handler)
    if taken := OPTIONS.intersection(arguments.names):
        raise ConfigurationError(
            f"job {name!r}: parameter {min(taken)!r} has the name of an enqueue option; rename it"
        )
    timeout, result_ttl = options.get("timeout", DEFAULT_TIMEOUT), options.get("result_ttl")
    own = options.get("encrypted")
    return Kind(
        name=name,
        handler=handler,
        arguments=arguments,
        queue=checked_name("queue", options.get("queue", "default")),
        priority=checked_priority(options.get("priority", 0)),
        retry=options.get("retry") or Retry(),
        timeout=None if timeout is None else duration(timeout, "timeout"),
        is_async=is_async(handler),
        limits=checked_limits(name, options.get("limits", ()), arguments.names),
        result_ttl=None if result_ttl is None else duration(result_ttl, "result_ttl"),
        isolation=checked_isolation(name, handler, options.get("isolation"), options.get("memory")),
        encrypted=encrypted if own is None else own,
        merge=checked_merge(name, options.get("merge", "update")),
    )


# `@app.job(…)`: what it makes of a handler, as type checkers see it.
#
# The worker gives the step, the caller all the rest. So `enqueue` takes what the handler takes without its step, while
# calling the job, as a test does, takes the step too.


class Anything:
    """A type of nobody's: who takes it as a first argument takes everything, and perhaps means a step."""


class PlainJob(Job[P, R]):
    """Of a handler without a step."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return super().__call__(*args, **kwargs)


class StepJob(Job[P, R]):
    """Of a handler whose first parameter is its step."""

    def __call__(self, step: Step, *args: P.args, **kwargs: P.kwargs) -> R:
        return super().__call__(step, *args, **kwargs)


class Register:
    """Makes a job of a handler, under these options."""

    def __init__(self, app: App, options: JobOptions, *, encrypted: bool) -> None:
        self._app = app
        self._options = options
        self._encrypted = encrypted

    @overload
    def __call__(self, handler: Callable[Concatenate[Anything, P], R]) -> Job[..., R]: ...
    @overload
    def __call__(self, handler: Callable[Concatenate[Step, P], R]) -> StepJob[P, R]: ...
    @overload
    def __call__(self, handler: Callable[P, R]) -> PlainJob[P, R]: ...

    def __call__(self, handler: Callable[..., Any]) -> Job[..., Any]:
        kind = kind_of(handler, self._options, encrypted=self._encrypted)
        self._app.kinds.register(kind)
        made: type[Job[..., Any]] = StepJob if kind.arguments.wants_step else PlainJob
        return made(self._app, kind, handler)
