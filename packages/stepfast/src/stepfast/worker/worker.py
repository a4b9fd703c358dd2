"""The worker: claim → admit → run → commit, until told to stop.

Threads: the claimer, the event loop that runs handlers, the committer, the heartbeat, and the duties that every worker
shares with the others (maintenance, schedules, the relay of the outbox, the watchdog of runs).
They share the leases of this process (`Leases`), queues and the database, and nothing else.
"""

from __future__ import annotations

import asyncio
import os
import random
import threading
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING, Final, Protocol, Self

from stepfast.admin.workers import unserved_queues
from stepfast.config import spoken_size
from stepfast.database.drivers import masked
from stepfast.database.migrate import require_current_schema
from stepfast.errors import (
    AccessRefusedError,
    ConfigurationError,
    ContentionError,
    DatabaseError,
    StepfastError,
    UnknownCommitError,
    UnreachableError,
    WorkerFailedError,
)
from stepfast.jobs.retry import HandlerOutages, describe
from stepfast.jobs.step import Halt
from stepfast.notifications.settings import NotificationSettings, from_environment
from stepfast.telemetry import happened
from stepfast.threads import in_own_thread
from stepfast.worker.admission import Admission
from stepfast.worker.claimer import Claimer
from stepfast.worker.committer import Committer
from stepfast.worker.execution import Execution
from stepfast.worker.guardian_link import introduction, link_of_this_process
from stepfast.worker.heartbeat import Heartbeat
from stepfast.worker.isolation.pool import HandlerProcesses
from stepfast.worker.leases import Leases
from stepfast.worker.maintenance import Maintenance
from stepfast.worker.memory import resident
from stepfast.worker.periodic import AWAY, Outage, around
from stepfast.worker.relay import SETTLING, Relay
from stepfast.worker.reporter import Reporter
from stepfast.worker.scheduler import Scheduler
from stepfast.worker.statement_watchdog import StatementWatchdog
from stepfast.worker.vital import VitalParts
from stepfast.worker.wakeups import Wakeups

if TYPE_CHECKING:
    from collections.abc import Callable

    from stepfast.config import WorkerSettings
    from stepfast.database.database import Database, FailureStreak
    from stepfast.jobs.kinds import Kinds
    from stepfast.runs.feeds import Feeds
    from stepfast.schedules.definition import Definition
    from stepfast.worker.guardian_link import GuardianLink

UNWIND: Final = 2.0  # seconds that interrupted handlers get to clean up before the worker leaves
SILENT: Final = 5.0  # seconds after which an event loop that does not answer is a problem
MOST_QUEUES: Final = 5  # that are named in a warning
EARLY: Final = 0.1  # of its age, at most, so that workers that were started together do not leave together


@dataclass(frozen=True)
class WorkerStatus:
    """What a worker says of itself: who it is, what it is doing right now, and what is wrong with it."""

    worker_id: str
    running: bool
    active_jobs: int
    active_job_ids: list[str]
    concurrency: int
    lease_seconds: float
    queues: list[str]
    lost_slots: int
    problems: list[str]  # sentences; none: the heartbeat gets through and the event loop ticks


class Service(Protocol):
    """A duty that starts with the worker, and stops before its heartbeat does."""

    def start(self) -> None: ...
    def stop(self) -> None: ...


class Worker:
    """Runs an app's jobs until it is stopped. Start it in your own program, or by `stepfast worker`."""

    def __init__(
        self,
        database: Database,
        kinds: Kinds,
        settings: WorkerSettings,
        *,
        lone: bool = False,
        alone: bool = False,
        guardian: GuardianLink | None = None,
        stuck: Callable[[], None] | None = None,
        notifications: NotificationSettings | None = None,
        declared: Mapping[str, Definition] | None = None,
        feeds: Feeds | None = None,
    ) -> None:
        self.settings = settings
        self.failure: StepfastError | None = None  # why it stopped although nobody asked it to
        self.needs_recycling = False  # only a new process gets back a lost slot, or memory
        self._database = database
        self._kinds = kinds
        self._lone = lone  # this process runs suspects and nothing else: those that run alone, or the others
        self._alone = alone
        self._guardian = guardian or link_of_this_process()
        self._leaves_guardian = guardian is None  # else the process has last words for it
        self._stuck = stuck
        self._wear = Wear(settings, can_recycle=stuck is not None)
        self._stopping = threading.Event()
        self._at_once = threading.Event()
        self._stopped = threading.Event()
        self._ending = threading.Event()  # it has stopped, or broke and has little time to
        self._started = False
        self._pid = 0  # of the process that started it
        self._starts: deque[Callable[[], None]] = deque()  # what is still to be done to be up
        self._outage = Outage("the start of the worker", settings.worker_id)
        self._failing = threading.Lock()
        self._gave_up = False  # what is not finished, because all transactions but the heartbeat's fail
        self._loop: asyncio.AbstractEventLoop | None = None
        self._loop_thread: threading.Thread | None = None
        self._end_loop: Callable[[], None] = lambda: None

        # claim → admit → run → commit: one object each; all of them share the leases of this process.
        self._vital = VitalParts(self.fail)
        self._wakeups = Wakeups(database, self._vital)
        self._leases = Leases(settings, self._wakeups, self._guardian.board, suspects_only=lone)
        self._heartbeat = Heartbeat(
            database,
            settings,
            self._leases,
            self._wakeups,
            self._guardian,
            suspects_only=lone,
            vital=self._vital,
        )
        self._statements = StatementWatchdog(database, settings, self._vital)
        self._reporter = Reporter(database, self._leases, self._vital, kinds)
        self._admission = Admission(database, kinds)
        self._claimer = Claimer(
            database, settings, self._leases, self._admission, self._heartbeat, self._wakeups
        )
        self._committer = Committer(
            database,
            self._leases,
            self._admission,
            self._reporter,
            self._heartbeat,
            vital=self._vital,
            may_stay=not lone,
        )
        self._isolated = HandlerProcesses(kinds, database.url)
        outages = HandlerOutages(database.origin, lambda: self._heartbeat.may_claim)
        self._execution = Execution(
            kinds,
            settings,
            self._leases,
            self._committer,
            self._reporter,
            self._isolated,
            outages,
            self.fail,
            self._guardian.board,
        )
        self._thread = threading.Thread(target=self._work, name="stepfast-claimer", daemon=True)

        # Duties that workers share: whichever worker comes first does them.
        self._services: list[Service] = []
        if not lone:
            self._services = [
                Maintenance(
                    database,
                    kinds,
                    settings,
                    self._heartbeat,
                    suspects=self._guardian if self._guardian.is_child else self._claimer,
                    leases=self._leases,
                    vital=self._vital,
                ),
                Scheduler(database, declared or {}, kinds, self._vital),
                *self._services_of_runs(feeds),
                *self._services_of_the_outbox(notifications or from_environment(), feeds),
            ]

    def _services_of_runs(self, feeds: Feeds | None) -> list[Service]:
        if not feeds:
            return []
        from stepfast.worker.run_watchdog import RunWatchdog

        services: list[Service] = [RunWatchdog(self._database, feeds, self.settings.runs_kept, self._vital)]
        if any(feed.broker is not None for feed in feeds.all()):
            from stepfast.worker.broker_listener import broker_listeners

            services.extend(
                broker_listeners(self._database, feeds, self.settings, self._claimer, self._vital)
            )
        return services

    def _services_of_the_outbox(
        self, notifications: NotificationSettings, feeds: Feeds | None
    ) -> list[Service]:
        if not notifications.outbox_relay:
            return []
        settling = min(SETTLING, self.settings.grace.total_seconds())
        return [Relay(self._database, notifications, settling, self._vital, feeds=feeds)]

    # Start and stop.

    def start(self) -> None:
        """Begin to work in the background, handlers on an event loop of their own.

        While the database is away it waits, says so once, and comes up when the database does. A database that answers
        and cannot be used, because its tables are missing, say, is an error here.
        """
        self._refuse_second_start()
        loop = asyncio.new_event_loop()
        over = threading.Event()

        def serve() -> None:
            asyncio.set_event_loop(loop)
            while not over.is_set():  # a handler may have stopped it
                loop.run_forever()
            # What handlers keep open for as long as it runs.
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.close()

        def end() -> None:
            over.set()
            loop.call_soon_threadsafe(loop.stop)

        self._loop_thread = self._vital.thread("loop", serve)
        self._end_loop = end
        self._loop_thread.start()
        try:
            self._begin(loop)
        except BaseException:
            end()
            self._loop_thread.join(timeout=5)
            raise

    def stop(self, *, at_once: bool = False, timeout: float | None = None) -> bool:
        """Stop taking work, let steps finish within the grace period, give back the rest.

        False if that took longer than `timeout`; the worker goes on stopping.
        """
        if not self._started or self._is_copy():
            return True
        if at_once or not self._stopping.is_set():  # a second ask would end the grace of the first
            self.ask_to_stop(at_once=at_once)
        stopped = self._stopped.wait(timeout)
        loop, thread = self._loop, self._loop_thread
        if stopped and thread is not None and loop is not None and not loop.is_closed():
            self._end_loop()
            thread.join(timeout=5)
        return stopped

    def wait_until_stopped(self, after_failure: float) -> bool:
        """Wait for the end. False: the worker broke, and has not got to its end within so many seconds."""
        self._ending.wait()
        return self._stopped.wait(after_failure)

    def ask_to_stop(self, *, at_once: bool = False) -> None:
        """The first ask is polite; the second gives everything back at once."""
        if at_once or self._stopping.is_set():
            self._at_once.set()
            self._committer.hurry()
        self._stopping.set()
        self._wakeups.nudge()

    async def serve(self) -> None:
        """Work on the running event loop until asked to stop."""
        async with self:
            await in_own_thread(self._stopped.wait)

    async def __aenter__(self) -> Self:
        await in_own_thread(self._begin, asyncio.get_running_loop())
        return self

    async def __aexit__(self, _: object, error: BaseException | None, __: object) -> None:
        if not self._is_copy():
            if not self._stopping.is_set():
                self.ask_to_stop()
            await in_own_thread(self._stopped.wait)
        self._raise_failure(error)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        self.stop()
        self._raise_failure(error)

    def _begin(self, loop: asyncio.AbstractEventLoop) -> None:
        """Come up; if the database is away, the claimer's thread goes on trying."""
        self._refuse_second_start()
        self._started = True
        self._pid = os.getpid()
        self._loop = loop
        self._execution.bind(loop)
        self._guardian.when_lost(self._guardian_lost)
        if not self._guardian.introduced:
            self._guardian.introduce(introduction(self.settings, self._database.url, self._kinds))
        # In an order in which each part has what it needs. One that fails changes nothing, and can be started again.
        self._starts = deque(
            [
                self._statements.start,
                lambda: require_current_schema(self._database),
                lambda: self._heartbeat.start(self._enforce_deadlines),
                self._reporter.start,
                self._committer.start,
                *(service.start for service in self._services),
                self._wakeups.start,
                self._warn_of_unserved_queues,
            ]
        )
        try:
            self._come_up()
        except BaseException:
            self._stopping.set()
            self._shut_down()
            self._stopped.set()
            raise
        self._thread.start()

    def _come_up(self) -> bool:
        """Go on with the start; False if the database is away. What no waiting can cure is raised."""
        try:
            while self._starts:
                self._starts[0]()
                self._starts.popleft()
        except DatabaseError as error:
            if not is_outage(error):
                raise
            self._outage.begin(error)
            return False
        self._outage.end()
        happened(
            "worker.started",
            worker_id=self.settings.worker_id,
            version=version("stepfast"),
            database=masked(self._database.url),
            queues=",".join(self.settings.queues or ("*",)),
            kinds=len(self._kinds.names()),
            concurrency=self.settings.concurrency,
            pid=os.getpid(),
            guardian_pid=self._guardian.pid,
        )
        return True

    def _warn_of_unserved_queues(self) -> None:
        """Say what a person would wonder about later: jobs wait where no worker looks."""
        if self._lone or not self.settings.queues:
            return
        with self._database.looking() as tx:
            unserved = ",".join(unserved_queues(tx)[:MOST_QUEUES])
        if unserved:
            note = f"{unserved}: start a worker with --queues {unserved}"
            happened("queues.unserved", worker_id=self.settings.worker_id, queues=unserved, note=note)

    def _guardian_lost(self) -> None:
        """The process that our user sees is gone: give everything back, and end."""
        self.ask_to_stop(at_once=True)

    def _refuse_second_start(self) -> None:
        if self._started:
            raise StepfastError("this worker was started before; make a new one")

    # A worker that breaks stops by itself: what it holds is given back, and nothing of it goes on unseen.

    @property
    def failed(self) -> bool:
        """Whether it stopped, or is stopping, although nobody asked it to; `failure` says why."""
        return self.failure is not None

    def fail(self, part: str, error: BaseException) -> None:
        """A part that the worker needs met an unexpected error: give everything back, and stop."""
        self._give_up(part, WorkerFailedError(part, describe(error)), error)

    def _give_up(self, part: str, failure: StepfastError, error: BaseException) -> None:
        with self._failing:
            first = self.failure is None
            self.failure = self.failure or failure
        if first:
            happened("worker.broken", worker_id=self.settings.worker_id, note=part, error=error)
        self._ending.set()
        self.ask_to_stop(at_once=True)

    def _raise_failure(self, error: BaseException | None) -> None:
        """Raise what made the worker stop; beside an exception that is under way it is only a note."""
        if self.failure is None or self._is_copy():
            return
        if error is None:
            raise self.failure
        error.add_note(f"Stepfast: {self.failure}")

    def _is_copy(self) -> bool:
        """Whether this process was forked from the one in which the worker runs: it has none of its threads."""
        return self._started and self._pid != os.getpid()

    # The life of the claimer's thread is the life of the worker.

    def _work(self) -> None:
        try:
            self._wait_for_database()
            if self._lone:
                self._claimer.run_suspects_until_none(self._stopping, alone=self._alone)
            else:
                self._claimer.work_until(self._stopping)
        except Exception as error:  # noqa: BLE001 - whatever it is, leave in good order
            self.fail("claimer", error)
        finally:
            try:
                self._leave()
            except Exception as error:  # noqa: BLE001 - whoever waits for the end must hear of it
                self.fail("shutdown", error)
            finally:
                self._stopped.set()
                self._ending.set()

    def _wait_for_database(self) -> None:
        """Go on with a start that the absence of the database interrupted, until it is done or the worker is to stop."""
        try:
            while self._starts and not self._stopping.is_set():
                if not self._come_up():
                    self._stopping.wait(around(AWAY))
        except StepfastError as error:  # its tables are missing, say
            self._give_up("start", error, error)

    def _leave(self) -> None:
        self._stopping.set()
        active = len(self._leases.running)
        happened(
            "worker.stopping",
            worker_id=self.settings.worker_id,
            active=active,
            grace_s=self.settings.grace.total_seconds(),
        )
        given_back = self._shut_down()
        happened("worker.stopped", worker_id=self.settings.worker_id, given_back=given_back)

    def _shut_down(self) -> int:
        """Let steps finish or give them back, then stop every part; returns how many running steps were given back.

        Each part stops before the parts that it needs.
        """
        self._committer.stay_no_more()
        self._leases.stop_accepting()
        deadline = time.monotonic() + self.settings.grace.total_seconds()
        while True:
            self._claimer.give_back(self._leases.take_waiting())
            if not self._leases.held or self._at_once.is_set() or time.monotonic() >= deadline:
                break
            self._at_once.wait(0.02)
        left = self._leases.halt_all(Halt.SHUTDOWN)
        self._claimer.give_back(left)
        unwound = time.monotonic() + UNWIND
        while self._leases.running_fences() and time.monotonic() < unwound:
            time.sleep(0.01)
        self._wakeups.stop()
        for service in reversed(self._services):
            service.stop()
        self._committer.stop(time.monotonic() if self._at_once.is_set() else deadline + UNWIND)
        self._reporter.stop()
        if self.failed:
            self._claimer.give_back_uncommitted()
        self._heartbeat.stop()  # last: until here our leases are in force
        if self._leaves_guardian:
            self._guardian.leave()
        self._statements.stop()
        self._execution.close()
        return len(left)

    # Deadlines, before each heartbeat.

    def _enforce_deadlines(self) -> None:
        """Stop vouching for steps that ignore their timeout; leave when only a new process can help."""
        self._isolated.end_idle()
        self._guardian.look()
        self._give_up_where_pool_fails()
        loop_answers = self._execution.pulse is None or self._execution.pulse.felt()
        late = self._leases.overdue()
        if late and not loop_answers:
            self._leave_stuck_loop()
            return
        for running in late:
            self._execution.abandon(running)
            self.needs_recycling = True
        self.needs_recycling = self.needs_recycling or self._wear.is_over()
        if self.needs_recycling and self._stuck is not None and not self._stopping.is_set():
            self.ask_to_stop()

    def _leave_stuck_loop(self) -> None:
        """No handler can finish any more: fail the guilty steps, give the others back, and leave."""
        active = len(self._leases.running)
        happened("loop.stuck", worker_id=self.settings.worker_id, active=active)
        for running in self._leases.overdue():
            self._execution.abandon(running)
        self._claimer.give_back(self._leases.take_waiting())
        self._claimer.give_back(self._leases.halt_all(Halt.SHUTDOWN))
        self._committer.stop(time.monotonic() + UNWIND)
        if self._stuck is not None:
            self._stuck()
        self.ask_to_stop(at_once=True)

    def _failing_pool(self) -> FailureStreak | None:
        """The failures of this worker's transactions, if they last for a lease although the heartbeat gets through."""
        failures = self._database.failures()
        if failures is None or not self._heartbeat.may_claim:
            return None
        return failures if failures.seconds >= self.settings.lease.total_seconds() else None

    def _give_up_where_pool_fails(self) -> None:
        """Give jobs that are not finished to other workers, by the connection of the heartbeat.

        Nobody would rescue them, since this worker lives. What is finished waits to be written.
        """
        if not self._heartbeat.may_claim:
            self._database.forget_failures()  # the heartbeat meets the same outage
        failures = self._failing_pool()
        if failures is None:
            self._gave_up = False
            return
        if self._gave_up and not self._leases.held:
            return
        try:
            connection = self._heartbeat.connection()
        except DatabaseError:
            return  # the next heartbeat reports it
        waiting, running = self._leases.take_waiting(), self._leases.running_leases()
        if not self._claimer.give_back([*waiting, *running], on=connection):
            return
        self._gave_up = True
        for lease in running:
            self._leases.halt(lease.job_id, lease.fence, Halt.REPLACED)
        happened(
            "pool.failing",
            worker_id=self.settings.worker_id,
            seconds=round(failures.seconds, 1),
            jobs=len(waiting) + len(running),
            error=failures.error,
        )

    # What the worker says of itself.

    def status(self) -> WorkerStatus:
        """Who this worker is, what it is doing right now, and what is wrong with it."""
        running = self._runs_here() and not self._starts
        ids = sorted({job_id for job_id, _ in self._leases.running_fences()})
        return WorkerStatus(
            worker_id=self.settings.worker_id,
            running=running,
            active_jobs=len(ids),
            active_job_ids=ids,
            concurrency=self.settings.concurrency,
            lease_seconds=self.settings.lease.total_seconds(),
            queues=list(self.settings.queues) or ["*"],
            lost_slots=self._leases.lost_slots,
            problems=self.problems(),
        )

    def _runs_here(self) -> bool:
        return self._started and not self._stopped.is_set() and not self._is_copy()

    def problems(self) -> list[str]:
        """What is wrong with this worker, in sentences; none: the heartbeat gets through and the event loop ticks."""
        if self.failure is not None:
            return [str(self.failure)]
        if not self._runs_here():
            return ["this worker does not run"]
        if self._starts:
            return [
                "the database has not answered since this worker was started; it begins to work when it does"
            ]
        found = self._vital.problems()
        if not self._heartbeat.may_claim:
            found.append(f"the heartbeat has not reached the database for {self._heartbeat.silence():.0f} s")
        if (failures := self._failing_pool()) is not None:
            found.append(
                f"transactions have failed for {failures.seconds:.0f} s, though the heartbeat gets through: {describe(failures.error)}"
            )
        if (hanging := self._statements.hanging) is not None:
            found.append(str(hanging))
        pulse = self._execution.pulse
        silence = 0.0 if pulse is None else pulse.silence()
        if silence > SILENT:
            found.append(f"the event loop has not answered for {silence:.0f} s: a handler blocks it")
        return found


def is_outage(error: DatabaseError) -> bool:
    """Whether the database is away, or was for a moment: waiting helps. It does not against a wrong password, say."""
    away = isinstance(error, UnreachableError | UnknownCommitError | ContentionError)
    return away and not isinstance(error, AccessRefusedError)


class Wear:
    """When a worker process is too old or too large: it then finishes its steps, and its program starts again."""

    def __init__(self, settings: WorkerSettings, *, can_recycle: bool) -> None:
        if not can_recycle and (settings.max_age is not None or settings.max_memory is not None):
            raise ConfigurationError(
                "max_age and max_memory are for `stepfast worker`, which can start its own program again; "
                "a worker inside your program leaves that to you"
            )
        if settings.max_memory is not None and (holds := resident()) >= settings.max_memory:
            raise ConfigurationError(
                f"max_memory={spoken_size(settings.max_memory)}: this worker holds {spoken_size(holds)} before its first step, "
                "and would do nothing but start again; allow more"
            )
        self._settings = settings
        self._began = time.monotonic()
        age = settings.max_age
        self._most = None if age is None else age.total_seconds() * (1 - EARLY * random.random())
        self._over = False

    def is_over(self) -> bool:
        """Asked about once a second."""
        if self._over:
            return True
        age, memory = time.monotonic() - self._began, self._settings.max_memory
        holds = 0 if memory is None else resident()
        self._over = (self._most is not None and age >= self._most) or (memory is not None and holds > memory)
        if self._over:
            happened("worker.worn", worker_id=self._settings.worker_id, age_s=round(age), memory=holds)
        return self._over
