"""Sweeps of runs: list them, approve or decline one that a fuse holds, or bring back the rows that one has marked."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from stepfast.admin.audit import Actor, Command, Progress, record, require_reason
from stepfast.admin.jobs import HASTEN_JOB
from stepfast.admin.run_reports import resolve
from stepfast.clock import moment
from stepfast.database.statement import sql
from stepfast.errors import StateError
from stepfast.runs.run import Run, find_run, lock_run
from stepfast.runs.sweep_rows import (
    BATCH,
    SweepState,
    bring_back,
    end_of_stretch,
    gone_rows,
    keep_sweep,
    read_sweep_state,
    sweep_state,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from stepfast.database.connection import Transaction
    from stepfast.database.database import Database
    from stepfast.runs.sweep_rows import SweepPhase


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
    gone: int  # rows that this run has marked as gone, without those that came back
    started_at: datetime
    note: str | None
    still_there: int  # rows that would have gone, but the source has them


LIST_SWEEPS = sql("""
    SELECT id, feed, state, gone, started_at, frontier FROM stepfast_run
     WHERE kind = 'full' AND (:any_feed = 1 OR feed = :feed) AND frontier LIKE '{"type":"sweep"%'
     ORDER BY started_at DESC, id DESC LIMIT :limit
""")


def list_sweeps(tx: Transaction, *, feed: str | None = None, limit: int = 50) -> list[SweepReport]:
    """Sweeps, the latest first."""
    found = tx.rows(LIST_SWEEPS, feed=feed, any_feed=int(feed is None), limit=limit)
    return [report for row in found if (report := _report(row)) is not None]


def _report(row: Sequence[Any]) -> SweepReport | None:
    run_id, feed, run_state, gone, started_at, frontier = row
    state = read_sweep_state(frontier)
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


# Act

QUEUE_OF_JOB = sql("SELECT queue FROM stepfast_job WHERE id = :id")
COUNT_BACK = sql("UPDATE stepfast_run SET gone = gone - :back WHERE id = :id AND gone >= :back")


def approve_sweep(tx: Transaction, run: str, *, by: Actor | None = None) -> SweepState:
    """Mark the rows as gone that a fuse holds; returns the sweep as it was held."""
    return _decide(tx, run, "striking", "sweep.approve", by)


def decline_sweep(tx: Transaction, run: str, *, by: Actor | None = None) -> SweepState:
    """Complete the run without marking any row as gone; no row is struck either."""
    return _decide(tx, run, "declined", "sweep.decline", by)


def undo_sweep(
    database: Database, run: str, progress: Progress | None = None, *, by: Actor | None = None
) -> int:
    """Bring back all rows that a run has marked as gone, in batches; returns how many."""
    by = _with_reason(by, "undone")
    with database.reading() as tx:
        found, state = _swept(tx, resolve(tx, run))
    if found.ended_at is None:
        raise StateError(
            f"run {found.id} is {found.state}; wait for its end, or stop it with: stepfast runs cancel {found.id}"
        )
    command = Command(database, by, "sweep.undo", found.id, {"feed": found.feed})
    done, after = 0, ""
    while True:
        with database.reading() as tx:
            ids, until = _next(tx, found, after)
        if until is None:
            command.end()
            return done
        if ids:
            done += command.run(partial(_bring_back, run=found, state=state, ids=ids))
            if progress is not None:
                progress(done)
        after = until


def _decide(tx: Transaction, name: str, phase: SweepPhase, what: str, by: Actor | None) -> SweepState:
    by = _with_reason(by, "approved" if phase == "striking" else "declined")
    seen, _ = _swept(tx, resolve(tx, name))
    if seen.job_id is not None:  # before the run's row in the order of locks
        tx.run(HASTEN_JOB, id=seen.job_id)
        tx.wakes.update(str(row[0]) for row in tx.rows(QUEUE_OF_JOB, id=seen.job_id))
    run = lock_run(tx, seen.id)
    was = sweep_state(run)
    if was is None or was.phase != "held" or run.ended_at is not None:
        now = run.state if was is None or run.ended_at is not None else f"{run.state} ({was.phase})"
        raise StateError(
            f"the sweep of run {run.id} is not held, the run is {now}; there is nothing to decide"
        )
    keep_sweep(tx, run, was, was.then(phase=phase, after="", note=None))
    record(tx, by, what, run.id, detail={"feed": run.feed, "going": was.going, "living": was.living})
    return was


def _next(tx: Transaction, run: Run, after: str) -> tuple[list[str], str | None]:
    """The next rows to bring back, and where the walk goes on; None: it is over."""
    until, _ = end_of_stretch(tx, run.feed, after)
    if until is None:
        return [], None
    ids = gone_rows(tx, run.feed, run.id, after, until)
    return ids, ids[-1] if len(ids) == BATCH else until


def _bring_back(tx: Transaction, *, run: Run, state: SweepState, ids: list[str]) -> tuple[int, int | None]:
    back = bring_back(tx, run.feed, run.id, ids, state.target)
    if back:
        tx.run(COUNT_BACK, id=run.id, back=back)
    return back, back or None


def _swept(tx: Transaction, run_id: str) -> tuple[Run, SweepState]:
    run = find_run(tx, run_id)
    state = sweep_state(run)
    if state is None:
        raise StateError(f"run {run_id} has not swept; see: stepfast sweeps list")
    return run, state


def _with_reason(by: Actor | None, done: str) -> Actor:
    return require_reason(by, f"say why the sweep is {done}; the reason is kept with it")
