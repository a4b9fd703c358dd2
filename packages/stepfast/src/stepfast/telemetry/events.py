"""Everything that is ever reported, by name: the one list that logs, metrics, traces and the reference share.

An event is `noun.past-verb`; its values are fields, never poured into a sentence. To add one, put it into its
chapter in `worker_events` or `other_events` and call `happened`; a test finds whatever is missing on either side.
"""

from __future__ import annotations

from dataclasses import dataclass
from logging import CRITICAL, DEBUG, ERROR, INFO, WARNING
from typing import Final

# What an event is: a name, how loud it is, what it means, and which fields come with it.

# What every event about a step carries besides its own fields. `run_id` and `partition_id` are there when the
# handler named them by `step.annotate`, like any other name that it gives there.
STEP_FIELDS: Final = (
    "job_id", "kind", "queue", "step", "attempt", "trace_id", "worker_id", "run_id", "partition_id",
)  # fmt: skip
TIMES: Final = "took_s held_s"  # seconds in the handler, and under the lease until the end was written
MESSAGE: Final = "message_id channel address job_id trace_id attempt"


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


# What workers report about themselves, and about jobs and their steps.

CHAPTERS: Final[dict[str, tuple[Event, ...]]] = {
    "A worker": (
        event("worker.started", INFO, "it begins to take work", "worker_id concurrency"),
        event(
            "worker.recovered",
            INFO,
            "at its start it took back so many abandoned jobs",
            "worker_id jobs note",
        ),
        event("worker.stopping", INFO, "asked to stop; so many steps run", "worker_id active"),
        event(
            "worker.stopped",
            INFO,
            "it left; so many steps were given back unfinished",
            "worker_id given_back",
        ),
        event(
            "worker.failed",
            ERROR,
            "a part of it met something unexpected",
            "worker_id job_id jobs error note",
        ),
        event(
            "worker.recycled",
            INFO,
            "it starts its own program again: slots were lost, or it is too old or too large",
        ),
        event(
            "worker.worn",
            INFO,
            "it has reached `max_age` or `max_memory`: it finishes its steps and is recycled",
            "worker_id age_s memory",
        ),
        event(
            "worker.ended",
            WARNING,
            "a child of `--processes` ended and will be started again",
            "number code restart_in_s",
        ),
        event(
            "worker.declared-dead",
            WARNING,
            "this worker found another one dead",
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
            "the lease could not be renewed; nothing is taken until it can",
            "worker_id error",
        ),
        event(
            "heartbeat.recovered", INFO, "it could, after so many seconds of silence", "worker_id silent_s"
        ),
        event(
            "suspects.isolated",
            INFO,
            "processes were started for jobs that must run alone",
            "waiting processes",
        ),
        of_step("slot.lost", ERROR, "a handler ignores its timeout; its slot is lost"),
        event(
            "loop.stuck",
            CRITICAL,
            "the event loop hangs; work is given back, the process ends with 70",
            "worker_id active",
        ),
        event("metrics.served", INFO, "`/metrics` and `/healthz` can be asked here", "host port"),
    ),
    "Jobs and steps": (
        event(
            "duplicate.skipped",
            DEBUG,
            "an enqueue met its key or id, and the job that holds it (`job_id`) stays as it is",
            "job_id kind queue",
        ),
        event(
            "duplicate.refused",
            DEBUG,
            "an enqueue met its key, and was refused by `DuplicateKeyError`",
            "job_id kind queue",
        ),
        event(
            "duplicate.replaced",
            DEBUG,
            "an enqueue met its key, and the job that holds it got the new payload",
            "job_id kind queue",
        ),
        event(
            "duplicate.merged",
            DEBUG,
            "an enqueue met its key, and the job that holds it or comes after it (`job_id`) does its work too",
            "job_id kind queue",
        ),
        event(
            "duplicate.deferred",
            DEBUG,
            "an enqueue met its key, and its holder runs: this job comes after it",
            "job_id kind queue",
        ),
        event(
            "jobs.claimed",
            DEBUG,
            "taken from a queue, also 0; the longest had been ready for `waited_s`",
            "queue jobs waited_s",
        ),
        of_step("step.started", DEBUG, "its handler is called"),
        event(
            "jobs.acknowledged",
            DEBUG,
            "steps of one kind without effects, committed together; times of the longest",
            f"kind jobs {TIMES}",
        ),
        of_step(
            "step.committed",
            DEBUG,
            "a step ended: done, continued, snoozed or returned",
            f"outcome fence {TIMES}",
        ),
        of_step(
            "step.failed",
            WARNING,
            "again after a delay; costs an attempt, or counts as a crash (`charged` 0)",
            f"error_type error retry_in_s charged {TIMES}",
        ),
        of_step("step.postponed", DEBUG, "again after a delay; costs nothing", f"error_type error {TIMES}"),
        of_step("step.timed-out", WARNING, "ran longer than its timeout"),
        of_step(
            "step.crashed",
            ERROR,
            "the process of an isolated step died under it; nobody else is concerned",
            "error",
        ),
        of_step(
            "step.refused",
            WARNING,
            "the fence had moved on: somebody else has the step, nothing was written",
            "fence",
        ),
        of_step("job.died", ERROR, "a new dead letter", f"error_type error {TIMES}"),
        of_step("job.cancelled", INFO, "stopped because somebody asked", f"reason {TIMES}"),
        of_step("kind.unknown", WARNING, "no handler here; told once per kind and process", "error"),
        event("dependants.released", DEBUG, "jobs whose parents are all done may go on", "jobs"),
        event(
            "dependants.failed",
            ERROR,
            "jobs became dead letters because the job that they come after (`job_id`) ended as `reason` says",
            "job_id jobs reason",
        ),
        event(
            "dependants.found",
            WARNING,
            "jobs waited for others that had ended long ago: a sweep told them",
            "jobs",
        ),
        event("jobs.promoted", DEBUG, "scheduled jobs whose time has come", "jobs"),
        event(
            "jobs.rescued",
            INFO,
            "taken back from a dead worker, or an expired lease by hand; so many of them died of it, so many were charged",
            "dead_worker_id jobs died charged",
        ),
        event(
            "leases.leaked",
            WARNING,
            "a lease that nobody here knew of was given back: the answer of its claim or commit had been lost",
            "job_id fence worker_id",
        ),
        event(
            "archive.pruned",
            INFO,
            "finished jobs older than the retention time were deleted",
            "jobs worker_id",
        ),
        event("results.expired", INFO, "results whose time was over were emptied", "results"),
        event(
            "reports.dropped",
            ERROR,
            "lines that no database stores were left out; the step itself was written",
            "reports job_id error",
        ),
        event("reports.delayed", INFO, "progress and log lines wait for the database", "reports error"),
    ),
}


# What is reported about schedules, runs, the outbox, limits and the database.

CHAPTERS_OTHER_EVENTS: Final[dict[str, tuple[Event, ...]]] = {
    "Schedules": (
        event("schedule.declared", INFO, "the table follows what the code declares", "schedule"),
        event(
            "tick.fired",
            INFO,
            "a tick became a job, so many seconds after its time",
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
            "nobody was there for ticks since this one; `note` is the policy that decided about them",
            "schedule since note",
        ),
        event(
            "schedule.unreadable",
            ERROR,
            "this worker cannot tell when it is due: it lacks time zone data, or is of an older version",
            "schedule error",
        ),
    ),
    "Runs": (
        event(
            "run.repaired",
            INFO,
            "an operator retried, consolidated, cancelled or resumed it",
            "run_id feed action state",
        ),
        event(
            "source.troubled",
            WARNING,
            "a source throttles, is away or does not let us in: its feed is paused, no attempt is spent",
            "feed trouble error retry_in_s",
        ),
        event("source.recovered", INFO, "it answers again, after so many troubles in a row", "feed troubles"),
        event(
            "source.slowed",
            WARNING,
            "it wants fewer requests: it is left alone for so long, then asked at half the rate",
            "source quiet_s",
        ),
        event(
            "token.renewed",
            INFO,
            "the source let us in; `shared`: all processes use this token",
            "source expires_in_s shared",
        ),
        event(
            "run.failed",
            ERROR,
            "it ended without publishing: a part of it gave up, or too many rows are in quarantine (`state`)",
            "feed run_id state",
        ),
        event(
            "partition.failed",
            ERROR,
            "the job of one of its partitions gave up; the others go on",
            "feed run_id partition_id",
        ),
        event(
            "run.resumed",
            WARNING,
            "something had stopped moving it, and moves it again; `note` says what was done",
            "feed run_id partition_id note",
        ),
        event("run.completed", INFO, "all it read is in the target", "feed run_id"),
        event("rows.quarantined", WARNING, "they could not be mapped or stored", "feed run_id rows"),
        event(
            "mapping.clipped",
            DEBUG,
            "a text that only describes a row is longer than its column: it is left out, the row is kept",
            "field characters",
        ),
        event("run.skipped", INFO, "its time had come, but a run of the feed is active", "feed note"),
        event("run.stalled", WARNING, "nothing has moved it for too long", "feed run_id"),
        event("run.pruned", INFO, "it ended long ago, and is no longer listed", "run_id"),
        event("sweep.held", WARNING, "more rows would go than the fuse allows", "feed run_id note"),
        event("watermark.aged", WARNING, "it is older than the feed allows; somebody was told", "feed"),
    ),
    "The outbox": (
        event("message.sent", DEBUG, "the receiver has it", f"{MESSAGE} took_s"),
        event(
            "message.failed",
            WARNING,
            "it is tried again after a delay, and those behind it wait",
            f"{MESSAGE} took_s error retry_in_s",
        ),
        event(
            "message.died",
            ERROR,
            "nobody tries again before an operator says so; those behind it go on",
            f"{MESSAGE} took_s error",
        ),
        event(
            "message.refused",
            WARNING,
            "another relay serves its destination now: nothing was recorded, and it is sent again",
            "destination",
        ),
        event("alert.told", INFO, "a cause became messages to so many places", "cause places"),
        event("outbox.pruned", INFO, "messages that were sent long ago were deleted", "messages"),
    ),
    "Tasks": (
        event("tasks.started", INFO, "a process works on tasks of these types", "client types"),
        event("task.accepted", DEBUG, "a message became a job", "queue task_id task_type job_id"),
        event("task.repeated", INFO, "a message says what a job does or did already", "queue task_id job_id"),
        event(
            "task.refused",
            ERROR,
            "a message is no task that can be done: a dead letter here, and put aside at the broker",
            "queue message_id task_id job_id error",
        ),
        event(
            "task.ended", INFO, "its end is committed, and the message is gone", "queue task_id job_id state"
        ),
        event(
            "task.untold", ERROR, "its webhook could not be staged: the URL cannot be used", "job_id error"
        ),
        event(
            "message.lost",
            WARNING,
            "we no longer hold it, another may: the database decides who works on it",
            "queue message_id error",
        ),
        event(
            "broker.lost",
            WARNING,
            "the broker does not answer; told once per outage",
            "transport queue error",
        ),
        event("broker.recovered", INFO, "it answers again", "transport queue"),
        event("intake.started", INFO, "tasks are taken from this queue", "transport queue acknowledge"),
        event(
            "intake.warned",
            WARNING,
            "tasks are taken, and something that they may need is missing",
            "queue note",
        ),
        event(
            "intake.filled",
            WARNING,
            "no more are taken: so many are held until their tasks end, or until webhooks of ended ones leave",
            "queue held at_work",
        ),
        event(
            "letters.skipped",
            WARNING,
            "too many messages were put aside to look at all of them: among the rest may be tasks that were never stored",
            "queue looked_at",
        ),
        event(
            "webhook.saved", INFO, "a receiver was told of a task's end, for the first time", "task_id status"
        ),
        event("webhook.refused", WARNING, "a receiver does not believe who posts", "error"),
        event("intake.stopped", INFO, "no more are taken", "queue given_back"),
    ),
    "Runs over a broker": (
        event(
            "hint.refused",
            WARNING,
            "a message that nobody here understands, or that asks for what cannot be: it was put aside with the reason",
            "transport queue message_id reason error",
        ),
        event(
            "hint.skipped",
            INFO,
            "a message that came twice, late or out of order: the database is further, it was acknowledged and did nothing",
            "queue message_id run_id partition_id reason",
        ),
        event(
            "hint.repeated",
            DEBUG,
            "the broker did not hear that it was dealt with: it comes again, which is harmless",
            "queue message_id error",
        ),
        event(
            "dead-letters.reconciled",
            INFO,
            "dead letters of a broker: so many are in our list now, so many were about work that the database knows",
            "transport queue kept removed",
        ),
    ),
    "Events": (
        event("event.delivered", INFO, "it woke a job that waited for it", "job_id"),
        event("event.kept", INFO, "nobody waits for it: it is kept for the first that will", "keep_s"),
        event(
            "callback.received",
            INFO,
            "somebody called a signed address; `answer` is what it was told",
            "answer",
        ),
        event("events.forgotten", DEBUG, "they were kept long enough, and waits that are over", "events"),
    ),
    "Limits": (
        event(
            "jobs.held", DEBUG, "so many limits had no room for so many jobs: they wait for it", "jobs limits"
        ),
        event(
            "jobs.risen",
            DEBUG,
            "they had waited long behind more urgent ones, which they now join",
            "queue jobs",
        ),
    ),
    "The database": (
        event(
            "database.lost",
            WARNING,
            "it cannot be reached; told once per outage and part",
            "worker_id error note",
        ),
        event("database.recovered", INFO, "it can be reached again", "worker_id note"),
        event("commit.parted", INFO, "steps that shared a transaction are written apart", "jobs error"),
        event("commit.unknown", WARNING, "the connection broke during COMMIT; the fences are asked", "jobs"),
        event("wakeups.lost", INFO, "LISTEN broke and is opened again; polling goes on", "error"),
        event(
            "wakeups.unheard",
            INFO,
            "LISTEN is of no use here: a pooler stands between, or it is another database; polling goes on",
            "note error",
        ),
    ),
}

__all__ = ["CHAPTERS", "EVENTS", "LEVELS", "STEP_FIELDS", "Event"]

CHAPTERS_EVENTS: Final = {**CHAPTERS, **CHAPTERS_OTHER_EVENTS}
EVENTS: Final = {event.name: event for chapter in CHAPTERS_EVENTS.values() for event in chapter}
LEVELS: Final = {event.name: event.level for event in EVENTS.values()}
