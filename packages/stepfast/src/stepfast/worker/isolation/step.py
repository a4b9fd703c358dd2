"""One isolated step, as the worker sees it: a thread hands it to a process, passes on its reports, and ends it in time.

The thread keeps the step's time by itself, so that neither a busy event loop nor a handler that ignores everything can
make it last: the handler is asked to stop, and a while later its process is killed.
"""

from __future__ import annotations

import logging
import random
import signal
import time
from typing import TYPE_CHECKING, Any, Final

from stepfast.errors import StepCancelled, StepCrashed, StepfastError
from stepfast.jobs.retry import judge_crash
from stepfast.jobs.step import Halt, Report, Reports, Step
from stepfast.telemetry import happened
from stepfast.telemetry.current_step import CURRENT
from stepfast.telemetry.traces import current_trace
from stepfast.worker.isolation.effects import unpack_effects
from stepfast.worker.isolation.protocol import (
    Annotated,
    Answered,
    Broken,
    DoubtStep,
    Failed,
    HaltStep,
    Logged,
    Ready,
    Reported,
    RunStep,
)
from stepfast.worker.running import Running, Watch

if TYPE_CHECKING:
    from stepfast.config import WorkerSettings
    from stepfast.jobs.kinds import Kind
    from stepfast.jobs.lease import Lease
    from stepfast.jobs.outcome import Ending
    from stepfast.worker.isolation.pool import HandlerProcess, HandlerProcesses
    from stepfast.worker.leases import Waiting


START: Final = 60.0  # seconds in which a process has to import the handlers
UNWIND: Final = 4.0  # seconds to clean up after being asked to stop
LAST_UNWIND: Final = 1.5  # the same when the worker itself is leaving


class DistantStep(Step):
    """The worker's end of the step: the process hears of a halt, and of doubt about the lease."""

    process: HandlerProcess | None = None  # while it runs there

    def halt(self, why: Halt) -> None:
        super().halt(why)
        self._nudge()

    def doubt(self, *, uncertain: bool) -> None:
        super().doubt(uncertain=uncertain)
        self._nudge()

    def _nudge(self) -> None:
        """Let the thread that talks to the process look at this step."""
        if (process := self.process) is not None:
            process.nudge()


class IsolatedRunning(Running):
    """A step whose handler is at work in another process."""

    def __init__(  # noqa: PLR0917 - as its base, and where it runs
        self,
        waiting: Waiting,
        kind: Kind,
        reports: Reports,
        settings: WorkerSettings,
        watch: Watch | None,
        processes: HandlerProcesses,
    ) -> None:
        step = DistantStep(waiting.lease, reports, settings.worker_id)
        super().__init__(waiting, kind, step, {}, watch)
        self.deadline = None  # kept by the thread of the step
        self._distant = step
        self._reports = reports
        self._processes = processes
        self._crash_limit = settings.crash_limit

    def answered(self, answer: Any) -> Ending:
        ending: Ending = answer  # `begin` has made one
        return ending

    def begin(self) -> Ending:
        """Have the step run in a process; called on a thread that waits for it."""
        CURRENT.set(self)  # what it logs is written here
        if self.watch is not None:
            self._announce(self.watch)
        lease = self.kind.opened(self.lease)  # the process needs no key
        assert self.kind.isolation is not None  # noqa: S101 - or it would not be here
        process = self._processes.take(self.kind.isolation.env)
        usable = False
        self._distant.process = process
        try:
            self._wait_until_ready(process)
            ending = self._converse(process, lease)
            usable = True
        except (EOFError, OSError):
            ending = self._ended_by(process)
        finally:
            self._distant.process = None
            self._processes.give(process, usable=usable)
        return ending

    def _wait_until_ready(self, process: HandlerProcess) -> None:
        """Wait for a process that is still starting. That is not counted as the step's time."""
        until = time.monotonic() + START
        while not process.ready:
            self.step.check()
            match process.receive(until):
                case Ready():
                    process.ready = True
                case Broken(problem):
                    raise StepfastError(f"the process of an isolated step could not start: {problem}")
                case None if time.monotonic() >= until:
                    raise StepfastError(f"the process of an isolated step did not start within {START:g} s")
        self.started = time.monotonic()

    def _converse(self, process: HandlerProcess, lease: Lease) -> Ending:
        assert self.kind.isolation is not None  # noqa: S101 - or it would not be here
        lease = lease._replace(trace=current_trace())  # what it enqueues there belongs to the span here
        process.send(RunStep(lease, self.kind.isolation, self.kind.retry, self.step.worker_id))
        timeout = self.kind.timeout
        until = None if timeout is None else self.started + timeout.total_seconds()
        asked = killed = doubted = False
        while True:
            if self.step.halted is not None and not asked:
                asked = True
                process.send(HaltStep(lease.fence, self.step.halted))
                until = time.monotonic() + (LAST_UNWIND if self.step.halted is Halt.SHUTDOWN else UNWIND)
            if self.step.lease_uncertain != doubted:
                doubted = self.step.lease_uncertain
                process.send(DoubtStep(lease.fence, doubted))
            heard = process.receive(until)
            if isinstance(heard, Answered | Failed) and of_step(heard, lease.fence):
                return self._ending(process, heard)
            self._pass_on(heard)
            if until is not None and time.monotonic() >= until:
                if killed:
                    raise EOFError  # the system holds the process back: we do not wait
                if asked:
                    killed = True
                    process.kill()
                    until = time.monotonic() + LAST_UNWIND
                else:
                    self.step.halt(Halt.TIMED_OUT)

    def _pass_on(self, heard: Any) -> None:
        match heard:
            case Reported(fence, percent, note, level, message) if fence == self.lease.fence:
                self._reports.put(Report(self.lease, percent, note, level, message))
            case Annotated(fence, annotations) if fence == self.lease.fence:
                self.step.annotations |= annotations
            case Logged(fields):
                record = logging.makeLogRecord(fields)
                logger = logging.getLogger(record.name)
                if logger.isEnabledFor(record.levelno):
                    logger.handle(record)
            case _:
                pass  # no message, or one about a step that is over

    def _ending(self, process: HandlerProcess, heard: Answered | Failed) -> Ending:
        process.steps += 1
        process.held = heard.held
        process.first = process.first or heard.held
        if isinstance(heard, Answered):
            self.step.effects = [] if heard.effects is None else unpack_effects(heard.effects)
            return heard.answer.ending()
        if heard.interrupted and self.step.halted is not None:
            return self.interrupted(StepCancelled(heard.text), self._reports)
        self._reports.put(Report(self.lease, None, None, "error", heard.text))
        return heard.verdict.ending()

    def _ended_by(self, process: HandlerProcess) -> Ending:
        """The process is gone. If the step was asked to stop, that is why; otherwise it crashed."""
        error = StepCrashed(f"its process {describe_exit(process.end())}")
        if self.step.halted is not None:
            return self.interrupted(error, self._reports)
        happened("step.crashed", self, error=error)
        self._reports.put(Report(self.lease, None, None, "error", str(error)))
        return judge_crash(error, self.kind.retry, self.lease.crashes, self._crash_limit, random.random())


def of_step(heard: Answered | Failed, fence: int) -> bool:
    """Whether the answer is about this step, and not sent by a thread that an earlier step left behind."""
    return heard.fence == fence


def describe_exit(code: int | None) -> str:
    """What an exit code says, as the end of a sentence."""
    if code is None:
        return "does not answer any more"
    if code >= 0:
        return f"ended with exit code {code}"
    name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
    killer = " (nobody here did: perhaps the system ran out of memory)" if name == "SIGKILL" else ""
    return f"was killed by {name}{killer}"
