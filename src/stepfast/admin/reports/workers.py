"""Workers: who lives, what it does, and how long it is believed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from stepfast.admin.rows import reader
from stepfast.database.statement import sql

if TYPE_CHECKING:
    from datetime import datetime

    from stepfast.database.connection import Transaction


@dataclass(frozen=True)
class WorkerReport:
    """One incarnation of a worker process, as its last heartbeat described it."""

    worker_id: str
    running: bool  # alive, and heard of within its lease
    state: str  # alive, stopped (left in good order) or dead (declared so by others)
    host: str
    pid: int
    incarnation: int
    queues: tuple[str, ...]  # "*" for all
    concurrency: int
    active_jobs: int
    active_job_ids: tuple[str, ...]  # the first fifty
    lease_seconds: float
    started_at: datetime
    beat_at: datetime
    alive_until: datetime
    ended_at: datetime | None


WORKERS = sql("""
    SELECT worker_id, CASE WHEN state = 'alive' AND alive_until >= {now} THEN 1 ELSE 0 END, state, host, pid, incarnation,
           queues, concurrency, active, COALESCE(active_ids, ''), lease, started_at, beat_at, alive_until, ended_at
      FROM stepfast_worker
     WHERE state = 'alive' OR :everyone = 1
     ORDER BY started_at, incarnation
""")


def list_workers(tx: Transaction, *, everyone: bool = False) -> list[WorkerReport]:
    """Workers that nobody has declared dead, oldest first; with `everyone`, also those that left in the last day."""
    read = reader(
        WorkerReport,
        running=bool,
        queues=_names,
        active_job_ids=_names,
        lease_seconds=lambda lease: lease / 1e6,
    )
    return tx.all(WORKERS, read, everyone=int(everyone))


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split(",")) if text else ()
