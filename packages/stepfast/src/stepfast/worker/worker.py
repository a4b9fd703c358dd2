"""The worker: claim, run, settle, until told to stop.

Threads: the claimer, the event loop that runs handlers, the settlement, the heartbeat, the maintenance.
They share nothing but queues and the database.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Final, Protocol, Self

from stepfast.config import spoken_size
from stepfast.database.migrate import require_current_schema
from stepfast.errors import ConfigurationError, StepfastError
from stepfast.jobs.step import Halt
from stepfast.notifications.settings import NotificationSettings, from_environment
from stepfast.results.watch import ended
from stepfast.telemetry import happened
from stepfast.threads import in_own_thread
from stepfast.worker.claimer import Claimer, Gate, Room
from stepfast.worker.committer import Settlement
from stepfast.worker.execution import Execution
from stepfast.worker.heartbeat import Heartbeat, Pulse
from stepfast.worker.isolation.child import resident
from stepfast.worker.isolation.pool import HandlerProcesses
from stepfast.worker.maintenance import Maintenance, SuspectsHere
from stepfast.worker.relay import SETTLING, Relay
from stepfast.worker.reporter import Reporter
from stepfast.worker.scheduler import Scheduler
from stepfast.worker.wakeups import Wakeups

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from stepfast.config import WorkerSettings
    from stepfast.database.database import Database
    from stepfast.jobs.kinds import Kinds
    from stepfast.jobs.lease import Lease
    from stepfast.runs.feeds import Feeds
    from stepfast.schedules.definition import Definition
    from stepfast.worker.children import SuspectProcesses


# Leaving in good order: stop taking, let steps finish or give them back, then go.

UNWIND: Final = 2.0  # seconds that interrupted handlers get to clean up before the worker leaves


@dataclass(frozen=True, kw_only=True)
class Parts:
    """Everything that has to stop, in an order in which nobody needs what has stopped before."""

    claimer: Claimer
    execution: Execution
    settlement: Settlement
    suspects: SuspectProcesses | None
    wakeups: Wakeups
    maintenance: Maintenance | None
    services: Sequence[Service]
    reporter: Reporter
    heartbeat: Heartbeat


def shut_down(parts: Parts, grace: timedelta, at_once: threading.Event) -> int:
    """Called when nothing is claimed any more; returns how many running steps were given back."""
    parts.settlement.stays = False
    parts.execution.stop_accepting()
    deadline = time.monotonic() + grace.total_seconds()
    while True:
        parts.claimer.give_back(parts.execution.take_unstarted())
        if not parts.execution.held or at_once.is_set() or time.monotonic() >= deadline:
            break
        at_once.wait(0.02)
    left = parts.execution.halt_all(Halt.SHUTDOWN)
    parts.claimer.give_back(left)
    unwound = time.monotonic() + UNWIND
    while parts.execution.running() and time.monotonic() < unwound:
        time.sleep(0.01)
    if parts.suspects is not None:
        parts.suspects.close(at_once=at_once.is_set())
    parts.wakeups.stop()
    if parts.maintenance is not None:
        parts.maintenance.stop()
    for service in reversed(parts.services):
        service.stop()
    parts.settlement.stop(time.monotonic() if at_once.is_set() else deadline + UNWIND)
    parts.reporter.stop()
    parts.heartbeat.stop()  # last: until here our leases are in force
    parts.execution.close()
    return len(left)


def leave_stuck_loop(parts: Parts) -> None:
    """No handler can finish any more: fail the guilty and give the others back."""
    for it in parts.execution.overdue():
        parts.execution.abandon(it)
    parts.claimer.give_back(parts.execution.take_unstarted())
    parts.claimer.give_back(parts.execution.halt_all(Halt.SHUTDOWN))
    parts.settlement.stop(time.monotonic() + UNWIND)


# What a worker does besides running steps, each in a thread of its own that costs nothing while there is nothing to do.


class Service(Protocol):
    """Starts with the worker, and stops before its heartbeat does."""

    def start(self) -> None: ...
    def stop(self) -> None: ...


def services(  # noqa: PLR0917 - all that a worker is made of
    database: Database,
    kinds: Kinds,
    settings: WorkerSettings,
    notifications: NotificationSettings | None = None,
    declared: Mapping[str, Definition] | None = None,
    feeds: Feeds | None = None,
    claimer: Claimer | None = None,
) -> list[Service]:
    """In the order in which they start."""
    notifications = notifications or from_environment()
    found: list[Service] = [Scheduler(database, declared or {}, kinds)]
    if feeds:
        from stepfast.worker.run_watchdog import RunWatchdog

        found.append(RunWatchdog(database, feeds, settings.runs_kept))
        if claimer is not None and any(it.broker is not None for it in feeds.all()):
            from stepfast.worker.broker_listener import broker_listeners

            found.extend(broker_listeners(database, feeds, settings, claimer))
    if notifications.outbox_relay:
        settling = min(SETTLING, settings.grace.total_seconds())
        found.append(Relay(database, notifications, settling))
    return found


# What a worker says of itself: who it is, what it does, and what is wrong with it.

SILENT: Final = 5.0  # seconds after which an event loop that does not answer is a problem


@dataclass(frozen=True)
class WorkerStatus:
    """Who it is, and what it is doing right now."""

    worker_id: str
    running: bool
    active_jobs: int
    active_job_ids: list[str]
    concurrency: int
    lease_seconds: float
    queues: list[str]
    lost_slots: int
    problems: list[str]  # sentences; none: the heartbeat gets through and the event loop ticks


def status(
    settings: WorkerSettings, execution: Execution, heartbeat: Heartbeat, *, running: bool
) -> WorkerStatus:
    ids = sorted({job_id for job_id, _ in execution.running()})
    return WorkerStatus(
        worker_id=settings.worker_id,
        running=running,
        active_jobs=len(ids),
        active_job_ids=ids,
        concurrency=settings.concurrency,
        lease_seconds=settings.lease.total_seconds(),
        queues=list(settings.queues) or ["*"],
        lost_slots=execution.lost_slots,
        problems=_problems(execution, heartbeat) if running else ["this worker does not run"],
    )


def _problems(execution: Execution, heartbeat: Heartbeat) -> list[str]:
    found = []
    if not heartbeat.may_claim:
        found.append(f"the heartbeat has not reached the database for {heartbeat.silence():.0f} s")
    silence = 0.0 if execution.pulse is None else execution.pulse.silence()
    if silence > SILENT:
        found.append(f"the event loop has not answered for {silence:.0f} s: a handler blocks it")
    return found


# When a worker process is worn: too old, or too large. Then it finishes its steps, and its program starts again.

EARLY: Final = 0.1  # of its age, at most, so that those who were started together do not go together


class Wear:
    """Knows when it is time; looked at about once a second."""

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
        if self._over:
            return True
        age, memory = time.monotonic() - self._began, self._settings.max_memory
        holds = 0 if memory is None else resident()
        self._over = (self._most is not None and age >= self._most) or (memory is not None and holds > memory)
        if self._over:
            happened("worker.worn", worker_id=self._settings.worker_id, age_s=round(age), memory=holds)
        return self._over


class Worker:
    """Runs an app's jobs until it is stopped. Start it in your own program, or by `stepfast worker`."""

    def __init__(
        self,
        database: Database,
        kinds: Kinds,
        settings: WorkerSettings,
        *,
        lone: bool = False,
        suspects: SuspectProcesses | None = None,
        stuck: Callable[[], None] | None = None,
        notifications: NotificationSettings | None = None,
        declared: Mapping[str, Definition] | None = None,
        feeds: Feeds | None = None,
    ) -> None:
        self.settings = settings
        self._database = database
        self._lone = lone  # this process runs suspects, one at a time, and nothing else
        self._suspects = suspects
        self._stuck = stuck
        self._wear = Wear(settings, can_recycle=stuck is not None)
        self._owned: dict[str, int] = {}  # job → fence of every lease that has not been settled here
        self._stopping = threading.Event()
        self._at_once = threading.Event()
        self._stopped = threading.Event()
        self._started = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._loop_thread: threading.Thread | None = None
        self.failed = False  # something of our own broke; the exit code says so
        self.needs_recycling = False  # only a new process gets back a lost slot, or memory

        self._wakeups = Wakeups(database, lambda: self._heartbeat.nudge())  # noqa: PLW0108 - made below
        self._reporter = Reporter(database, self._replaced)
        self._gate = Gate(database, kinds)
        self._settlement = Settlement(
            database,
            reporter=self._reporter,
            gate=self._gate,
            goes_on=self._goes_on,
            settled=self._settled,
            healthy=lambda: self._heartbeat.may_claim,
        )
        self._settlement.stays = not lone
        self._isolated = HandlerProcesses(kinds, database.url)
        self._execution = Execution(
            kinds,
            settings,
            self._isolated,
            reports=self._reporter,
            put=self._settlement.put,
            changed=self._changed,
            owned=self._owned,
        )
        pulse = Pulse(
            running=self._execution.running,
            cancelled=lambda job_id, fence: self._execution.halt(job_id, fence, Halt.CANCELLED),
            replaced=self._replaced,
            all_replaced=self._all_replaced,
            doubt=self._execution.doubt,
            overdue=self._overdue,
        )
        self._heartbeat = Heartbeat(database, settings, pulse)
        self._claimer = Claimer(
            database,
            settings,
            execution=self._execution,
            heartbeat=self._heartbeat,
            wakeups=self._wakeups,
            room=Room(slots=self._slots, behind=self._behind),
            gate=self._gate,
        )
        suspects_run = suspects or SuspectsHere(self._claimer, self._wakeups)
        self._maintenance = Maintenance(
            database, kinds, settings, self._heartbeat, suspects=suspects_run, owned=self._owned
        )
        around = (notifications, declared, feeds)
        self._parts = Parts(
            claimer=self._claimer,
            execution=self._execution,
            settlement=self._settlement,
            suspects=suspects,
            wakeups=self._wakeups,
            maintenance=None if lone else self._maintenance,
            services=[] if lone else services(database, kinds, settings, *around, self._claimer),
            reporter=self._reporter,
            heartbeat=self._heartbeat,
        )
        self._thread = threading.Thread(target=self._work, name="stepfast-claimer", daemon=True)

    # For the caller

    def start(self) -> None:
        """Begin to work in the background, handlers on an event loop of their own."""
        self._refuse_second_start()
        loop = asyncio.new_event_loop()

        def serve() -> None:
            asyncio.set_event_loop(loop)
            loop.run_forever()
            # What handlers keep open for as long as it runs.
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.close()

        self._loop_thread = threading.Thread(target=serve, name="stepfast-loop", daemon=True)
        self._loop_thread.start()
        try:
            self._begin(loop)
        except BaseException:
            loop.call_soon_threadsafe(loop.stop)
            raise

    def stop(self, *, at_once: bool = False, timeout: float | None = None) -> bool:
        """Stop taking work, let steps finish within the grace period, give back the rest.

        False if that took longer than `timeout`; the worker goes on stopping.
        """
        if not self._started:
            return True
        if at_once or not self._stopping.is_set():  # a second ask would end the grace of the first
            self.ask_to_stop(at_once=at_once)
        stopped = self._stopped.wait(timeout)
        loop, thread = self._loop, self._loop_thread
        if stopped and thread is not None and loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(loop.stop)
            thread.join(timeout=5)
        return stopped

    def ask_to_stop(self, *, at_once: bool = False) -> None:
        """The first ask is polite; the second gives everything back at once."""
        if at_once or self._stopping.is_set():
            self._at_once.set()
            self._settlement.hurry()
        self._stopping.set()
        self._wakeups.nudge()

    async def serve(self) -> None:
        """Work on the running event loop until asked to stop."""
        async with self:
            await in_own_thread(self._stopped.wait)

    async def __aenter__(self) -> Self:
        await in_own_thread(self._begin, asyncio.get_running_loop())
        return self

    async def __aexit__(self, *_: object) -> None:
        if not self._stopping.is_set():
            self.ask_to_stop()
        await in_own_thread(self._stopped.wait)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def status(self) -> WorkerStatus:
        running = self._started and not self._stopped.is_set()
        return status(self.settings, self._execution, self._heartbeat, running=running)

    def _begin(self, loop: asyncio.AbstractEventLoop) -> None:
        self._refuse_second_start()
        require_current_schema(self._database)
        self._started = True
        self._loop = loop
        self._execution.bind(loop)
        self._heartbeat.start()
        self._reporter.start()
        self._settlement.start()
        if not self._lone:
            self._maintenance.start()
        for service in self._parts.services:
            service.start()
        self._wakeups.start()
        happened("worker.started", worker_id=self.settings.worker_id, concurrency=self.settings.concurrency)
        self._thread.start()

    def _refuse_second_start(self) -> None:
        if self._started:
            raise StepfastError("this worker was started before; make a new one")

    def _work(self) -> None:
        try:
            if self._lone:
                self._claimer.suspects_until_none(self._stopping)
            else:
                self._claimer.work_until(self._stopping)
        except Exception as error:  # noqa: BLE001 - whatever it is, leave in good order
            self.failed = True
            happened("worker.failed", worker_id=self.settings.worker_id, error=error)
        finally:
            self._stopping.set()
            happened("worker.stopping", worker_id=self.settings.worker_id, active=self._execution.active)
            given_back = shut_down(self._parts, self.settings.grace, self._at_once)
            happened("worker.stopped", worker_id=self.settings.worker_id, given_back=given_back)
            self._stopped.set()

    # What the parts tell each other

    def _slots(self) -> int:
        return max(0, self.settings.concurrency - self._execution.lost_slots)

    def _behind(self) -> bool:
        """Commits fall behind: more answers would only wait."""
        return len(self._owned) - self._execution.held > (0 if self._lone else 5 * self.settings.batch)

    def _settled(self, leases: Sequence[Lease]) -> None:
        self._gate.forget(leases)
        for lease in leases:
            if self._owned.get(lease.job_id) == lease.fence:
                del self._owned[lease.job_id]
        ended(self._database, (lease.job_id for lease in leases))
        self._changed()  # a claimer that waits for the settlement to catch up hears it from here only

    def _changed(self) -> None:
        if self._lone or (self._claimer.waits_for_room and self._claimer.hungry()):
            self._wakeups.nudge()

    def _goes_on(self, lease: Lease, chain: int, since: float) -> bool:
        return self._execution.go_on(lease, chain, since)

    def _replaced(self, job_id: str, fence: int) -> None:
        self._execution.halt(job_id, fence, Halt.REPLACED)

    def _all_replaced(self) -> None:
        self._execution.take_unstarted()  # rescued with the rest; nothing of it has started
        self._execution.halt_all(Halt.REPLACED)

    def _overdue(self) -> None:
        """Stop vouching for steps that ignore their timeout. Called by the heartbeat."""
        self._isolated.end_idle()
        alive = self._execution.pulse is None or self._execution.pulse.felt()
        late = self._execution.overdue()
        if late and not alive:
            happened("loop.stuck", worker_id=self.settings.worker_id, active=self._execution.active)
            leave_stuck_loop(self._parts)
            if self._stuck is not None:
                self._stuck()
            self.ask_to_stop(at_once=True)
            return
        for it in late:
            self._execution.abandon(it)
            self.needs_recycling = True
        self.needs_recycling = self.needs_recycling or self._wear.is_over()
        if self.needs_recycling and self._stuck is not None and not self._stopping.is_set():
            self.ask_to_stop()  # only a new process gets back what was lost
