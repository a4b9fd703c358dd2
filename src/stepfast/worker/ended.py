"""A step whose handler has answered: what the execution hands to the settlement, and how its end is reported."""

from __future__ import annotations

import time
from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple, Protocol, assert_never

from stepfast.steps.outcome import Again, Bury, Continue, Done, GiveBack, Reject, Snooze, Stop, Wait
from stepfast.telemetry import happened, wanted
from stepfast.telemetry.masking import hiding
from stepfast.telemetry.traces import end_step, inside, tracer

if TYPE_CHECKING:
    from collections.abc import Container, Mapping, Sequence
    from contextlib import AbstractContextManager

    from opentelemetry.trace import Span

    from stepfast.steps.lease import Lease
    from stepfast.steps.outcome import Effect, Ending
    from stepfast.steps.retry import Retry
    from stepfast.telemetry import Fact


class Ran(Protocol):
    """The step as it ran: what its end is reported with."""

    leased: float  # monotonic, as the others
    started: float
    finished: float | None  # None: its handler has not come back
    span: Span | None
    hidden: tuple[str, ...]

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
        """Whom to ask for its fields."""
        return self.lease if self.run is None else self.run

    def inside(self) -> AbstractContextManager[None]:
        """Where its effects are applied: what they enqueue belongs to this step."""
        return inside(self.subject, None if self.run is None else self.run.span)

    def hiding(self) -> AbstractContextManager[None]:
        """Where its errors are told: without what is hidden of its arguments."""
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
    """What may be written together, and what has to be written alone, before.

    A job that was replaced while it ran may end twice at once; the answer of one must not be taken for the other's.
    """
    last = {ended.lease.job_id: ended for ended in batch}
    if len(last) == len(batch):
        return batch, []
    return list(last.values()), [it for it in batch if last[it.lease.job_id] is not it]


def report(ended: Ended) -> None:
    """Say how it ended, now that this is written."""
    if isinstance(ended.ending, Done) and tracer() is None and not wanted("step.committed"):
        return  # most steps, and nobody listens
    times = ended.times()
    took, held = times.get("took_s"), times.get("held_s")
    match ended.ending:
        case Again(delay, text, _, charged, crashed):
            kind, error = _parts(text)
            if charged or crashed:
                happened(
                    "step.failed",
                    ended.subject,
                    error_type=kind,
                    error=error,
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
            happened("job.died", ended.subject, error_type=kind, error=error, took_s=took, held_s=held)
            ended.close("dead", error_type=kind, error=error, took_s=took)
        case Stop(reason):
            happened("job.cancelled", ended.subject, reason=reason, took_s=took, held_s=held)
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
    """Say which of them are done: once for each kind, whatever their number."""
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
    """The type and the message of an error, as `failure.describe` put them together."""
    kind, _, message = described.partition(": ")
    return (None, described) if " " in kind else (kind, message)
