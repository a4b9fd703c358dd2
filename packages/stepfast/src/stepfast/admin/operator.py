"""What an operator may see and do, from Python: the same functions, and the same words, as the command line."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, TypeVar

from stepfast.admin import dead_letters as dead_letter_actions
from stepfast.admin import debts, outbox, sweeps
from stepfast.admin import jobs as actions
from stepfast.admin import jobs as trees
from stepfast.admin import watermarks as watermark
from stepfast.admin import workers as worker_actions
from stepfast.admin.audit import Actor, list_audit
from stepfast.admin.dead_letters import list_dead_letters
from stepfast.admin.debts import list_debts
from stepfast.admin.doctor.examination import examine
from stepfast.admin.doctor.repair import repair as repair_findings
from stepfast.admin.events import list_kept_events, list_waits
from stepfast.admin.jobs import list_jobs, show_job, tree_of
from stepfast.admin.outbox import list_alerts, list_destinations, list_messages, show_message
from stepfast.admin.quarantine import Quarantine
from stepfast.admin.statistics import kind_statistics, list_limits
from stepfast.admin.sweeps import list_sweeps
from stepfast.admin.watermarks import list_watermarks
from stepfast.admin.workers import list_leases, list_queues, list_workers
from stepfast.clock import Duration, duration
from stepfast.database.database import persist
from stepfast.jobs.dead_letters import FailureGroup, Filter, failure_groups

if TYPE_CHECKING:
    from datetime import datetime

    from stepfast.admin.audit import AuditEntry
    from stepfast.admin.debts import DebtReport
    from stepfast.admin.doctor.finding import Finding
    from stepfast.admin.events import KeptEvent, WaitReport
    from stepfast.admin.jobs import JobDetail, JobSummary, TreeLine
    from stepfast.admin.outbox import AlertReport, DestinationReport, MessageDetail, MessageSummary
    from stepfast.admin.statistics import KindStatistics, LimitReport
    from stepfast.admin.sweeps import SweepReport
    from stepfast.admin.watermarks import WatermarkReport
    from stepfast.admin.workers import LeaseReport, QueueReport, WorkerReport
    from stepfast.database.connection import Transaction
    from stepfast.database.database import Database
    from stepfast.jobs.state import JobState
    from stepfast.outbox.messages import MessageState
    from stepfast.runs.declaration import Declaration
    from stepfast.runs.sweep import SweepState


T = TypeVar("T")


class Operator:
    """Looks at the work and steps in. Every action is safe to repeat, and refused in words where it is not.

    What it changes is written down with who did it, and why: see `by`.
    """

    def __init__(
        self, database: Database, actor: Actor | None = None, *, feeds: Collection[Declaration] = ()
    ) -> None:
        self._database = database
        self._actor = actor  # None: whoever runs this process
        self._feeds = feeds  # those that the application has

    def by(self, name: str, *, reason: str | None = None) -> Operator:
        """The same, in this one's name: `app.operator.by("alice", reason="the printer is back").retry(job_id)`."""
        return Operator(self._database, Actor(name, reason), feeds=self._feeds)

    def jobs(
        self,
        states: Collection[JobState] = (),
        *,
        kind: str | None = None,
        queue: str | None = None,
        limit: int = 50,
        before: str | None = None,
    ) -> list[JobSummary]:
        """Jobs in any of `states` (none given: all), newest first."""
        return self._look(
            lambda tx: list_jobs(tx, states, kind=kind, queue=queue, limit=limit, before=before)
        )

    def job(self, job_id: str, *, logs: int = 100) -> JobDetail:
        """Everything about one job, with its newest log lines."""
        return self._look(lambda tx: show_job(tx, job_id, logs=logs))

    def tree(self, job_id: str) -> list[TreeLine]:
        """A job and all that comes after it; of the completion job of a group also its members."""
        return self._look(lambda tx: tree_of(tx, job_id))

    def cancel(self, job_id: str, reason: str | None = None, *, tree: bool = False) -> JobState:
        """End a waiting job; ask a running one to stop. Returns the state it is in now. `tree`: and all after it."""
        if tree:
            return self._act(lambda tx: trees.cancel_tree(tx, job_id, reason, by=self._actor)).state
        return self._act(lambda tx: actions.cancel(tx, job_id, reason, by=self._actor))

    def retry(self, job_id: str, *, tree: bool = False) -> JobState:
        """Revive a dead or cancelled job, or let a scheduled one run now. `tree`: and all that died because of it."""
        if tree:
            return self._act(lambda tx: trees.retry_tree(tx, job_id, by=self._actor)).state
        return self._act(lambda tx: actions.retry(tx, job_id, by=self._actor))

    def waits(self, *, limit: int = 50) -> list[WaitReport]:
        """Jobs that wait for an event, the longest first."""
        return self._look(lambda tx: list_waits(tx, limit=limit))

    def kept_events(self, *, limit: int = 50) -> list[KeptEvent]:
        """Events that nobody has waited for yet, the oldest first."""
        return self._look(lambda tx: list_kept_events(tx, limit=limit))

    def dead_letters(self, which: Filter | None = None, *, limit: int = 50) -> list[JobSummary]:
        return self._look(lambda tx: list_dead_letters(tx, which, limit=limit))

    def failures(self, which: Filter | None = None, *, limit: int = 50) -> list[FailureGroup]:
        """Dead letters grouped by what went wrong, the largest group first."""
        return self._look(lambda tx: failure_groups(tx, which, limit=limit))

    def retry_dead_letters(self, which: Filter | None = None) -> dead_letter_actions.Retried:
        """Revive all that match (none given: all), in batches."""
        return dead_letter_actions.retry_dead(self._database, which, by=self._actor)

    def purge_dead_letters(self, which: Filter | None = None) -> int:
        """Delete all that match for good, in batches; returns how many."""
        return dead_letter_actions.purge_dead(self._database, which, by=self._actor)

    def messages(
        self,
        state: MessageState | None = None,
        *,
        channel: str | None = None,
        job_id: str | None = None,
        limit: int = 50,
    ) -> list[MessageSummary]:
        """What leaves the database: messages that wait, were sent, or were given up."""
        return self._look(lambda tx: list_messages(tx, state, channel=channel, job_id=job_id, limit=limit))

    def message(self, message_id: str) -> MessageDetail:
        """Everything about one message."""
        return self._look(lambda tx: show_message(tx, message_id))

    def retry_message(self, message_id: str) -> None:
        """Try a message again that was given up, or one that waits for its time right now."""
        self._act(lambda tx: outbox.retry_message(tx, message_id, by=self._actor))

    def retry_dead_messages(self, which: outbox.DeadMessages | None = None) -> int:
        """Try again all that were given up and match (none given: all), in batches; returns how many."""
        return outbox.retry_dead_messages(self._database, which, by=self._actor)

    def purge_dead_messages(self, which: outbox.DeadMessages | None = None) -> int:
        """Delete all that were given up and match for good, in batches; returns how many."""
        return outbox.purge_dead_messages(self._database, which, by=self._actor)

    def destinations(self) -> list[DestinationReport]:
        """Where something waits to be sent, or was given up."""
        return self._look(list_destinations)

    def alerts(self, *, limit: int = 50) -> list[AlertReport]:
        """What people should know, by cause, the latest raised first."""
        return self._look(lambda tx: list_alerts(tx, limit=limit))

    def queues(self) -> list[QueueReport]:
        return self._look(list_queues)

    def pause(self, queue: str, note: str | None = None) -> bool:
        """Let nobody take jobs of this queue; what runs goes on."""
        return self._act(lambda tx: worker_actions.pause_queue(tx, queue, note, by=self._actor))

    def resume(self, queue: str) -> bool:
        return self._act(lambda tx: worker_actions.resume_queue(tx, queue, by=self._actor))

    def limits(self, *, everything: bool = False, limit: int = 100) -> list[LimitReport]:
        """Limits that hold jobs or are in use; with `everything`, also those that were asked lately."""
        return self._look(lambda tx: list_limits(tx, everything=everything, limit=limit))

    def workers(self, *, everyone: bool = False) -> list[WorkerReport]:
        """Living workers, or everyone who is remembered."""
        return self._look(lambda tx: list_workers(tx, everyone=everyone))

    def leases(self, *, expired: bool | None = None) -> list[LeaseReport]:
        """Who holds what; `expired=True` only what nobody renewed in time, `False` only what is in force."""
        return self._look(lambda tx: list_leases(tx, expired=expired))

    def reset_leases(self) -> int:
        """Take back what expired leases hold; returns how many jobs. Living workers do this by themselves."""
        return worker_actions.reset_leases(self._database, by=self._actor).jobs

    def statistics(self, span: Duration = "1d", *, kind: str | None = None) -> list[KindStatistics]:
        """Per kind of job: how many ended how, how long they took, and what they failed of."""
        return self._look(lambda tx: kind_statistics(tx, duration(span, "span"), kind))

    def audit(
        self,
        *,
        who: str | None = None,
        what: str | None = None,
        subject: str | None = None,
        since: Duration | None = None,
        limit: int = 50,
        before: str | None = None,
    ) -> list[AuditEntry]:
        """What operators did, newest first; `before` is the last id of the page before."""
        return self._look(
            lambda tx: list_audit(
                tx, who=who, what=what, subject=subject, since=since, limit=limit, before=before
            )
        )

    def watermarks(self) -> list[WatermarkReport]:
        """How far each feed has been read."""
        return self._look(list_watermarks)

    def set_watermark(self, feed: str, to: datetime, *, force: bool = False) -> watermark.WatermarkMoved:
        """Move it by hand, with a reason: `app.operator.by("alice", reason="…").set_watermark("catalogue", at)`."""
        return self._act(
            lambda tx: watermark.set_watermark(
                tx, feed, to, force=force, by=self._actor, declared=[it.name for it in self._feeds]
            )
        )

    @property
    def quarantine(self) -> Quarantine:
        """Rows that could not be mapped or stored: look at them, have them tried again, or let them go."""
        return Quarantine(self._database, self._actor)

    def debts(
        self, feed: str | None = None, *, everything: bool = False, limit: int = 50
    ) -> list[DebtReport]:
        """Ranges that must be read again; with `everything`, also those that were."""
        return self._look(lambda tx: list_debts(tx, feed=feed, everything=everything, limit=limit))

    def close_debt(self, debt_id: int) -> None:
        """Accept that a range may be incomplete, with a reason."""
        self._act(lambda tx: debts.close_debt(tx, debt_id, by=self._actor))

    def retry_debt(self, debt_id: int) -> None:
        """Let the next runs read it again, with fresh tries."""
        self._act(lambda tx: debts.retry_debt(tx, debt_id, by=self._actor))

    def sweeps(self, feed: str | None = None, *, limit: int = 50) -> list[SweepReport]:
        return self._look(lambda tx: list_sweeps(tx, feed=feed, limit=limit))

    def approve_sweep(self, run: str) -> SweepState:
        """Let rows go that a fuse holds, with a reason."""
        return self._act(lambda tx: sweeps.approve_sweep(tx, run, by=self._actor))

    def decline_sweep(self, run: str) -> SweepState:
        """Keep them, with a reason."""
        return self._act(lambda tx: sweeps.decline_sweep(tx, run, by=self._actor))

    def undo_sweep(self, run: str) -> int:
        """Bring back all rows that a run has marked as gone, with a reason; returns how many."""
        return sweeps.undo_sweep(self._database, run, by=self._actor)

    def doctor(self, *, repair: bool = False) -> list[Finding]:
        """What is wrong, and what to do about it. With `repair`, what needs no decision is done first."""
        brokers = [feed.broker for feed in self._feeds if feed.broker is not None]
        findings = examine(self._database, brokers)
        if repair and (done := repair_findings(self._database, findings, by=self._actor)):
            return [*done, *examine(self._database, brokers)]
        return findings

    def _look(self, report: Callable[[Transaction], T]) -> T:
        with self._database.reading() as tx:
            return report(tx)

    def _act(self, action: Callable[[Transaction], T]) -> T:
        return persist(self._database, action)
