"""Run handlers: coroutines on the event loop, plain functions on threads, each under its timeout."""

from __future__ import annotations

import asyncio
import random
import threading
import time
import traceback
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from holdfast.errors import LeaseLostError, StepCancelled, StepTimeout, UnknownKindError
from holdfast.steps.failure import describe, judge
from holdfast.steps.outcome import Again, Continue, Done, Ending, GiveBack, Reject, Snooze, Stop
from holdfast.steps.retry import Retry
from holdfast.steps.step import Halt, Report, Reports, Step
from holdfast.telemetry import happened
from holdfast.worker.settlement import Ended

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from holdfast.steps.kinds import Kind, Kinds
    from holdfast.steps.lease import Lease

WATCH: Final = 0.1  # seconds between looks at the deadlines
UNWIND: Final = 5.0  # seconds a handler gets to clean up after its timeout
UNKNOWN_KIND_DELAY: Final = timedelta(seconds=15)  # a rolling deployment may bring the code
DEFAULT_RETRY: Final = Retry()
DONE: Final = Done()
OUTCOMES: Final = (Done, Continue, Snooze, Reject)
CARRIERS: Final = (Done, Continue, Snooze)  # outcomes that may bring effects


class Running:
    """A step whose handler is at work."""

    __slots__ = ("abandoned", "chain", "chain_since", "deadline", "kind", "lease", "started", "step", "task")

    def __init__(self, lease: Lease, kind: Kind, step: Step, chain: int, chain_since: float) -> None:
        self.lease = lease
        self.kind = kind
        self.step = step
        self.chain = chain
        self.chain_since = chain_since
        self.started = time.monotonic()
        self.deadline = self.started + kind.timeout.total_seconds() if kind.timeout else None
        self.task: asyncio.Task[None] | None = None
        self.abandoned = False


class Execution:
    """Keeps up to `concurrency` handlers running, and knows how fast they are."""

    def __init__(
        self,
        kinds: Kinds,
        *,
        concurrency: int,
        worker_id: str,
        reports: Reports,
        put: Callable[[Ended], None],
        changed: Callable[[], None],
        owned: dict[str, int],
    ) -> None:
        self._kinds = kinds
        self._concurrency = concurrency
        self._worker_id = worker_id
        self._reports = reports
        self._put = put
        self._changed = changed  # tells the claimer that there is room
        self._owned = owned
        self._loop: asyncio.AbstractEventLoop | None = None
        self._buffer: deque[tuple[Lease, int, float]] = deque()
        self._running: dict[str, Running] = {}
        self._held = 0
        self._lock = threading.Lock()  # around `_running` and `_held`, which other threads read
        self._threads: ThreadPoolExecutor | None = None
        self._watching = False
        self._accepting = True
        self._ticked = True
        self._announced: set[str] = set()
        self.lost_slots = 0
        self.average = 0.0  # seconds a handler takes, smoothed
        self.finished = 0
        self.low_water = concurrency  # when so few leases are held, the claimer wants to know

    def bind(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def start(self, leases: Sequence[Lease]) -> None:
        """Called from the claimer: hand over a batch."""
        self._hand_over([(lease, 0, 0.0) for lease in leases])

    def go_on(self, lease: Lease, chain: int, chain_since: float) -> bool:
        """Called from the settlement: the next step of a job that stayed here. False when we are stopping."""
        if not self._accepting or self._loop is None:
            return False
        self._hand_over([(lease, chain, chain_since)])
        return True

    def _hand_over(self, leases: list[tuple[Lease, int, float]]) -> None:
        assert self._loop is not None  # noqa: S101 - bound before anything is claimed
        self._owned.update((lease.job_id, lease.fence) for lease, _, _ in leases)
        with self._lock:
            self._held += len(leases)
        self._buffer.extend(leases)
        self._loop.call_soon_threadsafe(self._fill)

    @property
    def active(self) -> int:
        return len(self._running)

    @property
    def held(self) -> int:
        """Leases in this process that have not ended: running, waiting, or on their way between."""
        return self._held

    def running(self) -> dict[str, int]:
        """Which steps run, and under which fences."""
        with self._lock:
            return {job_id: it.lease.fence for job_id, it in self._running.items() if not it.abandoned}

    def waiting_since(self) -> float | None:
        """When nothing has moved although work waits here: the start of the youngest running step."""
        with self._lock:
            if not self._buffer or not self._running:
                return None
            return max(it.started for it in self._running.values())

    def take_buffer(self) -> list[Lease]:
        """Give up what has not started; the caller returns it to the queue."""
        taken = []
        while True:
            try:
                taken.append(self._buffer.pop()[0])
            except IndexError:
                break
        self._release(len(taken))
        for lease in taken:
            self._owned.pop(lease.job_id, None)
        return taken

    def _release(self, count: int) -> None:
        with self._lock:
            self._held -= count

    def stop_accepting(self) -> None:
        self._accepting = False

    def halt(self, job_id: str, fence: int, why: Halt) -> None:
        """Tell one step to stop; callable from any thread."""
        with self._lock:
            it = self._running.get(job_id)
        if it is not None and it.lease.fence == fence and it.step.halted is None:
            it.step.halt(why)
            self._interrupt(it)

    def halt_all(self, why: Halt) -> list[Lease]:
        """Tell every step to stop; returns what was running."""
        with self._lock:
            running = list(self._running.values())
        for it in running:
            it.step.halt(why)
            self._interrupt(it)
        return [it.lease for it in running]

    def doubt(self, *, uncertain: bool) -> None:
        with self._lock:
            for it in self._running.values():
                it.step.doubt(uncertain=uncertain)

    def overdue(self) -> list[Running]:
        """Steps that ignored their timeout and the time to unwind."""
        now = time.monotonic()
        with self._lock:
            return [
                it
                for it in self._running.values()
                if it.deadline is not None and now > it.deadline + UNWIND and not it.abandoned
            ]

    def ticks(self) -> bool:
        """Whether the event loop has run since the last time this was asked; asked every few seconds."""
        ticked, self._ticked = self._ticked, False
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._tick)
        return ticked

    def _tick(self) -> None:
        self._ticked = True

    def abandon(self, it: Running) -> None:
        """Stop vouching for a step that cannot be stopped: it fails now, and its slot is lost until it returns."""
        it.abandoned = True
        self.lost_slots += 1
        assert it.kind.timeout is not None  # noqa: S101 - only steps with a timeout are overdue
        it.step.halt(Halt.TIMED_OUT)
        self._put(self._ended(it, self._judged(it, StepTimeout(it.kind.timeout))))
        happened("slot.lost", job_id=it.lease.job_id, kind=it.kind.name)

    def close(self) -> None:
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)

    def _interrupt(self, it: Running) -> None:
        if it.task is not None and self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(it.task.cancel)

    # Everything below runs on the event loop.

    def _fill(self) -> None:
        while self._buffer and len(self._running) < self._concurrency:
            try:
                lease, chain, since = self._buffer.popleft()
            except IndexError:  # the claimer took it back meanwhile
                return
            self._begin(lease, chain, since)

    def _begin(self, lease: Lease, chain: int, since: float) -> None:
        kind = self._kinds.find(lease.kind)
        if kind is None:
            self._unknown(lease)
            return
        step = Step(lease, self._reports, self._worker_id)
        try:
            arguments = kind.arguments.decode(lease.payload)
        except Exception as error:  # noqa: BLE001 - whatever is in the row, the worker goes on
            verdict = judge(error, kind.retry, lease.failures, random.random())
            self._put(Ended(lease, verdict, (), kind.retry))
            self._release(1)
            self._changed()
            return
        if kind.arguments.wants_step:
            call: tuple[Any, ...] = (step,)
        else:
            call = ()
        it = Running(lease, kind, step, chain, since)
        with self._lock:
            self._running[lease.job_id] = it
        assert self._loop is not None  # noqa: S101 - bound before anything is claimed
        if kind.is_async:
            it.task = self._loop.create_task(self._drive(it, call, arguments))
        else:
            future = self._loop.run_in_executor(self._pool(), copy_context().run, _call, it, call, arguments)
            future.add_done_callback(lambda done: self._plain_returned(it, done))
        if it.deadline is not None and not self._watching:
            self._watching = True
            self._loop.call_later(WATCH, self._watch)

    async def _drive(self, it: Running, call: tuple[Any, ...], arguments: dict[str, Any]) -> None:
        try:
            answer = await it.kind.handler(*call, **arguments)
        except asyncio.CancelledError:
            self._finish(it, self._halted(it))
        except Exception as error:  # noqa: BLE001 - whatever is in the row, the worker goes on
            self._finish(it, self._judged(it, error))
        else:
            self._finish(it, _outcome(answer))

    def _plain_returned(self, it: Running, done: asyncio.Future[Any]) -> None:
        if done.cancelled():
            self._finish(it, GiveBack())
        elif (error := done.exception()) is not None:
            self._finish(it, self._judged(it, error))
        else:
            self._finish(it, _outcome(done.result()))

    def _finish(self, it: Running, ending: Ending) -> None:
        if it.abandoned:
            self.lost_slots -= 1  # it came back after all; its answer comes too late
        else:
            self._put(self._ended(it, ending))
        with self._lock:
            if self._running.get(it.lease.job_id) is it:
                del self._running[it.lease.job_id]
            self._held -= 1
        self.finished += 1
        self.average += (time.monotonic() - it.started - self.average) * 0.05
        if self._buffer:
            self._fill()
        if self._held <= self.low_water:
            self._changed()

    def _ended(self, it: Running, ending: Ending) -> Ended:
        effects: Sequence[Any] = ()
        if (it.step.effects or ending is not DONE) and isinstance(ending, CARRIERS):
            effects = [*it.step.effects, *ending.effects]
        return Ended(it.lease, ending, effects, it.kind.retry, it.chain, it.chain_since)

    def _judged(self, it: Running, error: BaseException) -> Ending:
        if isinstance(error, LeaseLostError | StepCancelled) and it.step.halted is not None:
            return self._halted(it)
        if isinstance(error, Exception):
            trace = "".join(traceback.format_exception(error)[-6:])
            self._reports.put(Report(it.lease, None, None, "error", f"{describe(error)}\n{trace}"[:8000]))
        return judge(error, it.kind.retry, it.lease.failures, random.random())

    def _halted(self, it: Running) -> Ending:
        """What an interrupted step ends in depends on who interrupted it."""
        match it.step.halted:
            case Halt.CANCELLED:
                return Stop("cancelled by an operator")
            case Halt.TIMED_OUT:
                assert it.kind.timeout is not None  # noqa: S101 - it had one
                return self._judged_timeout(it)
            case _:  # replaced or shutting down; also a handler that cancelled itself
                if it.step.halted is None:
                    return self._judged(it, StepCancelled("the handler cancelled itself"))
                return GiveBack()

    def _judged_timeout(self, it: Running) -> Ending:
        assert it.kind.timeout is not None  # noqa: S101 - only steps with a timeout are overdue
        happened("step.timed-out", job_id=it.lease.job_id, kind=it.kind.name)
        return judge(StepTimeout(it.kind.timeout), it.kind.retry, it.lease.failures, random.random())

    def _watch(self) -> None:
        now = time.monotonic()
        with self._lock:
            running = list(self._running.values())
        for it in running:
            if it.deadline is not None and now >= it.deadline and it.step.halted is None:
                it.step.halt(Halt.TIMED_OUT)
                if it.task is not None:
                    it.task.cancel()
        self._watching = any(it.deadline is not None for it in running)
        if self._watching and self._loop is not None:
            self._loop.call_later(WATCH, self._watch)

    def _unknown(self, lease: Lease) -> None:
        error = UnknownKindError(lease.kind, self._kinds.names())
        if lease.kind not in self._announced:
            self._announced.add(lease.kind)  # once is enough: a backlog of them would flood the log
            happened("kind.unknown", job_id=lease.job_id, kind=lease.kind, error=str(error))
        text = describe(error)
        self._put(Ended(lease, Again(UNKNOWN_KIND_DELAY, text, text[:200], charged=False), (), DEFAULT_RETRY))
        self._release(1)
        self._changed()

    def _pool(self) -> ThreadPoolExecutor:
        if self._threads is None:
            self._threads = ThreadPoolExecutor(self._concurrency, thread_name_prefix="holdfast-handler")
        return self._threads


def _call(it: Running, call: tuple[Any, ...], arguments: dict[str, Any]) -> Any:
    return it.kind.handler(*call, **arguments)


def _outcome(answer: Any) -> Ending:
    """A plain value is a result; None is just done."""
    if answer is None:
        return DONE
    return answer if isinstance(answer, OUTCOMES) else Done(answer)
