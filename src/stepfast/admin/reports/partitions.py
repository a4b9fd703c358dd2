"""Partitions: how far each is, who reads it, and which of them nobody reads although somebody should."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from stepfast.admin.rows import reader
from stepfast.clock import moment
from stepfast.database.statement import sql
from stepfast.runs.states import PartitionState
from stepfast.steps.failure import grouped
from stepfast.steps.job import JobState

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from stepfast.database.connection import Transaction

NO_ERROR: Final = "no error was kept"


@dataclass(frozen=True)
class PartitionReport:
    run_id: str
    feed: str
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
    worker_id: str | None  # who committed its last page
    last_error: str | None
    stuck: bool  # open, and neither leased by a living worker nor waiting to be
    started_at: datetime | None
    updated_at: datetime
    ended_at: datetime | None

    @property
    def partition_id(self) -> str:
        return f"partition-{self.number}"

    @property
    def expected(self) -> int | None:
        """Rows it has, as far as anybody knows."""
        return self.estimate if self.counted is None else self.counted


@dataclass(frozen=True)
class ErrorGroup:
    """Partitions that failed of one cause."""

    error: str  # of the first of them
    partitions: tuple[int, ...]


# No job, or one whose owner has been silent for longer than its lease. One that waits for its time, or for a limit,
# is not stuck.
STUCK: Final = """
    (p.state IN ('ready', 'running') AND r.ended_at IS NULL
     AND (j.id IS NULL OR (j.state = 'leased' AND COALESCE(j.lease_until, w.alive_until, 0) < {now})))
"""
JOINED: Final = """
      FROM stepfast_partition p
      JOIN stepfast_run r ON r.id = p.run_id
      LEFT JOIN stepfast_job j ON j.id = p.job_id
      LEFT JOIN stepfast_worker w ON w.incarnation = j.owner
"""
LIST = sql(f"""
    SELECT p.run_id, r.feed, p.number, p.name, p.state, p.epoch, p.seen, p.counted, p.estimate, p.rejected, p.requests,
           p.next_offset, p.job_id, j.state, CASE WHEN j.state = 'scheduled' THEN j.ready_at END, p.worker_id,
           p.last_error, CASE WHEN {STUCK} THEN 1 ELSE 0 END, p.started_at, p.updated_at, p.ended_at
    {JOINED}
     WHERE (:any_run = 1 OR p.run_id = :run_id) AND (:failed = 0 OR p.state = 'failed') AND (:stuck = 0 OR {STUCK})
     ORDER BY r.started_at DESC, p.run_id DESC, p.number LIMIT :limit
""")
FAILED = sql(
    "SELECT number, last_error FROM stepfast_partition WHERE run_id = :id AND state = 'failed' ORDER BY number"
)

_read = reader(
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
    """Of one run, or of all: the newest run first, then by number."""
    asked: dict[str, Any] = {"run_id": run_id, "any_run": int(run_id is None), "limit": limit}
    return tx.all(LIST, _read, **asked, failed=int(failed), stuck=int(stuck))


def failed_by_error(tx: Transaction, run_id: str) -> tuple[ErrorGroup, ...]:
    """Why partitions failed, the most frequent cause first."""
    return group_errors([(int(row[0]), row[1]) for row in tx.rows(FAILED, id=run_id)])


def group_errors(failed: Sequence[tuple[int, str | None]]) -> tuple[ErrorGroup, ...]:
    """Errors that differ in nothing but their values are one."""
    groups: dict[str, list[tuple[int, str]]] = {}
    for number, error in failed:
        text = (error or NO_ERROR).partition("\n")[0]
        groups.setdefault(grouped(text), []).append((number, text))
    ordered = sorted(groups.values(), key=len, reverse=True)
    return tuple(ErrorGroup(group[0][1], tuple(number for number, _ in group)) for group in ordered)
