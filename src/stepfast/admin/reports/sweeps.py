"""Sweeps: who is looked for, who waits for a decision, and how many rows went."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stepfast.clock import moment
from stepfast.database.statement import sql
from stepfast.runs.sweep_state import read_state

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from stepfast.database.connection import Transaction


@dataclass(frozen=True)
class SweepReport:
    """The sweep of one run."""

    run_id: str
    feed: str
    run_state: str
    phase: str  # counting, held, striking, declined, skipped or done
    living: int  # rows that were there when it began
    unseen: int  # of them, those that the run did not see
    going: int  # of them, those that had enough strikes
    struck: int
    gone: int  # rows that this run has marked as gone, and nobody brought back
    started_at: datetime
    note: str | None
    still_there: int  # rows that would have gone, but the source has them


LIST = sql("""
    SELECT id, feed, state, gone, started_at, frontier FROM stepfast_run
     WHERE kind = 'full' AND (:any_feed = 1 OR feed = :feed) AND frontier LIKE '{"type":"sweep"%'
     ORDER BY started_at DESC, id DESC LIMIT :limit
""")


def list_sweeps(tx: Transaction, *, feed: str | None = None, limit: int = 50) -> list[SweepReport]:
    """The latest first."""
    found = tx.rows(LIST, feed=feed, any_feed=int(feed is None), limit=limit)
    return [report for row in found if (report := _report(row)) is not None]


def _report(row: Sequence[Any]) -> SweepReport | None:
    run_id, feed, run_state, gone, started_at, frontier = row
    state = read_state(frontier)
    if state is None:
        return None
    return SweepReport(
        run_id,
        feed,
        run_state,
        state.phase,
        state.living,
        state.unseen,
        state.going,
        state.struck,
        gone,
        moment(started_at),
        state.note,
        state.still_there,
    )
