"""The row of a run: one active run per feed, moved only along its arrows, each arrow under the state it leaves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from stepfast.clock import new_id
from stepfast.database.statement import sql
from stepfast.errors import NotFoundError, StateError
from stepfast.runs.states import AnyKind, RunState, arrow
from stepfast.runs.window import Window
from stepfast.telemetry import happened

if TYPE_CHECKING:
    from stepfast.database.connection import Transaction

BACKGROUND: Final = -10  # added to the priority of runs that nobody waits for

ACTIVE = sql("SELECT id, state FROM stepfast_run WHERE active_feed = :feed")

CREATE = sql("""
    INSERT INTO stepfast_run (id, feed, kind, state, active_feed, window_from, window_to, mapper_version,
                              watermark_before, most_rows, priority, trace, scope, started_at, updated_at)
    VALUES (:id, :feed, :kind, 'planning', :active_feed, :window_from, :window_to, :mapper_version,
            :watermark_before, :most_rows, :priority, :trace, :scope, {now}, {now})
""")

COLUMNS = """r.id, r.feed, r.kind, r.scope, r.state, r.stalled_in, r.epoch, r.window_from, r.window_to, r.partitions,
           r.completed, r.failed, r.unverified, r.estimate, r.seen, r.rejected, r.applied, r.quarantined, r.gone, r.most_rows,
           r.priority, r.rounds, r.shards, r.forced, r.watermark_before, r.watermark_after, r.started_at, r.updated_at,
           r.ended_at, r.job_id, r.frontier, r.reason, r.trace"""
FIND = sql(f"SELECT {COLUMNS} FROM stepfast_run r WHERE r.id = :id")
LOCK = sql(f"SELECT {COLUMNS} FROM stepfast_run r WHERE r.id = :id {{for_update}}")

MOVE = sql("""
    UPDATE stepfast_run SET state = :target, stalled_in = NULL, reason = NULL, updated_at = {now}
     WHERE id = :id AND state = :source AND epoch = :epoch
""")
END = sql("""
    UPDATE stepfast_run
       SET state = :target, stalled_in = NULL, active_feed = NULL, ended_at = {now}, updated_at = {now}, reason = :reason
     WHERE id = :id AND state = :source AND epoch = :epoch
""")
WATCH_JOB = sql(
    "UPDATE stepfast_run SET job_id = :job_id, updated_at = {now} WHERE id = :id AND epoch = :epoch"
)


@dataclass(frozen=True)
class Run:
    """One reading of a feed, over a window that never changes."""

    id: str
    feed: str
    kind: AnyKind
    scope: str  # complete, or partial: a capped run, or one whose plan leaves a gap
    state: RunState
    stalled_in: RunState | None  # where it stopped moving
    epoch: int  # a restart adds one: jobs of an older epoch find out that they are not wanted any more
    window_from: int | None
    window_to: int
    partitions: int
    completed: int
    failed: int
    unverified: int
    estimate: int
    seen: int
    rejected: int  # rows of pages that had no identity
    applied: int
    quarantined: int
    gone: int
    most_rows: int | None
    priority: int
    rounds: int  # of consolidation
    shards: int  # consolidations that have not ended
    forced: int
    watermark_before: int | None
    watermark_after: int | None
    started_at: int
    updated_at: int
    ended_at: int | None
    job_id: str | None  # of the step that plans it, divides its consolidation or sweeps
    frontier: str | None
    reason: str | None
    trace: str | None

    @property
    def window(self) -> Window:
        return Window.of(self.window_from, self.window_to)

    @property
    def moves_the_watermark(self) -> bool:
        """Only a whole reading of the next window does; never a backfill, a check, a part, or a forced one."""
        return self.kind in ("full", "incremental") and self.scope == "complete" and not self.forced

    @property
    def at(self) -> RunState:
        """The state it is in, or was in when it stalled: what its steps look at."""
        return self.stalled_in or self.state


def create_run(
    tx: Transaction,
    feed: str,
    kind: AnyKind,
    window: Window,
    *,
    watermark: int | None,
    most_rows: int | None = None,
    mapper_version: str | None = None,
    priority: int = 0,
) -> Run:
    """A run in state `planning`. The caller holds the feed's row; a second active run is refused."""
    single = kind != "backfill"
    if single and (active := tx.rows(ACTIVE, feed=feed)):
        raise already_active(feed, str(active[0][0]), str(active[0][1]))
    run_id = new_id()
    begins, ends = window.micros
    tx.run(
        CREATE,
        id=run_id,
        feed=feed,
        kind=kind,
        active_feed=feed if single else None,
        window_from=begins,
        window_to=ends,
        mapper_version=mapper_version,
        watermark_before=watermark,
        most_rows=most_rows,
        priority=priority if kind in ("full", "incremental") else priority + BACKGROUND,
        scope="complete" if most_rows is None else "partial",
        trace=trace_of(run_id),
    )
    return find_run(tx, run_id)


def already_active(feed: str, run_id: str, state: str) -> StateError:
    return StateError(
        f"feed {feed} has an active run {run_id} ({state}); wait for it, or end it with: stepfast runs cancel {run_id}"
    )


def trace_of(run_id: str) -> str:
    """The trace of all jobs of a run; its id is the run's."""
    digits = run_id.replace("-", "")
    return f"00-{digits}-{digits[-16:]}-01"


def find_run(tx: Transaction, run_id: str) -> Run:
    return _one(tx.all(FIND, read_run, id=run_id), run_id)


def lock_run(tx: Transaction, run_id: str) -> Run:
    """The run's row, ours until the commit: whoever decides something about the whole run decides it here."""
    return _one(tx.all(LOCK, read_run, id=run_id), run_id)


def move_run(tx: Transaction, run: Run, target: RunState) -> bool:
    """Along an arrow that ends nothing; False if the run is no longer where the caller saw it."""
    arrow(run.state, target)
    return tx.run(MOVE, id=run.id, source=run.state.value, target=target.value, epoch=run.epoch) == 1


def end_run(tx: Transaction, run: Run, target: RunState, reason: str | None = None) -> bool:
    """Along an arrow that ends it; from here on the feed is free for the next run."""
    arrow(run.at, target)
    matched = tx.run(
        END, id=run.id, source=run.state.value, target=target.value, epoch=run.epoch, reason=reason
    )
    if matched == 1 and target in (RunState.FAILED, RunState.FAILED_QUALITY):
        happened("run.failed", feed=run.feed, run_id=run.id, state=target.value)
    return matched == 1


def watch_job(tx: Transaction, run: Run, job_id: str) -> None:
    """Remember which job moves the run on now, so that its death is noticed."""
    tx.run(WATCH_JOB, id=run.id, epoch=run.epoch, job_id=job_id)


def read_run(*row: Any) -> Run:
    values = [*row]
    values[4] = RunState(row[4])
    values[5] = None if row[5] is None else RunState(row[5])
    return Run(*values)


def _one(found: list[Run], run_id: str) -> Run:
    if not found:
        raise NotFoundError(f"there is no run {run_id}; see: stepfast runs list")
    return found[0]
