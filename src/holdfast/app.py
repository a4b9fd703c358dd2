"""The application: a database, the kinds of jobs it knows, and the way in for user code."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from functools import update_wrapper
from typing import TYPE_CHECKING, Any, Final, Generic, ParamSpec, TypeVar, Unpack

from holdfast.clock import Duration, duration, instant, micros, new_id, new_ids
from holdfast.config import WorkerOptions, database_url, worker_settings
from holdfast.database.borrowed import finish, lend
from holdfast.database.connection import Transaction
from holdfast.database.database import Database, persist
from holdfast.database.dialects import Whose
from holdfast.database.drivers import open_database
from holdfast.database.migrate import migrate, require_current_schema
from holdfast.errors import ConfigurationError
from holdfast.steps.enqueue import OnDuplicate, enqueue, enqueue_many, enqueue_with_id
from holdfast.steps.failure import storable
from holdfast.steps.job import EnqueuedJob, NewJob
from holdfast.steps.kinds import Kind, Kinds, checked_name, is_async
from holdfast.steps.manual import ManualLease, ReleaseAs, acquire, extend, release
from holdfast.steps.payload import Arguments
from holdfast.steps.retry import Retry

if TYPE_CHECKING:
    from holdfast.admin.operator import Operator
    from holdfast.worker.loop import Worker

Lent = Transaction | Any | None  # ours, or a connection of sqlite3, psycopg, PyMySQL or SQLAlchemy
P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

DEFAULT_TIMEOUT: Final = timedelta(minutes=15)
OPTIONS: Final = frozenset(
    {"tx", "key", "unique_for", "on_duplicate", "priority", "delay", "run_at", "queue", "id"}
)
REMEMBER_IDS: Final = timedelta(days=15)  # longer than a broker keeps a message
LONGEST_KEY: Final = 128
PRIORITIES: Final = range(-32_768, 32_768)
CHUNK: Final = 5_000  # rows of one bulk statement


class Holdfast:
    """Durable jobs on one database. Cheap to make: nothing is opened before it is needed."""

    def __init__(self, url: str | None = None, *, database: Database | None = None) -> None:
        self.kinds = Kinds()
        self._database = database or open_database(database_url(url))
        self._checked = False

    @property
    def database(self) -> Database:
        """The database, with tables this code knows."""
        if not self._checked:
            require_current_schema(self._database)
            self._checked = True
        return self._database

    @property
    def operator(self) -> Operator:
        """What an operator may see and do: jobs, dead letters, queues, workers, leases."""
        from holdfast.admin.operator import Operator

        return Operator(self.database)

    def migrate(self) -> list[str]:
        """Create or upgrade the tables; safe to run from many processes at once."""
        return migrate(self._database)

    def job(
        self,
        *,
        name: str | None = None,
        queue: str = "default",
        priority: int = 0,
        retry: Retry | None = None,
        timeout: Duration | None = DEFAULT_TIMEOUT,
    ) -> Callable[[Callable[P, R]], Job[P, R]]:
        """Register a handler: the decorated function becomes a job that can be enqueued."""

        def register(handler: Callable[P, R]) -> Job[P, R]:
            kind_name = checked_name("job name", name or handler.__name__)
            arguments = Arguments(kind_name, handler)
            if taken := OPTIONS.intersection(arguments.names):
                raise ConfigurationError(
                    f"job {kind_name!r}: parameter {min(taken)!r} has the name of an enqueue option; rename it"
                )
            kind = Kind(
                name=kind_name,
                handler=handler,
                arguments=arguments,
                queue=checked_name("queue", queue),
                priority=_priority(priority),
                retry=retry or Retry(),
                timeout=None if timeout is None else duration(timeout, "timeout"),
                is_async=is_async(handler),
            )
            self.kinds.register(kind)
            return Job(self, kind, handler)

        return register

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        """A transaction of your own on Holdfast's database: your rows and your enqueues commit together."""
        with self.database.transaction() as tx:
            yield tx

    @contextmanager
    def reading(self) -> Iterator[Transaction]:
        """A look that changes nothing and waits for no writer."""
        with self.database.reading() as tx:
            yield tx

    def worker(self, **options: Unpack[WorkerOptions]) -> Worker:
        """A worker inside your own program: `with app.worker():`, `async with`, or start() and stop().

        Options are those of `holdfast worker`: queues, concurrency, lease, renew_at, poll_interval, grace, batch,
        crash_limit, retention, worker_id.
        """
        from holdfast.worker.loop import Worker  # asyncio and threads: not for programs that only enqueue

        return Worker(self.database, self.kinds, worker_settings(**options))

    # Leases by hand

    def acquire(self, worker_id: str, lease: Duration = 300, *, queue: str = "default") -> ManualLease | None:
        """Take the next ready job of `queue` yourself, for `lease`; None when there is none."""
        span = duration(lease, "lease")
        return persist(self.database, lambda tx: acquire(tx, worker_id, span, queue))

    def extend(self, held: ManualLease, lease: Duration = 300) -> ManualLease:
        """Keep it for `lease` from now; raises `LeaseLostError` if it is no longer yours."""
        span = duration(lease, "lease")
        return persist(self.database, lambda tx: extend(tx, held, span))

    def release(
        self, held: ManualLease, how: ReleaseAs, error: str | None = None, *, result: Any = None
    ) -> None:
        """End a lease taken by hand as 'done', 'retry' or 'failed'."""
        kind = self.kinds.find(held.kind)
        retry = kind.retry if kind else Retry()
        dice = random.random()
        persist(
            self.database, lambda tx: release(tx, held, how, error, retry=retry, dice=dice, result=result)
        )

    def close(self) -> None:
        self._database.close()


class Job(Generic[P, R]):
    """A registered handler. Call it to run it right here; enqueue it to have it done."""

    def __init__(self, app: Holdfast, kind: Kind, handler: Callable[P, R]) -> None:
        self.app = app
        self.kind = kind
        self._handler = handler
        update_wrapper(self, handler)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self._handler(*args, **kwargs)

    def enqueue(
        self,
        *,
        tx: Lent = None,
        key: str | None = None,
        unique_for: Duration | None = None,
        on_duplicate: OnDuplicate = "reject",
        priority: int | None = None,
        delay: Duration | None = None,
        run_at: datetime | None = None,
        queue: str | None = None,
        id: str | None = None,  # noqa: A002 - the word users know
        **arguments: Any,
    ) -> EnqueuedJob:
        """Ask for one job. With `tx` it exists when that transaction commits; without, when this returns.

        `key` is unique while the job is unfinished, and with `unique_for` for that long in any case.
        `id` makes the call idempotent: the same id again is the same job, also after it ended.
        """
        _on_duplicate(on_duplicate)
        job = self._new(
            id=new_id() if id is None else checked_name("id", id),
            payload=self.kind.arguments.encode(arguments),
            queue=queue,
            priority=priority,
            delay=delay,
            run_at=run_at,
            key=key,
            unique_for=unique_for,
        )
        if id is not None:
            return self._in(tx, lambda inner: enqueue_with_id(inner, job, micros(REMEMBER_IDS), on_duplicate))
        return self._in(tx, lambda inner: enqueue(inner, job, on_duplicate))

    def enqueue_many(
        self,
        calls: Iterable[Mapping[str, Any]],
        *,
        tx: Lent = None,
        keys: Sequence[str | None] | None = None,
        on_duplicate: OnDuplicate = "reject",
        priority: int | None = None,
        delay: Duration | None = None,
        run_at: datetime | None = None,
        queue: str | None = None,
    ) -> list[EnqueuedJob]:
        """Ask for many jobs at once: all of them or, if one call's arguments are wrong, none."""
        _on_duplicate(on_duplicate)
        payloads = [self.kind.arguments.encode(arguments) for arguments in calls]
        if isinstance(keys, str):
            raise ConfigurationError(
                f"enqueue_many: keys={keys!r} is one text; give a list with a key for each call"
            )
        if keys is not None and len(keys) != len(payloads):
            raise ConfigurationError(f"enqueue_many: {len(payloads)} calls but {len(keys)} keys")
        like = self._new(id="", payload="", queue=queue, priority=priority, delay=delay, run_at=run_at)
        for key in keys or ():
            _check_key(key)
        rows = list(zip(new_ids(len(payloads)), keys or [None] * len(payloads), payloads, strict=True))

        def store(inner: Transaction) -> list[EnqueuedJob]:
            stored: list[EnqueuedJob] = []
            for start in range(0, len(rows), CHUNK):
                stored += enqueue_many(inner, like, rows[start : start + CHUNK], on_duplicate)
            return stored

        return self._in(tx, store)

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
    ) -> NewJob:
        if delay is not None and run_at is not None:
            raise ConfigurationError("enqueue: give delay or run_at, not both")
        _check_key(key)
        if unique_for is not None and key is None:
            raise ConfigurationError("enqueue: unique_for needs a key to remember")
        return NewJob(
            id=id,
            queue=self.kind.queue if queue is None else checked_name("queue", queue),
            kind=self.kind.name,
            payload=payload,
            priority=self.kind.priority if priority is None else _priority(priority),
            delay=0 if delay is None else micros(duration(delay, "delay")),
            run_at=None if run_at is None else instant(run_at),
            key=key,
            key_until=None if unique_for is None else micros(duration(unique_for, "unique_for")),
        )

    def _in(self, tx: Lent, work: Callable[[Transaction], T]) -> T:
        if tx is None:
            return persist(self.app.database, work, Whose.OURS_BY_KEY)
        if isinstance(tx, Transaction):
            return work(tx)
        lent = lend(tx, self.app.database)
        answer = work(lent)
        finish(lent, self.app.database)
        return answer


def _check_key(key: object) -> None:
    if key is None:
        return
    if not isinstance(key, str):
        raise ConfigurationError(f"key {key!r}: a text, not {type(key).__name__}")
    if not 0 < len(key) <= LONGEST_KEY:
        raise ConfigurationError(f"key {key[:40]!r}…: 1 to {LONGEST_KEY} characters, not {len(key)}")
    if key != key.rstrip():
        raise ConfigurationError(f"key {key!r} ends in a space, which MariaDB would not see; strip it")
    if key != storable(key):
        raise ConfigurationError(f"key {key!r}: no database stores NUL or half a character")


def _priority(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value not in PRIORITIES:
        raise ConfigurationError(
            f"priority {value!r}: a whole number from -32768 to 32767; higher runs first"
        )
    return value


def _on_duplicate(choice: str) -> None:
    if choice not in {"reject", "skip", "replace"}:
        raise ConfigurationError(f"on_duplicate={choice!r}: use 'reject', 'skip' or 'replace'")
