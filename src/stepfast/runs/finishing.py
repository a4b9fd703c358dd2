"""The end of a run whose rows are all applied: completed, published in part, swept first, or not to be trusted.

The state, the watermark and the debts that it closes change in one transaction.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from stepfast.database.statement import sql
from stepfast.errors import StateError
from stepfast.runs import alerts
from stepfast.runs.budget import overspent, rows_of
from stepfast.runs.debts import close_covered
from stepfast.runs.quarantine import refused_rows, samples
from stepfast.runs.run import end_run, find_run, move_run
from stepfast.runs.states import RunState
from stepfast.runs.sweep_start import applies, begin_sweep
from stepfast.runs.watermark import advance
from stepfast.telemetry import happened
from stepfast.telemetry.masking import without_data

if TYPE_CHECKING:
    from stepfast.database.connection import Transaction
    from stepfast.runs.declaration import Declaration
    from stepfast.runs.run import Run

LONGEST_SAMPLE: Final = 300

APPLIED = sql("UPDATE stepfast_run SET applied_at = {now} WHERE id = :id AND ended_at IS NULL")
COMPLETED = sql("""
    UPDATE stepfast_run SET completed_at = ended_at, watermark_after = :watermark
     WHERE id = :id AND state = 'completed' AND completed_at IS NULL
""")


def finish(tx: Transaction, declared: Declaration, run: Run) -> None:
    """No row of the feed waits. The caller holds the run's row."""
    if stop_if_overspent(tx, declared, run):
        return
    tx.run(APPLIED, id=run.id)
    declared.feed.published(tx, run.id)
    if run.forced:
        end_run(
            tx, run, RunState.PUBLISHED_PARTIAL, "forced: what was read is published, the watermark stays"
        )
    elif applies(declared, run):
        run = _awake(tx, run)
        if move_run(tx, run, RunState.SWEEPING):
            begin_sweep(tx, declared, find_run(tx, run.id))
    else:
        complete(tx, declared, run)


def complete(tx: Transaction, declared: Declaration, run: Run) -> None:
    """Everything of the run's window is in the target. The caller holds the run's row."""
    if not end_run(tx, run, RunState.COMPLETED):
        raise StateError(f"run {run.id} is no longer {run.state}; nothing was completed")
    if run.scope == "complete" and not run.unverified and not run.failed:
        close_covered(tx, run)
    if run.at is RunState.SWEEPING:
        declared.feed.published(tx, run.id)
    watermark = advance(tx, declared, run)
    tx.run(COMPLETED, id=run.id, watermark=watermark)
    happened("run.completed", feed=run.feed, run_id=run.id)


def stop_if_overspent(tx: Transaction, declared: Declaration, run: Run) -> bool:
    """End a run with too many bad rows; the watermark stays. Forcing it publishes the others."""
    if run.forced or overspent(declared, rows_of(run), run.rejected + run.quarantined) is None:
        return False
    # The counters also know rows that were replayed, discarded or replaced since.
    verdict = overspent(declared, rows_of(run), refused_rows(tx, run))
    if verdict is None:
        return False
    found = [
        f"{it.rows:,} times {it.code}: {without_data(it.message)[:LONGEST_SAMPLE]}" for it in samples(tx, run)
    ]
    if end_run(tx, run, RunState.FAILED_QUALITY, verdict):
        alerts.consolidation_failed(tx, run, "\n".join([verdict, *found]))
    return True


def _awake(tx: Transaction, run: Run) -> Run:
    """A stalled run that has come so far is not stalled any more."""
    if run.state is not RunState.STALLED:
        return run
    move_run(tx, run, run.at)
    return find_run(tx, run.id)
