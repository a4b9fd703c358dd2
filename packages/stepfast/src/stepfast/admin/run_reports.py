"""Runs and partitions in one line each; and which run a name means: an id, the beginning of one, or a feed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from stepfast.admin.rows import reader
from stepfast.clock import moment
from stepfast.database.statement import sql
from stepfast.errors import NotFoundError, StateError
from stepfast.jobs.retry import grouped
from stepfast.jobs.state import JobState
from stepfast.runs.partition import PartitionState, partition_id
from stepfast.runs.run import LATEST, RunState

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from stepfast.database.connection import Transaction


MOST_NAMED: Final = 3  # runs that an ambiguous name may mean
NO_ERROR: Final = "no error was kept"


# Runs


@dataclass(frozen=True)
class RunReport:
    """A run in one line. Windows and watermarks are on the source's clock."""

    id: str
    feed: str
    kind: str
    scope: str
    state: RunState
    stalled_in: RunState | None
    partitions: int
    completed: int
    failed: int
    unverified: int
    expected_rows: int  # as planned
    seen: int  # rows of partitions that have ended
    rejected: int
    applied: int
    quarantined: int
    gone: int
    differences: int  # rows that a verify found missing or different in the target, and wrote
    requests: int
    forced: bool
    max_rows: int | None
    window_from: datetime | None
    window_to: datetime
    watermark_before: datetime | None
    watermark_after: datetime | None
    started_at: datetime
    planned_at: datetime | None
    fetched_at: datetime | None
    completed_at: datetime | None
    ended_at: datetime | None
    updated_at: datetime
    reason: str | None

    @property
    def active(self) -> bool:
        return self.ended_at is None


# Requests of planning are counted in the run's row, the others in its partitions.
RUN_REPORT_COLUMNS: Final = """
    r.id, r.feed, r.kind, r.scope, r.state, r.stalled_in, r.partitions, r.completed, r.failed, r.unverified, r.estimate,
    r.seen, r.rejected, r.applied, r.quarantined, r.gone, r.differences,
    r.requests + (SELECT COALESCE(sum(p.requests), 0) FROM stepfast_partition p WHERE p.run_id = r.id),
    r.forced, r.most_rows, r.window_from, r.window_to, r.watermark_before, r.watermark_after, r.started_at, r.planned_at,
    r.fetched_at, r.completed_at, r.ended_at, r.updated_at, r.reason
"""
LIST_RUNS = sql(f"""
    SELECT {RUN_REPORT_COLUMNS} FROM stepfast_run r
     WHERE (:any_feed = 1 OR r.feed = :feed) AND (:active = 0 OR r.ended_at IS NULL)
     ORDER BY r.started_at DESC, r.id DESC LIMIT :limit
""")
ONE_RUN = sql(f"SELECT {RUN_REPORT_COLUMNS} FROM stepfast_run r WHERE r.id = :id")
NEWEST_RUN = sql("""
    SELECT id FROM stepfast_run WHERE :any_feed = 1 OR feed = :feed
     ORDER BY CASE WHEN :prefer_active = 1 AND ended_at IS NOT NULL THEN 1 ELSE 0 END, started_at DESC, id DESC LIMIT 1
""")
RUNS_BEGINNING_WITH = sql("""
    SELECT id, feed FROM stepfast_run WHERE id >= :first AND id < :beyond ORDER BY id DESC LIMIT :limit
""")

read_run_report = reader(
    RunReport,
    state=RunState,
    stalled_in=RunState,
    requests=int,
    forced=bool,
    window_from=moment,
    window_to=moment,
    watermark_before=moment,
    watermark_after=moment,
)


def list_runs(
    tx: Transaction, *, feed: str | None = None, active: bool = False, limit: int = 50
) -> list[RunReport]:
    """Runs, the newest first."""
    filters = {"feed": feed, "any_feed": int(feed is None), "active": int(active), "limit": limit}
    return tx.all(LIST_RUNS, read_run_report, **filters)


def run_report(tx: Transaction, run_id: str) -> RunReport:
    """One run, by its full id."""
    found = tx.all(ONE_RUN, read_run_report, id=run_id)
    if not found:
        raise NotFoundError(f"there is no run {run_id}; see: stepfast runs list")
    return found[0]


def resolve(tx: Transaction, name: str, *, prefer_active: bool = False) -> str:
    """The id of the run that a name means: an id or its beginning, `latest`, or a feed for its newest run.

    `prefer_active`: a feed stands for the newest run that has not ended, if there is one.
    """
    if tx.rows(ONE_RUN, id=name):
        return name
    if found := tx.rows(NEWEST_RUN, feed=name, any_feed=0, prefer_active=int(prefer_active)):
        return str(found[0][0])
    if name == LATEST:
        if found := tx.rows(NEWEST_RUN, feed=None, any_feed=1, prefer_active=int(prefer_active)):
            return str(found[0][0])
        raise NotFoundError("there are no runs; begin one with: stepfast runs start FEED")
    begun = tx.rows(RUNS_BEGINNING_WITH, first=name, beyond=f"{name}~", limit=MOST_NAMED + 1) if name else []
    if not begun:
        raise NotFoundError(
            f"there is no run {name!r}, and no feed of that name has run; see: stepfast runs list"
        )
    if len(begun) > 1:
        shown = ", ".join(f"{row[0]} ({row[1]})" for row in begun[:MOST_NAMED])
        more = ", …" if len(begun) > MOST_NAMED else ""
        raise StateError(f"{name!r} is the beginning of several runs: {shown}{more}; give more of it")
    return str(begun[0][0])


# Partitions


@dataclass(frozen=True)
class PartitionReport:
    """A partition in one line."""

    run_id: str
    feed: str
    partition_id: str = field(init=False)  # partition-7, as in logs, views and messages
    number: int
    name: str
    state: PartitionState
    epoch: int  # how often it was restarted
    seen: int  # distinct rows
    counted: int | None  # what the source counted last
    estimate: int | None
    rejected: int
    requests: int
    next_offset: int
    job_id: str | None
    job_state: JobState | None  # None: no unfinished job reads it
    next_at: datetime | None  # when a job that waits may go on
    worker_id: str | None  # the worker that committed its last page
    last_error: str | None  # why it failed; while it is open, why its last try failed, or what it waits for
    stuck: bool  # open, and neither leased by a living worker nor waiting to be
    started_at: datetime | None
    updated_at: datetime
    ended_at: datetime | None

    def __post_init__(self) -> None:
        object.__setattr__(self, "partition_id", partition_id(self.number))

    @property
    def expected(self) -> int | None:
        """The rows that it has, as far as the source or the plan says."""
        return self.estimate if self.counted is None else self.counted


@dataclass(frozen=True)
class ErrorGroup:
    """Partitions that failed with one error."""

    error: str  # of the first of them
    partitions: tuple[str, ...]  # their ids: partition-7


# A partition is stuck without a job, or if the job's worker has been silent for longer than its lease. A job that
# waits for its time, or for a limit, is not stuck.
IS_STUCK: Final = """
    (p.state IN ('ready', 'running') AND r.ended_at IS NULL
     AND (j.id IS NULL OR (j.state = 'leased' AND COALESCE(j.lease_until, w.alive_until, 0) < {now})))
"""
PARTITIONS_WITH_JOBS: Final = """
      FROM stepfast_partition p
      JOIN stepfast_run r ON r.id = p.run_id
      LEFT JOIN stepfast_job j ON j.id = p.job_id
      LEFT JOIN stepfast_worker w ON w.incarnation = j.owner
"""
# As the view worker_runs has it: of an open partition, the error of its job's last try, or of its source while it waits.
LAST_ERROR: Final = """
    CASE WHEN p.state IN ('ready', 'running') THEN CASE WHEN j.failures + j.crashes > 0 THEN j.last_error
                                                        WHEN p.troubled_at >= p.updated_at THEN p.last_error END
         WHEN p.state <> 'done' THEN p.last_error END
"""
LIST_PARTITIONS = sql(f"""
    SELECT p.run_id, r.feed, p.number, p.name, p.state, p.epoch, p.seen, p.counted, p.estimate, p.rejected, p.requests,
           p.next_offset, p.job_id, j.state, CASE WHEN j.state = 'scheduled' THEN j.ready_at END, p.worker_id,
           {LAST_ERROR}, CASE WHEN {IS_STUCK} THEN 1 ELSE 0 END, p.started_at, p.updated_at, p.ended_at
    {PARTITIONS_WITH_JOBS}
     WHERE (:any_run = 1 OR p.run_id = :run_id) AND (:failed = 0 OR p.state = 'failed') AND (:stuck = 0 OR {IS_STUCK})
     ORDER BY r.started_at DESC, p.run_id DESC, p.number LIMIT :limit
""")
FAILED_PARTITIONS = sql(
    "SELECT number, last_error FROM stepfast_partition WHERE run_id = :id AND state = 'failed' ORDER BY number"
)

_read_partition = reader(
    PartitionReport, state=PartitionState, job_state=JobState, next_at=moment, stuck=lambda it: bool(int(it))
)


def list_partitions(
    tx: Transaction,
    *,
    run_id: str | None = None,
    failed: bool = False,
    stuck: bool = False,
    limit: int = 1_000,
) -> list[PartitionReport]:
    """Partitions of one run, or of all: the newest run first, then by number."""
    filters: dict[str, Any] = {"run_id": run_id, "any_run": int(run_id is None), "limit": limit}
    return tx.all(LIST_PARTITIONS, _read_partition, **filters, failed=int(failed), stuck=int(stuck))


def failed_by_error(tx: Transaction, run_id: str) -> tuple[ErrorGroup, ...]:
    """Failed partitions by their error, the most frequent first."""
    return group_errors([(int(row[0]), row[1]) for row in tx.rows(FAILED_PARTITIONS, id=run_id)])


def group_errors(failed: Sequence[tuple[int, str | None]]) -> tuple[ErrorGroup, ...]:
    """Group errors that differ only in their values."""
    groups: dict[str, list[tuple[int, str]]] = {}
    for number, error in failed:
        text = (error or NO_ERROR).partition("\n")[0]
        groups.setdefault(grouped(text), []).append((number, text))
    ordered = sorted(groups.values(), key=len, reverse=True)
    return tuple(
        ErrorGroup(group[0][1], tuple(partition_id(number) for number, _ in group)) for group in ordered
    )
