"""What a worker says of itself: who it is, what it does, and what is wrong with it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from stepfast.config import WorkerSettings
    from stepfast.worker.execution import Execution
    from stepfast.worker.incarnation import Heartbeat

SILENT: Final = 5.0  # seconds after which an event loop that does not answer is a problem


@dataclass(frozen=True)
class WorkerStatus:
    """Who it is, and what it is doing right now."""

    worker_id: str
    running: bool
    active_jobs: int
    active_job_ids: list[str]
    concurrency: int
    lease_seconds: float
    queues: list[str]
    lost_slots: int
    problems: list[str]  # sentences; none: the heartbeat gets through and the event loop ticks


def status(
    settings: WorkerSettings, execution: Execution, heartbeat: Heartbeat, *, running: bool
) -> WorkerStatus:
    ids = sorted({job_id for job_id, _ in execution.running()})
    return WorkerStatus(
        worker_id=settings.worker_id,
        running=running,
        active_jobs=len(ids),
        active_job_ids=ids,
        concurrency=settings.concurrency,
        lease_seconds=settings.lease.total_seconds(),
        queues=list(settings.queues) or ["*"],
        lost_slots=execution.lost_slots,
        problems=_problems(execution, heartbeat) if running else ["this worker does not run"],
    )


def _problems(execution: Execution, heartbeat: Heartbeat) -> list[str]:
    found = []
    if not heartbeat.may_claim:
        found.append(f"the heartbeat has not reached the database for {heartbeat.silence():.0f} s")
    silence = 0.0 if execution.pulse is None else execution.pulse.silence()
    if silence > SILENT:
        found.append(f"the event loop has not answered for {silence:.0f} s: a handler blocks it")
    return found
