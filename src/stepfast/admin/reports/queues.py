"""Queues: how much waits in each, since when, and whether it may be taken."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from stepfast.admin.rows import now, reader
from stepfast.database.statement import sql

if TYPE_CHECKING:
    from datetime import datetime

    from stepfast.database.connection import Transaction


@dataclass(frozen=True)
class QueueReport:
    queue: str
    scheduled: int
    ready: int
    suspect: int
    leased: int
    held: int
    waiting: int  # for other jobs
    dead: int
    oldest_ready_seconds: float | None  # how long the job that comes next has been waiting
    paused_at: datetime | None
    note: str | None


LIVE = sql("SELECT queue, state, count(*), min(ready_at) FROM stepfast_job GROUP BY queue, state")
DEAD = sql("SELECT queue, 'dead', count(*), NULL FROM stepfast_archive WHERE state = 'dead' GROUP BY queue")
USED = sql("""
    SELECT 1 WHERE EXISTS (SELECT 1 FROM stepfast_job WHERE queue = :queue)
                OR EXISTS (SELECT 1 FROM stepfast_archive WHERE queue = :queue)
""")
QUEUES = sql("SELECT id, paused_at, note FROM stepfast_queue")


def has_jobs(tx: Transaction, queue: str) -> bool:
    """Whether any job that we remember was ever put into this queue. Walks the archive if there was none."""
    return tx.first(USED, queue=queue) is not None


def list_queues(tx: Transaction) -> list[QueueReport]:
    """Every queue that has unfinished jobs or dead letters, or was ever paused; by name."""
    counts: dict[tuple[str, str], int] = {}
    oldest: dict[str, int] = {}
    for queue, state, count, ready_at in (*tx.rows(LIVE), *tx.rows(DEAD)):
        counts[queue, state] = int(count)
        if state == "ready":
            oldest[queue] = int(ready_at)
    known = {queue: (paused_at, note) for queue, paused_at, note in tx.rows(QUEUES)}
    instant = now(tx)
    read = reader(QueueReport)
    return [
        read(
            queue,
            *(
                counts.get((queue, state), 0)
                for state in ("scheduled", "ready", "suspect", "leased", "held", "waiting", "dead")
            ),
            max(0.0, (instant - oldest[queue]) / 1e6) if queue in oldest else None,
            *known.get(queue, (None, None)),
        )
        for queue in sorted({queue for queue, _ in counts} | set(known))
    ]
