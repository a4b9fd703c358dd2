"""One step at work: how its handler is called, and what its answer, its error or its interruption means.

`Running` is the step while its handler runs. `Ended` is what the event loop hands to the committer: the lease, how the
step ended, and its effects. `worker/execution.py` starts handlers and puts `Ended` steps into `worker/committer.py`.
"""

from __future__ import annotations

import random
import time
import traceback
from collections import defaultdict
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, assert_never

from stepfast.encryption import opened
from stepfast.errors import ConfigurationError, LeaseLostError, SealedError, StepCancelled, StepTimeout
from stepfast.jobs.commit import CANCELLED, effects_of
from stepfast.jobs.end_webhook import TaskTimeoutError
from stepfast.jobs.outcome import (
    Again,
    Bury,
    Continue,
    Done,
    Effect,
    Ending,
    GiveBack,
    Reject,
    Snooze,
    Stop,
    Wait,
)
from stepfast.jobs.payload import decode
from stepfast.jobs.retry import describe, fingerprint, judge
from stepfast.jobs.step import LONGEST_LOG, Halt, Report, Reports, Step
from stepfast.telemetry import happened, wanted
from stepfast.telemetry.current_step import CURRENT
from stepfast.telemetry.masking import hidden_in, hiding, without_secrets
from stepfast.telemetry.traces import begin_step, end_step, inside, tracer

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Container, Mapping
    from contextlib import AbstractContextManager

    from opentelemetry.trace import Span, Tracer

    from stepfast.jobs.kinds import Kind
    from stepfast.jobs.lease import Lease
    from stepfast.jobs.retry import Retry
    from stepfast.telemetry import Fact
    from stepfast.worker.leases import Waiting


DONE: Final = Done()
OUTCOMES: Final = (Done, Continue, Snooze, Wait, Reject)
FEW: Final = 20  # steps that are reported one by one, although they were committed together
CARRIERS: Final = (Done, Continue, Snooze, Wait)  # outcomes that may bring effects


class Running:
    """A step whose handler is at work.

    Fields that most steps never change stand in the class: thousands of steps are made in a second.
    """

    span: Span | None = None
    finished: float | None = None
    deadline: float | None = None
    task: asyncio.Task[None] | None = None  # the one that drives its coroutine
    abandoned = False
    board_slot: int | None = None  # where our guardian sees its deadline
    error: BaseException | None = None  # what its handler raised

    def __init__(
        self, waiting: Waiting, kind: Kind, step: Step, arguments: dict[str, Any], watch: Watch | None
    ) -> None:
        self.lease, self.chain, self.chain_since, self.leased = waiting
        self.kind = kind
        self.step = step
        self.arguments = arguments
        self.watch = watch
        self.started = time.monotonic()  # as `leased` and the others
        if kind.timeout is not None:
            self.deadline = self.started + kind.timeout.total_seconds()

    @property
    def job_id(self) -> str:
        return self.lease.job_id

    @property
    def trace(self) -> str | None:
        return self.lease.trace

    @property
    def annotations(self) -> dict[str, str | float]:
        return self.step.annotations

    @cached_property
    def hidden(self) -> tuple[str, ...]:
        """Values of its arguments that are hidden in its log lines and errors; read when the first of those is written."""
        return hidden_arguments(self.lease)

    def facts(self) -> dict[str, Fact]:
        """The fields of every event about this step."""
        return self.lease.facts() | {"worker_id": self.step.worker_id, **self.step.annotations}

    def begin(self) -> Any:
        """Call the handler, in the context it runs in; of a coroutine function this only makes the coroutine."""
        CURRENT.set(self)  # log lines and jobs that the handler makes belong to this step
        if self.watch is not None:
            self._announce(self.watch)
        if self.kind.arguments.wants_step:
            return self.kind.handler(self.step, **self.arguments)
        return self.kind.handler(**self.arguments)

    def _announce(self, watch: Watch) -> None:
        if watch.starts:
            happened("step.started", self)
        if watch.tracer is not None:
            self.span = begin_step(watch.tracer, self, self.lease.kind, self.lease.queue, self.facts())

    def call_in_thread(self) -> tuple[Any, BaseException | None]:
        """The handler's answer or its exception, as values: a future would stumble over a StopIteration."""
        try:
            return self.begin(), None
        except BaseException as error:  # noqa: BLE001 - whatever it is, it is this step's
            return None, error

    def ended(self, ending: Ending) -> Ended:
        """The step as it goes to the committer, with the effects that its handler asked for."""
        effects: Sequence[Effect] = ()
        if ending is DONE:
            effects = self.step.effects.copy() if self.step.effects else ()
        elif isinstance(ending, CARRIERS):
            effects = [*self.step.effects, *effects_of(ending)]
        if isinstance(ending, Reject):
            with hiding(self.hidden):
                ending = Reject(without_secrets(ending.reason))
        if self.kind.encrypted:
            ending, effects = self._sealed(ending), self._sealed_events(effects)
        # What Ended(…) does in the end, without its Python: thousands are made in a second.
        return tuple.__new__(
            Ended, (self.lease, ending, effects, self.kind.retry, self.chain, self.chain_since, self)
        )

    def _sealed(self, ending: Ending) -> Ending:
        """The same ending, with what it stores encrypted."""
        match ending:
            case Done(result):
                return replace(ending, result=self.kind.sealed(result, "result", self.job_id))
            case Continue() | Wait():
                return replace(ending, cursor=self.kind.sealed(ending.cursor, "cursor", self.job_id))
            case _:
                return ending

    def _sealed_events(self, effects: Sequence[Effect]) -> Sequence[Effect]:
        """The same effects, with the payloads of events encrypted."""
        try:
            return [it.sealed_event() if hasattr(it, "sealed_event") else it for it in effects]
        except ConfigurationError as error:  # the key is gone: a worker that has it may take this step
            raise SealedError(f"event of {self.kind.name}", str(error)) from error

    def answered(self, answer: Any) -> Ending:
        """A plain value is a result; None is just done."""
        if answer is None:
            return DONE
        return answer if isinstance(answer, OUTCOMES) else Done(answer)

    def raised(self, error: BaseException, reports: Reports) -> Ending:
        """What an exception of the handler means."""
        if isinstance(error, LeaseLostError | StepCancelled) and self.step.halted is not None:
            return self.interrupted(error, reports)
        self.error = error
        with hiding(self.hidden):
            reports.put(Report(self.lease, None, None, "error", logged_error(error)))
            return judge(error, self.kind.retry, self.lease.failures, random.random())

    def interrupted(self, error: BaseException, reports: Reports) -> Ending:
        """How an interrupted step ends depends on why it was interrupted."""
        match self.step.halted:
            case Halt.CANCELLED:
                return Stop(CANCELLED)
            case Halt.TIMED_OUT:
                return self.timed_out()
            case Halt.REPLACED | Halt.SHUTDOWN:
                return GiveBack()
            case None:
                # Not halted: something inside the handler was cancelled, and the handler let that through.
                return self.raised(error, reports)

    def timed_out(self) -> Ending:
        assert self.kind.timeout is not None  # noqa: S101 - only a step with a timeout can miss it
        happened("step.timed-out", self)
        if self.kind.time_limit is not None:
            late = TaskTimeoutError(self.kind.time_limit)
            return Bury(describe(late), fingerprint(late))
        return judge(StepTimeout(self.kind.timeout), self.kind.retry, self.lease.failures, random.random())


class Watch(NamedTuple):
    """Whether the start of each step is traced or reported; asked once for a whole batch."""

    tracer: Tracer | None
    starts: bool

    @classmethod
    def now(cls) -> Watch | None:
        """None: neither."""
        watch = cls(tracer(), wanted("step.started"))
        return watch if any(watch) else None


def hidden_arguments(lease: Lease) -> tuple[str, ...]:
    """Arguments of a step that are hidden in whatever text they appear: by the masking rules, and by names of secrets."""
    try:
        return hidden_in(decode(opened(lease.payload, f"payload of {lease.kind}", lease.job_id)))
    except Exception:  # noqa: BLE001 - it has no arguments then, and its error must be written
        return ()


def logged_error(error: BaseException) -> str:
    """What the job's log says of an exception: its description, and the end of its traceback."""
    trace = without_secrets("".join(traceback.format_exception(error)[-6:]))
    return f"{describe(error)}\n{trace}"[:LONGEST_LOG]


class Ran(Protocol):
    """The step as it ran, for the report of its end."""

    leased: float  # monotonic, as the others
    started: float
    finished: float | None  # None: its handler has not come back
    span: Span | None
    error: BaseException | None

    @property
    def hidden(self) -> tuple[str, ...]: ...
    @property
    def job_id(self) -> str: ...
    @property
    def trace(self) -> str | None: ...
    @property
    def annotations(self) -> Mapping[str, str | float]: ...
    def facts(self) -> dict[str, Fact]: ...


class Ended(NamedTuple):
    """A step whose handler has answered, or was stopped."""

    lease: Lease
    ending: Ending
    effects: Sequence[Effect]
    retry: Retry
    chain: int = 0  # how many steps this job has taken here in a row
    chain_since: float = 0.0
    run: Ran | None = None  # None: its handler was never called

    @property
    def subject(self) -> Ran | Lease:
        """The object that knows the fields of events about this step."""
        return self.lease if self.run is None else self.run

    def inside(self) -> AbstractContextManager[None]:
        """A context in which its effects are applied: jobs that they enqueue belong to this step."""
        return inside(self.subject, None if self.run is None else self.run.span)

    def hiding(self) -> AbstractContextManager[None]:
        """A context in which its errors are described: hidden arguments are masked there."""
        return hiding(() if self.run is None else self.run.hidden)

    def times(self) -> dict[str, float]:
        """Seconds in its handler, and under its lease until now."""
        if self.run is None:
            return {}
        now = time.monotonic()
        return {"took_s": (self.run.finished or now) - self.run.started, "held_s": now - self.run.leased}

    def close(self, outcome: str, **facts: Fact) -> None:
        """End its span, if it has one that is still open."""
        if self.run is not None and self.run.span is not None:
            end_step(self.run.span, outcome, {**self.run.annotations, **facts})


def each_job_once(batch: list[Ended]) -> tuple[list[Ended], list[Ended]]:
    """Split a batch into steps that may be written together, and steps to be written alone before them.

    A job that was replaced while it ran may end twice at once; the answer of one must not be taken for the other's.
    """
    last = {ended.lease.job_id: ended for ended in batch}
    if len(last) == len(batch):
        return batch, []
    return list(last.values()), [it for it in batch if last[it.lease.job_id] is not it]


def report(ended: Ended, task_id: str | None = None) -> None:
    """Report how the step ended, now that this is committed; `task_id`: of a task whose step went wrong."""
    if isinstance(ended.ending, Done) and tracer() is None and not wanted("step.committed"):
        return  # most steps: neither traced nor reported one by one
    times = ended.times()
    took, held = times.get("took_s"), times.get("held_s")
    # Hidden arguments are read from the payload, which only a failure is worth.
    with ended.hiding() if went_wrong(ended.ending) else nullcontext():
        _report_end(ended, task_id, took, held)


def _report_end(ended: Ended, task_id: str | None, took: float | None, held: float | None) -> None:
    exception = None if ended.run is None else ended.run.error
    match ended.ending:
        case Again(delay, text, _, charged, crashed):
            kind, error = _parts(text)
            if charged or crashed:
                happened(
                    "step.failed",
                    ended.subject,
                    exception,
                    task_id=task_id,
                    error_type=kind,
                    error=error,
                    attempts=ended.retry.attempts,
                    retry_in_s=delay.total_seconds(),
                    charged=int(charged),
                    took_s=took,
                    held_s=held,
                )
            else:
                happened(
                    "step.postponed", ended.subject, error_type=kind, error=error, took_s=took, held_s=held
                )
            ended.close(
                "failed" if charged or crashed else "postponed", error_type=kind, error=error, took_s=took
            )
        case Bury() | Reject():
            kind, error = _cause(ended.ending)
            happened(
                "job.died",
                ended.subject,
                exception,
                task_id=task_id,
                error_type=kind,
                error=error,
                took_s=took,
                held_s=held,
            )
            ended.close("dead", error_type=kind, error=error, took_s=took)
        case Stop(reason):
            happened("job.cancelled", ended.subject, task_id=task_id, reason=reason, took_s=took, held_s=held)
            ended.close("cancelled", reason=reason, took_s=took)
        case Done() | Continue() | Snooze() | Wait() | GiveBack():
            outcome = _outcome(ended.ending)
            happened(
                "step.committed",
                ended.subject,
                outcome=outcome,
                fence=ended.lease.fence,
                took_s=took,
                held_s=held,
            )
            ended.close(outcome, took_s=took)
        case _:
            assert_never(ended.ending)


def report_batch(batch: Sequence[Ended], written: Container[str]) -> None:
    """Report the steps of a batch that are done: one event for each kind."""
    if len(batch) <= FEW and wanted("step.acknowledged"):
        for ended in batch:
            if ended.lease.job_id in written:
                times = ended.times()
                happened(
                    "step.acknowledged",
                    ended.subject,
                    took_s=times.get("took_s"),
                    held_s=times.get("held_s"),
                )
    if wanted("jobs.acknowledged"):
        runs: dict[str, list[Ran]] = defaultdict(list)
        for ended in batch:
            if ended.run is not None and ended.lease.job_id in written:
                runs[ended.lease.kind].append(ended.run)
        now = time.monotonic()
        for kind, found in runs.items():
            took = [(run.finished or now) - run.started for run in found]
            held = [now - run.leased for run in found]
            happened("jobs.acknowledged", kind=kind, jobs=len(held), took_s=took, held_s=held)
    if tracer() is not None:
        for ended in batch:
            ended.close("done" if ended.lease.job_id in written else "refused")


def went_wrong(ending: Ending) -> bool:
    """Whether a step failed, gave up or was cancelled; one that is merely postponed did not."""
    match ending:
        case Again(charged=charged, crashed=crashed):
            return charged or crashed
        case _:
            return isinstance(ending, Bury | Reject | Stop)


def _outcome(ending: Done | Continue | Snooze | Wait | GiveBack) -> str:
    match ending:
        case Done():
            return "done"
        case Continue():
            return "continued"
        case Snooze():
            return "snoozed"
        case Wait():
            return "waiting"
        case GiveBack():
            return "returned"


def _cause(ending: Bury | Reject) -> tuple[str | None, str]:
    return ("Rejected", ending.reason) if isinstance(ending, Reject) else _parts(ending.error)


def _parts(described: str) -> tuple[str | None, str]:
    """The type and the message of an error, as `describe` joined them."""
    kind, _, message = described.partition(": ")
    return (None, described) if " " in kind else (kind, message)


class LoopPulse:
    """Whether the event loop still runs; a handler that blocks it stops the pulse."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._felt = True
        self._asked_at = 0.0

    def felt(self) -> bool:
        """Whether the loop has run since this was last asked; asked every few seconds."""
        felt = self._felt
        if felt:
            self._asked_at = time.monotonic()
        self._felt = False  # after the time is known: `silence` asks from another thread
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._beat)
        return felt

    def silence(self) -> float:
        """For how many seconds the loop has owed an answer."""
        return 0.0 if self._felt else time.monotonic() - self._asked_at

    def _beat(self) -> None:
        self._felt = True
