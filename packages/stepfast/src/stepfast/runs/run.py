"""The row of a run, its states, the row of its feed, and the jobs that a run is made of.

A feed has one active run. A state is a column, never a guess: every UPDATE that changes it names the state it leaves, and
the diagrams of the documentation are drawn from the tables of arrows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, Literal

from stepfast.clock import new_id
from stepfast.database.statement import sql
from stepfast.database.stored import stored_state
from stepfast.errors import NotFoundError, StateError
from stepfast.jobs.enqueue import enqueue, enqueue_many
from stepfast.jobs.payload import to_json
from stepfast.jobs.state import NewJob
from stepfast.runs.window import Window
from stepfast.telemetry import happened, when_committed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepfast.database.connection import Transaction
    from stepfast.runs.declaration import Declaration
    from stepfast.telemetry import Fact


# Kinds and states.

LATEST: Final = "latest"  # how people name the newest run of all
RunKind = Literal["full", "incremental", "backfill", "verify"]  # of runs that ask the source
AnyRunKind = RunKind | Literal["remap"]  # a remap does not ask the source: it maps again what was read before


class RunState(StrEnum):
    """The state of a run; `lifecycle.py` tells its life."""

    PLANNING = "planning"  # its partitions are being found
    FETCHING = "fetching"  # partitions are read, page by page
    APPLYING = "applying"  # raw rows become target rows
    SWEEPING = "sweeping"  # rows that are gone at the source are looked for
    STALLED = "stalled"  # nothing has moved it for too long; an alert was raised
    COMPLETED = "completed"  # every row of its window is in the target
    PUBLISHED_PARTIAL = "published_partial"  # forced: what was read is in the target, the rest are debts
    FAILED = "failed"  # planning, a partition or a consolidation gave up
    FAILED_QUALITY = "failed_quality"  # more rows in quarantine than the error budget allows
    CANCELLED = "cancelled"  # an operator stopped it


RUN_TRANSITIONS: Final[dict[RunState, dict[RunState, str]]] = {
    RunState.PLANNING: {
        RunState.FETCHING: "partitions written",
        RunState.APPLYING: "nothing to fetch",
        RunState.STALLED: "no step for too long",
        RunState.FAILED: "planning gave up",
        RunState.CANCELLED: "cancel",
    },
    RunState.FETCHING: {
        RunState.APPLYING: "last partition ended, none failed",
        RunState.STALLED: "no step for too long",
        RunState.FAILED: "last partition ended, some failed",
        RunState.CANCELLED: "cancel",
    },
    RunState.APPLYING: {
        RunState.SWEEPING: "all rows applied, full and verified",
        RunState.COMPLETED: "all rows applied",
        RunState.PUBLISHED_PARTIAL: "all rows applied, forced",
        RunState.STALLED: "no step for too long",
        RunState.FAILED: "consolidation gave up",
        RunState.FAILED_QUALITY: "error budget spent",
        RunState.CANCELLED: "cancel",
    },
    RunState.SWEEPING: {
        RunState.COMPLETED: "swept",
        RunState.STALLED: "no step for too long",
        RunState.FAILED: "sweep gave up",
        RunState.CANCELLED: "cancel",
    },
    RunState.STALLED: {
        RunState.PLANNING: "a step, or resume",
        RunState.FETCHING: "a step, or resume",
        RunState.APPLYING: "a step, or resume",
        RunState.SWEEPING: "a step, or resume",
        RunState.COMPLETED: "its last step, after all",
        RunState.PUBLISHED_PARTIAL: "its last step, after all, forced",
        RunState.FAILED: "gave up",
        RunState.FAILED_QUALITY: "error budget spent",
        RunState.CANCELLED: "cancel",
    },
    RunState.COMPLETED: {},
    RunState.PUBLISHED_PARTIAL: {},
    RunState.FAILED: {
        RunState.PLANNING: "retry the plan",
        RunState.FETCHING: "retry partitions",
        RunState.APPLYING: "consolidate, or force",
    },
    RunState.FAILED_QUALITY: {RunState.APPLYING: "consolidate, or force"},
    RunState.CANCELLED: {
        RunState.PLANNING: "resume",
        RunState.FETCHING: "resume",
        RunState.APPLYING: "resume",
    },
}


# A run that is active keeps the next one of its feed from starting.
ACTIVE_RUN: Final = (
    RunState.PLANNING,
    RunState.FETCHING,
    RunState.APPLYING,
    RunState.SWEEPING,
    RunState.STALLED,
)
ENDED_RUN: Final = tuple(it for it in RunState if it not in ACTIVE_RUN)


def require_run_transition(source: RunState, target: RunState) -> str:
    """Why a run moves from one state to another. Raises if there is no such transition."""
    found = RUN_TRANSITIONS[source].get(target)
    if found is None:
        raise StateError(f"a run that is {source} cannot become {target}")
    return found


# The row of a run.

BACKGROUND: Final = -10  # added to the priority of backfills, checks and remaps: nobody waits for them

FIND_ACTIVE_RUN = sql("SELECT id, state FROM stepfast_run WHERE active_feed = :feed")

INSERT_RUN = sql("""
    INSERT INTO stepfast_run (id, feed, kind, state, active_feed, window_from, window_to, mapper_version,
                              watermark_before, most_rows, priority, trace, scope, started_at, updated_at)
    VALUES (:id, :feed, :kind, 'planning', :active_feed, :window_from, :window_to, :mapper_version,
            :watermark_before, :most_rows, :priority, :trace, :scope, {now}, {now})
""")

RUN_COLUMNS = """r.id, r.feed, r.kind, r.scope, r.state, r.stalled_in, r.epoch, r.window_from, r.window_to, r.partitions,
           r.completed, r.failed, r.unverified, r.estimate, r.seen, r.rejected, r.applied, r.quarantined, r.gone, r.most_rows,
           r.priority, r.rounds, r.shards, r.forced, r.watermark_before, r.watermark_after, r.started_at, r.updated_at,
           r.ended_at, r.job_id, r.frontier, r.reason, r.trace"""
FIND_RUN = sql(f"SELECT {RUN_COLUMNS} FROM stepfast_run r WHERE r.id = :id")
LOCK_RUN = sql(f"SELECT {RUN_COLUMNS} FROM stepfast_run r WHERE r.id = :id {{for_update}}")

MOVE_RUN = sql("""
    UPDATE stepfast_run SET state = :target, stalled_in = NULL, reason = NULL, updated_at = {now}
     WHERE id = :id AND state = :source AND epoch = :epoch
""")
END_RUN = sql("""
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
    kind: AnyRunKind
    scope: str  # complete, or partial: a capped run, or one whose plan leaves a gap
    state: RunState
    stalled_in: RunState | None  # where it stopped moving
    epoch: int  # a restart adds one: jobs of an older epoch find out that they are not wanted any more
    window_from: int | None
    window_to: int
    partitions: int
    completed: int  # partitions
    failed: int  # partitions
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
    frontier: str | None  # JSON: how far its plan is, later how far its sweep is
    reason: str | None
    trace: str | None

    @property
    def window(self) -> Window:
        return Window.of(self.window_from, self.window_to)

    @property
    def moves_the_watermark(self) -> bool:
        """Only a complete reading of the next window does; never a backfill, a check, a partial run, or a forced one."""
        return self.kind in ("full", "incremental") and self.scope == "complete" and not self.forced

    @property
    def phase(self) -> RunState:
        """The state of the run, or its state before it stalled: what its steps look at."""
        return self.stalled_in or self.state

    @property
    def trace_id(self) -> str:
        """The trace that all its jobs, messages and events belong to."""
        return trace_of(self.id).split("-")[1] if self.trace is None else self.trace.split("-")[1]

    def facts(self) -> dict[str, Fact]:
        """The fields of every event about this run."""
        return {"feed": self.feed, "run_id": self.id, "trace_id": self.trace_id}


def create_run(
    tx: Transaction,
    feed: str,
    kind: AnyRunKind,
    window: Window,
    *,
    watermark: int | None,
    most_rows: int | None = None,
    mapper_version: str | None = None,
    priority: int = 0,
) -> Run:
    """Create a run in state `planning`. The caller holds the feed's row; a second active run is refused."""
    single = kind != "backfill"
    if single and (active := tx.rows(FIND_ACTIVE_RUN, feed=feed)):
        raise already_active(feed, str(active[0][0]), str(active[0][1]))
    run_id = new_id()
    begins, ends = window.micros
    tx.run(
        INSERT_RUN,
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
    """The trace of all jobs of a run; its trace id is made of the run's id."""
    digits = run_id.replace("-", "")
    return f"00-{digits}-{digits[-16:]}-01"


def find_run(tx: Transaction, run_id: str) -> Run:
    return _one(tx.all(FIND_RUN, read_run, id=run_id), run_id)


def lock_run(tx: Transaction, run_id: str) -> Run:
    """Lock the run's row until the commit: decisions about the whole run are made under this lock."""
    return _one(tx.all(LOCK_RUN, read_run, id=run_id), run_id)


def move_run(tx: Transaction, run: Run, target: RunState) -> bool:
    """Move a run along an arrow that does not end it; False if it is no longer in the state that the caller saw."""
    require_run_transition(run.state, target)
    return tx.run(MOVE_RUN, id=run.id, source=run.state.value, target=target.value, epoch=run.epoch) == 1


def end_run(tx: Transaction, run: Run, target: RunState, reason: str | None = None) -> bool:
    """Move a run along an arrow that ends it: from here on the feed is free for the next run."""
    require_run_transition(run.phase, target)
    require_run_transition(run.state, target)  # another one, if the run is stalled
    matched = tx.run(
        END_RUN, id=run.id, source=run.state.value, target=target.value, epoch=run.epoch, reason=reason
    )
    if matched == 1 and target in (RunState.FAILED, RunState.FAILED_QUALITY):
        when_committed(
            tx,
            "run.failed",
            run,
            state=target.value,
            error=reason,
            partitions=run.partitions,
            completed=run.completed,
            failed=run.failed,
            rows=run.seen,
            applied=run.applied,
            quarantined=run.quarantined,
        )
    return matched == 1


def report_start(run: Run) -> None:
    """Report that a worker begins to work on a run."""
    window = run.window.to_json()
    happened("run.started", run, run_kind=run.kind, window_from=window["from"], window_to=window["to"])


def watch_job(tx: Transaction, run: Run, job_id: str) -> None:
    """Remember which job moves the run on now, so that the watchdog notices its death."""
    tx.run(WATCH_JOB, id=run.id, epoch=run.epoch, job_id=job_id)


def read_run(*row: Any) -> Run:
    values = [*row]
    values[4] = stored_state(RunState, row[4])
    values[5] = None if row[5] is None else stored_state(RunState, row[5])
    return Run(*values)


def _one(found: list[Run], run_id: str) -> Run:
    if not found:
        raise NotFoundError(f"there is no run {run_id}; see: stepfast runs list")
    return found[0]


# The row of a feed: what is remembered between its runs.

_FEED_COLUMNS = (
    "id, watermark, version, last_run, skew, last_took, troubles, paused_until, pause_reason, updated_at, "
    "troubled_at, probe, {now}, export_to"
)
INSERT_FEED = sql("INSERT INTO stepfast_feed (id) VALUES (:feed) {keep_existing}")
FIND_FEED = sql(f"SELECT {_FEED_COLUMNS} FROM stepfast_feed WHERE id = :feed")
LOCK_FEED = sql(f"SELECT {_FEED_COLUMNS} FROM stepfast_feed WHERE id = :feed {{for_update}}")


@dataclass(frozen=True)
class FeedRow:
    """The watermark of a feed, and the pause of its source."""

    feed: str
    watermark: int | None = None  # everything that the source changed before this instant is in the target
    version: int = 0  # counts the moves of the watermark
    last_run: str | None = None
    skew: int = 0  # how far the source's clock is ahead of ours
    last_took: int = 0  # how long the last completed run took
    troubles: int = 0  # throttles and outages since the last good answer
    paused_until: int | None = None
    pause_reason: str | None = None
    updated_at: int = 0
    troubled_at: int | None = None  # when the first of these errors was met
    probe: str | None = None  # the job that asks first when the pause is over
    now: int = 0  # the database's time when this was read
    export_to: str | None = None  # where the watermark is written for others


def find_feed(tx: Transaction, feed: str) -> FeedRow:
    """The feed's row as it stands; a feed that never ran has no watermark."""
    found = tx.all(FIND_FEED, FeedRow, feed=feed)
    return found[0] if found else FeedRow(feed)


def lock_feed(tx: Transaction, feed: str) -> FeedRow:
    """Lock the feed's row until the commit. After the run's row in the order of locks."""
    tx.run(INSERT_FEED, feed=feed)
    return tx.all(LOCK_FEED, FeedRow, feed=feed)[0]


# The jobs that a run is made of, each of a kind of its feed.

# start: starts a run by the calendar. plan: finds its partitions. page: reads one of them. consolidate: makes target
# rows of raw rows. sweep: looks for rows that are gone. replay: tries rows in quarantine again; it belongs to no run.
FeedJob = Literal["start", "plan", "page", "consolidate", "sweep", "replay"]
FEED_JOBS: tuple[FeedJob, ...] = ("start", "plan", "page", "consolidate", "sweep", "replay")


def kind_of(feed: str, job: FeedJob) -> str:
    return f"{feed}.{job}"


def new_job(declared: Declaration, run: Run, job: FeedJob, **arguments: Any) -> NewJob:
    """A job of this run, with its priority, in its trace."""
    return NewJob(
        id=new_id(),
        queue=declared.queue,
        kind=kind_of(declared.name, job),
        payload=to_json(arguments),
        priority=run.priority,
        trace=run.trace,
    )


def reserved_job(declared: Declaration, run: Run, job: FeedJob, **arguments: Any) -> NewJob:
    """Like `new_job`, but reserved for a moment for the worker that gets the broker's message. The caller stages it."""
    new = new_job(declared, run, job, **arguments)
    broker = declared.broker
    return new if broker is None else replace(new, head_start=broker.head_start_micros)


def enqueue_job(tx: Transaction, declared: Declaration, run: Run, job: FeedJob, **arguments: Any) -> str:
    """Enqueue a job of this run; returns its id."""
    return enqueue(tx, new_job(declared, run, job, **arguments)).id


def enqueue_jobs(tx: Transaction, jobs: Sequence[NewJob]) -> None:
    """Enqueue jobs that differ in nothing but their arguments, in one statement."""
    if jobs:
        enqueue_many(tx, jobs[0], [(job.id, None, job.payload) for job in jobs], "reject")
