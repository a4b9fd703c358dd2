"""A registered handler, and the ways to ask for it.

`@app.job(…)` makes a `Job` of a function. `job.enqueue(…)` stores one job, `job.enqueue_many(…)` thousands at once;
calling the job runs the handler right here.

Python's types cannot mix a handler's parameters with options of ours in one call. So `job.enqueue(…)` with the handler's
arguments alone is checked in full, and so is `job.with_options(delay="10m").enqueue(…)`. Options may also stand among
the arguments, which reads well; then the arguments are checked when the call is made, not before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
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
    TypedDict,
    TypeVar,
    Unpack,
    overload,
)

from stepfast.clock import Duration, duration, instant, micros, new_id, new_ids
from stepfast.config import checked_name, unknown_option
from stepfast.database.lending import Lent, within
from stepfast.encryption import Encryption, checked_encryption
from stepfast.errors import ArgumentsError, ConfigurationError
from stepfast.jobs.enqueue import enqueue, enqueue_many, enqueue_with_id, open_group
from stepfast.jobs.keys import check_key, duplicate_policy, remembered_for
from stepfast.jobs.kinds import (
    Kind,
    Merge,
    checked_isolation,
    checked_merge,
    checked_priority,
    checked_timeout,
    is_async,
)
from stepfast.jobs.payload import Arguments
from stepfast.jobs.retry import Retry, checked_retry
from stepfast.jobs.state import Enqueued, NewJob
from stepfast.limits.limit import Limit, checked_limits
from stepfast.results.enqueued_job import EnqueuedJob
from stepfast.telemetry.traces import enqueuing

if TYPE_CHECKING:
    from stepfast.app_protocol import AppLike
    from stepfast.config import Size
    from stepfast.database.connection import Transaction
    from stepfast.jobs.debounce import MergePolicy
    from stepfast.jobs.dependencies import After, OnDead, Parents
    from stepfast.jobs.keys import DuplicatePolicy, OnDuplicate
    from stepfast.jobs.step import Step


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


OPTIONS: Final = frozenset(EnqueueOptions.__annotations__)
REMEMBER_IDS: Final = timedelta(days=15)  # longer than a broker keeps a message
CHUNK: Final = 5_000  # rows of one bulk statement


class Job(Generic[P, R]):
    """A registered handler. Call it to run it right here; enqueue it to have it done."""

    def __init__(self, app: AppLike, kind: Kind, handler: Callable[..., R]) -> None:
        self.app = app
        self.kind = kind
        self._handler = handler
        update_wrapper(self, handler)

    def __call__(self, *args: Any, **kwargs: Any) -> R:
        return self._handler(*args, **kwargs)

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

        `key` is unique among the unfinished jobs of this kind, and with `unique_for` for that long in any case (`unique_per`: until
        the window of that length is over, counted from 1970). A held key is met as `on_duplicate` says: "reject" (the
        default), "skip", "replace", or "merge" as the job's `merge=` does it. `debounce`: begin so long after the last
        call with the key, and `at_most` so long after the first.
        `id` makes the call idempotent: the same id again is the same job, also after it ended. Ids are those of all kinds.
        `after`: run when these jobs are done. If one of them dies or is cancelled: "wait" until it is revived and
        done, "fail" with it, or "run" anyway.
        """
        return self._enqueue(**self._by_name(args, given))

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
        return await self._enqueue_async(**self._by_name(args, given))

    def with_options(self, **options: Unpack[EnqueueOptions]) -> JobWithOptions[P, R]:
        """This job, enqueued with these options: `job.with_options(delay="10m", tx=tx).enqueue(order_id="A-17")`."""
        return JobWithOptions(self, options)

    def with_args(self, *args: P.args, **kwargs: P.kwargs) -> Prepared[P, R]:
        """This job with these arguments, for `enqueue_many`, or for a group that enqueues it when it completes."""
        return Prepared(self, self.kind.arguments.encode(self._by_name(args, kwargs)))

    def _by_name(self, args: tuple[Any, ...], given: dict[str, Any]) -> dict[str, Any]:
        """All arguments by name, as they are stored."""
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
        """`enqueue`, with everything named. Keys, parents and ids cost something only where they are given."""
        parents = None if after is None and on_dead == "wait" else _read_after(after, on_dead)
        policy: DuplicatePolicy = "reject" if on_duplicate is None else duplicate_policy(on_duplicate)
        merge = None
        if key is not None or debounce is not None or at_most is not None:
            check_key(key)
            others = {
                "delay": delay,
                "run_at": run_at,
                "after": after,
                "unique_for": unique_for,
                "unique_per": unique_per,
            }
            merge = _merge_policy(self.kind, key, on_duplicate, debounce, at_most, **others)
        job_id = new_id() if id is None else checked_name("id", id)
        asked = self._new_job(
            id=job_id,
            payload=self.kind.stored(self.kind.arguments.encode(arguments), job_id),
            queue=queue,
            priority=priority,
            delay=delay if debounce is None else debounce,
            run_at=run_at,
            key=key,
            unique_for=unique_for,
            unique_per=unique_per,
        )

        def store(inner: Transaction, job: NewJob) -> list[Enqueued]:
            if merge is None and id is None:
                return [enqueue(inner, job, policy)]
            merged = None if merge is None else partial(_enqueue_merged, inner, merge)
            if id is not None:
                return [enqueue_with_id(inner, job, micros(REMEMBER_IDS), policy, merged)]
            return [enqueue(inner, job, policy) if merged is None else merged(job)]

        with enqueuing(asked.kind, asked.queue) as trace:
            job = asked if trace is None else replace(asked, trace=trace)
            stored = self._store(tx, parents, job, store)[0]
        return EnqueuedJob(stored.id, stored.created, self.app)

    async def _enqueue_async(self, *, tx: Any = None, **given: Any) -> EnqueuedJob[R]:
        """`_enqueue`, awaited."""
        from stepfast.database.lending_async import within_async  # asyncio: not for programs without a loop

        return await within_async(self.app.database, tx, lambda inner: self._enqueue(tx=inner, **given))

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
        parents = None if after is None and on_dead == "wait" else _read_after(after, on_dead)
        policy = duplicate_policy(on_duplicate)
        payloads = self._payloads(list(calls))
        if isinstance(keys, str):
            raise ConfigurationError(
                f"enqueue_many: keys={keys!r} is one text; give a list with a key for each call"
            )
        if keys is not None and not isinstance(keys, Sequence):
            raise ConfigurationError(
                f"enqueue_many: keys is a {type(keys).__name__}; give a list, in the order of the calls"
            )
        if keys is not None and len(keys) != len(payloads):
            raise ConfigurationError(f"enqueue_many: {len(payloads)} calls but {len(keys)} keys")
        asked = self._new_job(id="", payload="", queue=queue, priority=priority, delay=delay, run_at=run_at)
        for key in keys or ():
            check_key(key)
        longest = max(filter(None, keys or ()), key=len, default=None)
        merge = _merge_policy(self.kind, longest, on_duplicate, after=after)
        ids = new_ids(len(payloads))
        if self.kind.encrypted:
            payloads = [self.kind.stored(*it) for it in zip(payloads, ids, strict=True)]
        rows = list(zip(ids, keys or [None] * len(payloads), payloads, strict=True))

        def store(inner: Transaction, like: NewJob) -> list[Enqueued]:
            stored: list[Enqueued] = []
            for start in range(0, len(rows), CHUNK):
                chunk = rows[start : start + CHUNK]
                if merge is None:
                    stored += enqueue_many(inner, like, chunk, policy)
                else:
                    from stepfast.jobs.debounce import enqueue_many_merged

                    stored += enqueue_many_merged(inner, like, chunk, merge)
            return stored

        with enqueuing(asked.kind, asked.queue, len(rows)) as trace:
            like = asked if trace is None else replace(asked, trace=trace)
            stored = self._store(tx, parents, like, store)
        app = self.app
        return [EnqueuedJob(job_id, created, app) for job_id, created, _ in stored]

    async def enqueue_many_async(
        self, calls: Iterable[Mapping[str, Any] | Prepared[P, R]], *, tx: Any = None, **options: Any
    ) -> list[EnqueuedJob[R]]:
        """`enqueue_many`, awaited."""
        from stepfast.database.lending_async import within_async  # asyncio: not for programs without a loop

        return await within_async(
            self.app.database, tx, lambda inner: self.enqueue_many(calls, tx=inner, **options)
        )

    def _payloads(self, calls: list[Mapping[str, Any] | Prepared[P, R]]) -> list[str]:
        plain = [call for call in calls if not isinstance(call, Prepared)]
        texts = self.kind.arguments.encode_many(plain)
        if len(texts) == len(calls):
            return texts
        rest = iter(texts)
        return [call.payload_for(self) if isinstance(call, Prepared) else next(rest) for call in calls]

    def enqueue_waiting(self, tx: Transaction, payload: str, id: str | None) -> str:  # noqa: A002 - as in `enqueue`
        """Store a job that waits until it is released, as the completion of a group; returns its id."""
        job_id = new_id() if id is None else checked_name("id", id)
        asked = self._new_job(
            id=job_id,
            payload=self.kind.stored(payload, job_id),
            queue=None,
            priority=None,
            delay=None,
            run_at=None,
        )

        def store(inner: Transaction, job: NewJob) -> list[Enqueued]:
            waiting = replace(job, waits=True)
            if id is None:
                return [enqueue(inner, waiting)]
            return [enqueue_with_id(inner, waiting, micros(REMEMBER_IDS))]

        with enqueuing(asked.kind, asked.queue) as trace:
            job = asked if trace is None else replace(asked, trace=trace)
            return self._store(tx, None, job, store)[0].id

    def _new_job(
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
        period = None
        if unique_for is not None or unique_per is not None:
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
        """Store jobs in the caller's transaction, that of the group around us, or one of their own."""
        database = self.app.database
        group = open_group(database)
        if after is None and group is None:
            return within(database, tx, lambda inner: store(inner, job))
        from stepfast.jobs.groups import store_with_edges

        return within(
            database,
            tx if group is None else group.checked(tx),
            lambda inner: store_with_edges(inner, job, after, group, partial(store, inner)),
        )


# Most programs have neither dependencies nor merged calls: their halves are loaded when they are asked for.


def _read_after(after: Parents | None, on_dead: str) -> After | None:
    from stepfast.jobs.dependencies import read_after

    return read_after(after, on_dead)


def _merge_policy(
    kind: Kind,
    key: str | None,
    on_duplicate: OnDuplicate | None,
    debounce: Duration | None = None,
    at_most: Duration | None = None,
    **others: Any,
) -> MergePolicy | None:
    if on_duplicate != "merge" and debounce is None and at_most is None:
        return None
    from stepfast.jobs.debounce import merge_policy

    return merge_policy(kind, key, on_duplicate, debounce=debounce, at_most=at_most, **others)


def _enqueue_merged(tx: Transaction, policy: MergePolicy, job: NewJob) -> Enqueued:
    from stepfast.jobs.debounce import enqueue_merged

    return enqueue_merged(tx, job, policy)


class JobWithOptions(Generic[P, R]):
    """A job with its options chosen: its `enqueue` takes what the handler takes."""

    def __init__(self, job: Job[P, R], options: EnqueueOptions) -> None:
        self._job: Any = job  # its options are checked already, in `with_options`
        self._options = options

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> EnqueuedJob[R]:
        """Ask for one job."""
        job: EnqueuedJob[R] = self._job.enqueue(*args, **{**kwargs, **self._options})
        return job

    async def enqueue_async(self, *args: P.args, **kwargs: P.kwargs) -> EnqueuedJob[R]:
        """`enqueue`, awaited."""
        job: EnqueuedJob[R] = await self._job.enqueue_async(*args, **{**kwargs, **self._options})
        return job


@dataclass(frozen=True)
class Prepared(Generic[P, R]):
    """A job with its arguments, not enqueued yet."""

    job: Job[P, R]
    payload: str = field(repr=False)  # not encrypted yet: it is for the job that it becomes

    def payload_for(self, job: Job[..., Any]) -> str:
        """The payload, if it is `job` that is asked for."""
        if self.job is not job:
            raise ConfigurationError(f"enqueue_many of {job.kind.name!r} was given a {self.job.kind.name!r}")
        return self.payload

    def enqueue_waiting(self, tx: Transaction, id: str | None) -> str:  # noqa: A002 - the word users know
        """Store it as a job that waits until it is released; returns its id."""
        return self.job.enqueue_waiting(tx, self.payload, id)


# --- `@app.job(…)`.

DEFAULT_TIMEOUT: Final = timedelta(minutes=15)


class JobOptions(TypedDict, total=False):
    """The options of `@app.job(…)`."""

    name: str | None  # of the kind; None: that of the function
    queue: str
    priority: int
    retry: Retry | int | None  # a number: so many attempts
    timeout: Duration | None  # of one step: then it is asked to stop; None: it may take for ever
    limits: Sequence[Limit]
    result_ttl: Duration | None  # how long results are kept; None: as the worker's results_kept says
    isolation: Literal["process"] | None  # "process": the handler runs in a process that can be killed
    memory: Size | None  # the most that such a process may hold
    env: Sequence[str] | None  # names of the variables that such a process gets; None: all
    encrypted: Encryption | None  # payload, cursor and result; None: as the application says
    merge: Merge  # of two calls with one key: "update" (the default), "append", or a function of both


class Untyped:
    """Never instantiated. Matches handlers whose first parameter is untyped, which may be the step."""


class PlainJob(Job[P, R]):
    """The job of a handler without a step."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return super().__call__(*args, **kwargs)


class StepJob(Job[P, R]):
    """The job of a handler whose first parameter is its step.

    The worker gives the step, the caller all the rest. So `enqueue` takes what the handler takes without its step, while
    calling the job, as a test does, takes the step too.
    """

    def __call__(self, step: Step, *args: P.args, **kwargs: P.kwargs) -> R:
        return super().__call__(step, *args, **kwargs)


class Register:
    """Makes a job of a handler, under these options."""

    def __init__(self, app: AppLike, options: JobOptions, *, encrypted: Encryption) -> None:
        self._app = app
        self._options = options
        self._encrypted = encrypted

    @overload
    def __call__(self, handler: Callable[Concatenate[Untyped, P], R]) -> Job[..., R]: ...
    @overload
    def __call__(self, handler: Callable[Concatenate[Step, P], R]) -> StepJob[P, R]: ...
    @overload
    def __call__(self, handler: Callable[P, R]) -> PlainJob[P, R]: ...

    def __call__(self, handler: Callable[..., Any]) -> Job[..., Any]:
        kind = make_kind(handler, self._options, encrypted=self._encrypted)
        self._app.kinds.register(kind)
        made: type[Job[..., Any]] = StepJob if kind.arguments.wants_step else PlainJob
        return made(self._app, kind, handler)


def make_kind(handler: Callable[..., Any], options: JobOptions, *, encrypted: Encryption) -> Kind:
    """The kind that is registered; options that do not fit are refused in words."""
    if unknown := options.keys() - JobOptions.__annotations__.keys():
        raise unknown_option("job()", min(unknown), list(JobOptions.__annotations__))
    given = options.get("name")
    name = checked_name("job name", getattr(handler, "__name__", None) if given is None else given)
    arguments = Arguments(name, handler)
    if taken := OPTIONS.intersection(arguments.names):
        raise ConfigurationError(
            f"job {name!r}: parameter {min(taken)!r} has the name of an enqueue option; rename it"
        )
    own, result_ttl = options.get("encrypted"), options.get("result_ttl")
    return Kind(
        name=name,
        handler=handler,
        arguments=arguments,
        queue=checked_name("queue", options.get("queue", "default")),
        priority=checked_priority(options.get("priority", 0)),
        retry=checked_retry(f"job {name!r}", options.get("retry")) or Retry(),
        timeout=checked_timeout(options.get("timeout", DEFAULT_TIMEOUT)),
        is_async=is_async(handler),
        limits=checked_limits(name, options.get("limits", ()), arguments.names),
        result_ttl=None if result_ttl is None else duration(result_ttl, "result_ttl"),
        isolation=checked_isolation(
            name, handler, options.get("isolation"), options.get("memory"), options.get("env")
        ),
        encrypted=encrypted if own is None else checked_encryption(f"job {name!r}", own),
        merge=checked_merge(name, options.get("merge", "update")),
    )
