"""What workers report about themselves, and about jobs and their steps."""

from __future__ import annotations

from logging import CRITICAL, DEBUG, ERROR, INFO, WARNING
from typing import Final

from stepfast.telemetry.event import TIMES, Event, event, of_step

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
