"""Debts: what has to be read again, how often that was tried, and what became of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from stepfast.admin.rows import reader
from stepfast.clock import moment
from stepfast.database.statement import sql
from stepfast.runs.debts import TRIES

if TYPE_CHECKING:
    from datetime import datetime

    from stepfast.database.connection import Transaction


@dataclass(frozen=True)
class DebtReport:
    """A range that was not verified in a window, which is on the source's clock."""

    id: int
    feed: str
    state: str  # open, given up (nobody reads it again by himself), or closed
    range: str
    window_from: datetime | None
    window_to: datetime
    tries: int
    run_id: str  # the run that missed it first
    opened_at: datetime
    closed_at: datetime | None
    closed_by: str | None  # the run that read it; None if a person closed it
    reason: str | None


LIST = sql("""
    SELECT id, feed, CASE WHEN state = 'open' AND tries >= :tries THEN 'given up' ELSE state END, name, window_from,
           window_to, tries, run_id, opened_at, closed_at, closed_by, reason
      FROM stepfast_debt
     WHERE (:any_feed = 1 OR feed = :feed) AND (:everything = 1 OR state = 'open')
     ORDER BY id DESC LIMIT :limit
""")

_read = reader(DebtReport, window_from=moment, window_to=moment)


def list_debts(
    tx: Transaction, *, feed: str | None = None, everything: bool = False, limit: int = 50
) -> list[DebtReport]:
    """Those that are open, or with `everything` all; the latest first."""
    asked = {"feed": feed, "any_feed": int(feed is None), "everything": int(everything), "limit": limit}
    return tx.all(LIST, _read, **asked, tries=TRIES)
