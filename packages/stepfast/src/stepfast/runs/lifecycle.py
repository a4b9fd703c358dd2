"""What to do about a run, or a partition, that an action does not fit: the sentence that refuses it ends with this."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from stepfast.database.statement import sql
from stepfast.errors import StateError
from stepfast.jobs.enqueue import enqueue
from stepfast.runs import alerts
from stepfast.runs.debts import close_covered_debts, covers, open_debts
from stepfast.runs.feed import Sweep
from stepfast.runs.messages import announce_consolidation
from stepfast.runs.quarantine import refused_rows, sample_refusals
from stepfast.runs.raw_rows import any_pending
from stepfast.runs.run import (
    FIND_ACTIVE_RUN,
    PartitionState,
    RunState,
    already_active,
    end_run,
    enqueue_job,
    find_feed,
    find_run,
    lock_run,
    move_run,
    reserved_job,
    watch_job,
)
from stepfast.runs.sweep import SweepState, is_held, keep_first_state
from stepfast.runs.target import target_column
from stepfast.runs.watermark import advance_watermark
from stepfast.telemetry import happened
from stepfast.telemetry.masking import without_data

if TYPE_CHECKING:
    from stepfast.database.connection import Transaction
    from stepfast.runs.declaration import Declaration
    from stepfast.runs.partition import Partition
    from stepfast.runs.run import Run


# How many rows of a run may be in quarantine before the run is not to be trusted. Pure.
#
# Once a run has read everything, the number of its rows stands; so as soon as more of them are refused than the budget
# allows, nothing that follows can change the verdict.

FEW: Final = 10  # rows that do not stop a small run, as long as they are not most of it


def rows_of(run: Run) -> int:
    """How many rows the budget is a share of. A run may also consolidate what earlier ones left."""
    return max(run.seen + run.rejected, run.applied + run.quarantined)


def overspent(declared: Declaration, rows: int, bad: int) -> str | None:
    """What is wrong if so many of these rows are bad; None: they are within the budget."""
    if bad > _allowed(declared.error_budget, rows):
        return f"{bad:,} of {rows:,} rows are in quarantine, more than the error budget of {declared.error_budget:.1%}"
    if declared.error_limit is not None and bad > declared.error_limit:
        return f"{bad:,} rows are in quarantine, more than the error limit of {declared.error_limit:,}"
    return None


def _allowed(share: float, rows: int) -> float:
    """One bad row of four says little about the other three: it must not hold a small feed for ever."""
    return max(share * rows, min(FEW, rows / 2)) if share else 0


# The beginning of a sweep: who may sweep at all, and what counts as not seen.


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
    keep_first_state(tx, run, _first(tx, declared, run))
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


# The end of a run whose rows are all applied: completed, published in part, swept first, or not to be trusted.
#
# The state, the watermark and the debts that it closes change in one transaction.

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
        close_covered_debts(tx, run)
    if run.at is RunState.SWEEPING:
        declared.feed.published(tx, run.id)
    watermark = advance_watermark(tx, declared, run)
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
        f"{it.rows:,} times {it.code}: {without_data(it.message)[:LONGEST_SAMPLE]}"
        for it in sample_refusals(tx, run)
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


# Rounds of a consolidation: how one is asked for, which jobs it has, and how it ends.


def begin_consolidation(tx: Transaction, declared: Declaration, run: Run) -> None:
    """Ask for the next round. The caller holds the run's row, and has moved it to `applying`."""
    arguments = {"run_id": run.id, "epoch": run.epoch, "round": run.rounds}
    job = reserved_job(declared, run, "consolidate", **arguments)
    watch_job(tx, run, enqueue(tx, job).id)
    announce_consolidation(tx, declared, run, job.id)


def shard_id(run: Run, shard: int) -> str:
    """The job of a shard of the run's current round: whoever watches over the run knows where to look."""
    return f"{run.id}.{run.epoch}.{run.rounds}.{shard}"


def shard_ids(declared: Declaration, run: Run) -> list[str]:
    """The jobs that the current round may have; how many of them have not ended is `run.shards`."""
    return [shard_id(run, number) for number in range(declared.shards)]


def consolidation_gave_up(tx: Transaction, declared: Declaration, run: Run, error: str) -> bool:  # noqa: ARG001
    """A job of the consolidation is dead: so is the run, and somebody is told. The caller holds the run's row."""
    ended = run.at is RunState.APPLYING and end_run(
        tx, run, RunState.FAILED, f"consolidation gave up: {error}"
    )
    if ended:
        alerts.consolidation_failed(tx, run, error)
    return ended


def end_round(tx: Transaction, declared: Declaration, run: Run) -> None:
    """Nothing of the round is left. A statement of its own after the lock: it sees what others have committed."""
    if any_pending(tx, declared.name):
        begin_consolidation(tx, declared, run)
    else:
        finish(tx, declared, run)


# Who ends last decides for the whole run, exactly once.
#
# A partition ends in the commit of its last page. That transaction then takes the run's row: of two partitions that
# end at the same time, the second one sees the first. If none is left open, the run goes on to consolidation, or has
# failed; the arrow is guarded, so that it is taken once.

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


def refuse_active(tx: Transaction, feed: str) -> None:
    """Refuse what cannot be done while a run of the feed is active. The caller holds the feed's row."""
    for run_id, state in tx.rows(FIND_ACTIVE_RUN, feed=feed):
        if is_held(find_run(tx, str(run_id))):
            told = f"feed {feed} has an active run {run_id} ({state})"
            raise StateError(f"{told}: {waits_for_approval(str(run_id))}")
        raise already_active(feed, str(run_id), str(state))


def not_again(it: Partition) -> str:
    told = f"partition-{it.number} ({it.name}) is {it.state}"
    match it.state:
        case PartitionState.DONE_UNVERIFIED:
            return f"{told}: it was read to its end; read it anew with --from-start"
        case PartitionState.SPLIT:
            return f"{told}: its pieces are read instead; retry those that failed"
        case PartitionState.DONE:
            return f"{told}: it was read, and shown to be complete"
        case _:
            return f"{told}: it is being read"


def consolidation_failed(run: Run) -> str:
    return (
        "all its partitions were read, what came after them failed; go on with: "
        f"stepfast runs consolidate {run.id}"
    )


def waits_for_approval(run_id: str) -> str:
    return (
        f'its sweep waits for a person; let the rows go with: stepfast sweeps approve {run_id} --reason "…", '
        f'or keep them with: stepfast sweeps decline {run_id} --reason "…"'
    )


def instead(run: Run) -> str:
    """What to do about a run that an action does not fit."""
    return waits_for_approval(run.id) if is_held(run) else _by_state(run)


def _by_state(run: Run) -> str:
    match run.state:
        case RunState.STALLED:
            return f"nothing has moved it for a while; let it go on with: stepfast runs resume {run.id}"
        case RunState.PLANNING | RunState.FETCHING | RunState.APPLYING | RunState.SWEEPING:
            return f"it goes on by itself; watch it with: stepfast runs watch {run.id}"
        case RunState.CANCELLED:
            return f"let it go on with: stepfast runs resume {run.id}"
        case RunState.FAILED_QUALITY:
            return (
                f"its rows are read, but too many are in quarantine: mend map(), have them tried again with: stepfast "
                f"quarantine replay --feed {run.feed}, then go on with: stepfast runs consolidate {run.id}"
            )
        case RunState.FAILED:
            return f"read again what failed with: stepfast runs retry {run.id}"
        case RunState.PUBLISHED_PARTIAL | RunState.COMPLETED:
            return f"it has ended; begin a new one with: stepfast runs start {run.feed}"
