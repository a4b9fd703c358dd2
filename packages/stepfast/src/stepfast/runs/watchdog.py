"""The watchdog of runs: whatever a run waits for and will not come is noticed, and repaired.

    look: active runs, orphaned partitions, missing jobs, runs that stand still
    act: fail what gave up, enqueue a job again where one was lost, mark a run as stalled or moving
    alerts: an old watermark, many dead jobs
    pruning: the seen rows of ended partitions, and old runs

Every worker looks (see worker/run_watchdog.py), without locks and by index. What it finds is repaired by an act: a
transaction of its own, which looks again under the locks in their order (jobs, partitions, run, feed) and does nothing
if it is no longer needed.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from stepfast.clock import micros
from stepfast.database.statement import sql
from stepfast.database.stored import stored_state
from stepfast.runs import alerts
from stepfast.runs.breaker import LONGEST_PAUSE
from stepfast.runs.debts import count_try
from stepfast.runs.lifecycle import (
    begin_consolidation,
    end_fetching,
    job_died,
    partition_ended,
    shard_id,
)
from stepfast.runs.messages import announce_end
from stepfast.runs.partition import Partition, PartitionState, end_partition, find_partition, lock_partition
from stepfast.runs.repair import enqueue_run_job, renew_jobs
from stepfast.runs.run import FEED_JOBS, Run, RunState, find_feed, find_run, kind_of, lock_run, move_run
from stepfast.telemetry import when_committed

if TYPE_CHECKING:
    from stepfast.database.connection import Transaction
    from stepfast.runs.declaration import Declaration


class WatchdogAct(StrEnum):
    """What was done about a run."""

    FAILED = "failed"  # a partition or the run itself, because its job gave up
    RESUMED = "resumed"  # another job was enqueued
    EVALUATED = "evaluated"  # nothing was left to read, and the run had not gone on
    STALLED = "stalled"
    MOVED = "moved"  # it had stalled, and moves again


# Looks.

MOST_SHARDS: Final = 100  # that a feed may ever have had
ORPHAN_BATCH: Final = 200  # partitions that one look finds

ACTIVE_RUNS = sql("""
    SELECT id, feed, state, stalled_in, shards, job_id, {now} - updated_at FROM stepfast_run
     WHERE ended_at IS NULL
""")
# Counted one by one, by key: no plan of the planner's own could be better when the queue is long.
FIND_ORPHANS = sql("""
    SELECT p.id FROM stepfast_partition p
     WHERE p.run_id = :run_id AND p.state IN ('ready', 'running')
       AND (SELECT count(*) FROM stepfast_job j WHERE j.id = p.job_id) = 0
     LIMIT :limit
""")
ANY_OPEN_PARTITION = sql("""
    SELECT 1 FROM stepfast_partition WHERE run_id = :run_id AND state IN ('ready', 'running') LIMIT 1
""")
COUNT_LIVE_JOBS = sql("SELECT count(*) FROM stepfast_job WHERE id {any_of:ids}")
STILL_FOR = sql("""
    SELECT {now} - r.updated_at, {now} - (SELECT max(p.updated_at) FROM stepfast_partition p WHERE p.run_id = r.id)
      FROM stepfast_run r WHERE r.id = :run_id
""")


@dataclass(frozen=True)
class RunLook:
    """A run that has not ended, as one look sees it."""

    id: str
    feed: str
    state: RunState
    stalled_in: RunState | None
    shards: int
    job_id: str | None
    still_for: timedelta  # since its row moved

    @property
    def phase(self) -> RunState:
        return self.stalled_in or self.state


def active_runs(tx: Transaction) -> list[RunLook]:
    """All runs that have not ended."""
    return tx.all(ACTIVE_RUNS, _read_look)


def _read_look(*row: Any) -> RunLook:
    run_id, feed, state, stalled_in, shards, job_id, still = row
    stalled = None if stalled_in is None else stored_state(RunState, stalled_in)
    span = timedelta(microseconds=max(0, int(still)))
    return RunLook(run_id, feed, stored_state(RunState, state), stalled, int(shards), job_id, span)


def orphaned_partitions(tx: Transaction, run_id: str) -> list[str]:
    """Open partitions that no live job reads."""
    return [str(row[0]) for row in tx.rows(FIND_ORPHANS, run_id=run_id, limit=ORPHAN_BATCH)]


def all_partitions_read(tx: Transaction, run_id: str) -> bool:
    """Whether no partition of the run is open."""
    return not tx.rows(ANY_OPEN_PARTITION, run_id=run_id)


def has_live_jobs(tx: Transaction, run: RunLook) -> bool:
    """Whether the jobs that plan, consolidate or sweep the run are there."""
    if run.phase is RunState.APPLYING and run.shards:
        now = find_run(tx, run.id)
        return int(tx.first(COUNT_LIVE_JOBS, ids=_shards_of(now)) or 0) >= now.shards
    return run.job_id is not None and bool(tx.first(COUNT_LIVE_JOBS, ids=[run.job_id]))


def still_for(tx: Transaction, run_id: str) -> timedelta:
    """How long neither the run nor a partition of it has moved."""
    run, partitions = tx.rows(STILL_FOR, run_id=run_id)[0]
    return timedelta(microseconds=max(0, min(int(run), int(run if partitions is None else partitions))))


# Repairs: a job that should move a run is missing. It may have died, been cancelled, or vanished with a restored backup.

LOCK_LIVE_JOBS = sql("SELECT id FROM stepfast_job WHERE id {any_of:ids} ORDER BY id {for_update}")
LOCK_ENDED_JOBS = sql("""
    SELECT state, last_error, id FROM stepfast_archive WHERE id {any_of:ids} AND state IN ('dead', 'cancelled', 'done')
     ORDER BY id {for_update}
""")
FORGET_SHARDS = sql("""
    UPDATE stepfast_run SET shards = 0, updated_at = {now}
     WHERE id = :id AND epoch = :epoch AND rounds = :round AND shards > 0
""")


class MissingJob(NamedTuple):
    """A job that no longer lives, although a partition or a run waits for it."""

    gave_up: (
        bool  # it is dead, or was cancelled; False: it ended or vanished, and another one may do its work
    )
    error: str = ""


def repair_partition(tx: Transaction, declared: Declaration, row_id: str) -> WatchdogAct | None:
    """Fail an open partition whose job gave up; if the job was lost, enqueue another one where it stopped."""
    seen = find_partition(tx, row_id)
    if seen is None or not seen.is_open:
        return None
    missing = missing_job(tx, [seen.job_id] if seen.job_id else [])
    now = lock_partition(tx, row_id)
    if now is None or not now.is_open or (now.job_id, now.epoch) != (seen.job_id, seen.epoch):
        return None
    if missing is None:
        return None
    if missing.gave_up:
        return _fail_partition(tx, declared, now, missing.error)
    run = find_run(tx, now.run_id)
    if run.phase is not RunState.FETCHING:
        return None
    renew_jobs(tx, declared, run, [now])
    return _resumed(tx, run, WatchdogAct.RESUMED, now)


def _resumed(tx: Transaction, run: Run, act: WatchdogAct, partition: Partition | None = None) -> WatchdogAct:
    """Report that a run, or a partition of it, moves again; returns the act."""
    moved = None if partition is None else partition.public_id
    when_committed(tx, "run.resumed", run, partition_id=moved, note=act.value)
    return act


def repair_run(tx: Transaction, declared: Declaration, run_id: str) -> WatchdogAct | None:
    """Fail a run whose planning, consolidation or sweep gave up; if its job was lost, enqueue another one."""
    seen = find_run(tx, run_id)
    missing = missing_job(tx, _moving_jobs(seen))
    run = lock_run(tx, run_id)
    if _stage(run) != _stage(seen) or run.ended_at is not None or missing is None:
        return None
    if missing.gave_up:
        return WatchdogAct.FAILED if job_died(tx, run, missing.error) else None
    match run.phase:
        case RunState.PLANNING:
            enqueue_run_job(tx, declared, run, "plan")
        case RunState.APPLYING:
            tx.run(FORGET_SHARDS, id=run.id, epoch=run.epoch, round=run.rounds)
            begin_consolidation(tx, declared, run)
        case RunState.SWEEPING:
            enqueue_run_job(tx, declared, run, "sweep")
        case _:
            return None
    return _resumed(tx, run, WatchdogAct.RESUMED)


def repair_completion(tx: Transaction, declared: Declaration, run_id: str) -> WatchdogAct | None:
    """Go on with a run whose last partition has ended, if that was missed."""
    end_fetching(tx, declared, run_id)
    run = find_run(tx, run_id)
    return None if run.phase is RunState.FETCHING else _resumed(tx, run, WatchdogAct.EVALUATED)


def missing_job(tx: Transaction, ids: list[str]) -> MissingJob | None:
    """What became of these jobs, if none of them lives any more. Their rows are locked: none is revived or ends meanwhile."""
    live = tx.rows(LOCK_LIVE_JOBS, ids=ids) if ids else []
    ended = tx.rows(LOCK_ENDED_JOBS, ids=ids) if ids else []
    for state, error, job_id in ended:
        if state == "dead":
            return MissingJob(gave_up=True, error=str(error or "unknown"))
        if state == "cancelled":
            return MissingJob(gave_up=True, error=f"job {job_id} was cancelled: {error or 'nobody said why'}")
    return None if live else MissingJob(gave_up=False)


def _moving_jobs(run: Run) -> list[str]:
    """The jobs that move the whole run on: one, or the shards of a round of consolidation."""
    if run.phase is RunState.APPLYING and run.shards:
        return _shards_of(run)
    return [run.job_id] if run.job_id else []


def _shards_of(run: Run) -> list[str]:
    return [shard_id(run, number) for number in range(max(run.shards, MOST_SHARDS))]


def _stage(run: Run) -> tuple[object, ...]:
    """What changes when a run is moved on."""
    return run.phase, run.epoch, run.rounds, run.shards, run.job_id


def _fail_partition(
    tx: Transaction, declared: Declaration, partition: Partition, error: str
) -> WatchdogAct | None:
    if not end_partition(tx, partition, PartitionState.FAILED, error):
        return None
    if partition.debt_id is not None:
        count_try(tx, declared.name, partition.debt_id)
    failed = partition.moved(state=PartitionState.FAILED)
    partition_ended(tx, declared, failed, error)
    if declared.broker is not None:
        announce_end(tx, declared, find_run(tx, partition.run_id), failed, error)
    return WatchdogAct.FAILED


# Stalls: a run that nothing moves is marked, and an alert is raised; it goes on by itself as soon as something moves.

# `updated_at` stays: it says when the run moved last, and so when it moves again.
STALL_RUN = sql("""
    UPDATE stepfast_run SET stalled_in = state, state = 'stalled', reason = :reason
     WHERE id = :id AND state = :source AND epoch = :epoch
""")
PAUSED_QUEUE = sql("SELECT 1 FROM stepfast_queue WHERE id = :queue AND paused_at IS NOT NULL")


def stall_run(tx: Transaction, declared: Declaration, run_id: str) -> WatchdogAct | None:
    """Mark a run that stands still as stalled. A run that waits for its source is not: the breaker raises that alert."""
    run = lock_run(tx, run_id)
    still = still_for(tx, run_id)
    if run.ended_at is not None or run.state is RunState.STALLED or still < declared.stall_after:
        return None
    if _waits_for_source(tx, run.feed):
        return None
    why = "no step of it has been committed; its jobs wait, or fail"
    if tx.rows(PAUSED_QUEUE, queue=declared.queue):
        why = f"queue {declared.queue} is paused; go on with: stepfast queues resume {declared.queue}"
    if tx.run(STALL_RUN, id=run.id, source=run.state.value, epoch=run.epoch, reason=why) != 1:
        return None
    alerts.run_stalled(tx, run, still, why)
    when_committed(tx, "run.stalled", run, note=why)
    return WatchdogAct.STALLED


def _waits_for_source(tx: Transaction, feed: str) -> bool:
    """Whether the feed is paused, or was a moment ago; a pause after which no step has asked again is no reason."""
    row = find_feed(tx, feed)
    return row.paused_until is not None and row.paused_until + micros(LONGEST_PAUSE) > row.now


def unstall_run(tx: Transaction, declared: Declaration, run_id: str) -> WatchdogAct | None:
    """Move a stalled run back to the state it was in, if something in it has moved."""
    run = lock_run(tx, run_id)
    if run.state is not RunState.STALLED or still_for(tx, run_id) >= declared.stall_after:
        return None
    return _resumed(tx, run, WatchdogAct.MOVED) if move_run(tx, run, run.phase) else None


# Alerts about feeds.

MANY_DEAD_JOBS: Final = 10  # of a feed in an hour
LATELY: Final = timedelta(hours=1)
EVER: Final = timedelta(days=36_500)

WATERMARK_AGE = sql("""
    SELECT {now} + f.skew - COALESCE(f.watermark, (SELECT min(r.started_at) + f.skew FROM stepfast_run r WHERE r.feed = f.id))
      FROM stepfast_feed f WHERE f.id = :feed
""")
COUNT_DEAD_JOBS = sql("""
    SELECT count(*) FROM stepfast_archive WHERE state = 'dead' AND finished_at > {now} - :age AND kind {any_of:kinds}
""")
LAST_DEAD_ERROR = sql("""
    SELECT last_error FROM stepfast_archive WHERE state = 'dead' AND kind {any_of:kinds}
     ORDER BY finished_at DESC LIMIT 1
""")


def watermark_age(tx: Transaction, feed: str) -> timedelta | None:
    """How old the feed's watermark is; of a feed that has none, how long ago its first run began."""
    age = tx.first(WATERMARK_AGE, feed=feed)
    return None if age is None else timedelta(microseconds=int(age))


def is_watermark_old(tx: Transaction, declared: Declaration) -> bool:
    allowed = declared.fresh_within
    age = None if allowed is None else watermark_age(tx, declared.name)
    return allowed is not None and age is not None and age > allowed


def alert_old_watermark(tx: Transaction, declared: Declaration) -> bool:
    """Raise an alert, once in a while, if the watermark is older than the feed allows."""
    age = watermark_age(tx, declared.name)
    if not is_watermark_old(tx, declared) or age is None or declared.fresh_within is None:
        return False
    return alerts.watermark_too_old(tx, declared.name, age, declared.fresh_within)


def many_jobs_died(tx: Transaction, declared: Declaration) -> bool:
    return _died(tx, declared, LATELY) >= MANY_DEAD_JOBS


def alert_dead_jobs(tx: Transaction, declared: Declaration) -> bool:
    """Raise an alert, once in a while, if many jobs of the feed have died."""
    new, total = _died(tx, declared, LATELY), _died(tx, declared, EVER)
    if new < MANY_DEAD_JOBS:
        return False
    error = tx.first(LAST_DEAD_ERROR, kinds=_kinds(declared))
    return alerts.dead_letters_growing(tx, declared.name, new, total, error)


def _died(tx: Transaction, declared: Declaration, age: timedelta) -> int:
    return int(tx.first(COUNT_DEAD_JOBS, kinds=_kinds(declared), age=micros(age)) or 0)


def _kinds(declared: Declaration) -> list[str]:
    return [kind_of(declared.name, part) for part in FEED_JOBS]


# Pruning: found by walking along keys, and forgotten in batches: no statement takes long, however many rows there are.
# Raw rows, target rows, quarantine and debts are not touched: they belong to the feed.

PRUNING_BATCH: Final = 5_000

NEXT_SEEN = sql("SELECT min(partition_id) FROM stepfast_seen WHERE partition_id > :after")
# What a partition has seen is what its pages are anchored by, and the proof that it is complete. It is needed until the
# partition cannot be read on: it is done, or its run is complete, or a newer run has taken its place.
IS_SEEN_NEEDED = sql("""
    SELECT p.id FROM stepfast_partition p JOIN stepfast_run r ON r.id = p.run_id
     WHERE p.id = :id AND p.state NOT IN ('done', 'split')
       AND (r.ended_at IS NULL
            OR (r.state NOT IN ('completed', 'published_partial')
                AND NOT EXISTS (SELECT 1 FROM stepfast_run n
                                 WHERE n.feed = r.feed AND n.started_at > r.started_at AND n.kind NOT IN ('backfill', 'remap'))))
""")
END_OF_SEEN_BATCH = sql("""
    SELECT max(item_id) FROM (SELECT item_id FROM stepfast_seen WHERE partition_id = :id ORDER BY item_id LIMIT :limit) b
""")
FORGET_SEEN = sql("DELETE FROM stepfast_seen WHERE partition_id = :id AND item_id <= :until")

# The run that moved the watermark last is kept, whatever its age: it says where the feed stands.
FIND_OLD_RUN = sql("""
    SELECT r.id FROM stepfast_run r
     WHERE r.ended_at < {now} - :age AND NOT EXISTS (SELECT 1 FROM stepfast_feed f WHERE f.last_run = r.id)
     ORDER BY r.ended_at LIMIT 1
""")
PARTITIONS_TO_FORGET = sql(
    "SELECT id FROM stepfast_partition WHERE run_id = :run_id ORDER BY id LIMIT :limit"
)
END_OF_PAGE_BATCH = sql("""
    SELECT epoch, seq FROM stepfast_page WHERE partition_id = :id ORDER BY epoch, seq LIMIT 1 OFFSET :offset
""")
FORGET_PAGES = sql("DELETE FROM stepfast_page WHERE partition_id = :id")
FORGET_FIRST_PAGES = sql("""
    DELETE FROM stepfast_page WHERE partition_id = :id AND (epoch < :epoch OR (epoch = :epoch AND seq <= :seq))
""")
FORGET_PARTITION = sql("DELETE FROM stepfast_partition WHERE id = :id")
FORGET_RUN = sql("DELETE FROM stepfast_run WHERE id = :id AND ended_at IS NOT NULL")


@dataclass(frozen=True)
class Pruned:
    """How many rows went, and whether there may be more."""

    rows: int = 0
    more: bool = False


def next_unneeded_seen(tx: Transaction, after: str = "") -> str | None:
    """The next partition, in the order of ids, whose seen rows are not needed any more."""
    while (found := tx.first(NEXT_SEEN, after=after)) is not None:
        if not tx.rows(IS_SEEN_NEEDED, id=found):
            return str(found)
        after = str(found)
    return None


def forget_seen(tx: Transaction, row_id: str, limit: int = PRUNING_BATCH) -> Pruned:
    """Forget one batch of the seen rows of a partition, if they are not needed; in the order of the key, as they are written."""
    if tx.rows(IS_SEEN_NEEDED, id=row_id):
        return Pruned()
    until = tx.first(END_OF_SEEN_BATCH, id=row_id, limit=limit)
    if until is None:
        return Pruned()
    rows = tx.run(FORGET_SEEN, id=row_id, until=until)
    return Pruned(rows, more=rows >= limit)


def oldest_ended_run(tx: Transaction, age: int) -> str | None:
    """The run that ended first, if longer ago than `age`."""
    found = tx.first(FIND_OLD_RUN, age=age)
    return None if found is None else str(found)


def forget_run(tx: Transaction, run_id: str, limit: int = PRUNING_BATCH) -> Pruned:
    """Forget one batch of an old run: pages, then their partition, and the run itself when it has none."""
    found = tx.rows(PARTITIONS_TO_FORGET, run_id=run_id, limit=1)
    if not found:
        return Pruned(tx.run(FORGET_RUN, id=run_id))
    row_id = str(found[0][0])
    seen = forget_seen(tx, row_id, limit)
    if seen.rows:
        return Pruned(seen.rows, more=True)
    last = tx.rows(END_OF_PAGE_BATCH, id=row_id, offset=limit)
    if last:
        epoch, seq = last[0]
        return Pruned(tx.run(FORGET_FIRST_PAGES, id=row_id, epoch=epoch, seq=seq), more=True)
    rows = tx.run(FORGET_PAGES, id=row_id)
    return Pruned(rows + tx.run(FORGET_PARTITION, id=row_id), more=True)
