"""Everything that is ever reported, by name: the one list that logs, metrics, traces and the reference share.

An event is `noun.past-verb`; its values are fields, never poured into a sentence. To add one, put it into its
chapter here and call `happened`; a test finds whatever is missing on either side.
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


@dataclass(frozen=True)
class Event:
    """One name, how loud it is, what it means, and which fields come with it."""

    name: str
    level: int
    meaning: str
    fields: tuple[str, ...]
    about_step: bool  # whether the fields of a step come with it


def _event(name: str, level: int, meaning: str, fields: str = "") -> Event:
    return Event(name, level, meaning, tuple(fields.split()), about_step=False)


def _of_step(name: str, level: int, meaning: str, fields: str = "") -> Event:
    return Event(name, level, meaning, tuple(fields.split()), about_step=True)


CHAPTERS: Final[dict[str, tuple[Event, ...]]] = {
    "A worker": (
        _event("worker.started", INFO, "it begins to take work", "worker_id concurrency"),
        _event(
            "worker.recovered",
            INFO,
            "at its start it took back so many abandoned jobs",
            "worker_id jobs note",
        ),
        _event("worker.stopping", INFO, "asked to stop; so many steps run", "worker_id active"),
        _event(
            "worker.stopped",
            INFO,
            "it left; so many steps were given back unfinished",
            "worker_id given_back",
        ),
        _event(
            "worker.failed",
            ERROR,
            "a part of it met something unexpected",
            "worker_id job_id jobs error note",
        ),
        _event("worker.recycled", INFO, "it starts its own program again, to get lost slots back"),
        _event(
            "worker.ended",
            WARNING,
            "a child of `--processes` ended and will be started again",
            "number code restart_in_s",
        ),
        _event(
            "worker.declared-dead",
            WARNING,
            "this worker found another one dead",
            "dead_worker_id incarnation",
        ),
        _event(
            "incarnation.replaced",
            WARNING,
            "this worker was declared dead, lost its leases, and goes on under a new incarnation",
            "worker_id incarnation",
        ),
        _event(
            "heartbeat.failed",
            WARNING,
            "the lease could not be renewed; nothing is taken until it can",
            "worker_id error",
        ),
        _event(
            "heartbeat.recovered", INFO, "it could, after so many seconds of silence", "worker_id silent_s"
        ),
        _event(
            "suspects.isolated",
            INFO,
            "processes were started for jobs that must run alone",
            "waiting processes",
        ),
        _of_step("slot.lost", ERROR, "a handler ignores its timeout; its slot is lost"),
        _event(
            "loop.stuck",
            CRITICAL,
            "the event loop hangs; work is given back, the process ends with 70",
            "worker_id active",
        ),
        _event("metrics.served", INFO, "`/metrics` and `/healthz` can be asked here", "host port"),
    ),
    "Jobs and steps": (
        _event(
            "duplicate.skipped",
            DEBUG,
            "an enqueue met its key or id, and the job that holds it (`job_id`) stays as it is",
            "job_id kind queue",
        ),
        _event(
            "duplicate.refused",
            DEBUG,
            "an enqueue met its key, and was refused by `DuplicateKeyError`",
            "job_id kind queue",
        ),
        _event(
            "duplicate.replaced",
            DEBUG,
            "an enqueue met its key, and the job that holds it got the new payload",
            "job_id kind queue",
        ),
        _event(
            "jobs.claimed",
            DEBUG,
            "taken from a queue, also 0; the longest had been ready for `waited_s`",
            "queue jobs waited_s",
        ),
        _of_step("step.started", DEBUG, "its handler is called"),
        _event(
            "jobs.acknowledged",
            DEBUG,
            "steps of one kind without effects, committed together; times of the longest",
            f"kind jobs {TIMES}",
        ),
        _of_step(
            "step.committed",
            DEBUG,
            "a step ended: done, continued, snoozed or returned",
            f"outcome fence {TIMES}",
        ),
        _of_step(
            "step.failed",
            WARNING,
            "again after a delay; costs an attempt",
            f"error_type error retry_in_s charged {TIMES}",
        ),
        _of_step("step.postponed", DEBUG, "again after a delay; costs nothing", f"error_type error {TIMES}"),
        _of_step("step.timed-out", WARNING, "ran longer than its timeout"),
        _of_step(
            "step.refused",
            WARNING,
            "the fence had moved on: somebody else has the step, nothing was written",
            "fence",
        ),
        _of_step("job.died", ERROR, "a new dead letter", f"error_type error {TIMES}"),
        _of_step("job.cancelled", INFO, "stopped because somebody asked", f"reason {TIMES}"),
        _of_step("kind.unknown", WARNING, "no handler here; told once per kind and process", "error"),
        _event("jobs.promoted", DEBUG, "scheduled jobs whose time has come", "jobs"),
        _event(
            "jobs.rescued",
            INFO,
            "taken back from a dead worker, or an expired lease by hand; so many of them died of it, so many were charged",
            "dead_worker_id jobs died charged",
        ),
        _event(
            "leases.leaked",
            WARNING,
            "a lease that nobody here knew of was given back: the answer of its claim or commit had been lost",
            "job_id fence worker_id",
        ),
        _event(
            "archive.pruned",
            INFO,
            "finished jobs older than the retention time were deleted",
            "jobs worker_id",
        ),
        _event("results.expired", INFO, "results whose time was over were emptied", "results"),
        _event(
            "reports.dropped",
            ERROR,
            "lines that no database stores were left out; the step itself was written",
            "reports job_id error",
        ),
        _event("reports.delayed", INFO, "progress and log lines wait for the database", "reports error"),
    ),
    "Schedules": (
        _event("schedule.declared", INFO, "the table follows what the code declares", "schedule"),
        _event(
            "tick.fired",
            INFO,
            "a tick became a job, so many seconds after its time",
            "schedule tick job_id late_s",
        ),
        _event(
            "tick.skipped",
            INFO,
            "a tick became no job: the one before it is unfinished (`overlapped`), or it had become one before (`remembered`)",
            "schedule tick job_id note",
        ),
        _event(
            "ticks.missed",
            WARNING,
            "nobody was there for ticks since this one; `note` is the policy that decided about them",
            "schedule since note",
        ),
        _event(
            "schedule.unreadable",
            ERROR,
            "this worker cannot tell when it is due: it lacks time zone data, or is of an older version",
            "schedule error",
        ),
    ),
    "The outbox": (
        _event("message.sent", DEBUG, "the receiver has it", f"{MESSAGE} took_s"),
        _event(
            "message.failed",
            WARNING,
            "it is tried again after a delay, and those behind it wait",
            f"{MESSAGE} took_s error retry_in_s",
        ),
        _event(
            "message.died",
            ERROR,
            "nobody tries again before an operator says so; those behind it go on",
            f"{MESSAGE} took_s error",
        ),
        _event(
            "message.refused",
            WARNING,
            "another relay serves its destination now: nothing was recorded, and it is sent again",
            "destination",
        ),
        _event("alert.told", INFO, "a cause became messages to so many places", "cause places"),
        _event("outbox.pruned", INFO, "messages that were sent long ago were deleted", "messages"),
    ),
    "Limits": (
        _event(
            "jobs.held", DEBUG, "so many limits had no room for so many jobs: they wait for it", "jobs limits"
        ),
        _event(
            "jobs.risen",
            DEBUG,
            "they had waited long behind more urgent ones, which they now join",
            "queue jobs",
        ),
    ),
    "The database": (
        _event(
            "database.lost",
            WARNING,
            "it cannot be reached; told once per outage and part",
            "worker_id error note",
        ),
        _event("database.recovered", INFO, "it can be reached again", "worker_id note"),
        _event("commit.unknown", WARNING, "the connection broke during COMMIT; the fences are asked", "jobs"),
        _event("wakeups.lost", INFO, "LISTEN broke and is opened again; polling goes on", "error"),
    ),
}

EVENTS: Final = {event.name: event for chapter in CHAPTERS.values() for event in chapter}
LEVELS: Final = {event.name: event.level for event in EVENTS.values()}
