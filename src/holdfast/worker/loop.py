"""The worker: claim, run, settle, until told to stop.

Threads: the claimer here, the event loop that runs handlers, the settlement, the heartbeat, the
maintenance. They share nothing but queues and the database.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from holdfast.clock import Micros
from holdfast.database.database import persist
from holdfast.database.migrate import require_current_schema
from holdfast.database.statement import sql
from holdfast.errors import DatabaseError, HoldfastError
from holdfast.steps.commit import give_back
from holdfast.steps.lease import Lease, claim, claim_suspect
from holdfast.steps.step import Halt
from holdfast.telemetry import happened
from holdfast.worker.claiming import Hint, appetite
from holdfast.worker.execution import Execution
from holdfast.worker.incarnation import Heartbeat, Pulse
from holdfast.worker.maintenance import Maintenance
from holdfast.worker.reporter import Reporter
from holdfast.worker.settlement import Ended, Settlement
from holdfast.worker.wakeups import Wakeups

if TYPE_CHECKING:
    from holdfast.config import WorkerSettings
    from holdfast.database.database import Database
    from holdfast.steps.kinds import Kinds

QUICK_LOOKS: Final = (0.002, 0.004, 0.008, 0.016)  # after work, for longer than a wake-up may be withheld
STUCK_AFTER: Final = 1.0  # seconds without movement after which unstarted jobs go back
DISCOVER_EVERY: Final = 0.25

# Names of queues with ready work: a loose index scan, one probe per queue and not one per job.
QUEUES_WITH_WORK = sql("""
    WITH RECURSIVE named (queue) AS (
        SELECT min(queue) FROM holdfast_job WHERE state = 'ready'
        UNION ALL
        SELECT (SELECT min(j.queue) FROM holdfast_job j WHERE j.state = 'ready' AND j.queue > named.queue)
          FROM named WHERE named.queue IS NOT NULL
    )
    SELECT queue FROM named
     WHERE queue IS NOT NULL AND queue NOT IN (SELECT id FROM holdfast_queue WHERE paused_at IS NOT NULL)
""")


@dataclass(frozen=True)
class WorkerStatus:
    """What a worker says of itself."""

    worker_id: str
    running: bool
    active_jobs: int
    active_job_ids: list[str]
    concurrency: int
    lease_seconds: float
    queues: list[str]
    lost_slots: int


class Worker:
    """Runs an app's jobs until it is stopped. Start it in your own program, or by `holdfast worker`."""

    def __init__(
        self,
        database: Database,
        kinds: Kinds,
        settings: WorkerSettings,
        *,
        lone: Callable[[], None] | None = None,
    ) -> None:
        self.settings = settings
        self._database = database
        self._lone = lone  # starts a process that runs suspects alone; without it they run here, alone
        self._wakeups = Wakeups(database, self._look_for_cancellations)
        self._reporter = Reporter(database, self._replaced)
        self._settlement = Settlement(database, self._goes_on, self._settled)
        self._execution = Execution(
            kinds, settings.concurrency, settings.worker_id, self._reporter, self._put, self._changed
        )
        pulse = Pulse(
            running=self._execution.running,
            cancelled=lambda job_id, fence: self._execution.halt(job_id, fence, Halt.CANCELLED),
            replaced=self._replaced,
            all_replaced=lambda: self._execution.halt_all(Halt.REPLACED),
            doubt=self._execution.doubt,
            overdue=self._overdue,
        )
        self._heartbeat = Heartbeat(database, settings, pulse)
        self._maintenance = Maintenance(database, settings, self._heartbeat, self._wakeups.nudge)
        self._hints: dict[str, Hint] = {}
        self._discovered: list[str] = []
        self._discovered_at = 0.0
        self._turn = 0
        self._unsettled = 0
        self._count = threading.Lock()
        self._stopping = threading.Event()
        self._at_once = threading.Event()
        self._stopped = threading.Event()
        self._started = False
        self._loop_thread: threading.Thread | None = None
        self._claimer = threading.Thread(target=self._work, name="holdfast-claimer", daemon=True)
        self._alone = False  # a suspect runs here: nothing else may
        self.needs_recycling = False

    # For the caller

    def start(self) -> None:
        """Begin to work in the background, handlers on an event loop of their own."""
        ready = threading.Event()
        loops: list[asyncio.AbstractEventLoop] = []

        def serve() -> None:
            loop = asyncio.new_event_loop()
            loops.append(loop)
            asyncio.set_event_loop(loop)
            loop.call_soon(ready.set)
            loop.run_forever()
            loop.close()

        self._loop_thread = threading.Thread(target=serve, name="holdfast-loop", daemon=True)
        self._loop_thread.start()
        ready.wait()
        try:
            self._begin(loops[0])
        except BaseException:
            loops[0].call_soon_threadsafe(loops[0].stop)
            raise

    def stop(self, *, at_once: bool = False, timeout: float | None = None) -> None:
        """Stop taking work, let steps finish within the grace period, give back the rest."""
        self.ask_to_stop(at_once=at_once)
        self._stopped.wait(timeout)
        thread = self._loop_thread
        if thread is not None and self._execution._loop is not None:  # noqa: SLF001 - our own part
            self._execution._loop.call_soon_threadsafe(self._execution._loop.stop)  # noqa: SLF001
            thread.join(timeout=5)

    def ask_to_stop(self, *, at_once: bool = False) -> None:
        """The first ask is polite, the second gives everything back at once. Safe in a signal handler."""
        if at_once or self._stopping.is_set():
            self._at_once.set()
            self._settlement.hurry()
        self._stopping.set()
        self._wakeups.nudge()

    async def serve(self) -> None:
        """Work on the running event loop until asked to stop."""
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, self._begin, loop)
        await loop.run_in_executor(None, self._stopped.wait)

    async def __aenter__(self) -> Worker:
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, self._begin, loop)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.ask_to_stop()
        await asyncio.get_running_loop().run_in_executor(None, self._stopped.wait)

    def __enter__(self) -> Worker:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def status(self) -> WorkerStatus:
        ids = sorted(self._execution.running())
        return WorkerStatus(
            worker_id=self.settings.worker_id,
            running=self._started and not self._stopped.is_set(),
            active_jobs=len(ids),
            active_job_ids=ids,
            concurrency=self.settings.concurrency,
            lease_seconds=self.settings.lease.total_seconds(),
            queues=list(self.settings.queues) or ["*"],
            lost_slots=self._execution.lost_slots,
        )

    # The life of the process

    def _begin(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._started:
            raise HoldfastError("this worker was started before; make a new one")
        require_current_schema(self._database)
        self._started = True
        self._execution.bind(loop)
        self._heartbeat.start()
        self._reporter.start()
        self._settlement.start()
        self._maintenance.start()
        self._wakeups.start()
        happened("worker.started", worker_id=self.settings.worker_id, concurrency=self.settings.concurrency)
        self._claimer.start()

    def _work(self) -> None:
        quick = 0
        named: set[str] = set()
        while not self._stopping.is_set():
            try:
                found = self._claim_round(named)
            except DatabaseError as error:
                happened("database.lost", error=str(error), note="claiming waits")
                self._wakeups.wait(random.uniform(0.5, 1.0))  # noqa: S311 - jitter
                continue
            quick = 0 if found else quick + 1
            named = self._wakeups.wait(self._pause(found, quick))
            if named:
                quick = 0
                for queue in named:
                    self._hints.setdefault(queue, Hint()).woken = True
        self._shut_down()

    def _pause(self, found: int, quick: int) -> float:
        if found:
            return 0.0 if self._hungry() else 1.0  # full: woken when a slot is free
        if not self._hungry():
            return STUCK_AFTER
        if quick <= len(QUICK_LOOKS):
            return QUICK_LOOKS[quick - 1]
        poll = self.settings.poll_interval
        seconds = poll.total_seconds() if poll else (1.0 if self._wakeups.heard else 0.05)
        return seconds * random.uniform(0.9, 1.1)  # noqa: S311 - jitter

    def _hungry(self) -> bool:
        return self._appetite() > 0 and not self._alone

    def _appetite(self) -> int:
        slots = max(0, self.settings.concurrency - self._execution.lost_slots)
        if self._unsettled > 5 * self.settings.batch:
            return 0  # commits fall behind: more answers would only wait
        return appetite(slots, self._execution.held, self._execution.average, self.settings.batch)

    def _claim_round(self, named: set[str]) -> int:
        """Ask each queue once, starting with another one each time; returns how many jobs were taken."""
        self._return_stuck()
        if self._alone:
            if self._execution.held:
                return 0
            self._alone = False
        if not self._heartbeat.may_claim:
            return 0
        if self._suspects():
            return 1
        taken = 0
        queues = self._queues(named)
        for _ in queues:
            self._turn = (self._turn + 1) % len(queues)
            want = self._appetite()
            if want <= 0:
                break
            leases = self._claim(queues[self._turn], want)
            if leases:
                taken += len(leases)
                self._execution.start(leases)
        return taken

    def _queues(self, named: set[str]) -> list[str]:
        """The queues to ask: those we were given, or all that have work."""
        if self.settings.queues:
            return list(self.settings.queues)
        if named:
            return sorted(named)
        now = time.monotonic()
        if not self._discovered or now - self._discovered_at > DISCOVER_EVERY:
            with self._database.reading() as tx:
                self._discovered = [str(row[0]) for row in tx.rows(QUEUES_WITH_WORK)]
            self._discovered_at = now
        return self._discovered

    def _claim(self, queue: str, want: int) -> list[Lease]:
        hint = self._hints.setdefault(queue, Hint())
        now = time.monotonic()
        start = hint.start(now)
        owner = self._heartbeat.incarnation
        leases = persist(self._database, lambda tx: claim(tx, queue, owner, want, start))
        hint.learn(leases, want, now, hinted=start is not None)
        if start is not None and len(leases) < want:
            rest = want - len(leases)
            more = persist(self._database, lambda tx: claim(tx, queue, owner, rest))
            hint.learn(more, rest, now, hinted=False)
            leases += more
        if not leases:
            self._discovered = [name for name in self._discovered if name != queue]
        happened("jobs.claimed", queue=queue, jobs=len(leases))
        return leases

    def _suspects(self) -> bool:
        """Jobs that were on board of a dead process run alone: in a process of their own, or here when idle."""
        return False

    def _return_stuck(self) -> None:
        """What waits here behind slow steps goes back, so that other workers can run it."""
        since = self._execution.waiting_since()
        if since is not None and time.monotonic() - since > STUCK_AFTER:
            self._give_back(self._execution.take_buffer())

    def _shut_down(self) -> None:
        happened("worker.stopping", worker_id=self.settings.worker_id, active=self._execution.active)
        self._settlement.stays = False
        self._execution.stop_accepting()
        self._give_back(self._execution.take_buffer())
        deadline = time.monotonic() + self.settings.grace.total_seconds()
        while self._execution.held and not self._at_once.is_set() and time.monotonic() < deadline:
            self._at_once.wait(0.02)
            self._give_back(self._execution.take_buffer())
        left = self._execution.halt_all(Halt.SHUTDOWN)
        self._give_back(left)
        self._wakeups.stop()
        self._maintenance.stop()
        self._reporter.stop()
        self._settlement.stop(hurry=self._at_once.is_set() or time.monotonic() >= deadline)
        self._heartbeat.stop()
        self._execution.close()
        happened("worker.stopped", worker_id=self.settings.worker_id, given_back=len(left))
        self._stopped.set()

    def _give_back(self, leases: list[Lease]) -> None:
        by_fence: dict[int, list[str]] = {}
        for lease in leases:
            by_fence.setdefault(lease.fence, []).append(lease.job_id)
        for fence, ids in by_fence.items():
            try:
                persist(self._database, lambda tx, ids=ids, fence=fence: give_back(tx, ids, fence))
            except DatabaseError as error:
                happened("database.lost", error=str(error), note="leases run out by themselves")

    # What the parts tell each other

    def _put(self, ended: Ended) -> None:
        with self._count:
            self._unsettled += 1
        self._settlement.put(ended)

    def _settled(self, count: int) -> None:
        with self._count:
            self._unsettled -= count

    def _changed(self) -> None:
        if self._stopping.is_set() or self._hungry():
            self._wakeups.nudge()

    def _goes_on(self, lease: Lease, chain: int, since: float) -> bool:
        return self._execution.go_on(lease, chain, since)

    def _replaced(self, job_id: str, fence: int) -> None:
        self._execution.halt(job_id, fence, Halt.REPLACED)

    def _look_for_cancellations(self) -> None:
        self._heartbeat.nudge()

    def _overdue(self) -> None:
        for it in self._execution.overdue():
            self._execution.abandon(it)
            self.needs_recycling = True


__all__ = ["Any", "Micros", "Worker", "WorkerStatus", "claim_suspect"]
