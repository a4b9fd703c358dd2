"""Masking rules of the applications of this database, so that every program that shows its rows follows them.

A worker stores the rules of its process when it starts, and now and then that they still hold. A rule that no worker
has had for a month is forgotten.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from stepfast.database.statement import sql
from stepfast.errors import ConfigurationError
from stepfast.telemetry.masking import hide, read, rules

if TYPE_CHECKING:
    from stepfast.database.connection import Transaction
    from stepfast.telemetry.masking import Rule


DAY: Final = 24 * 3600 * 1_000_000
KEPT: Final = 30 * DAY

KNOWN_RULES = sql("SELECT id FROM stepfast_mask ORDER BY id")
FRESH_RULES = sql("SELECT id FROM stepfast_mask WHERE id {any_of:ids} AND seen_at > {now} - :age")
DECLARE_RULE = sql("INSERT INTO stepfast_mask (id, seen_at) VALUES (:id, {now}) {keep_existing}")
CONFIRM_RULE = sql("UPDATE stepfast_mask SET seen_at = {now} WHERE id = :id")
FORGET_RULES = sql("DELETE FROM stepfast_mask WHERE seen_at < {now} - :age")


def outdated(tx: Transaction) -> list[str]:
    """Rules of this process that the table does not have, or that were not confirmed for a day."""
    mine = rules()
    if not mine:
        return []
    fresh = {row[0] for row in tx.rows(FRESH_RULES, ids=mine, age=DAY)}
    return [rule for rule in mine if rule not in fresh]


def declare(tx: Transaction, outdated_rules: list[str]) -> int:
    """Store that these rules hold."""
    for rule in sorted(outdated_rules):
        tx.run(DECLARE_RULE, id=rule)
        tx.run(CONFIRM_RULE, id=rule)
    tx.run(FORGET_RULES, age=KEPT)
    return 0


def apply_rules(tx: Transaction) -> list[str]:
    """Apply the rules of this database in this process; returns those that cannot be read, and so hide nothing."""
    readable, unreadable = _stored_rules(tx)
    hide(readable)
    return unreadable


def unreadable_rules(tx: Transaction) -> list[str]:
    """Rules of this database that cannot be read."""
    return _stored_rules(tx)[1]


def _stored_rules(tx: Transaction) -> tuple[list[Rule], list[str]]:
    readable: list[Rule] = []
    unreadable: list[str] = []
    for row in tx.rows(KNOWN_RULES):
        try:
            readable.append(read(str(row[0])))
        except ConfigurationError:
            unreadable.append(str(row[0]))
    return readable, unreadable
