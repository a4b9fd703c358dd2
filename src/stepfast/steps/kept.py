"""What must be kept beyond its time: jobs that ended, as long as one that comes after them is unfinished."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from stepfast.database.statement import sql

if TYPE_CHECKING:
    from stepfast.database.connection import Transaction

# About a row of stepfast_archive. Part of the choice, so that what is kept does not stand in the way of the rest.
NOT_NEEDED: Final = """NOT EXISTS (
           SELECT 1 FROM stepfast_dependency d JOIN stepfast_job c ON c.id = d.child_id
            WHERE d.parent_id = stepfast_archive.id)"""

NEEDED = sql("""
    SELECT DISTINCT d.parent_id FROM stepfast_dependency d JOIN stepfast_job c ON c.id = d.child_id
     WHERE d.parent_id {any_of:ids}
""")


def not_needed(tx: Transaction, ids: list[str]) -> list[str]:
    """Those of these locked rows that nobody comes after: an edge may have been added before we had the lock."""
    needed = {row[0] for row in tx.rows(NEEDED, ids=ids)} if ids else set()
    return [it for it in ids if it not in needed]
