"""`Operator`: everything that an operator may see and do. `app.operator` and the command line both go through it.

So Python code and a person at a terminal can do the same things, with the same words. A method that looks reads in one
transaction; a method that acts changes something in one transaction, or in batches, and is recorded in the audit. Each
method calls a function in the module of its noun: `retry` is `retry` of `admin/jobs.py`, `retry_debt` is in `admin/debts.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from stepfast.admin import dead_letters, events, jobs, outbox, statistics, tasks, workers
from stepfast.admin.audit import Actor, actor_named, list_audit
from stepfast.admin.jobs import MOST_OF_TREE
from stepfast.clock import Duration, duration
from stepfast.config import WorkerSettings
from stepfast.database.database import persist
from stepfast.jobs.dead_letters import FailureGroup, Filter, failure_groups
from stepfast.jobs.events import SendEvent

if TYPE_CHECKING:
    from datetime import datetime

    from stepfast.admin.audit import AuditEntry, Progress
    from stepfast.admin.dead_letters import Retried
    from stepfast.admin.debts import DebtReport
    from stepfast.admin.doctor.finding import Finding
    from stepfast.admin.encryption import EncryptionKey, Rotated
    from stepfast.admin.events import KeptEvent, WaitReport
    from stepfast.admin.jobs import JobDetail, JobSummary, TreeLine
    from stepfast.admin.outbox import (
        AlertReport,
        DeadMessages,
        DestinationReport,
        MessageDetail,
        MessageSummary,
    )
    from stepfast.admin.quarantine import Quarantine
    from stepfast.admin.runs import Runs
    from stepfast.admin.schedules import Schedules
    from stepfast.admin.statistics import KindStatistics, LimitReport
    from stepfast.admin.sweeps import SweepReport
    from stepfast.admin.tasks import TaskDetail, TaskSummary
    from stepfast.admin.watermarks import WatermarkMoved, WatermarkReport
    from stepfast.admin.workers import LeaseReport, QueueReport, WorkerReport
    from stepfast.database.connection import Transaction
    from stepfast.database.database import Database
    from stepfast.jobs.events import Sent
    from stepfast.jobs.kinds import Kinds
    from stepfast.jobs.rescue import Rescued
    from stepfast.jobs.state import JobState
    from stepfast.outbox.messages import MessageState
    from stepfast.results.outcome import JobOutcome
    from stepfast.results.watch import Watch
    from stepfast.runs.feeds import Feeds
    from stepfast.runs.sweep_rows import SweepState
    from stepfast.transports.dead_messages import DeadMessage


P = ParamSpec("P")
T = TypeVar("T")


class Operator:
    """Looks at the work and steps in. Every action is safe to repeat, and refused in words where it is not.

    Every action is recorded in the audit with its actor and its reason: see `by`.
    """

    def __init__(
        self,
        database: Database,
        actor: Actor | None = None,
        *,
        kinds: Kinds | None = None,
        feeds: Feeds | None = None,
    ) -> None:
        self._database = database
        self._actor = actor  # None: the user of this process
        self._kinds = kinds  # of the application; None: it is not known here
        self._feeds = feeds

    def by(self, name: str | None = None, *, reason: str | None = None) -> Operator:
        """The operator for this actor: `app.operator.by("alice", reason="the printer is back").retry(job_id)`.

        Without a name: STEPFAST_OPERATOR, else the user and host of this process.
        """
        actor = actor_named(name, reason)
        return Operator(self._database, actor, kinds=self._kinds, feeds=self._feeds)

    # Jobs

    def jobs(
        self,
        states: Collection[JobState] = (),
        *,
        kind: str | None = None,
        queue: str | None = None,
        limit: int = 50,
        before: str | None = None,
    ) -> list[JobSummary]:
        """Jobs in any of `states` (none given: all), newest first; `before` is the last id of the page before."""
        return self._look(jobs.list_jobs, states, kind=kind, queue=queue, limit=limit, before=before)

    def job(self, job_id: str, *, logs: int = 100, decrypt: bool = False) -> JobDetail:
        """Everything about one job, with its newest log lines. A look with `decrypt` is recorded in the audit."""
        if decrypt:
            from stepfast.admin.encryption import show_decrypted

            return self._act(show_decrypted, job_id, logs=logs, by=self._actor)
        return self._look(jobs.show_job, job_id, logs=logs)

    def tree(self, job_id: str, *, limit: int = MOST_OF_TREE) -> list[TreeLine]:
        """A job and all jobs after it; of the completion job of a group also its members."""
        return self._look(jobs.tree_of, job_id, limit)

    def watch(self, job_id: str, timeout: Duration | None = None, *, beyond_death: bool = False) -> Watch:
        """What happens to a job, for `for` and `async for`: states, progress, log lines, and its end.

        With `beyond_death` the watch goes on when the job is dead or cancelled: an operator may revive it.
        """
        from stepfast.results.outcome import PLAIN_READER
        from stepfast.results.watch import Watch

        patience = None if timeout is None else duration(timeout, "timeout")
        return Watch(self._database, job_id, patience, lambda _: PLAIN_READER, beyond_death=beyond_death)

    def shown_result(self, outcome: JobOutcome[Any]) -> Any:
        """The result of a job as it may be shown: masked, and not decrypted."""
        return jobs.shown(outcome.stored, f"result of {outcome.kind}", outcome.id)

    def statistics(self, span: Duration = "1d", *, kind: str | None = None) -> list[KindStatistics]:
        """Per kind of job: how many ended in which state, how long they took, and the errors of those that failed."""
        return self._look(statistics.kind_statistics, duration(span, "span"), kind)

    def retry(self, job_id: str, *, tree: bool = False) -> JobState:
        """Revive a dead or cancelled job, or let a scheduled one run now; returns its state now.

        `tree`: also all jobs that died or were cancelled because of it.
        """
        if tree:
            return self._act(jobs.retry_tree, job_id, by=self._actor).state
        return self._act(jobs.retry, job_id, by=self._actor)

    def cancel(self, job_id: str, reason: str | None = None, *, tree: bool = False) -> JobState:
        """End a waiting job; ask a running one to stop. Returns its state now. `tree`: also all jobs after it."""
        if tree:
            return self._act(jobs.cancel_tree, job_id, reason, by=self._actor).state
        return self._act(jobs.cancel, job_id, reason, by=self._actor)

    # Dead letters

    def dead_letters(self, which: Filter | None = None, *, limit: int = 50) -> list[JobSummary]:
        """Jobs that gave up, the latest death first."""
        return self._look(dead_letters.list_dead_letters, which, limit=limit)

    def broker_dead_letters(self, which: Filter | None = None, *, limit: int = 50) -> list[DeadMessage]:
        """Messages that a broker put aside, the latest first."""
        return self._look(dead_letters.list_dead_messages, which, limit=limit)

    def dead_letter(self, letter_id: str) -> JobDetail | DeadMessage:
        """Everything about one dead letter, a job or a message of a broker."""
        return self._look(dead_letters.find_dead_letter, letter_id)

    def failures(self, which: Filter | None = None, *, limit: int = 50) -> list[FailureGroup]:
        """Dead letters grouped by their error, the largest group first."""
        return self._look(failure_groups, which, limit=limit)

    def count_dead_letters(self, which: Filter | None = None) -> int:
        """How many dead letters match (no filter given: all)."""
        return self._look(dead_letters.count_dead, which)

    def retry_dead_letter(self, letter_id: str) -> None:
        """Revive one dead job, or send one message of a broker again."""
        self._act(dead_letters.retry_dead_letter, letter_id, by=self._actor)

    def retry_dead_letters(self, which: Filter | None = None, *, progress: Progress | None = None) -> Retried:
        """Retry all dead letters that match (no filter given: all), in batches."""
        return dead_letters.retry_dead(self._database, which, progress, by=self._actor)

    def purge_dead_letter(self, letter_id: str) -> None:
        """Delete one dead letter for good."""
        self._act(dead_letters.purge_dead_letter, letter_id, by=self._actor)

    def purge_dead_letters(self, which: Filter | None = None, *, progress: Progress | None = None) -> int:
        """Delete all dead letters that match for good, in batches; returns how many."""
        return dead_letters.purge_dead(self._database, which, progress, by=self._actor)

    # Queues, workers, leases and limits

    def queues(self) -> list[QueueReport]:
        """Queues with unfinished jobs or dead letters, or that were ever paused; by name."""
        return self._look(workers.list_queues)

    def queue_has_jobs(self, queue: str) -> bool:
        """Whether any job that is kept was ever put into this queue."""
        return self._look(workers.has_jobs, queue)

    def pause(self, queue: str, note: str | None = None) -> bool:
        """Let no worker take jobs of this queue; jobs that run go on. False if it was paused before."""
        return self._act(workers.pause_queue, queue, note, by=self._actor)

    def resume(self, queue: str) -> bool:
        """Let workers take jobs of this queue again. False if it was not paused."""
        return self._act(workers.resume_queue, queue, by=self._actor)

    def workers(self, *, everyone: bool = False) -> list[WorkerReport]:
        """Workers that are alive; with `everyone` also those that stopped or died in the last day."""
        return self._look(workers.list_workers, everyone=everyone)

    def leases(self, *, expired: bool | None = None, limit: int = 200) -> list[LeaseReport]:
        """Leases, the longest held first; only those that are `expired`, or only those in force (False)."""
        return self._look(workers.list_leases, expired=expired, limit=limit)

    def reset_leases(self, *, crash_limit: int = WorkerSettings.crash_limit) -> int:
        """Take back the jobs of expired leases; returns how many. Living workers do this by themselves."""
        return self.rescue(crash_limit=crash_limit).jobs

    def rescue(self, *, crash_limit: int = WorkerSettings.crash_limit) -> Rescued:
        """`reset_leases`, which also tells how many jobs are dead letters now: they reached the crash limit."""
        return workers.reset_leases(self._database, crash_limit, by=self._actor)

    def limits(self, *, everything: bool = False, limit: int = 100) -> list[LimitReport]:
        """Limits that hold jobs or are in use; with `everything`, also those that were asked lately."""
        return self._look(statistics.list_limits, everything=everything, limit=limit)

    # Events, tasks and schedules

    def waits(self, *, limit: int = 50) -> list[WaitReport]:
        """Jobs that wait for an event, the longest first."""
        return self._look(events.list_waits, limit=limit)

    def kept_events(self, *, limit: int = 50) -> list[KeptEvent]:
        """Events that are kept for the next job that waits for them, the oldest first."""
        return self._look(events.list_kept_events, limit=limit)

    def send_event(
        self,
        name: str,
        payload: Any = None,
        *,
        keep: Duration = "1d",
        id: str | None = None,  # noqa: A002 - the word users know
        encrypted: bool = False,
    ) -> Sent:
        """Send an event to the job that has waited longest for it, or keep it; as `app.events.send`, but recorded."""
        event = SendEvent.of(name, payload, keep, id, encrypted=encrypted)
        return self._act(events.send_event, event, by=self._actor)

    def tasks(
        self, *, client: str | None = None, state: str | None = None, limit: int = 50
    ) -> list[TaskSummary]:
        """Tasks that came from queues, the latest first."""
        return self._look(tasks.list_tasks, client=client, state=state, limit=limit)

    def task(self, task_id: str, *, client: str | None = None) -> TaskDetail:
        """Everything about one task, by its id or that of its job."""
        return self._look(tasks.show_task, task_id, client=client)

    @property
    def schedules(self) -> Schedules:
        """Schedules: look at them, add, change, pause, resume, trigger, remove and reset them."""
        from stepfast.admin.schedules import Schedules
        from stepfast.jobs.kinds import Kinds

        return Schedules(self._database, self._kinds or Kinds(), self._actor)

    # Messages that leave the database

    def messages(
        self,
        state: MessageState | None = None,
        *,
        channel: str | None = None,
        job_id: str | None = None,
        limit: int = 50,
    ) -> list[MessageSummary]:
        """Messages that wait, were sent, or were given up; newest first."""
        return self._look(outbox.list_messages, state, channel=channel, job_id=job_id, limit=limit)

    def message(self, message_id: str) -> MessageDetail:
        """Everything about one message."""
        return self._look(outbox.show_message, message_id)

    def destinations(self, *, limit: int = 200) -> list[DestinationReport]:
        """Destinations for which messages wait or were given up."""
        return self._look(outbox.list_destinations, limit=limit)

    def alerts(self, *, limit: int = 50) -> list[AlertReport]:
        """Alerts by cause, the latest raised first."""
        return self._look(outbox.list_alerts, limit=limit)

    def retry_message(self, message_id: str) -> None:
        """Try a message again that was given up; try one that waits for its time right now."""
        self._act(outbox.retry_message, message_id, by=self._actor)

    def purge_message(self, message_id: str) -> None:
        """Delete a message that was given up, for good."""
        self._act(outbox.purge_message, message_id, by=self._actor)

    def count_dead_messages(self, which: DeadMessages | None = None) -> int:
        """How many messages that were given up match (no filter given: all)."""
        return self._look(outbox.count_dead_messages, which)

    def retry_dead_messages(
        self, which: DeadMessages | None = None, *, progress: Progress | None = None
    ) -> int:
        """Try again all messages that were given up and match (no filter given: all), in batches; returns how many."""
        return outbox.retry_dead_messages(self._database, which, progress, by=self._actor)

    def purge_dead_messages(
        self, which: DeadMessages | None = None, *, progress: Progress | None = None
    ) -> int:
        """Delete all messages that were given up and match for good, in batches; returns how many."""
        return outbox.purge_dead_messages(self._database, which, progress, by=self._actor)

    # Feeds. Their modules are imported where they are needed: programs without feeds pay nothing for them.

    @property
    def runs(self) -> Runs:
        """Runs of feeds: plan, start, look at, retry, consolidate, cancel and resume them."""
        from stepfast.admin.runs import Runs

        return Runs(self._database, self._feeds, self._actor)

    @property
    def quarantine(self) -> Quarantine:
        """Rows that could not be identified, mapped or stored: look at them, replay or discard them."""
        from stepfast.admin.quarantine import Quarantine

        return Quarantine(self._database, self._actor)

    def watermarks(self, *, limit: int = 200) -> list[WatermarkReport]:
        """How far each feed has been read, by name."""
        from stepfast.admin.watermarks import list_watermarks

        return self._look(list_watermarks, limit=limit)

    def watermark(self, feed: str) -> WatermarkReport:
        """How far one feed has been read."""
        from stepfast.admin.watermarks import show_watermark

        return self._look(show_watermark, feed)

    def edited_export(self, feed: str) -> str | None:
        """What it means that the exported document of a watermark was written by hand; None: it was not, as far as is seen from here."""
        from stepfast.admin.watermarks import edited_export

        return edited_export(self.watermark(feed))

    def set_watermark(self, feed: str, to: datetime, *, force: bool = False) -> WatermarkMoved:
        """Move a watermark, with a reason: `app.operator.by("alice", reason="…").set_watermark("catalogue", at)`."""
        from stepfast.admin.watermarks import set_watermark

        declared = [] if self._feeds is None else [feed.name for feed in self._feeds.all()]
        return self._act(set_watermark, feed, to, force=force, by=self._actor, declared=declared)

    def debts(
        self, feed: str | None = None, *, everything: bool = False, limit: int = 50
    ) -> list[DebtReport]:
        """Ranges that must be read again, the latest first; with `everything`, also those that were."""
        from stepfast.admin.debts import list_debts

        return self._look(list_debts, feed=feed, everything=everything, limit=limit)

    def close_debt(self, debt_id: int) -> None:
        """Accept that a range may be incomplete, with a reason."""
        from stepfast.admin.debts import close_debt

        self._act(close_debt, debt_id, by=self._actor)

    def retry_debt(self, debt_id: int) -> None:
        """Let the next runs read the range again, with fresh tries."""
        from stepfast.admin.debts import retry_debt

        self._act(retry_debt, debt_id, by=self._actor)

    def sweeps(self, feed: str | None = None, *, limit: int = 50) -> list[SweepReport]:
        """Sweeps of runs, the latest first."""
        from stepfast.admin.sweeps import list_sweeps

        return self._look(list_sweeps, feed=feed, limit=limit)

    def approve_sweep(self, run: str) -> SweepState:
        """Mark the rows as gone that a fuse holds, with a reason."""
        from stepfast.admin.sweeps import approve_sweep

        return self._act(approve_sweep, run, by=self._actor)

    def decline_sweep(self, run: str) -> SweepState:
        """Keep the rows that a fuse holds, with a reason."""
        from stepfast.admin.sweeps import decline_sweep

        return self._act(decline_sweep, run, by=self._actor)

    def undo_sweep(self, run: str, *, progress: Progress | None = None) -> int:
        """Bring back all rows that a run has marked as gone, with a reason; returns how many."""
        from stepfast.admin.sweeps import undo_sweep

        return undo_sweep(self._database, run, progress, by=self._actor)

    # Audit, encryption keys and health

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
            list_audit, who=who, what=what, subject=subject, since=since, limit=limit, before=before
        )

    def encryption_keys(self) -> list[EncryptionKey]:
        """The keys of STEPFAST_SECRET_KEY and those that stored documents need. Reads every encrypted row."""
        from stepfast.admin.encryption import list_keys

        return list_keys(self._database)

    def rotate_encryption(self) -> Rotated:
        """Encrypt everything anew with the first key of STEPFAST_SECRET_KEY, in batches; safe to stop and to repeat."""
        from stepfast.admin.encryption import rotate

        return rotate(self._database, by=self._actor)

    def apply_masks(self) -> list[str]:
        """Apply the masking rules of the applications of this database in this process, before rows are shown.

        Returns the stored rules that cannot be read, and so hide nothing.
        """
        from stepfast.admin.masks import apply_rules

        return self._look(apply_rules)

    def doctor(self, *, repair: bool = False) -> list[Finding]:
        """What is wrong, and what to do about it. With `repair`, what needs no decision is repaired first."""
        from stepfast.admin.doctor.examination import examine
        from stepfast.admin.doctor.repair import repair as repair_findings

        feeds = () if self._feeds is None else self._feeds.all()
        brokers = [feed.broker for feed in feeds if feed.broker is not None]
        fresh = {feed.name: feed.fresh_within for feed in feeds if feed.fresh_within is not None}
        findings = examine(self._database, brokers, fresh)
        if repair and (done := repair_findings(self._database, findings, by=self._actor)):
            return [*done, *examine(self._database, brokers, fresh)]
        return findings

    def _look(
        self, report: Callable[Concatenate[Transaction, P], T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        with self._database.reading() as tx:
            return report(tx, *args, **kwargs)

    def _act(
        self, action: Callable[Concatenate[Transaction, P], T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        return persist(self._database, lambda tx: action(tx, *args, **kwargs))
