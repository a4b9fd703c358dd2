"""What is reported about schedules, runs, the outbox, limits and the database."""

from __future__ import annotations

from logging import DEBUG, ERROR, INFO, WARNING
from typing import Final

from stepfast.telemetry.event import MESSAGE, Event, event

CHAPTERS: Final[dict[str, tuple[Event, ...]]] = {
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
