"""Who ends last decides for the whole run, exactly once.

A partition ends in the commit of its last page. That transaction then takes the run's row: of two partitions that
end at the same time, the second one sees the first. If none is left open, the run goes on to consolidation, or has
failed; the arrow is guarded, so that it is taken once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepfast.database.statement import sql
from stepfast.runs import alerts
from stepfast.runs.rounds import begin_consolidation
from stepfast.runs.run import end_run, find_run, lock_run, move_run
from stepfast.runs.states import PartitionState, RunState

if TYPE_CHECKING:
    from stepfast.database.connection import Transaction
    from stepfast.runs.declaration import Declaration

COUNT_END = sql("""
    UPDATE stepfast_run
       SET completed = completed + :completed, failed = failed + :failed, unverified = unverified + :unverified,
           seen = seen + :seen, rejected = rejected + :rejected, updated_at = {now}
     WHERE id = :id AND ended_at IS NULL
""")
FETCHED = sql("UPDATE stepfast_run SET fetched_at = {now} WHERE id = :id AND fetched_at IS NULL")
# After the run's row is locked, and as a statement of its own: it must see what others committed before us.
OPEN = sql("SELECT count(*) FROM stepfast_partition WHERE run_id = :id AND state IN ('ready', 'running')")


def partition_ended(
    tx: Transaction,
    declared: Declaration,
    run_id: str,
    how: PartitionState,
    *,
    seen: int = 0,
    rejected: int = 0,
) -> None:
    """Count the end of a partition, and decide about the run if it was the last. Its row has been moved already."""
    tx.run(
        COUNT_END,
        id=run_id,
        completed=int(how in (PartitionState.DONE, PartitionState.DONE_UNVERIFIED)),
        failed=int(how is PartitionState.FAILED),
        unverified=int(how is PartitionState.DONE_UNVERIFIED),
        seen=seen,
        rejected=rejected,
    )
    evaluate(tx, declared, run_id)


def evaluate(tx: Transaction, declared: Declaration, run_id: str) -> None:
    """Go on if nothing is left to fetch. Safe to ask at any time, by anyone."""
    run = lock_run(tx, run_id)
    if run.at is not RunState.FETCHING or tx.first(OPEN, id=run_id):
        return
    if run.state is RunState.STALLED:
        move_run(tx, run, RunState.FETCHING)
        run = find_run(tx, run_id)
    tx.run(FETCHED, id=run_id)
    if run.failed:
        if end_run(tx, run, RunState.FAILED, f"{run.failed} of {run.partitions} partitions failed"):
            alerts.consolidation_skipped(tx, run)
    elif move_run(tx, run, RunState.APPLYING):
        begin_consolidation(tx, declared, find_run(tx, run_id))
