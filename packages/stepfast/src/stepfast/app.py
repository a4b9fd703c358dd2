"""The application: a database, the kinds of jobs it knows, and the way in for user code."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

from stepfast.clock import Duration, duration
from stepfast.config import WorkerOptions, checked_name, database_url, worker_settings
from stepfast.database.database import Database, persist
from stepfast.database.drivers import open_database
from stepfast.database.lending import Lent, lent_transaction, within
from stepfast.database.migrate import migrate, require_current_schema
from stepfast.encryption import checked_encryption
from stepfast.errors import ConfigurationError
from stepfast.job import Register
from stepfast.jobs.kinds import Kinds
from stepfast.jobs.payload import sendable
from stepfast.jobs.retry import Retry
from stepfast.limits.limit import Limit, checked_limits
from stepfast.results.enqueued_job import EnqueuedJob
from stepfast.telemetry.masking import hide

if TYPE_CHECKING:
    from stepfast.admin.operator import Operator
    from stepfast.admin.runs import Runs
    from stepfast.admin.schedules import Schedules
    from stepfast.callbacks import Callbacks
    from stepfast.database.connection import Transaction
    from stepfast.encryption import Encryption
    from stepfast.group import Group, GroupOptions
    from stepfast.job import Job, JobOptions, Prepared
    from stepfast.jobs.events import Events
    from stepfast.jobs.manual_lease import ManualLease, ReleaseAs
    from stepfast.notifications.alert import Severity
    from stepfast.notifications.settings import NotificationSettings
    from stepfast.outbox.messages import StagedMessage
    from stepfast.results.outcome import JobOutcome
    from stepfast.results.watch import Watch
    from stepfast.runs.broker import Broker
    from stepfast.runs.feed import Feed
    from stepfast.runs.feeds import Feeds
    from stepfast.schedules.definition import Definition, ScheduleOptions
    from stepfast.tasks.handlers import TaskOptions
    from stepfast.telemetry.masking import Rule
    from stepfast.worker.metrics import Collector
    from stepfast.worker.worker import Worker


T = TypeVar("T")
F = TypeVar("F", bound="Feed")
H = TypeVar("H", bound=Callable[..., Any])


class Stepfast:
    """Durable jobs on one database. Cheap to make: nothing is opened before it is needed."""

    def __init__(
        self,
        url: str | None = None,
        *,
        database: Database | None = None,
        notifications: NotificationSettings | None = None,
        transport: str | Broker | None = None,
        encrypted: Encryption = False,
        mask: Sequence[Rule] = (),
    ) -> None:
        """`encrypted`: payloads, cursors and results of all its jobs; "mixed": plain ones are still read. `mask`: fields and texts that are never shown."""
        self.kinds = Kinds()
        self.encrypted = checked_encryption("Stepfast()", encrypted)
        self.mask = hide(mask)
        self.declared: dict[str, Definition] = {}  # schedules, by name
        self._feeds: Feeds | None = None
        self._notifications = notifications
        self._transport = transport  # a broker for the runs of all feeds; None: STEPFAST_TRANSPORT, or none
        self._database = database or open_database(database_url(url))

    @cached_property
    def database(self) -> Database:
        """The database, with tables that this code knows: that is checked once."""
        require_current_schema(self._database)
        return self._database

    @property
    def unchecked_database(self) -> Database:
        """The database, which may be away, or have other tables: for a worker, which checks that when it starts."""
        return self._database

    @property
    def notifications(self) -> NotificationSettings:
        """How webhooks and alerts are sent: as given, else from the environment."""
        from stepfast.notifications.settings import from_environment

        self._notifications = self._notifications or from_environment()
        return self._notifications

    @property
    def operator(self) -> Operator:
        """What an operator may see and do: jobs, dead letters, queues, workers, leases."""
        from stepfast.admin.operator import Operator

        return Operator(self.database, kinds=self.kinds, feeds=self._feeds)

    def migrate(self, *, views: str | None = None) -> list[str]:
        """Create or upgrade the tables; safe to run from many processes at once. Returns the migrations applied.

        `views`: the names of the views from now on: "none", "default", or a prefix. Without it they stay as they are.
        """
        return migrate(self._database, views=views)

    def job(self, **options: Unpack[JobOptions]) -> Register:
        """Register a handler: the decorated function becomes a job that can be enqueued. `JobOptions` says what may be given."""
        return Register(self, options, encrypted=self.encrypted)

    def group(self, on_complete: Prepared[..., Any] | None = None, **options: Unpack[GroupOptions]) -> Group:
        """Run `on_complete` when all jobs of the block have ended; without it, add to the group of the job that runs."""
        from stepfast.group import Group

        return Group(self, on_complete, **options)

    def task(self, task_type: str, **options: Unpack[TaskOptions]) -> Callable[[H], H]:
        """Register the handler of a type of queue tasks; the fields of their payload are its arguments."""
        from stepfast.tasks.handlers import register

        return register(self.kinds, task_type, options, encrypted=self.encrypted)

    def schedule(self, name: str, job: Job[..., Any], **options: Unpack[ScheduleOptions]) -> None:
        """Declare that `job` is enqueued by the calendar (cron=), at a steady beat (every=) or once (at=).

        The table gets it when a worker starts. What an operator changes there wins, until it is reset.
        """
        from stepfast.schedules.schedule import declare

        declare(self.declared, name, job.kind, options)

    @property
    def schedules(self) -> Schedules:
        """Schedules at run time: look at them, add, change, pause, resume, trigger, remove and reset them."""
        from stepfast.admin.schedules import Schedules

        return Schedules(self.database, self.kinds)

    def feed(self, feed: F) -> F:
        """Register a feed: from now on its runs can be started, and the workers of this application read it."""
        declared = self.feeds.add(feed)
        if declared.schedule is not None:
            from stepfast.schedules.schedule import declare

            kind = self.feeds.kind(declared.name, "start")
            declare(self.declared, declared.name, kind, {"cron": declared.schedule, "tz": declared.tz})
        return feed

    @property
    def feeds(self) -> Feeds:
        """The feeds that were registered, as they are declared."""
        from stepfast.runs.feeds import Feeds

        if self._feeds is None:
            self._feeds = Feeds(self.kinds, lambda: self.database, self._transport)
        return self._feeds

    @property
    def runs(self) -> Runs:
        """Runs of the feeds: plan, start, look at, retry, consolidate, cancel and resume them."""
        from stepfast.admin.runs import Runs

        return Runs(self.database, self.feeds)

    def limit_queue(self, queue: str, *limits: Limit) -> None:
        """Limit all jobs of this queue, whatever their kind. Call it before the worker starts."""
        if not limits:
            raise ConfigurationError(f"limit_queue({queue!r}): give at least one Rate(…) or Concurrency(…)")
        self.kinds.limit_queue(checked_name("queue", queue), checked_limits(f"queue {queue}", limits, None))

    def transaction(self, on: Any = None) -> AbstractContextManager[Transaction]:
        """Your rows and your enqueues commit together when the block ends; `on` a connection of yours, when you commit."""
        return self.database.transaction() if on is None else lent_transaction(on, self.database)

    async def join(self, connection: Any, work: Callable[[Transaction], T]) -> T:
        """Do `work` in the transaction that is open on your async connection or session; you commit."""
        from stepfast.database.lending_async import within_async  # asyncio: not for programs without a loop

        return await within_async(self.database, connection, work)

    def reading(self) -> AbstractContextManager[Transaction]:
        """A look that changes nothing and waits for no writer."""
        return self.database.reading()

    def worker(self, **options: Unpack[WorkerOptions]) -> Worker:
        """A worker inside your own program: `with app.worker():`, `async with`, or start() and stop().

        Options are those of `stepfast worker`: queues, concurrency, lease, grace, batch, worker_id and the others.
        If the database is away when it starts, it comes up in the background. If a part of it breaks, it gives its jobs
        back and stops; leaving the block raises that.
        """
        from stepfast.worker.worker import Worker

        return Worker(
            self._database,
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
        from stepfast.outbox.messages import stage, webhook

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
        """Alert a person: once per `cause`, and not again for a while. With `tx`, when that transaction commits."""
        from stepfast.outbox.alerts import alert, raise_alert

        quiet = None if cooldown is None else duration(cooldown, "cooldown")
        raised = alert(cause, title, body, severity=severity, cooldown=quiet)
        within(self.database, tx, lambda inner: raise_alert(inner, raised))

    @property
    def events(self) -> Events:
        """Events that jobs wait for."""
        from stepfast.jobs.events import Events

        return Events(self.database, encrypted=bool(self.encrypted))

    @property
    def callbacks(self) -> Callbacks:
        """Signed addresses: each sends one event, for services that know nothing else of this system."""
        from stepfast.callbacks import Callbacks

        return Callbacks(self.database, encrypted=bool(self.encrypted))

    def enqueued(self, job_id: str) -> EnqueuedJob[Any]:
        """The job with this id, as `enqueue` returned it: to wait for it or to watch it. Does not ask the database."""
        return EnqueuedJob(job_id, created=False, app=self)

    def result_of(self, job_id: str, *, tx: Lent = None) -> JobOutcome[Any]:
        """Where the job stands now, or in the eyes of `tx`: its state, progress, error, and its result if it is done."""
        from stepfast.results.watch import look_at

        if tx is None:
            return look_at(self, job_id)
        return within(self.database, tx, lambda inner: look_at(self, job_id, inner))

    def watch(self, job_id: str, timeout: Duration | None = None) -> Watch:
        """What happens to the job, for `for` and `async for`: states, progress, log lines, and its end."""
        return self.enqueued(job_id).watch(timeout)

    def metrics(self) -> Collector:
        """For Prometheus: `REGISTRY.register(app.metrics())`. Counts of this process, and how full the database is."""
        from stepfast.telemetry.metrics import process_metrics
        from stepfast.worker.metrics import Collector

        return Collector(process_metrics(), self)

    def acquire(self, worker_id: str, lease: Duration = 300, *, queue: str = "default") -> ManualLease | None:
        """Take the next ready job of `queue` yourself, for `lease`; None when there is none."""
        from stepfast.jobs.manual_lease import acquire

        return persist(
            self.database, lambda tx: acquire(tx, worker_id, duration(lease, "lease"), queue, self.kinds)
        )

    def extend(self, held: ManualLease, lease: Duration = 300) -> ManualLease:
        """Keep the job for `lease` from now; raises `LeaseLostError` if it is no longer yours."""
        from stepfast.jobs.manual_lease import extend

        return persist(self.database, lambda tx: extend(tx, held, duration(lease, "lease")))

    def release(
        self,
        held: ManualLease,
        how: ReleaseAs,
        error: str | None = None,
        *,
        result: Any = None,
        tx: Lent = None,
    ) -> None:
        """End a lease taken by hand as 'done', 'retry' or 'failed'. With `tx`, when that transaction commits."""
        from stepfast.jobs.manual_lease import release

        kind, dice = self.kinds.find(held.kind), random.random()
        retry, kept = (kind.retry, kind.sealed(result, "result", held.job_id)) if kind else (Retry(), result)
        end = partial(release, held=held, how=how, error=error, retry=retry, dice=dice, result=kept)
        within(self.database, tx, end)

    def use(self, database: Database) -> Database:
        """Work on another database from here on, as tests do; returns the one before. Running workers stay on theirs."""
        before, self._database = self._database, database
        self.__dict__.pop("database", None)  # its tables are checked, too
        return before

    def close(self) -> None:
        """Close all connections, and end waits for results."""
        from stepfast.results.watch import close

        close(self._database)
        self._database.close()
