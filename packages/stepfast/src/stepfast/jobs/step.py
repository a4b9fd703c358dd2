"""The step, as its handler sees it: where it stands, its effects, its progress and its log."""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, Protocol

from stepfast.clock import duration
from stepfast.database.statement import sql
from stepfast.database.upsert import Upsert
from stepfast.encryption import opened
from stepfast.errors import ConfigurationError, LeaseLostError, StepCancelled
from stepfast.jobs.commit import as_effect
from stepfast.jobs.payload import decode, sendable
from stepfast.jobs.wait import Event, cursor_in, event_in, waited_for
from stepfast.telemetry import happened, trace_id_of, wanted
from stepfast.telemetry.events import STEP_FIELDS
from stepfast.telemetry.masking import HIDDEN, hides, storable, without_secrets

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from stepfast.clock import Duration
    from stepfast.database.connection import Transaction, Value
    from stepfast.jobs.lease import Lease
    from stepfast.jobs.outcome import Effect
    from stepfast.notifications.alert import Severity


LONGEST_NOTE: Final = 500
LONGEST_LOG: Final = 8_000
MOST_ANNOTATIONS: Final = 20


class Halt(StrEnum):
    """Why a running step should stop."""

    CANCELLED = "cancelled"  # the job was asked to stop
    REPLACED = "replaced"  # another worker has it now: nothing written here will count
    TIMED_OUT = "timed out"
    SHUTDOWN = "shutdown"  # the worker is stopping and its grace is over


@dataclass(frozen=True)
class Report:
    """Progress, or a line of the log, that the handler reported while it ran."""

    lease: Lease
    percent: int | None
    note: str | None
    level: str | None
    message: str | None


class Reports(Protocol):
    """Writes reports soon, under the fence, without making the handler wait; and reads the results of parents."""

    def put(self, report: Report, /) -> None: ...
    def results_of_parents(self, job_id: str, /) -> dict[str, Any]: ...


class Step:
    """One leased execution of a job.

    Effects attached here happen in the step's own commit, with its outcome, or not at all.
    """

    def __init__(self, lease: Lease, reports: Reports, worker_id: str) -> None:
        self._lease = lease
        self._reports = reports
        self._halt: threading.Event | None = None  # made when a handler waits; most never do
        self._halted: Halt | None = None
        self._uncertain = False
        self.worker_id = worker_id
        self.effects: list[Effect] = []
        self.annotations: dict[str, str | int | float] = {}

    @property
    def job_id(self) -> str:
        return self._lease.job_id

    @property
    def kind(self) -> str:
        return self._lease.kind

    @property
    def queue(self) -> str:
        return self._lease.queue

    @property
    def number(self) -> int:
        """Which step of its job this is, from 0; `Continue` and a replacement of its payload add one."""
        return self._lease.step

    @property
    def attempt(self) -> int:
        """Which try of this step this is, from 1."""
        return self._lease.attempt

    @property
    def cursor(self) -> Any:
        """The cursor that the step before this one answered with; None in the first."""
        found = cursor_in(self._lease.cursor)
        return None if found is None else decode(opened(found, f"cursor of {self._lease.kind}", self.job_id))

    @property
    def event(self) -> Event | None:
        """The event that the step before waited for; None: it did not wait, or its time was over first."""
        return event_in(self._lease.cursor)

    @property
    def waited_for(self) -> str | None:
        """The name of the event that the step before waited for, whether it came or not."""
        return waited_for(self._lease.cursor)

    def callback_url(self, expires: Duration = "1d") -> str:
        """An address that sends the event for which `Wait(timeout=…)` of this step waits: signed, and good for once.

        Each try of this step makes the same one; the first call counts.
        """
        from stepfast.jobs.callbacks import url_of
        from stepfast.jobs.wait import callback_event

        return url_of(callback_event(self.job_id, self.number), duration(expires, "expires"))

    def send_event(
        self,
        name: str,
        payload: Any = None,
        *,
        keep: Duration = "1d",
        id: str | None = None,  # noqa: A002 - as everywhere
    ) -> None:
        """Send an event when the step is committed: to the job that waits for it, or to the next one that will."""
        from stepfast.jobs.events import SendEvent

        self.effects.append(SendEvent.of(name, payload, keep, id))

    @cached_property
    def parents(self) -> dict[str, Any]:
        """The results of the jobs that this one comes after, by their ids. Those that died are not among them."""
        return self._reports.results_of_parents(self._lease.job_id)

    @property
    def fence(self) -> int:
        """The token under which this step is leased: an audit may keep it, to tell two tries apart."""
        return self._lease.fence

    @property
    def idempotency_key(self) -> str:
        """A key that all tries of this step share: hand it to services outside the database."""
        return f"{self._lease.job_id}:{self._lease.step}"

    @property
    def trace_id(self) -> str:
        """The trace this job belongs to, in 32 digits: its own, or that of the code that enqueued it."""
        return trace_id_of(self._lease.job_id, self._lease.trace)

    def annotate(self, **ids: str | float) -> None:
        """Name what this step works on, such as run_id="r-7": its log lines and its span carry it. No secrets."""
        if taken := set(ids).intersection(STEP_FIELDS) - {"run_id", "partition_id"}:
            raise ConfigurationError(
                f"step.annotate({min(taken)}=…): Stepfast says that itself; use another name"
            )
        if len(self.annotations | ids) > MOST_ANNOTATIONS:
            raise ConfigurationError(f"step.annotate: at most {MOST_ANNOTATIONS} names for one step")
        self.annotations |= {name: HIDDEN if hides(name) else _cleaned(it) for name, it in ids.items()}

    def progress(self, percent: float, note: str | None = None) -> None:
        """Say how far the job is, from 0 to 100; visible while it runs."""
        if not 0 <= percent <= 100:  # noqa: PLR2004 - a percentage
            raise ConfigurationError(f"step.progress({percent}): a percentage lies between 0 and 100")
        self.check()
        self._reports.put(
            Report(
                self._lease,
                round(percent),
                without_secrets(str(note))[:LONGEST_NOTE] if note else None,
                None,
                None,
            )
        )

    def log(self, message: str, *, level: str = "info") -> None:
        """Add a line to the job's own log; visible while it runs, kept with the job."""
        self.check()
        text = without_secrets(str(message))[:LONGEST_LOG]
        self._reports.put(Report(self._lease, None, None, str(level)[:10], text))
        if wanted("step.logged"):
            happened("step.logged", self._lease, text=text)

    def upsert(self, table: str, rows: Iterable[Mapping[str, Value]], *, key: str | Iterable[str]) -> None:
        """Write rows with the step's commit; rows that agree on `key` replace each other."""
        columns = (key,) if isinstance(key, str) else tuple(key)
        self.effects.append(Upsert(table, columns, tuple(rows)))

    def send_webhook(
        self,
        url: str,
        *,
        data: Any,
        type: str | None = None,  # noqa: A002 - the word of Standard Webhooks
        key: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Post `data` to `url` when the step is committed: signed, at least once, in order.

        With a `type`, inside the envelope of Standard Webhooks. The same `key` is sent to this URL once.
        """
        from stepfast.outbox.messages import webhook

        self.effects.append(
            webhook(url, sendable(data), type=type, key=key, headers=headers, job_id=self.job_id)
        )

    def alert(
        self,
        cause: str,
        title: str,
        body: str = "",
        *,
        severity: Severity = "failure",
        cooldown: Duration | None = None,
    ) -> None:
        """Tell a person, when the step is committed: once per `cause`, and not again for a while."""
        from stepfast.outbox.alerts import alert

        quiet = None if cooldown is None else duration(cooldown, "cooldown")
        self.effects.append(alert(cause, title, body, severity=severity, cooldown=quiet))

    def effect(self, effect: Effect | Callable[[Transaction], object]) -> None:
        """Do this in the step's own transaction: a function of it, or an object with `apply(tx)`."""
        self.effects.append(effect if isinstance(effect, Upsert) else as_effect(effect))

    @property
    def halted(self) -> Halt | None:
        """Why this step should stop, or None. Async handlers are interrupted; plain ones look here."""
        return self._halted

    @property
    def lease_uncertain(self) -> bool:
        """Whether the database has been silent for a whole lease, so that another worker may start this step."""
        return self._uncertain

    def check(self) -> None:
        """Raise if this step was cancelled or replaced; call it between pieces of long plain work."""
        if self._halted is Halt.REPLACED:
            raise LeaseLostError(self._lease.job_id, self._lease.fence)
        if self._halted is not None:
            raise StepCancelled(f"job {self._lease.job_id}: {self._halted}")

    def wait(self, seconds: float) -> None:
        """Sleep in a plain handler, but wake up and raise as soon as the step should stop."""
        self._halt = self._halt or threading.Event()
        self.check()  # after the event exists: a halt is seen here or wakes us below
        self._halt.wait(seconds)
        self.check()

    def halt(self, why: Halt) -> None:
        """Tell the handler to stop. Called by the worker."""
        if self._halted is None:
            self._halted = why
            if self._halt is not None:
                self._halt.set()

    def doubt(self, *, uncertain: bool) -> None:
        """Set `lease_uncertain`. Called by the worker."""
        self._uncertain = uncertain


def _cleaned(value: str | float) -> str | float:
    return without_secrets(value) if isinstance(value, str) else value


# --- Progress and log lines, written under the fence while the step runs.

WRITE_PROGRESS = sql("""
    UPDATE stepfast_job
       SET progress = COALESCE(:percent, progress), progress_note = COALESCE(:note, progress_note), updated_at = {now}
     WHERE id = :id AND fence = :fence
""")

WRITE_LOG = sql("""
    INSERT INTO stepfast_log (job_id, at, level, step, message)
    SELECT id, {now}, :level, step, :message FROM stepfast_job
     WHERE id = :id AND fence = :fence
""")


def write_reports(tx: Transaction, reports: Sequence[Report]) -> set[tuple[str, int]]:
    """Write the reports whose fence is still current; returns the jobs and fences that have moved on."""
    lost: set[tuple[str, int]] = set()
    lines: dict[tuple[str, int], list[dict[str, Value]]] = {}
    latest: dict[tuple[str, int], Report] = {}
    for report in reports:
        held = report.lease.job_id, report.lease.fence
        if report.message is not None:
            line = {"level": storable(report.level or "info"), "message": storable(report.message)}
            lines.setdefault(held, []).append({"id": held[0], "fence": held[1], **line})
        else:
            latest[held] = newest(latest.get(held), report)
    for held, rows in lines.items():
        if tx.run_many(WRITE_LOG, rows) != len(rows):
            lost.add(held)
    for held, report in latest.items():
        mine = {"id": held[0], "fence": held[1]}
        note = None if report.note is None else storable(report.note)[:LONGEST_NOTE]
        if tx.run(WRITE_PROGRESS, **mine, percent=report.percent, note=note) != 1:
            lost.add(held)
    return lost


def newest(before: Report | None, report: Report) -> Report:
    """The newest progress alone is written; a note holds until there is another."""
    if before is None or report.note is not None:
        return report
    return replace(report, note=before.note)
