"""Run handlers: coroutines on the event loop, plain functions on threads, isolated ones in processes; all under a timeout.

What the answer or the exception of a handler means is in `worker/running.py`; ended steps go to `worker/committer.py`.
"""

from __future__ import annotations

import asyncio
import random
import time
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from stepfast.coroutines import StartedCoroutine
from stepfast.errors import UnknownKindError
from stepfast.jobs.outcome import Again, Ending, GiveBack
from stepfast.jobs.retry import Retry, describe, judge
from stepfast.jobs.step import Halt, Step
from stepfast.telemetry import happened
from stepfast.worker.isolation.step import IsolatedRunning
from stepfast.worker.running import Ended, LoopPulse, Running, Watch

if TYPE_CHECKING:
    from collections.abc import Callable

    from stepfast.config import WorkerSettings
    from stepfast.jobs.kinds import Kind, Kinds
    from stepfast.jobs.lease import Lease
    from stepfast.jobs.retry import HandlerOutages
    from stepfast.worker.committer import Committer
    from stepfast.worker.guardian import Board
    from stepfast.worker.isolation.pool import HandlerProcesses
    from stepfast.worker.leases import Leases, Waiting
    from stepfast.worker.reporter import Reporter

WATCH: Final = 0.1  # seconds between looks at the deadlines
BREATH: Final = 0.0005  # seconds after which a row of short handlers lets others have a turn
ASIDE: Final = 0.00001  # seconds for the threads that claim and commit
LOOP: Final = "event loop"
UNKNOWN_KIND_DELAY: Final = timedelta(seconds=15)  # a rolling deployment may bring the code
DEFAULT_RETRY: Final = Retry()


class Execution:
    """Keeps up to `concurrency` handlers running, and hands their answers to the committer."""

    def __init__(  # noqa: PLR0917 - what it takes to run a step
        self,
        kinds: Kinds,
        settings: WorkerSettings,
        leases: Leases,
        committer: Committer,
        reporter: Reporter,
        isolated: HandlerProcesses,
        outages: HandlerOutages,
        broken: Callable[[str, BaseException], None],
        board: Board | None = None,
    ) -> None:
        self._board = board
        self._kinds = kinds
        self._settings = settings
        self._concurrency = settings.concurrency
        self._leases = leases
        self._running = leases.running
        self._committer = committer
        self._reporter = reporter
        self._isolated = isolated
        self._broken = broken  # told when something of our own broke on the event loop
        self._outages = outages
        self._loop: asyncio.AbstractEventLoop | None = None
        self._threads: ThreadPoolExecutor | None = None
        self._watching = False  # whether a look at the deadlines is due
        self._watch_starts: Watch | None = None
        self._unknown_kinds: set[str] = set()  # that were reported: a backlog of them would flood the log
        self.pulse: LoopPulse | None = None

    def bind(self, loop: asyncio.AbstractEventLoop) -> None:
        """Name the event loop that handlers run on."""
        self._loop = loop
        self.pulse = LoopPulse(loop)
        self._threads = ThreadPoolExecutor(self._concurrency, thread_name_prefix="stepfast-handler")
        self._leases.bind(loop, self._start_batch)

    def abandon(self, running: Running) -> None:
        """Stop vouching for a step that cannot be stopped: it fails now; its slot is lost until it returns."""
        running.abandoned = True
        if running.board_slot is not None and self._board is not None:
            self._board.forgive(running.board_slot)
        self._leases.lost_slots += 1
        running.step.halt(Halt.TIMED_OUT)
        self._committer.put(running.ended(running.timed_out()))
        self._leases.remove(1)  # its lease has ended: a worker that stops need not wait for it
        happened("slot.lost", running)

    def close(self) -> None:
        self._isolated.close()
        if self._threads is not None:
            # A handler that cannot be stopped is not waited for.
            stuck = bool(self._running) or self._leases.lost_slots > 0
            self._threads.shutdown(wait=not stuck, cancel_futures=True)

    # Everything below runs on the event loop.

    def _start_batch(self) -> None:
        """New leases wait: start as many as there are slots."""
        try:
            self._watch_starts = Watch.now()
            self._fill()
        except Exception as error:  # noqa: BLE001 - no handler's: asyncio would only log it
            self._broken(LOOP, error)

    def _fill(self) -> None:
        """Start handlers while leases wait and a slot is free."""
        while (running := self._next()) is not None:
            assert self._loop is not None  # noqa: S101 - we run on it
            if running.kind.on_event_loop:
                running.task = self._loop.create_task(self._drive(running))
            else:
                self._call_in_thread(running)

    def _next(self) -> Running | None:
        """Take the next lease that can be run at all, if there is a slot for it."""
        while len(self._running) < self._concurrency and (waiting := self._leases.next_waiting()) is not None:
            lease = waiting.lease
            kind = self._kinds.find(lease.kind)
            if kind is None:
                self._end(self._postponed(lease))
                continue
            try:
                running = self._running_of(waiting, kind)
            except Exception as error:  # noqa: BLE001 - whatever is in the row, the worker goes on
                verdict = judge(error, kind.retry, lease.failures, random.random())
                self._end(Ended(lease, verdict, (), kind.retry))
                continue
            self._running[lease.job_id, lease.fence] = running
            if running.deadline is not None:
                self._watch_deadline(running, running.deadline)
            return running
        return None

    def _watch_deadline(self, running: Running, deadline: float) -> None:
        self._note_deadline(running, deadline)
        if not self._watching and self._loop is not None:
            self._watching = True
            self._loop.call_later(WATCH, self._watch)

    def _note_deadline(self, running: Running, deadline: float) -> None:
        """Let our guardian know until when a step may run."""
        if self._board is not None and running.board_slot is None and not running.abandoned:
            running.board_slot = self._board.expect(running.job_id, deadline)

    def _running_of(self, waiting: Waiting, kind: Kind) -> Running:
        settings, watch = self._settings, self._watch_starts
        if kind.isolation is not None:
            return IsolatedRunning(waiting, kind, self._reporter, settings, watch, self._isolated)
        step = Step(waiting.lease, self._reporter, settings.worker_id)
        return Running(waiting, kind, step, kind.read(waiting.lease), watch)

    def _postponed(self, lease: Lease) -> Ended:
        """A job of a kind that this worker does not know goes back for a while: a newer worker may know it."""
        error = UnknownKindError(lease.kind, self._kinds.names())
        if lease.kind not in self._unknown_kinds:
            self._unknown_kinds.add(lease.kind)
            happened("kind.unknown", lease, error=error)
        text = describe(error)
        return Ended(lease, Again(UNKNOWN_KIND_DELAY, text, text[:200], charged=False), (), DEFAULT_RETRY)

    async def _drive(self, first: Running) -> None:
        """Run one coroutine after the other, as long as the next one is there without waiting."""
        running: Running | None = first
        task = asyncio.current_task()
        rested = time.monotonic()
        try:
            while running is not None:
                running.task = task
                try:
                    # In a context of its own: context variables that one handler sets are not there for the next.
                    run = StartedCoroutine(running.begin(), copy_context())
                    ending = running.answered(await run if run.waits else run.answer)
                except asyncio.CancelledError as error:
                    ending = running.interrupted(error, self._reporter)
                except Exception as error:  # noqa: BLE001 - the handler's own
                    ending = self._raised(running, error)
                while task is not None and task.cancelling():
                    task.uncancel()  # it was meant for this step, not for the next
                self._finish(running, ending)
                if (running.finished or 0.0) - rested > BREATH:
                    # Python changes threads every 5 ms, and a commit of 1,000 jobs asks for its turn five times: stepping
                    # aside drains 49,000 jobs/s from SQLite instead of 39,000. (0 would take the turn again at once.)
                    time.sleep(ASIDE)  # noqa: ASYNC251 - the event loop itself has to wait
                    await asyncio.sleep(0)
                    rested = time.monotonic()
                while (running := self._next()) is not None and not running.kind.on_event_loop:
                    self._call_in_thread(running)
        except Exception as error:  # noqa: BLE001 - no handler's: asyncio would only log it
            self._broken(LOOP, error)

    def _call_in_thread(self, running: Running) -> None:
        assert self._loop is not None  # noqa: S101 - we run on it
        future = self._loop.run_in_executor(self._threads, copy_context().run, running.call_in_thread)
        future.add_done_callback(lambda done: self._thread_returned(running, done))

    def _thread_returned(
        self, running: Running, done: asyncio.Future[tuple[Any, BaseException | None]]
    ) -> None:
        try:
            if done.cancelled():
                self._finish(running, GiveBack())
            else:
                answer, error = done.result()
                ending = running.answered(answer) if error is None else self._raised(running, error)
                self._finish(running, ending)
            self._fill()
        except Exception as error:  # noqa: BLE001 - no handler's: asyncio would only log it
            self._broken(LOOP, error)

    def _raised(self, running: Running, error: BaseException) -> Ending:
        return running.raised(self._outages.excused(error, running.lease.job_id), self._reporter)

    def _finish(self, running: Running, ending: Ending) -> None:
        leases = self._leases
        running.finished = time.monotonic()
        leases.average += (running.finished - running.started - leases.average) * 0.05
        self._running.pop((running.lease.job_id, running.lease.fence), None)
        if running.board_slot is not None and self._board is not None:
            self._board.release(running.board_slot)
        if running.abandoned:
            leases.lost_slots -= 1  # it came back after all, with an answer that comes too late
        else:
            try:
                ended = running.ended(ending)
            except Exception as error:  # noqa: BLE001 - the answer itself is wrong
                ended = running.ended(running.raised(error, self._reporter))
            self._end(ended)

    def _end(self, ended: Ended) -> None:
        self._committer.put(ended)
        self._leases.end()  # after `put`: at no moment does the lease look as if this process had lost it

    def _watch(self) -> None:
        """Halt steps whose deadline has passed; look again soon while any step has one."""
        try:
            self._halt_late_steps()
        except Exception as error:  # noqa: BLE001 - no handler's: asyncio would only log it
            self._broken(LOOP, error)

    def _halt_late_steps(self) -> None:
        now = time.monotonic()
        timed = [running for running in self._leases.steps() if running.deadline is not None]
        for running in timed:
            if running.deadline is not None:
                self._note_deadline(running, running.deadline)
            if running.deadline is not None and now >= running.deadline and running.step.halted is None:
                running.step.halt(Halt.TIMED_OUT)
                self._leases.cancel(running)
        self._watching = bool(timed)
        if self._watching and self._loop is not None:
            self._loop.call_later(WATCH, self._watch)
