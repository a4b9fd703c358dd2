"""The beginning of a sweep: who may sweep at all, and what counts as not seen."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepfast.runs.debts import covers, open_debts
from stepfast.runs.feed_row import find_feed
from stepfast.runs.jobs import enqueue_job
from stepfast.runs.run import watch_job
from stepfast.runs.sweep import Sweep
from stepfast.runs.sweep_state import SweepState, begin
from stepfast.runs.target import target_column

if TYPE_CHECKING:
    from stepfast.database.connection import Transaction
    from stepfast.runs.declaration import Declaration
    from stepfast.runs.run import Run


def applies(declared: Declaration, run: Run) -> bool:
    """Whether a run may sweep: it read everything there is, all of it verified."""
    return (
        declared.sweep is not None
        and run.kind == "full"
        and run.scope == "complete"
        and run.window_from is None
        and not (run.forced or run.failed or run.unverified)
    )


def begin_sweep(tx: Transaction, declared: Declaration, run: Run) -> None:
    """Ask for the job that looks for what is gone. The run is in state `sweeping`, and the caller holds its row."""
    begin(tx, run, _first(tx, declared, run))
    watch_job(tx, run, enqueue_job(tx, declared, run, "sweep", run_id=run.id, epoch=run.epoch))


def _first(tx: Transaction, declared: Declaration, run: Run) -> SweepState:
    sweep = declared.sweep or Sweep()
    # Its first request began after both: what is older was not observed by this run.
    before = min(run.window_to, run.started_at + find_feed(tx, run.feed).skew)
    state = SweepState(
        phase="counting",
        target=target_column(declared, sweep.column),
        strikes=sweep.strikes,
        before=before,
    )
    if not applies(declared, run):
        return state.then(phase="skipped", note="the run does not show who is gone")
    beyond = [it for it in open_debts(tx, run.feed) if not covers(run.window, it.window)]
    if beyond:
        return state.then(phase="skipped", note=f"{len(beyond)} debts are open that the run does not cover")
    return state
