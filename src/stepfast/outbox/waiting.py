"""Why a message that nobody has tried yet does not leave: those before it in its line have to go first."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepfast.database.statement import sql

if TYPE_CHECKING:
    from stepfast.database.connection import Transaction

_BEFORE = """
    SELECT (SELECT count(*) FROM stepfast_outbox b {index}
             WHERE b.state = 'waiting' AND b.destination = o.destination AND b.seq < o.seq),
           (SELECT h.last_error FROM stepfast_outbox h {index}
             WHERE h.state = 'waiting' AND h.destination = o.destination ORDER BY h.seq LIMIT 1)
      FROM stepfast_outbox o WHERE o.id = :id AND o.state = 'waiting'
"""
# MariaDB might count along the primary key, over everything that was sent before.
BEFORE = sql(_BEFORE.format(index=""), mariadb=_BEFORE.format(index="FORCE INDEX (stepfast_outbox_waiting)"))


def stands_behind(tx: Transaction, message_id: str) -> str | None:
    """How many go first, and what holds up the first of them; None if it is the first itself, or has ended."""
    rows = tx.rows(BEFORE, id=message_id)
    if not rows or not rows[0][0]:
        return None
    count, error = rows[0]
    others = "1 other" if count == 1 else f"{count:,} others"
    return f"stands behind {others} to the same address{f', the first of which failed: {error}' if error else ''}"
