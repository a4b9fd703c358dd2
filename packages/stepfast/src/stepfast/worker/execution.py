"""Run handlers: coroutines on the event loop, plain functions on threads, isolated ones in processes; all under a timeout."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from stepfast.errors import UnknownKindError
from stepfast.jobs.outcome import Again, Ending, GiveBack
from stepfast.jobs.retry import Retry, describe, judge
from stepfast.jobs.step import Halt, Reports, Step
from stepfast.telemetry import happened
from stepfast.worker.isolation.step import IsolatedRunning
from stepfast.worker.running import Ended, InContext, LoopPulse, Running, Watch

if TYPE_CHECKING:
    from stepfast.config import WorkerSettings
    from stepfast.jobs.kinds import Kind, Kinds
    from stepfast.jobs.lease import Lease
    from stepfast.worker.isolation.pool import HandlerProcesses


# Leases that this process holds and has not started: what a crash would leave behind untouched.


class Unstarted(NamedTuple):
    lease: Lease
    chain: int  # how many steps its job has taken here in a row ...
    chain_since: float  # ... and since when
    waits_since: float


class UnstartedLeases:
    """Filled by the claimer, taken from the front by the event loop and from the back by who gives them back."""

    def __init__(self) -> None:
        self._leases: deque[Unstarted] = deque()

    def add(self, leases: Iterable[Lease], chain: int = 0, chain_since: float = 0.0) -> None:
        now = time.monotonic()
        new = tuple.__new__  # what Unstarted(…) does in the end, without its Python
        self._leases.extend([new(Unstarted, (lease, chain, chain_since, now)) for lease in leases])

    def take(self) -> Unstarted | None:
        """The next to start."""
        try:  # asking first would not help: another thread takes from the other end
            return self._leases.popleft()
        except IndexError:
            return None

    def take_last(self) -> Unstarted | None:
        """The last that would start."""
        try:
            return self._leases.pop()
        except IndexError:
            return None

    def longest_wait(self) -> float:
        """For how many seconds the first of them has waited here."""
        try:
            return time.monotonic() - self._leases[0].waits_since
        except IndexError:
            return 0.0


# Jobs of a kind that nobody here knows: they go back for a while, perhaps a newer worker knows them.

UNKNOWN_KIND_DELAY: Final = timedelta(seconds=15)  # a rolling deployment may bring the code
DEFAULT_RETRY: Final = Retry()


class UnknownKinds:
    """Postpones them, and says so once for each kind: a backlog of them would flood the log."""

    def __init__(self, kinds: Kinds) -> None:
        self._kinds = kinds
        self._announced: set[str] = set()

    def postponed(self, lease: Lease) -> Ended:
        error = UnknownKindError(lease.kind, self._kinds.names())
        if lease.kind not in self._announced:
            self._announced.add(lease.kind)
            happened("kind.unknown", lease, error=error)
        text = describe(error)
        return Ended(lease, Again(UNKNOWN_KIND_DELAY, text, text[:200], charged=False), (), DEFAULT_RETRY)


WATCH: Final = 0.1  # seconds between looks at the deadlines
UNWIND: Final = 5.0  # seconds a handler gets to clean up after its timeout
BREATH: Final = 0.0005  # seconds after which a row of short handlers lets others have a turn
ASIDE: Final = 0.00001  # seconds for the threads that claim and commit


class Execution:
    """Keeps up to `concurrency` handlers running, and knows how fast they are."""

    def __init__(
        self,
        kinds: Kinds,
        settings: WorkerSettings,
        isolated: HandlerProcesses,
        *,
        reports: Reports,
        put: Callable[[Ended], None],
        changed: Callable[[], None],
        owned: dict[str, int],
    ) -> None:
        self._kinds = kinds
        self._settings = settings
        self._concurrency = settings.concurrency
        self._isolated = isolated
        self._reports = reports
        self._put = put
        self._changed = changed  # tells the claimer that there is room
        self._owned = owned
        self._loop: asyncio.AbstractEventLoop | None = None
        self.unstarted = UnstartedLeases()
        # What changes with every step has one writer, the event loop, and needs no lock: others only look.
        # A job that was replaced may run twice for a moment: its old step, and its new one.
        self._running: dict[tuple[str, int], Running] = {}  # by job and fence
        self._ended = 0
        self._handed_over = 0  # from here on by several threads
        self._taken_away = 0
        self._lock = threading.Lock()
        self._threads: ThreadPoolExecutor | None = None
        self._watching = False
        self._accepting = True
        self._unknown = UnknownKinds(kinds)
        self._watch_starts = Watch.now()
        self.pulse: LoopPulse | None = None
        self.lost_slots = 0
        self.average = 0.0  # seconds a handler takes, smoothed
        self.low_water = settings.concurrency - 1  # when so few leases are held, the claimer wants to know

    def bind(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.pulse = LoopPulse(loop)
        self._threads = ThreadPoolExecutor(self._concurrency, thread_name_prefix="stepfast-handler")

    def go_on(self, lease: Lease, chain: int, chain_since: float) -> bool:
        """Called from the settlement: the next step of a job that stayed here. False when we are stopping."""
        if not self._accepting or self._loop is None:
            return False
        self.start([lease], chain, chain_since)
        return True

    def start(self, leases: Sequence[Lease], chain: int = 0, chain_since: float = 0.0) -> None:
        """Called from the claimer: hand over a batch."""
        assert self._loop is not None  # noqa: S101 - bound before anything is claimed
        self._owned.update((lease.job_id, lease.fence) for lease in leases)
        with self._lock:
            self._handed_over += len(leases)
        self._watch_starts = Watch.now()
        self.unstarted.add(leases, chain, chain_since)
        self._loop.call_soon_threadsafe(self._fill)

    @property
    def active(self) -> int:
        return len(self._running)

    @property
    def held(self) -> int:
        """Leases in this process that have not ended: running, waiting, or on their way between."""
        gone = self._ended + self._taken_away  # read first: a lease that ends meanwhile counts as held
        return self._handed_over - gone

    def running(self) -> list[tuple[str, int]]:
        """Which steps run, and under which fences."""
        return [(it.lease.job_id, it.lease.fence) for it in self._snapshot() if not it.abandoned]

    def slow_down(self) -> None:
        """Handlers turned out to be slower than those before: believe the slowest one that runs."""
        now = time.monotonic()
        self.average = max([self.average, *(now - it.started for it in self._snapshot())])

    def take_unstarted(self) -> list[Lease]:
        """Give up what has not started; the caller returns it to the queue."""
        taken = []
        while (waiting := self.unstarted.take_last()) is not None:
            taken.append(waiting.lease)
            if self._owned.get(waiting.lease.job_id) == waiting.lease.fence:
                del self._owned[waiting.lease.job_id]
        self._take_away(len(taken))
        return taken

    def stop_accepting(self) -> None:
        self._accepting = False

    def halt(self, job_id: str, fence: int, why: Halt) -> None:
        """Tell one step to stop; callable from any thread."""
        it = self._running.get((job_id, fence))
        if it is not None and it.step.halted is None:
            self._halt(it, why)

    def halt_all(self, why: Halt) -> list[Lease]:
        """Tell every step to stop; returns what was running. An abandoned one has failed, and is not given back."""
        running = self._snapshot()
        for it in running:
            self._halt(it, why)
        return [it.lease for it in running if not it.abandoned]

    def doubt(self, *, uncertain: bool) -> None:
        for it in self._snapshot():
            it.step.doubt(uncertain=uncertain)

    def overdue(self) -> list[Running]:
        """Steps that ignored their timeout and the time to unwind."""
        latest = time.monotonic() - UNWIND
        return [it for it in self._snapshot() if not it.abandoned and (it.deadline or latest) < latest]

    def abandon(self, it: Running) -> None:
        """Stop vouching for a step that cannot be stopped: it fails now; its slot is lost until it returns."""
        it.abandoned = True
        self.lost_slots += 1
        it.step.halt(Halt.TIMED_OUT)
        self._put(it.ended(it.timed_out()))
        self._take_away(1)  # its lease has ended: who stops need not wait for it
        happened("slot.lost", it)

    def close(self) -> None:
        self._isolated.close()
        if self._threads is not None:
            # Nobody waits for a handler that cannot be stopped.
            stuck = bool(self._running) or self.lost_slots > 0
            self._threads.shutdown(wait=not stuck, cancel_futures=True)

    def _halt(self, it: Running, why: Halt) -> None:
        it.step.halt(why)
        if it.kind.on_event_loop and self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._cancel, it)

    def _snapshot(self) -> list[Running]:
        # A copy is made in one piece, whatever the event loop does.
        return list(self._running.copy().values())

    def _take_away(self, count: int) -> None:
        with self._lock:
            self._taken_away += count

    # Everything below runs on the event loop.

    def _cancel(self, it: Running) -> None:
        if it.task is not None and self._running.get((it.lease.job_id, it.lease.fence)) is it:
            it.task.cancel()

    def _fill(self) -> None:
        """Start handlers while there is work and a slot."""
        while (it := self._next()) is not None:
            assert self._loop is not None  # noqa: S101 - we run on it
            if it.kind.on_event_loop:
                it.task = self._loop.create_task(self._drive(it))
            else:
                self._call_in_thread(it)

    def _next(self) -> Running | None:
        """Take the next lease that can be run at all, if there is a slot for it."""
        while len(self._running) < self._concurrency and (waiting := self.unstarted.take()) is not None:
            lease = waiting.lease
            kind = self._kinds.find(lease.kind)
            if kind is None:
                self._end(self._unknown.postponed(lease))
                continue
            try:
                it = self._running_of(waiting, kind)
            except Exception as error:  # noqa: BLE001 - whatever is in the row, the worker goes on
                verdict = judge(error, kind.retry, lease.failures, random.random())
                self._end(Ended(lease, verdict, (), kind.retry))
                continue
            self._running[lease.job_id, lease.fence] = it
            if it.deadline is not None and not self._watching and self._loop is not None:
                self._watching = True
                self._loop.call_later(WATCH, self._watch)
            return it
        return None

    def _running_of(self, waiting: Unstarted, kind: Kind) -> Running:
        settings, watch = self._settings, self._watch_starts
        if kind.isolation is not None:
            return IsolatedRunning(waiting, kind, self._reports, settings, watch, self._isolated)
        step = Step(waiting.lease, self._reports, settings.worker_id)
        return Running(waiting, kind, step, kind.read(waiting.lease.payload), watch)

    async def _drive(self, first: Running) -> None:
        """Run one coroutine after the other, as long as the next one is there without waiting."""
        it: Running | None = first
        task = asyncio.current_task()
        rested = time.monotonic()
        while it is not None:
            it.task = task
            try:
                run = InContext(it.begin())
                ending = it.answered(await run if run.waits else run.answer)
            except asyncio.CancelledError as error:
                ending = it.interrupted(error, self._reports)
            except Exception as error:  # noqa: BLE001 - the handler's own
                ending = it.raised(error, self._reports)
            while task is not None and task.cancelling():
                task.uncancel()  # it was meant for this step, not for the next
            self._finish(it, ending)
            if (it.finished or 0.0) - rested > BREATH:
                # Python changes threads every 5 ms, and a commit of 1,000 jobs asks for its turn five times: stepping
                # aside drains 49,000 jobs/s from SQLite instead of 39,000. (0 would take the turn again at once.)
                time.sleep(ASIDE)  # noqa: ASYNC251 - the event loop itself has to wait
                await asyncio.sleep(0)
                rested = time.monotonic()
            while (it := self._next()) is not None and not it.kind.on_event_loop:
                self._call_in_thread(it)

    def _call_in_thread(self, it: Running) -> None:
        assert self._loop is not None  # noqa: S101 - we run on it
        future = self._loop.run_in_executor(self._threads, copy_context().run, it.call_in_thread)
        future.add_done_callback(lambda done: self._thread_returned(it, done))

    def _thread_returned(self, it: Running, done: asyncio.Future[tuple[Any, BaseException | None]]) -> None:
        if done.cancelled():
            self._finish(it, GiveBack())
        else:
            answer, error = done.result()
            self._finish(it, it.answered(answer) if error is None else it.raised(error, self._reports))
        self._fill()

    def _finish(self, it: Running, ending: Ending) -> None:
        it.finished = time.monotonic()
        self.average += (it.finished - it.started - self.average) * 0.05
        self._running.pop((it.lease.job_id, it.lease.fence), None)
        if it.abandoned:
            self.lost_slots -= 1  # it came back after all, with an answer that comes too late
        else:
            try:
                ended = it.ended(ending)
            except Exception as error:  # noqa: BLE001 - the answer itself is wrong
                ended = it.ended(it.raised(error, self._reports))
            self._end(ended)

    def _end(self, ended: Ended) -> None:
        self._put(ended)
        self._ended += 1  # after `put`: at no moment does the lease look as if nobody had it
        held = self._handed_over - self._ended - self._taken_away
        if held in (self.low_water, 0):  # on the way down, once
            self._changed()

    def _watch(self) -> None:
        now = time.monotonic()
        timed = [it for it in self._snapshot() if it.deadline is not None]
        for it in timed:
            if it.deadline is not None and now >= it.deadline and it.step.halted is None:
                it.step.halt(Halt.TIMED_OUT)
                self._cancel(it)
        self._watching = bool(timed)
        if self._watching and self._loop is not None:
            self._loop.call_later(WATCH, self._watch)
