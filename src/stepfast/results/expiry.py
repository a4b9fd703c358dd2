"""Results are kept for a while; then they are emptied, and the rest of the job stays until its retention is over.

A result that an unfinished job may still ask for (`step.parents`) is kept until that one has ended.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepfast.database.statement import sql
from stepfast.steps.kept import NOT_NEEDED, not_needed

if TYPE_CHECKING:
    from stepfast.database.connection import Transaction

# MariaDB has no partial index: there the column that the index is about says which kind, where there is a result.
_OLD = """
    SELECT id FROM stepfast_archive
     WHERE {kind} = :kind AND result IS NOT NULL AND finished_at < {{now}} - :age AND {needed}
     ORDER BY finished_at LIMIT :limit
"""
_ANYWHERE = _OLD.format(kind="kind", needed=NOT_NEEDED)
_MARIADB = _OLD.format(kind="result_kind", needed=NOT_NEEDED)
LOOK = sql(_ANYWHERE, mariadb=_MARIADB)
OLD = sql(_ANYWHERE + "{skip_locked}", mariadb=_MARIADB + "{skip_locked}")
EMPTY = sql("""
    UPDATE stepfast_archive SET result = NULL, result_expired_at = {now}
     WHERE id {any_of:ids} AND result IS NOT NULL
""")


def any_expired(tx: Transaction, kind: str, age: int) -> bool:
    """Whether results of this kind are older than `age`; a look, so that an idle worker takes no lock."""
    return bool(tx.rows(LOOK, kind=kind, age=age, limit=1))


def expire(tx: Transaction, kind: str, age: int, limit: int) -> int:
    """Empty one batch of results older than `age`; returns how many."""
    ids = not_needed(tx, [row[0] for row in tx.rows(OLD, kind=kind, age=age, limit=limit)])
    return tx.run(EMPTY, ids=ids) if ids else 0
