"""The life of a run: what ends each of its states, and what begins the next. The functions stand in this order.

    planning ── plan.FanOut ──► fetching        every partition has a job of its own, which reads its pages
                                   │            partition_ended: in the commit of its last page (page.py), or by the watchdog if its job gave up
                                   │            end_fetching: by the partition that ends last; failed, if one failed
                                   ▼
                                applying        begin_consolidation: one round, divided into shards (consolidation.py)
                                   │            round_ended: by the last shard; another round while raw rows wait
                                   │            finish: failed_quality, published_partial (forced), or goes on
                                   ▼
                                sweeping        begin_sweep: only if the run shows which rows are gone (sweep.py)
                                   │            sweep.EndSweep: by its last step
                                   ▼
                                completed       complete: state, watermark and debts change in one transaction

A run whose planning, consolidation or sweep has lost its job for good is failed by `job_died`; `advice` is what an
operator may do about a run in each state. All functions write in the caller's transaction, and every arrow is guarded
by the state that it leaves (`move_run` and `end_run` in `run.py`): of two processes that decide about a run, one does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from stepfast.database.statement import sql
from stepfast.errors import StateError
from stepfast.jobs.enqueue import enqueue
from stepfast.runs import alerts
from stepfast.runs.debts import close_covered_debts, covers, open_debts
from stepfast.runs.feed import Sweep
from stepfast.runs.messages import announce_consolidation
from stepfast.runs.partition import PartitionState
from stepfast.runs.quarantine import refused_rows, sample_refusals
from stepfast.runs.raw_rows import any_pending
from stepfast.runs.run import (
    FIND_ACTIVE_RUN,
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
from stepfast.runs.sweep_rows import SweepState, is_held, keep_first_state
from stepfast.runs.target import target_column
from stepfast.runs.watermark import advance_watermark
from stepfast.telemetry import when_committed
from stepfast.telemetry.masking import without_data

if TYPE_CHECKING:
    from stepfast.database.connection import Transaction
    from stepfast.runs.declaration import Declaration
    from stepfast.runs.partition import Partition
    from stepfast.runs.run import Run


# Fetching ends with the last partition.

COUNT_ENDED_PARTITION = sql("""
    UPDATE stepfast_run
       SET completed = completed + :completed, failed = failed + :failed, unverified = unverified + :unverified,
           seen = seen + :seen, rejected = rejected + :rejected, updated_at = {now}
     WHERE id = :id AND ended_at IS NULL
""")
END_FETCHING = sql("UPDATE stepfast_run SET fetched_at = {now} WHERE id = :id AND fetched_at IS NULL")
# After the run's row is locked, and as a statement of its own: it must see what others committed before us.
COUNT_OPEN_PARTITIONS = sql(
    "SELECT count(*) FROM stepfast_partition WHERE run_id = :id AND state IN ('ready', 'running')"
)


# Partitions of a run of which each end is logged; of a larger run one line stands for a fiftieth of its partitions.
MOST_LOGGED: Final = 50


def partition_ended(tx: Transaction, declared: Declaration, partition: Partition, error: str | None) -> None:
    """Count the end of a partition, and end the fetching if it was the last.

    The caller has moved the partition's row; `partition` is as it is now.
    """
    how = partition.state
    tx.run(
        COUNT_ENDED_PARTITION,
        id=partition.run_id,
        completed=int(how in (PartitionState.DONE, PartitionState.DONE_UNVERIFIED)),
        failed=int(how is PartitionState.FAILED),
        unverified=int(how is PartitionState.DONE_UNVERIFIED),
        seen=partition.seen,
        rejected=partition.rejected,
    )
    run = lock_run(tx, partition.run_id)
    _report_partition(tx, run, partition, error)
    _end_fetching(tx, declared, run)


def _report_partition(tx: Transaction, run: Run, partition: Partition, error: str | None) -> None:
    ended = run.completed + run.failed
    if partition.state is PartitionState.FAILED:
        when_committed(
            tx,
            "partition.failed",
            run,
            partition_id=partition.public_id,
            range=partition.name,
            error=error,
            rows=partition.seen,
            requests=partition.requests,
            ended=ended,
            partitions=run.partitions,
        )
    elif run.partitions <= MOST_LOGGED:
        when_committed(
            tx,
            "partition.ended",
            run,
            partition_id=partition.public_id,
            range=partition.name,
            state=partition.state.value,
            rows=partition.seen,
            requests=partition.requests,
            ended=ended,
            partitions=run.partitions,
        )
    if run.partitions > MOST_LOGGED and is_another_share(ended, run.partitions):
        when_committed(
            tx,
            "partitions.ended",
            run,
            ended=ended,
            failed=run.failed,
            partitions=run.partitions,
            rows=run.seen,
        )


def is_another_share(ended: int, partitions: int) -> bool:
    """Whether the end of one more partition completes another fiftieth of all. Pure."""
    return ended * MOST_LOGGED // partitions > (ended - 1) * MOST_LOGGED // partitions


def end_fetching(tx: Transaction, declared: Declaration, run_id: str) -> None:
    """Begin the consolidation, or fail the run, if none of its partitions is open. Any process may try this at any time.

    The run's row is locked first: of two partitions that end at the same time, the second one sees the first.
    """
    _end_fetching(tx, declared, lock_run(tx, run_id))


def _end_fetching(tx: Transaction, declared: Declaration, run: Run) -> None:
    if run.phase is not RunState.FETCHING or tx.first(COUNT_OPEN_PARTITIONS, id=run.id):
        return
    if run.state is RunState.STALLED:
        move_run(tx, run, RunState.FETCHING)
        run = find_run(tx, run.id)
    tx.run(END_FETCHING, id=run.id)
    if run.failed:
        if end_run(tx, run, RunState.FAILED, f"{run.failed} of {run.partitions} partitions failed"):
            alerts.consolidation_skipped(tx, run)
    elif move_run(tx, run, RunState.APPLYING):
        begin_consolidation(tx, declared, find_run(tx, run.id))


# A consolidation is made of rounds.


def begin_consolidation(tx: Transaction, declared: Declaration, run: Run) -> None:
    """Enqueue the job of the next round. The caller holds the run's row, and has moved it to `applying`."""
    arguments = {"run_id": run.id, "epoch": run.epoch, "round": run.rounds}
    job = reserved_job(declared, run, "consolidate", **arguments)
    watch_job(tx, run, enqueue(tx, job).id)
    announce_consolidation(tx, declared, run, job.id)


def shard_id(run: Run, shard: int) -> str:
    """The id of a shard's job in the run's current round: the watchdog finds the jobs of a round by it."""
    return f"{run.id}.{run.epoch}.{run.rounds}.{shard}"


def round_ended(tx: Transaction, declared: Declaration, run: Run) -> None:
    """The last shard has ended: begin another round if raw rows wait again, else finish. The caller holds the run's row.

    Whether rows wait is asked by a statement of its own after the lock: it sees what others have committed.
    """
    if any_pending(tx, declared.name):
        begin_consolidation(tx, declared, run)
    else:
        finish(tx, declared, run)


# The error budget: how many rows of a run may be in quarantine before the run is not to be trusted.

FEW_ROWS: Final = 10  # bad rows that do not stop a small run, as long as they are not most of it
LONGEST_SAMPLE: Final = 300


def stop_if_overspent(tx: Transaction, declared: Declaration, run: Run) -> bool:
    """End a run with too many bad rows; its watermark stays. A forced run publishes the good ones all the same.

    Once a run has read everything, the number of its rows stands: as soon as more of them are refused than the budget
    allows, nothing that follows can change the verdict.
    """
    if run.forced or overspent(declared, budgeted_rows(run), run.rejected + run.quarantined) is None:
        return False
    # The counters also include rows that were replayed, discarded or replaced since.
    verdict = overspent(declared, budgeted_rows(run), refused_rows(tx, run))
    if verdict is None:
        return False
    examples = [
        f"{sample.rows:,} times {sample.code}: {without_data(sample.message)[:LONGEST_SAMPLE]}"
        for sample in sample_refusals(tx, run)
    ]
    if end_run(tx, run, RunState.FAILED_QUALITY, verdict):
        alerts.consolidation_failed(tx, run, "\n".join([verdict, *examples]))
    return True


def overspent(declared: Declaration, rows: int, bad: int) -> str | None:
    """What is wrong if so many of these rows are bad; None: they are within the budget. Pure."""
    if bad > _allowed(declared.error_budget, rows):
        return f"{bad:,} of {rows:,} rows are in quarantine, more than the error budget of {declared.error_budget:.1%}"
    if declared.error_limit is not None and bad > declared.error_limit:
        return f"{bad:,} rows are in quarantine, more than the error limit of {declared.error_limit:,}"
    return None


def _allowed(share: float, rows: int) -> float:
    """One bad row of four says little about the other three: it must not hold a small feed for ever."""
    return max(share * rows, min(FEW_ROWS, rows / 2)) if share else 0


def budgeted_rows(run: Run) -> int:
    """How many rows the budget is a share of. A run may also consolidate rows that earlier runs left."""
    return max(run.seen + run.rejected, run.applied + run.quarantined)


# All rows are applied.

END_APPLYING = sql("UPDATE stepfast_run SET applied_at = {now} WHERE id = :id AND ended_at IS NULL")


def finish(tx: Transaction, declared: Declaration, run: Run) -> None:
    """No raw row of the feed waits: publish the run, and sweep or complete it. The caller holds the run's row."""
    if stop_if_overspent(tx, declared, run):
        return
    tx.run(END_APPLYING, id=run.id)
    when_committed(
        tx, "consolidation.ended", run, rounds=run.rounds, applied=run.applied, quarantined=run.quarantined
    )
    declared.feed.published(tx, run.id)
    if run.forced:
        _publish_in_part(tx, run)
    elif may_sweep(declared, run):
        run = _unstalled(tx, run)
        if move_run(tx, run, RunState.SWEEPING):
            begin_sweep(tx, declared, find_run(tx, run.id))
    else:
        complete(tx, declared, run)


def _publish_in_part(tx: Transaction, run: Run) -> None:
    note = "forced: what was read is published, the watermark stays"
    if end_run(tx, run, RunState.PUBLISHED_PARTIAL, note):
        when_committed(
            tx,
            "run.published",
            run,
            partitions=run.partitions,
            completed=run.completed,
            failed=run.failed,
            rows=run.seen,
            applied=run.applied,
            quarantined=run.quarantined,
        )


def _unstalled(tx: Transaction, run: Run) -> Run:
    """A stalled run that has come so far is not stalled any more."""
    if run.state is not RunState.STALLED:
        return run
    move_run(tx, run, run.phase)
    return find_run(tx, run.id)


# Sweeping: rows that are gone at the source are marked.


def may_sweep(declared: Declaration, run: Run) -> bool:
    """Whether the run shows which rows are gone: it read everything there is, all of it verified."""
    return (
        declared.sweep is not None
        and run.kind == "full"
        and run.scope == "complete"
        and run.window_from is None
        and not (run.forced or run.failed or run.unverified)
    )


def begin_sweep(tx: Transaction, declared: Declaration, run: Run) -> None:
    """Enqueue the job that looks for rows that are gone. The run is in state `sweeping`; the caller holds its row."""
    keep_first_state(tx, run, _first_sweep_state(tx, declared, run))
    watch_job(tx, run, enqueue_job(tx, declared, run, "sweep", run_id=run.id, epoch=run.epoch))


def _first_sweep_state(tx: Transaction, declared: Declaration, run: Run) -> SweepState:
    sweep = declared.sweep or Sweep()
    # The run's first request began after both: what is older was not observed by this run.
    before = min(run.window_to, run.started_at + find_feed(tx, run.feed).skew)
    state = SweepState(
        phase="counting",
        target=target_column(declared, sweep.column),
        strikes=sweep.strikes,
        before=before,
    )
    if not may_sweep(declared, run):
        return state.then(phase="skipped", note="the run does not show which rows are gone")
    beyond = [debt for debt in open_debts(tx, run.feed) if not covers(run.window, debt.window)]
    if beyond:
        return state.then(phase="skipped", note=f"{len(beyond)} debts are open that the run does not cover")
    return state


# The end.

COMPLETE_RUN = sql("""
    UPDATE stepfast_run SET completed_at = ended_at, watermark_after = :watermark
     WHERE id = :id AND state = 'completed' AND completed_at IS NULL
""")


def complete(tx: Transaction, declared: Declaration, run: Run) -> None:
    """Everything of the run's window is in the target: move the watermark, close debts. The caller holds the run's row."""
    if not end_run(tx, run, RunState.COMPLETED):
        raise StateError(f"run {run.id} is no longer {run.state}; nothing was completed")
    if run.scope == "complete" and not run.unverified and not run.failed:
        close_covered_debts(tx, run)
    if run.phase is RunState.SWEEPING:
        declared.feed.published(tx, run.id)
    watermark = advance_watermark(tx, declared, run)
    tx.run(COMPLETE_RUN, id=run.id, watermark=watermark)
    ended = find_run(tx, run.id)
    when_committed(
        tx,
        "run.completed",
        ended,
        run_kind=ended.kind,
        partitions=ended.partitions,
        completed=ended.completed,
        unverified=ended.unverified,
        rows=ended.seen,
        applied=ended.applied,
        quarantined=ended.quarantined,
        gone=ended.gone,
        took_s=((ended.ended_at or ended.updated_at) - ended.started_at) / 1e6,
    )


def job_died(tx: Transaction, run: Run, error: str) -> bool:
    """Fail a run whose planning, consolidation or sweep gave up, and raise an alert. The caller holds the run's row."""
    if run.ended_at is not None:
        return False
    match run.phase:
        case RunState.PLANNING:
            what, raise_alert = "planning", alerts.planning_failed
        case RunState.APPLYING:
            what, raise_alert = "consolidation", alerts.consolidation_failed
        case _:
            what, raise_alert = "the sweep", alerts.sweep_failed
    ended = end_run(tx, run, RunState.FAILED, f"{what} gave up: {error}")
    if ended:
        raise_alert(tx, run, error)
    return ended


# What an operator may do about a run: a sentence that refuses an action ends with this.


def advice(run: Run) -> str:  # noqa: PLR0911 - one sentence for each state
    """What to do about a run that an action does not fit, with the command that helps."""
    if is_held(run):
        return advice_for_held_sweep(run.id)
    match run.state:
        case RunState.STALLED:
            return f"nothing has moved it for a while; let it go on with: stepfast runs resume {run.id}"
        case RunState.PLANNING | RunState.FETCHING | RunState.APPLYING | RunState.SWEEPING:
            return f"workers move it on; see what it waits for with: stepfast runs show {run.id}"
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


def advice_for_held_sweep(run_id: str) -> str:
    return (
        f'its sweep waits for a person; let the rows go with: stepfast sweeps approve {run_id} --reason "…", '
        f'or keep them with: stepfast sweeps decline {run_id} --reason "…"'
    )


def advice_for_failed_consolidation(run: Run) -> str:
    return (
        "all its partitions were read, what came after them failed; go on with: "
        f"stepfast runs consolidate {run.id}"
    )


def why_not_retried(partition: Partition, reader: str | None) -> str:
    """Why a partition is not read again, and what to do instead; `reader`: what the job of an open one does."""
    where = f"{partition.description} is {partition.state}"
    match partition.state:
        case PartitionState.DONE_UNVERIFIED:
            return f"{where}: it was read to its end; read it anew with --from-start"
        case PartitionState.SPLIT:
            return f"{where}: its pieces are read instead; retry those that failed"
        case PartitionState.DONE:
            return f"{where}: it was read, and shown to be complete"
        case _:
            return f"{where}: {reader or 'a job reads it'}; cancel this job and begin the partition anew with --from-start"


def refuse_active_run(tx: Transaction, feed: str) -> None:
    """Refuse what cannot be done while a run of the feed is active. The caller holds the feed's row."""
    for run_id, state in tx.rows(FIND_ACTIVE_RUN, feed=feed):
        if is_held(find_run(tx, str(run_id))):
            raise StateError(
                f"feed {feed} has an active run {run_id} ({state}): {advice_for_held_sweep(str(run_id))}"
            )
        raise already_active(feed, str(run_id), str(state))
