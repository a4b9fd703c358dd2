"""What every worker looks after: runs that nothing moves any more, and people who should know.

A look is one or two statements by index, without locks. Whatever it finds is done by an act, which looks again.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from stepfast.clock import micros
from stepfast.database.statement import sql
from stepfast.runs import alerts
from stepfast.runs.feed_row import find_feed
from stepfast.runs.jobs import PARTS, kind_of
from stepfast.runs.mending import MOST_SHARDS, Act
from stepfast.runs.pause import LONGEST
from stepfast.runs.rounds import shard_id
from stepfast.runs.run import find_run, lock_run, move_run
from stepfast.runs.states import RunState

if TYPE_CHECKING:
    from stepfast.database.connection import Transaction
    from stepfast.runs.declaration import Declaration

BATCH: Final = 200  # partitions that one look brings home
GROWING: Final = 10  # dead letters of a feed in an hour that a person should know of
LATELY: Final = timedelta(hours=1)
EVER: Final = timedelta(days=36_500)

ACTIVE = sql("""
    SELECT id, feed, state, stalled_in, shards, job_id, {now} - updated_at FROM stepfast_run
     WHERE ended_at IS NULL
""")
# Counted one by one, by key: no plan of the planner's own could be better when the queue is long.
ORPHANS = sql("""
    SELECT p.id FROM stepfast_partition p
     WHERE p.run_id = :run_id AND p.state IN ('ready', 'running')
       AND (SELECT count(*) FROM stepfast_job j WHERE j.id = p.job_id) = 0
     LIMIT :limit
""")
OPEN = sql("""
    SELECT 1 FROM stepfast_partition WHERE run_id = :run_id AND state IN ('ready', 'running') LIMIT 1
""")
LIVE = sql("SELECT count(*) FROM stepfast_job WHERE id {any_of:ids}")
STILL_FOR = sql("""
    SELECT {now} - r.updated_at, {now} - (SELECT max(p.updated_at) FROM stepfast_partition p WHERE p.run_id = r.id)
      FROM stepfast_run r WHERE r.id = :run_id
""")

# `updated_at` stays: it says when the run moved last, and so when it moves again.
STALL = sql("""
    UPDATE stepfast_run SET stalled_in = state, state = 'stalled', reason = :reason
     WHERE id = :id AND state = :source AND epoch = :epoch
""")
PAUSED_QUEUE = sql("SELECT 1 FROM stepfast_queue WHERE id = :queue AND paused_at IS NOT NULL")

AGE = sql("""
    SELECT {now} + f.skew - COALESCE(f.watermark, (SELECT min(r.started_at) + f.skew FROM stepfast_run r WHERE r.feed = f.id))
      FROM stepfast_feed f WHERE f.id = :feed
""")
DIED = sql("""
    SELECT count(*) FROM stepfast_archive WHERE state = 'dead' AND finished_at > {now} - :age AND kind {any_of:kinds}
""")
LAST_ERROR = sql("""
    SELECT last_error FROM stepfast_archive WHERE state = 'dead' AND kind {any_of:kinds}
     ORDER BY finished_at DESC LIMIT 1
""")


@dataclass(frozen=True)
class Glance:
    """A run that has not ended, as one look sees it."""

    id: str
    feed: str
    state: RunState
    stalled_in: RunState | None
    shards: int
    job_id: str | None
    still_for: timedelta  # since its row moved

    @property
    def at(self) -> RunState:
        return self.stalled_in or self.state


def active_runs(tx: Transaction) -> list[Glance]:
    return tx.all(ACTIVE, _glance)


def orphans(tx: Transaction, run_id: str) -> list[str]:
    """Open partitions that no live job reads."""
    return [str(row[0]) for row in tx.rows(ORPHANS, run_id=run_id, limit=BATCH)]


def all_read(tx: Transaction, run_id: str) -> bool:
    return not tx.rows(OPEN, run_id=run_id)


def is_moved(tx: Transaction, run: Glance) -> bool:
    """Whether the jobs are there that plan, consolidate or sweep it."""
    if run.at is RunState.APPLYING and run.shards:
        now = find_run(tx, run.id)
        ids = [shard_id(now, number) for number in range(max(now.shards, MOST_SHARDS))]
        return int(tx.first(LIVE, ids=ids) or 0) >= now.shards
    return run.job_id is not None and bool(tx.first(LIVE, ids=[run.job_id]))


def still_for(tx: Transaction, run_id: str) -> timedelta:
    """How long neither the run nor a partition of it has moved."""
    run, partitions = tx.rows(STILL_FOR, run_id=run_id)[0]
    return timedelta(microseconds=max(0, min(int(run), int(run if partitions is None else partitions))))


def stall(tx: Transaction, declared: Declaration, run_id: str) -> Act | None:
    """Say that a run stands still. One that waits for its source does not: that is told by itself."""
    run = lock_run(tx, run_id)
    still = still_for(tx, run_id)
    if run.ended_at is not None or run.state is RunState.STALLED or still < declared.stall_after:
        return None
    if _waits_for_source(tx, run.feed):
        return None
    why = "no step of it has been committed; its jobs wait, or fail"
    if tx.rows(PAUSED_QUEUE, queue=declared.queue):
        why = f"queue {declared.queue} is paused; go on with: stepfast queues resume {declared.queue}"
    if tx.run(STALL, id=run.id, source=run.state.value, epoch=run.epoch, reason=why) != 1:
        return None
    alerts.run_stalled(tx, run, still, why)
    return Act.STALLED


def _waits_for_source(tx: Transaction, feed: str) -> bool:
    """Whether it is paused, or was a moment ago; trouble that nobody asks about any more is no reason."""
    row = find_feed(tx, feed)
    return row.paused_until is not None and row.paused_until + micros(LONGEST) > row.now


def move_again(tx: Transaction, declared: Declaration, run_id: str) -> Act | None:
    """A stalled run in which something has moved is where it was."""
    run = lock_run(tx, run_id)
    if run.state is not RunState.STALLED or still_for(tx, run_id) >= declared.stall_after:
        return None
    return Act.MOVED if move_run(tx, run, run.at) else None


def watermark_age(tx: Transaction, feed: str) -> timedelta | None:
    """How old the feed's watermark is; of a feed that has none, how long ago its first run began."""
    age = tx.first(AGE, feed=feed)
    return None if age is None else timedelta(microseconds=int(age))


def is_old(tx: Transaction, declared: Declaration) -> bool:
    allowed = declared.fresh_within
    age = None if allowed is None else watermark_age(tx, declared.name)
    return allowed is not None and age is not None and age > allowed


def tell_old(tx: Transaction, declared: Declaration) -> bool:
    """Tell, once in a while, that what was read last is too old."""
    age = watermark_age(tx, declared.name)
    if not is_old(tx, declared) or age is None or declared.fresh_within is None:
        return False
    return alerts.watermark_too_old(tx, declared.name, age, declared.fresh_within)


def many_died(tx: Transaction, declared: Declaration) -> bool:
    return _died(tx, declared, LATELY) >= GROWING


def tell_dead(tx: Transaction, declared: Declaration) -> bool:
    """Tell, once in a while, that the jobs of a feed die."""
    new, total = _died(tx, declared, LATELY), _died(tx, declared, EVER)
    if new < GROWING:
        return False
    error = tx.first(LAST_ERROR, kinds=_kinds(declared))
    return alerts.dead_letters_growing(tx, declared.name, new, total, error)


def _died(tx: Transaction, declared: Declaration, age: timedelta) -> int:
    return int(tx.first(DIED, kinds=_kinds(declared), age=micros(age)) or 0)


def _kinds(declared: Declaration) -> list[str]:
    return [kind_of(declared.name, part) for part in PARTS]


def _glance(*row: Any) -> Glance:
    run_id, feed, state, stalled_in, shards, job_id, still = row
    stalled = None if stalled_in is None else RunState(stalled_in)
    span = timedelta(microseconds=max(0, int(still)))
    return Glance(run_id, feed, RunState(state), stalled, int(shards), job_id, span)
