"""Runs: the newest of them, and where one stands. A run is named by its id, the beginning of it, or its feed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from stepfast.admin.rows import reader
from stepfast.clock import moment
from stepfast.database.statement import sql
from stepfast.errors import NotFoundError, StateError
from stepfast.runs.states import LATEST, RunState

if TYPE_CHECKING:
    from datetime import datetime

    from stepfast.database.connection import Transaction

SHOWN: Final = 3  # of the runs that an ambiguous name might mean


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


# The counts of planning are the run's own; those of its partitions are theirs.
COLUMNS: Final = """
    r.id, r.feed, r.kind, r.scope, r.state, r.stalled_in, r.partitions, r.completed, r.failed, r.unverified, r.estimate,
    r.seen, r.rejected, r.applied, r.quarantined, r.gone, r.differences,
    r.requests + (SELECT COALESCE(sum(p.requests), 0) FROM stepfast_partition p WHERE p.run_id = r.id),
    r.forced, r.most_rows, r.window_from, r.window_to, r.watermark_before, r.watermark_after, r.started_at, r.planned_at,
    r.fetched_at, r.completed_at, r.ended_at, r.updated_at, r.reason
"""
LIST = sql(f"""
    SELECT {COLUMNS} FROM stepfast_run r
     WHERE (:any_feed = 1 OR r.feed = :feed) AND (:active = 0 OR r.ended_at IS NULL)
     ORDER BY r.started_at DESC, r.id DESC LIMIT :limit
""")
ONE = sql(f"SELECT {COLUMNS} FROM stepfast_run r WHERE r.id = :id")
NEWEST = sql("""
    SELECT id FROM stepfast_run WHERE :any_feed = 1 OR feed = :feed
     ORDER BY CASE WHEN :prefer_active = 1 AND ended_at IS NOT NULL THEN 1 ELSE 0 END, started_at DESC, id DESC LIMIT 1
""")
BEGINNING = sql("""
    SELECT id, feed FROM stepfast_run WHERE id >= :first AND id < :beyond ORDER BY id DESC LIMIT :limit
""")

read_report = reader(
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
    """The newest first."""
    asked = {"feed": feed, "any_feed": int(feed is None), "active": int(active), "limit": limit}
    return tx.all(LIST, read_report, **asked)


def run_report(tx: Transaction, run_id: str) -> RunReport:
    """One, by its full id."""
    found = tx.all(ONE, read_report, id=run_id)
    if not found:
        raise NotFoundError(f"there is no run {run_id}; see: stepfast runs list")
    return found[0]


def resolve(tx: Transaction, name: str, *, prefer_active: bool = False) -> str:
    """The id of the run that somebody means: an id or its beginning, `latest`, or a feed for its newest run.

    `prefer_active`: a feed stands for the newest run that has not ended, if there is one.
    """
    if tx.rows(ONE, id=name):
        return name
    if found := tx.rows(NEWEST, feed=name, any_feed=0, prefer_active=int(prefer_active)):
        return str(found[0][0])
    if name == LATEST:
        if found := tx.rows(NEWEST, feed=None, any_feed=1, prefer_active=int(prefer_active)):
            return str(found[0][0])
        raise NotFoundError("there are no runs; begin one with: stepfast runs start FEED")
    begun = tx.rows(BEGINNING, first=name, beyond=f"{name}~", limit=SHOWN + 1) if name else []
    if not begun:
        raise NotFoundError(
            f"there is no run {name!r}, and no feed of that name has run; see: stepfast runs list"
        )
    if len(begun) > 1:
        shown = ", ".join(f"{row[0]} ({row[1]})" for row in begun[:SHOWN])
        more = ", …" if len(begun) > SHOWN else ""
        raise StateError(f"{name!r} is the beginning of several runs: {shown}{more}; give more of it")
    return str(begun[0][0])
