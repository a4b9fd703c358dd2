"""A registered handler, and the ways to ask for it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial, update_wrapper
from typing import TYPE_CHECKING, Any, Final, Generic, ParamSpec, Protocol, TypeVar

from stepfast.clock import Duration, duration, instant, micros, new_id, new_ids
from stepfast.database.borrowed import Lent, within, within_async
from stepfast.enqueueable import Enqueueable, EnqueueOptions
from stepfast.errors import ConfigurationError
from stepfast.results.handle import EnqueuedJob
from stepfast.steps.dedupe import Choice, check_key, joining, met_as, remembered
from stepfast.steps.enqueue import enqueue, enqueue_many, enqueue_with_id
from stepfast.steps.groups import joining as group_around
from stepfast.steps.job import Enqueued, NewJob
from stepfast.steps.joining import join, join_many
from stepfast.steps.kinds import Kind, Kinds, checked_name, checked_priority
from stepfast.steps.tying import Parents, after_of, store_tied
from stepfast.telemetry.traces import enqueuing

if TYPE_CHECKING:
    from stepfast.database.connection import Transaction
    from stepfast.database.database import Database
    from stepfast.steps.dependencies import After, OnDead

P = ParamSpec("P")
R = TypeVar("R")
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
        on_duplicate: Choice | None = None,
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
        tied = after_of(after, on_dead)
        choice, given = met_as(on_duplicate), {"unique_for": unique_for, "unique_per": unique_per}
        how = None
        if key is not None or debounce is not None or at_most is not None:
            others = {**given, "delay": delay, "run_at": run_at, "after": after}
            how = joining(self.kind, key, on_duplicate, debounce=debounce, at_most=at_most, **others)
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
            joined = None if how is None else partial(join, inner, how=how)
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
        on_duplicate: Choice | None = None,
        priority: int | None = None,
        delay: Duration | None = None,
        run_at: datetime | None = None,
        queue: str | None = None,
        after: Parents | None = None,
        on_dead: OnDead = "wait",
    ) -> list[EnqueuedJob[R]]:
        """Ask for many jobs at once: all of them or, if one call's arguments are wrong, none."""
        tied = after_of(after, on_dead)
        choice = met_as(on_duplicate)
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
        how = joining(self.kind, longest, on_duplicate, after=after)
        rows = list(zip(new_ids(len(payloads)), keys or [None] * len(payloads), payloads, strict=True))

        def store(inner: Transaction, like: NewJob) -> list[Enqueued]:
            stored: list[Enqueued] = []
            for start in range(0, len(rows), CHUNK):
                some = rows[start : start + CHUNK]
                stored += (
                    enqueue_many(inner, like, some, choice)
                    if how is None
                    else join_many(inner, like, some, how)
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
        return await within_async(self.app.database, tx, lambda inner: self._enqueue(tx=inner, **given))

    async def enqueue_many_async(
        self, calls: Iterable[Mapping[str, Any] | Prepared[P, R]], *, tx: Any = None, **options: Any
    ) -> list[EnqueuedJob[R]]:
        """`enqueue_many`, awaited."""
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
        period = remembered(key, unique_for, unique_per)
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
            lambda inner: store_tied(inner, job, after, group, partial(store, inner)),
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
