"""What is remembered of a feed between its runs: its watermark, and whether its source is in trouble."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from stepfast.database.statement import sql

if TYPE_CHECKING:
    from stepfast.database.connection import Transaction

_COLUMNS = (
    "id, watermark, version, last_run, skew, last_took, troubles, paused_until, pause_reason, updated_at, "
    "troubled_at, probe, {now}, export_to"
)
ENSURE = sql("INSERT INTO stepfast_feed (id) VALUES (:feed) {keep_existing}")
FIND = sql(f"SELECT {_COLUMNS} FROM stepfast_feed WHERE id = :feed")
LOCK = sql(f"SELECT {_COLUMNS} FROM stepfast_feed WHERE id = :feed {{for_update}}")


@dataclass(frozen=True)
class FeedRow:
    feed: str
    watermark: int | None = None  # everything the source changed before it is in the target
    version: int = 0  # counts the moves of the watermark
    last_run: str | None = None
    skew: int = 0  # how far the source's clock is ahead of ours
    last_took: int = 0  # how long the last completed run took
    troubles: int = 0  # throttles and outages since the last good answer
    paused_until: int | None = None
    pause_reason: str | None = None
    updated_at: int = 0
    troubled_at: int | None = None  # when the first of these troubles was met
    probe: str | None = None  # the job that asks first when the pause is over
    now: int = 0  # the database's time when this was read
    export_to: str | None = None  # where the watermark is written for others


def find_feed(tx: Transaction, feed: str) -> FeedRow:
    """As it stands; a feed that never ran has no watermark."""
    found = tx.all(FIND, FeedRow, feed=feed)
    return found[0] if found else FeedRow(feed)


def lock_feed(tx: Transaction, feed: str) -> FeedRow:
    """The feed's row, ours until the commit. After the run's in the order of locks."""
    tx.run(ENSURE, feed=feed)
    return tx.all(LOCK, FeedRow, feed=feed)[0]
