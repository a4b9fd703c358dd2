"""The application: a database, the kinds of jobs it knows, and the way in for user code."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeVar, Unpack

from holdfast.clock import Duration, duration
from holdfast.config import WorkerOptions, database_url, worker_settings
from holdfast.database.database import Database, persist
from holdfast.database.drivers import open_database
from holdfast.database.migrate import migrate, require_current_schema
from holdfast.errors import ConfigurationError
from holdfast.job import OPTIONS, Job, Lent, within
from holdfast.limits.limit import Limit, checked_limits
from holdfast.results.handle import EnqueuedJob
from holdfast.steps.kinds import Kind, Kinds, checked_name, checked_priority, is_async
from holdfast.steps.manual import ManualLease, ReleaseAs, acquire, extend, release
from holdfast.steps.payload import Arguments, sendable
from holdfast.steps.retry import Retry

if TYPE_CHECKING:
    from holdfast.admin.operator import Operator
    from holdfast.admin.runs import Runs
    from holdfast.admin.schedules import Schedules
    from holdfast.database.connection import Transaction
    from holdfast.notifications.alert import Severity
    from holdfast.notifications.settings import NotificationSettings
    from holdfast.outbox.messages import StagedMessage
    from holdfast.results.outcome import JobOutcome
    from holdfast.results.watching import Watch
    from holdfast.runs.broker import Broker
    from holdfast.runs.feed import Feed
    from holdfast.runs.feeds import Feeds
    from holdfast.schedules.definition import Definition, ScheduleOptions
    from holdfast.tasks.kinds import TaskOptions
    from holdfast.worker.loop import Worker
    from holdfast.worker.scrape import Collector

P = ParamSpec("P")
R = TypeVar("R")
F = TypeVar("F", bound="Feed")
H = TypeVar("H", bound=Callable[..., Any])

DEFAULT_TIMEOUT: Final = timedelta(minutes=15)


class Holdfast:
    """Durable jobs on one database. Cheap to make: nothing is opened before it is needed."""

    def __init__(
        self,
        url: str | None = None,
        *,
        database: Database | None = None,
        notifications: NotificationSettings | None = None,
        transport: str | Broker | None = None,
    ) -> None:
        self.kinds = Kinds()
        self.declared: dict[str, Definition] = {}  # schedules, by name
        self._feeds: Feeds | None = None
        self._notifications = notifications
        self._transport = transport  # a broker for the runs of all feeds; None: HOLDFAST_TRANSPORT, or none
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
    def notifications(self) -> NotificationSettings:
        """How webhooks and alerts are sent: as given, else as the environment says."""
        from holdfast.notifications.settings import from_environment

        self._notifications = self._notifications or from_environment()
        return self._notifications

    @property
    def operator(self) -> Operator:
        """What an operator may see and do: jobs, dead letters, queues, workers, leases."""
        from holdfast.admin.operator import Operator

        return Operator(self.database, feeds=[it.name for it in self._feeds.all()] if self._feeds else ())

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
        limits: Sequence[Limit] = (),
        result_ttl: Duration | None = None,
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
                limits=checked_limits(kind_name, limits, arguments.names),
                result_ttl=None if result_ttl is None else duration(result_ttl, "result_ttl"),
            )
            self.kinds.register(kind)
            return Job(self, kind, handler)

        return register

    def task(self, task_type: str, **options: Unpack[TaskOptions]) -> Callable[[H], H]:
        """Register the handler of a type of queue tasks; the fields of their payload are its arguments."""
        from holdfast.tasks.kinds import register  # most programs have none

        return register(self.kinds, task_type, options)

    def schedule(self, name: str, job: Job[..., Any], **options: Unpack[ScheduleOptions]) -> None:
        """Declare that `job` is enqueued by the calendar (cron=), at a steady beat (every=) or once (at=).

        The table gets it when a worker starts. What an operator changes there wins, until it is reset.
        Options: tz, arguments, tick_as, queue, priority, missed ("once", "all", "skip"), overlap ("allow", "skip").
        """
        from holdfast.schedules.declared import declare  # most programs declare none

        declare(self.declared, name, job.kind, options)

    @property
    def schedules(self) -> Schedules:
        """Schedules at run time: look at them, add, change, pause, resume, trigger, remove and reset them."""
        from holdfast.admin.schedules import Schedules

        return Schedules(self.database, self.kinds)

    def feed(self, feed: F) -> F:
        """Register a feed: from now on its runs can be started, and the workers of this application read it."""
        declared = self.feeds.add(feed)
        if declared.schedule is not None:
            from holdfast.schedules.declared import declare

            kind = self.feeds.kind(declared.name, "start")
            declare(self.declared, declared.name, kind, {"cron": declared.schedule, "tz": declared.tz})
        return feed

    @property
    def feeds(self) -> Feeds:
        """The feeds that were registered, as they are declared."""
        from holdfast.runs.feeds import Feeds  # most programs have none

        if self._feeds is None:
            self._feeds = Feeds(self.kinds, lambda: self.database, self._transport)
        return self._feeds

    @property
    def runs(self) -> Runs:
        """Runs of the feeds: plan, start, look at, retry, consolidate, cancel and resume them."""
        from holdfast.admin.runs import Runs

        return Runs(self.database, self.feeds)

    def limit_queue(self, queue: str, *limits: Limit) -> None:
        """Limit everything that runs from this queue, whatever its kind. Say it before the worker starts."""
        if not limits:
            raise ConfigurationError(f"limit_queue({queue!r}): give at least one Rate(…) or Concurrency(…)")
        self.kinds.limit_queue(checked_name("queue", queue), checked_limits(f"queue {queue}", limits, None))

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

        Options are those of `holdfast worker`: queues, concurrency, lease, grace, batch, worker_id and the others.
        """
        from holdfast.worker.loop import Worker  # asyncio and threads: not for programs that only enqueue

        return Worker(
            self.database,
            self.kinds,
            worker_settings(**options),
            notifications=self.notifications,
            declared=self.declared,
            feeds=self._feeds,
        )

    def send_webhook(
        self,
        url: str,
        *,
        data: Any,
        type: str | None = None,  # noqa: A002 - the word of Standard Webhooks
        key: str | None = None,
        headers: Mapping[str, str] | None = None,
        tx: Lent = None,
    ) -> StagedMessage:
        """Stage a webhook; a worker sends it. With `tx`, when that transaction commits. Inside a step use the step's."""
        from holdfast.outbox.messages import stage, webhook  # most programs send none

        message = webhook(url, sendable(data), type=type, key=key, headers=headers)
        return within(self.database, tx, lambda inner: stage(inner, message))

    def alert(
        self,
        cause: str,
        title: str,
        body: str = "",
        *,
        severity: Severity = "failure",
        cooldown: Duration | None = None,
        tx: Lent = None,
    ) -> None:
        """Tell a person: once per `cause`, and not again for a while. With `tx`, when that transaction commits."""
        from holdfast.outbox.alerts import alert, raise_alert

        quiet = None if cooldown is None else duration(cooldown, "cooldown")
        raised = alert(cause, title, body, severity=severity, cooldown=quiet)
        within(self.database, tx, lambda inner: raise_alert(inner, raised))

    def enqueued(self, job_id: str) -> EnqueuedJob[Any]:
        """The job with this id, as `enqueue` returned it: to wait for it or to watch it. Asks nobody."""
        return EnqueuedJob(job_id, created=False, app=self)

    def result_of(self, job_id: str) -> JobOutcome[Any]:
        """Where the job stands now: its state, progress, error, and its result if it is done."""
        from holdfast.results.results import Results

        return Results(self).look(job_id)

    def watch(self, job_id: str, timeout: Duration | None = None) -> Watch:
        """What happens to the job, for `for` and `async for`: states, progress, log lines, and its end."""
        return self.enqueued(job_id).watch(timeout)

    def metrics(self) -> Collector:
        """For Prometheus: `REGISTRY.register(app.metrics())`. Counts of this process, and how full the database is."""
        from holdfast.telemetry.metrics import process_metrics
        from holdfast.worker.scrape import Collector

        return Collector(process_metrics(), lambda: self.database)

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
        retry, dice = kind.retry if kind else Retry(), random.random()
        persist(
            self.database, lambda tx: release(tx, held, how, error, retry=retry, dice=dice, result=result)
        )

    def use(self, database: Database) -> Database:
        """Work on another database from here on, as tests do; returns the one before. Running workers stay on theirs."""
        before, self._database, self._checked = self._database, database, False
        return before

    def close(self) -> None:
        from holdfast.results.waiting import close

        close(self._database)
        self._database.close()
