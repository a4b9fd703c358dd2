"""How far each feed has been read, and what is still owed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from stepfast.admin.rows import reader
from stepfast.clock import moment
from stepfast.database.statement import sql
from stepfast.errors import NotFoundError

if TYPE_CHECKING:
    from datetime import datetime, timedelta

    from stepfast.database.connection import Transaction


@dataclass(frozen=True)
class WatermarkReport:
    """Everything that the source changed before `watermark`, on its own clock, is in the target, but for the debts."""

    feed: str
    watermark: datetime | None
    version: int  # how often it was moved
    last_run: str | None  # the last run that moved it
    last_run_completed_at: datetime | None
    active_run: str | None
    open_debts: int
    export_to: str | None
    source_now: datetime

    @property
    def age(self) -> timedelta | None:
        return None if self.watermark is None else self.source_now - self.watermark


_SELECT = """
    SELECT f.id, f.watermark, f.version, f.last_run,
           (SELECT r.completed_at FROM stepfast_run r WHERE r.id = f.last_run),
           (SELECT min(r.id) FROM stepfast_run r WHERE r.active_feed = f.id),
           (SELECT count(*) FROM stepfast_debt d WHERE d.feed = f.id AND d.state = 'open'),
           f.export_to, {now} + f.skew
      FROM stepfast_feed f
"""
LIST = sql(_SELECT + " ORDER BY f.id LIMIT :limit")
ONE = sql(_SELECT + " WHERE f.id = :feed")

_read = reader(WatermarkReport, watermark=moment, open_debts=int, source_now=moment)


def list_watermarks(tx: Transaction, *, limit: int = 200) -> list[WatermarkReport]:
    """By the names of the feeds."""
    return tx.all(LIST, _read, limit=limit)


def show_watermark(tx: Transaction, feed: str) -> WatermarkReport:
    found = tx.all(ONE, _read, feed=feed)
    if not found:
        raise NotFoundError(f"feed {feed!r} has never run here; see: stepfast watermark show")
    return found[0]
