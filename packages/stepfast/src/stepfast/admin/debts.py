"""Debts: ranges that must be read again. List them, accept one with a reason, or let the next runs try again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from stepfast.admin.audit import Actor, Detail, record, require_reason
from stepfast.admin.rows import reader
from stepfast.clock import moment
from stepfast.database.statement import sql
from stepfast.errors import NotFoundError, StateError
from stepfast.runs.debts import MOST_TRIES
from stepfast.telemetry.masking import without_secrets

if TYPE_CHECKING:
    from datetime import datetime

    from stepfast.database.connection import Transaction


LONGEST_REASON: Final = 500


@dataclass(frozen=True)
class DebtReport:
    """A range that was not verified in a window, which is on the source's clock."""

    id: int
    feed: str
    state: str  # open, given up (no run reads it before `retry`), or closed
    range: str
    window_from: datetime | None
    window_to: datetime
    tries: int
    run_id: str  # the run that missed it first
    opened_at: datetime
    closed_at: datetime | None
    closed_by: str | None  # the run that read it; None if a person closed it
    reason: str | None


LIST_DEBTS = sql("""
    SELECT id, feed, CASE WHEN state = 'open' AND tries >= :tries THEN 'given up' ELSE state END, name, window_from,
           window_to, tries, run_id, opened_at, closed_at, closed_by, reason
      FROM stepfast_debt
     WHERE (:any_feed = 1 OR feed = :feed) AND (:everything = 1 OR state = 'open')
     ORDER BY id DESC LIMIT :limit
""")

_read_debt = reader(DebtReport, window_from=moment, window_to=moment)


def list_debts(
    tx: Transaction, *, feed: str | None = None, everything: bool = False, limit: int = 50
) -> list[DebtReport]:
    """Open debts, or with `everything` all; the latest first."""
    filters = {"feed": feed, "any_feed": int(feed is None), "everything": int(everything), "limit": limit}
    return tx.all(LIST_DEBTS, _read_debt, **filters, tries=MOST_TRIES)


LOCK_DEBT = sql("SELECT feed, name, state, tries FROM stepfast_debt WHERE id = :id {for_update}")
CLOSE_DEBT = sql("""
    UPDATE stepfast_debt SET state = 'closed', closed_by = NULL, closed_at = {now}, reason = :reason
     WHERE id = :id AND state = 'open'
""")
REOPEN_DEBT = sql("""
    UPDATE stepfast_debt SET state = 'open', tries = 0, closed_by = NULL, closed_at = NULL, reason = NULL
     WHERE id = :id AND (state = 'closed' OR tries > 0)
""")


def close_debt(tx: Transaction, debt_id: int, *, by: Actor | None = None) -> None:
    """Accept that this range may be incomplete in its window: no run reads it again for this debt."""
    by = require_reason(by, "say why the debt is closed without having been read; the reason is kept with it")
    feed, name, state, tries = _lock(tx, debt_id)
    if tx.run(CLOSE_DEBT, id=debt_id, reason=without_secrets(by.reason or "")[:LONGEST_REASON]) != 1:
        raise StateError(f"debt {debt_id} is {state}; there is nothing to close")
    record(tx, by, "debt.close", str(debt_id), detail={"feed": feed, "range": name, "tries": tries})


def retry_debt(tx: Transaction, debt_id: int, *, by: Actor | None = None) -> None:
    """Let the next runs read the range again, with fresh tries; a closed debt is open again."""
    feed, name, state, tries = _lock(tx, debt_id)
    if tx.run(REOPEN_DEBT, id=debt_id) != 1:
        raise StateError(f"debt {debt_id} is read by the next run already; it needs no retry")
    detail: Detail = {"feed": feed, "range": name, "was": state, "tries": tries}
    record(tx, by, "debt.retry", str(debt_id), detail=detail)


def _lock(tx: Transaction, debt_id: int) -> tuple[str, str, str, int]:
    found = tx.rows(LOCK_DEBT, id=debt_id)
    if not found:
        raise NotFoundError(f"there is no debt {debt_id}; see: stepfast debts list --all")
    feed, name, state, tries = found[0]
    return str(feed), str(name), str(state), int(tries)
