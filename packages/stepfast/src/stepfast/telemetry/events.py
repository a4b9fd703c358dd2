"""Every event by name: the one list that logs, metrics, traces and the reference of the documentation share.

An event is `noun.past-verb`; its values are fields, never poured into a sentence. To add one, put it into its chapter
and call `happened`; a test finds events that are missing on either side.
"""

from __future__ import annotations

from dataclasses import dataclass
from logging import CRITICAL, DEBUG, ERROR, INFO, WARNING
from typing import Final

# What every event about a step carries besides its own fields. `run_id` and `partition_id` are there when the
# handler named them by `step.annotate`, like any other name that it gives there.
STEP_FIELDS: Final = (
    "job_id", "kind", "queue", "step", "attempt", "trace_id", "worker_id", "run_id", "partition_id",
)  # fmt: skip
TIMES: Final = "took_s held_s"  # seconds in the handler, and under the lease until the end was written
MESSAGE: Final = "message_id channel address job_id trace_id attempt"
RUN: Final = "feed run_id trace_id"  # of every event about a run; `partition_id` is partition-7, as in views and commands


@dataclass(frozen=True)
class Event:
    """One name, how loud it is, what it means, and which fields come with it."""

    name: str
    level: int
    meaning: str
    fields: tuple[str, ...]
    about_step: bool  # whether the fields of a step come with it


def event(name: str, level: int, meaning: str, fields: str = "") -> Event:
    return Event(name, level, meaning, tuple(fields.split()), about_step=False)


def of_step(name: str, level: int, meaning: str, fields: str = "") -> Event:
    return Event(name, level, meaning, tuple(fields.split()), about_step=True)


CHAPTERS: Final[dict[str, tuple[Event, ...]]] = {
    "A worker": (
        event(
            "worker.started",
            INFO,
            "the worker begins to claim jobs; the process ids are its own and that of its guardian",
            "worker_id version database queues kinds concurrency pid guardian_pid",
        ),
        event("kinds.missing", WARNING, "the application of a worker has no jobs", "worker_id note"),
        event(
            "queues.unserved",
            WARNING,
            "at the start of a worker: jobs are ready in queues that neither it nor another worker serves",
            "worker_id queues note",
        ),
        event(
            "worker.recovered",
            INFO,
            "at its start the worker took back this many abandoned jobs",
            "worker_id jobs note",
        ),
        event(
            "worker.stopping",
            INFO,
            "the worker was asked to stop while this many steps run; they may finish within `grace_s`",
            "worker_id active grace_s",
        ),
        event(
            "worker.stopped",
            INFO,
            "the worker ended; this many steps were given back unfinished",
            "worker_id given_back",
        ),
        event(
            "worker.failed",
            ERROR,
            "a part of the worker met an unexpected error, and goes on",
            "worker_id job_id jobs error note",
        ),
        event(
            "worker.broken",
            CRITICAL,
            "a part that the worker needs (`note`) met an unexpected error: jobs are given back, and the process exits with 70",
            "worker_id error note",
        ),
        event(
            "worker.recycled",
            INFO,
            "the worker starts its own program again: slots were lost, or it is too old or too large",
        ),
        event(
            "worker.worn",
            INFO,
            "the worker has reached `max_age` or `max_memory`: it finishes its steps and is recycled",
            "worker_id age_s memory",
        ),
        event(
            "worker.ended",
            WARNING,
            "a worker process ended, and its guardian will start another one",
            "number code restart_in_s",
        ),
        event(
            "worker.killed",
            WARNING,
            "a step passed its deadline while the interpreter of its worker did not answer: the guardian killed the process",
            "dead_worker_id job_id",
        ),
        event(
            "guardian.vouched",
            WARNING,
            "the interpreter of a worker does not answer; its guardian renewed its lease",
            "incarnation",
        ),
        event("guardian.lost", WARNING, "the guardian of this worker is gone", "note"),
        event("guardian.failed", WARNING, "a guardian could not write to the database", "error"),
        event(
            "worker.declared-dead",
            WARNING,
            "a worker was declared dead, by its guardian or by another worker",
            "dead_worker_id incarnation",
        ),
        event(
            "incarnation.replaced",
            WARNING,
            "this worker was declared dead, lost its leases, and goes on under a new incarnation",
            "worker_id incarnation",
        ),
        event(
            "heartbeat.failed",
            WARNING,
            "the lease could not be renewed; no jobs are claimed until it can",
            "worker_id error",
        ),
        event(
            "heartbeat.recovered",
            INFO,
            "the lease was renewed again, after this many seconds of silence",
            "worker_id silent_s",
        ),
        of_step("slot.lost", ERROR, "a handler ignores its timeout, and keeps its slot"),
        event(
            "loop.stuck",
            CRITICAL,
            "the event loop hangs; jobs are given back, and the process exits with 70",
            "worker_id active",
        ),
        event("metrics.served", INFO, "`/metrics` and `/healthz` are served at this address", "host port"),
    ),
    "Jobs and steps": (
        event(
            "duplicate.skipped",
            DEBUG,
            "an enqueue met its key or id; the job that holds it (`job_id`) stays as it is",
            "job_id kind queue",
        ),
        event(
            "duplicate.refused",
            DEBUG,
            "an enqueue met its key, and raised `DuplicateKeyError`",
            "job_id kind queue",
        ),
        event(
            "duplicate.replaced",
            DEBUG,
            "an enqueue met its key; the job that holds it got the new payload",
            "job_id kind queue",
        ),
        event(
            "duplicate.merged",
            DEBUG,
            "an enqueue met its key; the job that holds it, or its successor (`job_id`), does its work too",
            "job_id kind queue",
        ),
        event(
            "duplicate.deferred",
            DEBUG,
            "an enqueue met its key while the holder runs; this job is its successor",
            "job_id kind queue",
        ),
        event(
            "jobs.claimed",
            DEBUG,
            "jobs were claimed from a queue, also 0; the longest had been ready for `waited_s`",
            "queue jobs waited_s",
        ),
        of_step("step.started", DEBUG, "the handler of a step is called"),
        event(
            "jobs.acknowledged",
            DEBUG,
            "steps of one kind without effects were committed together; the times are those of the longest",
            f"kind jobs {TIMES}",
        ),
        of_step(
            "step.acknowledged",
            DEBUG,
            "one of the steps that were committed together is done; only where they are few",
            TIMES,
        ),
        of_step("step.logged", DEBUG, "a handler added a line to the log of its job", "text"),
        of_step(
            "step.committed",
            DEBUG,
            "a step was committed: done, continued, snoozed or given back",
            f"outcome fence {TIMES}",
        ),
        of_step(
            "step.failed",
            WARNING,
            "a step failed and is tried again after a delay; costs an attempt, or counts as a crash (`charged` 0)",
            f"task_id error_type error attempts retry_in_s charged {TIMES}",
        ),
        of_step(
            "step.postponed",
            DEBUG,
            "a step is tried again after a delay; costs no attempt",
            f"error_type error {TIMES}",
        ),
        of_step("step.timed-out", WARNING, "a step ran longer than its timeout"),
        of_step(
            "step.crashed",
            ERROR,
            "the process of an isolated step died; other steps are not affected",
            "error",
        ),
        of_step(
            "step.refused",
            WARNING,
            "the fence has changed: another worker has the step, and nothing was written",
            "fence",
        ),
        of_step(
            "step.unwritten",
            WARNING,
            "the database was away until the worker had to stop: what the step answered is not written, and it runs again",
            "error",
        ),
        of_step(
            "job.died", ERROR, "a job gave up, and is a dead letter now", f"task_id error_type error {TIMES}"
        ),
        of_step(
            "job.cancelled",
            INFO,
            "a job was stopped because somebody cancelled it",
            f"task_id reason {TIMES}",
        ),
        of_step(
            "kind.unknown", WARNING, "a job has no handler here; reported once per kind and process", "error"
        ),
        event("dependants.released", DEBUG, "jobs whose parents are all done became ready", "jobs"),
        event(
            "dependants.failed",
            ERROR,
            "jobs became dead letters because the job that they come after (`job_id`) ended as `reason` says",
            "job_id jobs reason",
        ),
        event(
            "dependants.found",
            WARNING,
            "jobs still waited for others that had ended long ago, and were released or failed",
            "jobs",
        ),
        event("jobs.promoted", DEBUG, "scheduled jobs became ready, because their time has come", "jobs"),
        event(
            "jobs.rescued",
            INFO,
            "jobs of a dead worker, or of a manual lease that expired, were taken back; this many of them died, this many were charged",
            "dead_worker_id jobs died charged",
        ),
        event(
            "leases.leaked",
            WARNING,
            "a lease that no part of this worker knew was given back: the answer to its claim or commit had been lost",
            "job_id fence worker_id",
        ),
        event(
            "archive.pruned",
            INFO,
            "finished jobs older than the retention time were deleted",
            "jobs worker_id",
        ),
        event("results.expired", INFO, "results older than their `result_ttl` were emptied", "results"),
        event(
            "reports.dropped",
            ERROR,
            "progress or log lines are missing: the database does not store them, or was away when there were too many; the step itself is committed",
            "reports job_id error",
        ),
        event("reports.delayed", INFO, "progress and log lines wait for the database", "reports error"),
    ),
    "Schedules": (
        event("schedule.declared", INFO, "the row of a schedule follows what the code declares", "schedule"),
        event(
            "tick.fired",
            INFO,
            "a tick became a job, this many seconds after its time",
            "schedule tick job_id late_s",
        ),
        event(
            "tick.skipped",
            INFO,
            "a tick became no job: the one before it is unfinished (`overlapped`), or it had become one before (`remembered`)",
            "schedule tick job_id note",
        ),
        event(
            "ticks.missed",
            WARNING,
            "no worker ran when ticks since this one were due; `note` is the policy that decided about them",
            "schedule since note",
        ),
        event(
            "schedule.unreadable",
            ERROR,
            "this worker cannot tell when a schedule is due: it lacks time zone data, or is of an older version",
            "schedule error",
        ),
    ),
    "Runs": (
        event(
            "run.repaired",
            INFO,
            "an operator retried, consolidated, cancelled or resumed a run",
            f"{RUN} action state",
        ),
        event(
            "run.started",
            INFO,
            "a worker begins to work on a run: it reads what the source changed in this window; no `window_from`: ever",
            f"{RUN} run_kind window_from window_to",
        ),
        event(
            "run.planned",
            INFO,
            "a run is divided into this many partitions, with this many rows as far as they were counted; "
            "`debts` of them read again what earlier runs left",
            f"{RUN} partitions rows debts",
        ),
        event(
            "partition.ended",
            INFO,
            "a partition was read to its end; `ended` of the `partitions` of its run have ended so far. "
            "Of a run with more than 50, `partitions.ended` is reported instead",
            f"{RUN} partition_id range state rows requests ended partitions",
        ),
        event(
            "partitions.ended",
            INFO,
            "of a run with more than 50 partitions, another fiftieth has ended; `rows` were read by those that have",
            f"{RUN} ended failed partitions rows",
        ),
        event(
            "consolidation.started",
            INFO,
            "raw rows become target rows: a round of the consolidation is divided into this many shards",
            f"{RUN} round shards",
        ),
        event(
            "consolidation.ended",
            INFO,
            "no raw row waits any more; so many became target rows, so many are in quarantine",
            f"{RUN} rounds applied quarantined",
        ),
        event(
            "source.troubled",
            WARNING,
            "a source throttles, is away or refuses us: its feed is paused, and no attempt is spent",
            "feed trouble error retry_in_s",
        ),
        event(
            "source.unanswered",
            WARNING,
            "one request got no answer while the source answered others: its partition waits, the feed goes on, and no attempt is spent",
            "feed error retry_in_s",
        ),
        event(
            "source.recovered",
            INFO,
            "a source answers again, after this many troubles in a row",
            "feed troubles",
        ),
        event(
            "source.slowed",
            WARNING,
            "a source wants fewer requests: it is not asked for this long, then at half the rate",
            "source quiet_s",
        ),
        event(
            "token.renewed",
            INFO,
            "a source gave us a new token; `shared`: all processes use it",
            "source expires_in_s shared",
        ),
        event(
            "run.failed",
            ERROR,
            "a run ended without publishing: a part of it gave up, or too many rows are in quarantine (`state`). "
            "`error` says why, the numbers how far it came",
            f"{RUN} state error partitions completed failed rows applied quarantined",
        ),
        event(
            "partition.failed",
            ERROR,
            "the job of a partition gave up; the other partitions go on",
            f"{RUN} partition_id range error rows requests ended partitions",
        ),
        event(
            "run.resumed",
            WARNING,
            "a run had stopped moving and moves again; `note` says what was done",
            f"{RUN} partition_id note",
        ),
        event(
            "run.completed",
            INFO,
            "a run is complete: all rows that it read are in the target",
            f"{RUN} run_kind partitions completed unverified rows applied quarantined gone took_s",
        ),
        event(
            "run.published",
            WARNING,
            "a run was published by force, without the partitions that failed: its watermark stays",
            f"{RUN} partitions completed failed rows applied quarantined",
        ),
        event("rows.quarantined", WARNING, "rows could not be mapped or stored", f"{RUN} rows"),
        event(
            "mapping.clipped",
            DEBUG,
            "a descriptive text is longer than its column: the text is left out, the row is kept",
            "field characters",
        ),
        event("run.skipped", INFO, "a run was due, but another run of its feed is active", "feed note"),
        event(
            "run.held",
            WARNING,
            "a run cannot write rows before a person has done something; `note` says what, and an alert was raised",
            f"{RUN} note",
        ),
        event("run.stalled", WARNING, "a run has not moved for too long; `note` says why", f"{RUN} note"),
        event("run.pruned", INFO, "a run that ended long ago was deleted", "run_id"),
        event(
            "sweep.held",
            WARNING,
            "a sweep would mark more rows as gone than its fuse allows, and waits for an operator",
            f"{RUN} note",
        ),
        event(
            "watermark.edited",
            WARNING,
            "the exported document of a watermark was changed by hand, which moves nothing; `note` has the command that does",
            f"{RUN} note",
        ),
        event(
            "watermark.aged",
            WARNING,
            "a watermark is older than its feed allows; an alert was raised",
            "feed",
        ),
    ),
    "The outbox": (
        event("message.sent", DEBUG, "a message was sent: the receiver has it", f"{MESSAGE} took_s"),
        event(
            "message.failed",
            WARNING,
            "a message could not be sent and is tried again after a delay; those behind it wait",
            f"{MESSAGE} took_s error retry_in_s",
        ),
        event(
            "message.died",
            ERROR,
            "a message was given up until an operator retries it; those behind it go on",
            f"{MESSAGE} took_s error",
        ),
        event(
            "message.refused",
            WARNING,
            "another relay serves the destination now: nothing was recorded, and the message is sent again",
            "destination",
        ),
        event(
            "host.postponed",
            WARNING,
            "a host did not answer in time, and all webhooks to it wait for a while; none of them loses a try",
            "host wait_s",
        ),
        event("alert.told", INFO, "an alert became messages to this many places", "cause places"),
        event("outbox.pruned", INFO, "messages that were sent long ago were deleted", "messages"),
    ),
    "Tasks": (
        event("tasks.started", INFO, "a process begins to do tasks of these types", "client types"),
        event("task.accepted", DEBUG, "a message became a job", "queue task_id task_type job_id"),
        event(
            "task.repeated", INFO, "a message repeats a task that is a job already", "queue task_id job_id"
        ),
        event(
            "task.refused",
            ERROR,
            "a message is no task that can be done: it is a dead letter here, and put aside at the broker",
            "queue message_id task_id job_id error",
        ),
        event(
            "task.ended",
            INFO,
            "a task has ended, and its message was removed from the queue",
            "queue task_id job_id state",
        ),
        event(
            "jobs.passed-on",
            INFO,
            "a process that worked on one task ends; jobs that the task enqueued are left to the workers of their queues",
            "task_id job_id jobs queues",
        ),
        event(
            "jobs.left",
            WARNING,
            "the same, and no living worker serves these queues: start one there, or the jobs wait for ever",
            "task_id job_id jobs queues",
        ),
        event(
            "task.untold",
            ERROR,
            "the webhook about a task's end could not be staged: its URL cannot be used",
            "task_id job_id error",
        ),
        event(
            "message.lost",
            WARNING,
            "we no longer hold a message, and another worker may: the database decides which one does its task",
            "queue message_id error",
        ),
        event(
            "broker.lost",
            WARNING,
            "the broker does not answer; reported once per outage",
            "transport queue error",
        ),
        event("broker.recovered", INFO, "the broker answers again", "transport queue"),
        event(
            "broker.measured",
            DEBUG,
            "a queue of the broker has so many messages; looked at twice a minute where metrics are shown",
            "transport queue ready held scheduled dead",
        ),
        event(
            "intake.started",
            INFO,
            "a worker begins to take tasks from this queue",
            "transport queue acknowledge",
        ),
        event(
            "intake.warned",
            WARNING,
            "tasks are taken, but something that they may need is missing",
            "queue note",
        ),
        event(
            "intake.filled",
            WARNING,
            "no more messages are taken: this many are held until their tasks end, or until the webhooks about ended ones are sent",
            "queue held at_work",
        ),
        event(
            "letters.skipped",
            WARNING,
            "too many dead letters to look at all of them: the rest may contain tasks that were never stored",
            "queue looked_at",
        ),
        event("webhook.saved", INFO, "a receiver saved a webhook about the end of a task", "task_id status"),
        event("received.pruned", INFO, "a receiver deleted webhooks that it received long ago", "webhooks"),
        event(
            "receiver.filled",
            WARNING,
            "a receiver keeps so many bytes of webhooks that it refuses new ones until old ones are deleted",
            "size",
        ),
        event("webhook.refused", WARNING, "a receiver got a request whose signature is wrong", "error"),
        event(
            "intake.stopped",
            INFO,
            "a worker takes no more tasks; this many messages were given back",
            "queue given_back",
        ),
    ),
    "Runs over a broker": (
        event(
            "hint.refused",
            WARNING,
            "a message is not understood here, or asks for something impossible: it was put aside with the reason",
            "transport queue message_id reason error",
        ),
        event(
            "hint.skipped",
            INFO,
            "a message came twice, late or out of order: the database is further, so it was acknowledged without effect",
            "queue message_id run_id partition_id reason",
        ),
        event(
            "hint.repeated",
            DEBUG,
            "a message could not be acknowledged: it comes again, which is harmless",
            "queue message_id error",
        ),
        event(
            "dead-letters.reconciled",
            INFO,
            "dead letters of a broker: this many are in our list now, this many were about work that the database knows",
            "transport queue kept removed",
        ),
    ),
    "Events": (
        event("event.delivered", INFO, "an event woke a job that waited for it", "job_id"),
        event(
            "event.kept",
            INFO,
            "no job waits for an event yet: it is kept for the first one that will",
            "keep_s",
        ),
        event(
            "callback.received",
            INFO,
            "a signed address was called; `answer` is what the caller got",
            "answer",
        ),
        event(
            "events.forgotten",
            DEBUG,
            "events that were kept long enough, and waits that are over, were deleted",
            "events",
        ),
    ),
    "Limits": (
        event(
            "jobs.held",
            DEBUG,
            "this many limits had no room for this many jobs: they wait for it",
            "jobs limits",
        ),
        event(
            "jobs.risen",
            DEBUG,
            "jobs that waited long behind more urgent ones got their priority",
            "queue jobs",
        ),
    ),
    "The database": (
        event(
            "database.lost",
            WARNING,
            "a part of the process cannot reach the database; reported once per outage and part",
            "worker_id error note",
        ),
        event(
            "database.recovered", INFO, "a part of the process reaches the database again", "worker_id note"
        ),
        event(
            "view.skipped",
            WARNING,
            "a view was not made: its name is taken, or the database refused it; everything else works",
            "note",
        ),
        event(
            "commit.parted", INFO, "steps that shared a transaction are committed one by one", "jobs error"
        ),
        event(
            "commit.unknown",
            WARNING,
            "the connection broke during COMMIT; the fences tell whether it took place",
            "jobs",
        ),
        of_step(
            "commit.refused",
            WARNING,
            "the database refused the end of a step, for a reason that may pass: the step waits, and its end is written later",
            "error",
        ),
        event(
            "commit.hangs",
            WARNING,
            "a COMMIT has had no answer for this many seconds; it is waited for, and reported once. `note` says what the server waits for",
            "worker_id seconds commits note",
        ),
        event(
            "commit.answered",
            INFO,
            "commits are answered again, after so many seconds",
            "worker_id seconds",
        ),
        event(
            "statement.abandoned",
            WARNING,
            "a statement of the engine had no answer for a lease: its connection was cut, and another one is opened",
            "worker_id seconds error",
        ),
        event(
            "pool.failing",
            ERROR,
            "the heartbeat gets through, but all other transactions of this worker have failed for a lease: jobs that are not finished were given back",
            "worker_id seconds jobs error",
        ),
        event("wakeups.lost", INFO, "LISTEN broke and is opened again; polling goes on", "error"),
        event(
            "wakeups.unheard",
            INFO,
            "LISTEN is of no use here: a pooler stands between, or it is another database; polling goes on",
            "note error",
        ),
    ),
}

EVENTS: Final = {event.name: event for chapter in CHAPTERS.values() for event in chapter}
LEVELS: Final = {event.name: event.level for event in EVENTS.values()}
