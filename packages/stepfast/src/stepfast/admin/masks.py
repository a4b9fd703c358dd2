"""The rules of masking that the applications of this database have, so that whoever shows its rows follows them.

A worker writes down the rules of its process when it starts, and now and then that they still hold. A rule that no
worker has had for a month is forgotten.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from stepfast.database.statement import sql
from stepfast.telemetry.masking import hide, read, rules

if TYPE_CHECKING:
    from stepfast.database.connection import Transaction


DAY: Final = 24 * 3600 * 1_000_000
KEPT: Final = 30 * DAY

KNOWN = sql("SELECT id FROM stepfast_mask ORDER BY id")
FRESH = sql("SELECT id FROM stepfast_mask WHERE id {any_of:ids} AND seen_at > {now} - :age")
DECLARE = sql("INSERT INTO stepfast_mask (id, seen_at) VALUES (:id, {now}) {keep_existing}")
CONFIRM = sql("UPDATE stepfast_mask SET seen_at = {now} WHERE id = :id")
FORGET = sql("DELETE FROM stepfast_mask WHERE seen_at < {now} - :age")


def outdated(tx: Transaction) -> list[str]:
    """Which rules of this process the table does not have, or has not heard of for a day."""
    mine = rules()
    if not mine:
        return []
    fresh = {row[0] for row in tx.rows(FRESH, ids=mine, age=DAY)}
    return [it for it in mine if it not in fresh]


def declare(tx: Transaction, found: list[str]) -> int:
    """Write down that these hold."""
    for rule in sorted(found):
        tx.run(DECLARE, id=rule)
        tx.run(CONFIRM, id=rule)
    tx.run(FORGET, age=KEPT)
    return 0


def follow(tx: Transaction) -> None:
    """Let the rules of this database hold in this process."""
    hide([read(str(row[0])) for row in tx.rows(KNOWN)])
