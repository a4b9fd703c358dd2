"""How full everything is right now: what a scrape of the metrics shows of the database."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from stepfast.admin.reports.queues import DEAD, LIVE
from stepfast.admin.rows import now
from stepfast.database.statement import sql

if TYPE_CHECKING:
    from stepfast.database.connection import Transaction


@dataclass(frozen=True)
class Gauges:
    depth: dict[tuple[str, str], int]  # unfinished jobs by queue and state
    oldest_ready_seconds: dict[str, float]  # by queue
    dead_letters: dict[str, int]  # by queue
    paused: frozenset[str]  # queues
    workers: int  # alive, and heard of within their lease
    outbox: dict[str, int]  # messages that are not sent, by state
    oldest_message_seconds: float | None  # of those that wait


PAUSED = sql("SELECT id FROM stepfast_queue WHERE paused_at IS NOT NULL")
WORKERS = sql("SELECT count(*) FROM stepfast_worker WHERE state = 'alive' AND alive_until >= {now}")
OUTBOX = sql("""
    SELECT state, count(*), min(created_at) FROM stepfast_outbox
     WHERE state IN ('waiting', 'dead') GROUP BY state
""")


def look(tx: Transaction) -> Gauges:
    """Counts every unfinished job: 1,000,000 of them take a second, so ask less often the longer it takes."""
    live = tx.rows(LIVE)
    instant = now(tx)
    outbox = {state: (int(count), int(oldest)) for state, count, oldest in tx.rows(OUTBOX)}
    return Gauges(
        depth={(queue, state): int(count) for queue, state, count, _ in live},
        oldest_ready_seconds={
            queue: max(0.0, (instant - int(ready_at)) / 1e6)
            for queue, state, _, ready_at in live
            if state == "ready"
        },
        dead_letters={queue: int(count) for queue, _, count, _ in tx.rows(DEAD)},
        paused=frozenset(row[0] for row in tx.rows(PAUSED)),
        workers=int(tx.first(WORKERS)),
        outbox={state: outbox.get(state, (0, 0))[0] for state in ("waiting", "dead")},
        oldest_message_seconds=max(0.0, (instant - outbox["waiting"][1]) / 1e6)
        if "waiting" in outbox
        else None,
    )
