"""The application: a database, the kinds of jobs it knows, and the way in for user code."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeVar, Unpack

from holdfast.clock import Duration, duration
from holdfast.config import WorkerOptions, database_url, worker_settings
from holdfast.database.database import Database, persist
from holdfast.database.drivers import open_database
from holdfast.database.migrate import migrate, require_current_schema
from holdfast.errors import ConfigurationError
from holdfast.job import OPTIONS, Job, checked_priority
from holdfast.steps.kinds import Kind, Kinds, checked_name, is_async
from holdfast.steps.manual import ManualLease, ReleaseAs, acquire, extend, release
from holdfast.steps.payload import Arguments
from holdfast.steps.retry import Retry

if TYPE_CHECKING:
    from holdfast.admin.operator import Operator
    from holdfast.database.connection import Transaction
    from holdfast.worker.loop import Worker

P = ParamSpec("P")
R = TypeVar("R")

DEFAULT_TIMEOUT: Final = timedelta(minutes=15)


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
                priority=checked_priority(priority),
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
