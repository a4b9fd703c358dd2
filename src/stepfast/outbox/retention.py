"""Messages that were sent are kept for a while, then forgotten in bounded batches. Dead ones wait for an operator.

Hints about jobs never come here: the relay forgets them in the transaction that would record that they were sent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepfast.database.statement import sql

if TYPE_CHECKING:
    from stepfast.database.connection import Transaction

OLD = sql("""
    SELECT id FROM stepfast_outbox WHERE state = 'sent' AND ended_at < {now} - :age
     ORDER BY ended_at LIMIT :limit {skip_locked}
""")
FORGET = sql("DELETE FROM stepfast_outbox WHERE id {any_of:ids} AND state = 'sent'")

# The relay makes the row of a destination anew when it meets it again.
IDLE = sql("""
    SELECT id FROM stepfast_destination WHERE leased_until < {now} - :age
     ORDER BY leased_until LIMIT :limit {skip_locked}
""")
FORGET_IDLE = sql("DELETE FROM stepfast_destination WHERE id {any_of:ids} AND leased_until < {now} - :age")

# Causes that came to rest, also those that nobody could tell: they were listed for long enough.
_AT_REST = (
    "last_at < {now} - :age AND quiet_until < {now} AND (notify_at IS NULL OR notify_at < {now} - :age)"
)
QUIET = sql(f"SELECT id FROM stepfast_alert WHERE {_AT_REST} ORDER BY last_at LIMIT :limit {{skip_locked}}")
FORGET_QUIET = sql(f"DELETE FROM stepfast_alert WHERE id {{any_of:ids}} AND {_AT_REST}")


def prune(tx: Transaction, age: int, limit: int) -> int:
    """Forget one batch of what was sent longer than `age` ago; returns how many messages."""
    ids = [row[0] for row in tx.rows(OLD, age=age, limit=limit)]
    removed = tx.run(FORGET, ids=ids) if ids else 0
    if idle := [row[0] for row in tx.rows(IDLE, age=age, limit=limit)]:
        tx.run(FORGET_IDLE, ids=idle, age=age)
    if quiet := [row[0] for row in tx.rows(QUIET, age=age, limit=limit)]:
        tx.run(FORGET_QUIET, ids=quiet, age=age)
    return removed
