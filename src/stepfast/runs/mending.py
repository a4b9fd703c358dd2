"""Where a job that should move a run is gone: fail what it was to do, or ask for another one where it stopped.

A job may die, be cancelled, or vanish with a restored backup. Each act is a transaction of its own, which looks again
under the locks in their order (jobs, partitions, run, feed) and does nothing if it is no longer needed.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple, assert_never

from stepfast.database.statement import sql
from stepfast.runs import alerts
from stepfast.runs.announcing import announce_end
from stepfast.runs.completion import evaluate, partition_ended
from stepfast.runs.debts import tried
from stepfast.runs.partition import Partition, end_partition, find_partition, lock_partition
from stepfast.runs.restarting import ask_for, renew_jobs
from stepfast.runs.rounds import begin_consolidation, consolidation_gave_up, shard_id
from stepfast.runs.run import Run, end_run, find_run, lock_run
from stepfast.runs.states import PartitionState, RunState

if TYPE_CHECKING:
    from stepfast.database.connection import Transaction
    from stepfast.runs.declaration import Declaration

MOST_SHARDS: Final = 100  # that a feed may ever have had

LIVE = sql("SELECT id FROM stepfast_job WHERE id {any_of:ids} ORDER BY id {for_update}")
ENDED = sql("""
    SELECT state, last_error, id FROM stepfast_archive WHERE id {any_of:ids} AND state IN ('dead', 'cancelled', 'done')
     ORDER BY id {for_update}
""")
FORGET_SHARDS = sql("""
    UPDATE stepfast_run SET shards = 0, updated_at = {now}
     WHERE id = :id AND epoch = :epoch AND rounds = :round AND shards > 0
""")


class Fate(StrEnum):
    """What became of a job, or of the worst of several."""

    LIVE = "live"
    LOST = "lost"  # it is over or gone, and yet somebody waits for it
    DEAD = "dead"  # it gave up, or somebody cancelled it


class Ended(NamedTuple):
    fate: Fate
    error: str = ""


class Act(StrEnum):
    """What was done about a run."""

    FAILED = "failed"  # a partition or the run itself, because its job gave up
    RESUMED = "resumed"  # another job was asked for
    EVALUATED = "evaluated"  # nothing was left to read, and nobody had noticed
    STALLED = "stalled"
    MOVED = "moved"  # it had stalled, and moves again


def mend_partition(tx: Transaction, declared: Declaration, partition_id: str) -> Act | None:
    """Fail an open partition whose job gave up, or give it another job at its cursor."""
    seen = find_partition(tx, partition_id)
    if seen is None or not seen.is_open:
        return None
    job = fate_of(tx, [seen.job_id] if seen.job_id else [])
    now = lock_partition(tx, partition_id)
    if now is None or not now.is_open or (now.job_id, now.epoch) != (seen.job_id, seen.epoch):
        return None
    match job.fate:
        case Fate.LIVE:
            return None
        case Fate.DEAD:
            return _fail(tx, declared, now, job.error)
        case Fate.LOST:
            run = find_run(tx, now.run_id)
            if run.at is not RunState.FETCHING:
                return None
            renew_jobs(tx, declared, run, [now])
            return Act.RESUMED
        case _:
            assert_never(job.fate)


def mend_run(tx: Transaction, declared: Declaration, run_id: str) -> Act | None:
    """The same for a run that is planned, consolidated or swept."""
    seen = find_run(tx, run_id)
    job = fate_of(tx, movers(seen))
    run = lock_run(tx, run_id)
    if _place(run) != _place(seen) or run.ended_at is not None or job.fate is Fate.LIVE:
        return None
    if job.fate is Fate.DEAD:
        return Act.FAILED if _give_up(tx, declared, run, job.error) else None
    match run.at:
        case RunState.PLANNING:
            ask_for(tx, declared, run, "plan")
        case RunState.APPLYING:
            tx.run(FORGET_SHARDS, id=run.id, epoch=run.epoch, round=run.rounds)
            begin_consolidation(tx, declared, run)
        case RunState.SWEEPING:
            ask_for(tx, declared, run, "sweep")
        case _:
            return None
    return Act.RESUMED


def mend_completion(tx: Transaction, declared: Declaration, run_id: str) -> Act | None:
    """A run whose last partition ended, and nobody went on from there."""
    evaluate(tx, declared, run_id)
    return None if find_run(tx, run_id).at is RunState.FETCHING else Act.EVALUATED


def movers(run: Run) -> list[str]:
    """The jobs that move the whole run on: one, or the shards of a round of consolidation."""
    if run.at is RunState.APPLYING and run.shards:
        return [shard_id(run, number) for number in range(max(run.shards, MOST_SHARDS))]
    return [run.job_id] if run.job_id else []


def fate_of(tx: Transaction, ids: list[str]) -> Ended:
    """What became of these jobs. Their rows are ours, so that nobody revives or ends one meanwhile."""
    live = tx.rows(LIVE, ids=ids) if ids else []
    ended = tx.rows(ENDED, ids=ids) if ids else []
    for state, error, job_id in ended:
        if state == "dead":
            return Ended(Fate.DEAD, str(error or "unknown"))
        if state == "cancelled":
            return Ended(Fate.DEAD, f"job {job_id} was cancelled: {error or 'nobody said why'}")
    return Ended(Fate.LIVE if live else Fate.LOST)


def _fail(tx: Transaction, declared: Declaration, partition: Partition, error: str) -> Act | None:
    if not end_partition(tx, partition, PartitionState.FAILED, error):
        return None
    if partition.debt_id is not None:
        tried(tx, declared.name, partition.debt_id)
    partition_ended(
        tx,
        declared,
        partition.run_id,
        PartitionState.FAILED,
        seen=partition.seen,
        rejected=partition.rejected,
    )
    if declared.broker is not None:
        run = find_run(tx, partition.run_id)
        announce_end(tx, declared, run, partition.moved(state=PartitionState.FAILED), error)
    return Act.FAILED


def _give_up(tx: Transaction, declared: Declaration, run: Run, error: str) -> bool:
    if run.at is RunState.APPLYING:
        return consolidation_gave_up(tx, declared, run, error)
    part = "planning" if run.at is RunState.PLANNING else "the sweep"
    if not end_run(tx, run, RunState.FAILED, f"{part} gave up: {error}"):
        return False
    tell = alerts.planning_failed if run.at is RunState.PLANNING else alerts.sweep_failed
    tell(tx, run, error)
    return True


def _place(run: Run) -> tuple[object, ...]:
    return run.at, run.epoch, run.rounds, run.shards, run.job_id
