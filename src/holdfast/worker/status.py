"""What a worker says of itself."""

from __future__ import annotations

from dataclasses import dataclass


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
