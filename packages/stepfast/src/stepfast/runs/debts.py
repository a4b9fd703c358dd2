"""Debts: ranges that a run could not verify, and a later run must read again, in the window in which they were missed.

A range and a window make one debt, however often they are missed. A debt that covers an older one of the same range
takes its place, with its tries. After three tries no run reads it again by itself: an alert was raised, and a person
decides.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgspec

from stepfast.database.statement import sql
from stepfast.runs import alerts
from stepfast.runs.partitioning.ranges import Range
from stepfast.runs.window import Window

if TYPE_CHECKING:
    from stepfast.database.connection import Transaction
    from stepfast.runs.partition import Partition
    from stepfast.runs.run import Run


MOST_TRIES: Final = 3  # after so many a person decides

_OPEN = """
    INSERT INTO stepfast_debt (digest, feed, name, span, window_from, window_to, run_id, opened_at, tries)
    VALUES (:digest, :feed, :name, :span, :window_from, :window_to, :run_id, {now}, :tries)
"""
OPEN_DEBT = sql(
    _OPEN
    + """
    ON CONFLICT (digest) DO UPDATE
       SET tries = stepfast_debt.tries + 1, state = 'open', closed_by = NULL, closed_at = NULL, reason = NULL
    """,
    mariadb=_OPEN
    + " ON DUPLICATE KEY UPDATE tries = tries + 1, state = 'open', closed_by = NULL, closed_at = NULL, reason = NULL",
)
COUNT_TRY = sql("UPDATE stepfast_debt SET tries = tries + 1 WHERE id = :id AND state = 'open'")

_COLUMNS = "id, name, span, window_from, window_to, tries"
OPEN_DEBTS = sql(f"SELECT {_COLUMNS} FROM stepfast_debt WHERE feed = :feed AND state = 'open' ORDER BY id")
FIND_DEBT = sql(f"SELECT {_COLUMNS} FROM stepfast_debt WHERE id = :id")
FIND_DEBT_BY_DIGEST = sql(f"SELECT {_COLUMNS} FROM stepfast_debt WHERE digest = :digest")

CLOSE_DEBT = sql("""
    UPDATE stepfast_debt SET state = 'closed', closed_by = :run_id, closed_at = {now}, reason = :reason
     WHERE id = :id AND state = 'open'
""")
CLOSE_COVERED_DEBTS = sql("""
    UPDATE stepfast_debt SET state = 'closed', closed_by = :run_id, closed_at = {now}
     WHERE feed = :feed AND state = 'open' AND window_to <= :window_to
       AND (:since_ever = 1 OR (window_from IS NOT NULL AND window_from >= :window_from))
""")


@dataclass(frozen=True)
class Debt:
    """A range in a window that must be read again."""

    id: int
    name: str
    span: str
    window_from: int | None
    window_to: int
    tries: int

    @property
    def range(self) -> Range:
        return Range.from_json(msgspec.json.decode(self.span))

    @property
    def window(self) -> Window:
        return Window.of(self.window_from, self.window_to)

    @property
    def is_given_up(self) -> bool:
        return self.tries >= MOST_TRIES


def open_debt(tx: Transaction, run: Run, partition: Partition) -> None:
    """Open a debt for the partition's range and window; a partition that read a debt counts another try instead."""
    if partition.debt_id is not None:
        count_try(tx, run.feed, partition.debt_id)
        return
    identity = f"{run.feed}\n{partition.span}\n{partition.window_from}\n{partition.window_to}"
    digest = hashlib.blake2b(identity.encode(), digest_size=20).hexdigest()
    tx.run(
        OPEN_DEBT,
        digest=digest,
        feed=run.feed,
        name=partition.name,
        span=partition.span,
        window_from=partition.window_from,
        window_to=partition.window_to,
        run_id=run.id,
        tries=_absorb(tx, run, partition, digest),
    )
    _alert_if_given_up(tx, run.feed, tx.all(FIND_DEBT_BY_DIGEST, Debt, digest=digest)[0])


def count_try(tx: Transaction, feed: str, debt_id: int) -> None:
    """Count that a debt was read once more, in vain. A debt that was closed meanwhile stays closed."""
    if tx.run(COUNT_TRY, id=debt_id) == 1:
        _alert_if_given_up(tx, feed, tx.all(FIND_DEBT, Debt, id=debt_id)[0])


def open_debts(tx: Transaction, feed: str) -> list[Debt]:
    """All open debts of a feed, also those that were given up."""
    return tx.all(OPEN_DEBTS, Debt, feed=feed)


def debts_to_read(tx: Transaction, run: Run) -> list[Debt]:
    """Debts of the feed that the run's own partitions do not cover: their windows reach beyond its window."""
    found = open_debts(tx, run.feed)
    return [debt for debt in found if not debt.is_given_up and not covers(run.window, debt.window)]


def covers(window: Window, other: Window) -> bool:
    """Whether everything that was changed in the other window was changed in this one."""
    begins = window.from_ is None or (other.from_ is not None and window.from_ <= other.from_)
    return begins and other.to <= window.to


def close_debt(tx: Transaction, debt_id: int, run_id: str) -> bool:
    """Close a debt that a partition has read and verified."""
    return tx.run(CLOSE_DEBT, id=debt_id, run_id=run_id, reason=None) == 1


def close_covered_debts(tx: Transaction, run: Run) -> int:
    """Close the debts that lie in the window of a run which read everything in it, all verified. Returns how many."""
    return tx.run(
        CLOSE_COVERED_DEBTS,
        feed=run.feed,
        run_id=run.id,
        window_from=run.window_from or 0,
        window_to=run.window_to,
        since_ever=int(run.window_from is None),
    )


def _absorb(tx: Transaction, run: Run, partition: Partition, digest: str) -> int:
    """Close the debts that the new one covers; returns the tries that it begins with."""
    same = {debt.id for debt in tx.all(FIND_DEBT_BY_DIGEST, Debt, digest=digest)}
    older = [
        debt
        for debt in open_debts(tx, run.feed)
        if debt.id not in same and debt.span == partition.span and covers(partition.window, debt.window)
    ]
    for debt in older:
        tx.run(CLOSE_DEBT, id=debt.id, run_id=run.id, reason="part of a later debt of the same range")
    return max((debt.tries + 1 for debt in older), default=0)


def _alert_if_given_up(tx: Transaction, feed: str, debt: Debt) -> None:
    if debt.is_given_up:
        alerts.debt_given_up(tx, feed, debt.id, debt.name, debt.tries)
