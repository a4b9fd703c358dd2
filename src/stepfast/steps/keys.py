"""Keys that are remembered longer than their job lives.

Uniqueness must not rest on the live table alone: a job that ends moves to the archive, and a duplicate
that overlaps the move would get in. So what must be remembered is a row that never moves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from stepfast.database.statement import sql
from stepfast.errors import ContentionError

if TYPE_CHECKING:
    from stepfast.database.connection import Transaction

TRIES = 5
AFTER: Final = "(after) "  # so begins the key of a job that waits for the end of the holder of the rest
# The key that a job is going to hold, if not now; SUBSTR counts from 1.
OWN_KEY: Final = (
    f"CASE WHEN unique_key LIKE '{AFTER}%' THEN SUBSTR(unique_key, {len(AFTER) + 1}) ELSE unique_key END"
)

# `window` is 1, or the length of the windows that time is cut into (from 1970, UTC).
REMEMBER = sql("""
    INSERT INTO stepfast_key (id, job_id, until_at) VALUES (:id, :job_id, {now} - {now} % :window + :keep)
    {keep_existing}
""")

# A key whose time is over may be taken again, by whoever comes first.
TAKE_OVER = sql("""
    UPDATE stepfast_key SET job_id = :job_id, until_at = {now} - {now} % :window + :keep
     WHERE id = :id AND job_id <> :job_id AND until_at <= {now}
""")

HOLDER = sql("SELECT job_id FROM stepfast_key WHERE id = :id")
# A lent transaction of MariaDB's may look at the past (REPEATABLE READ), where the key is not yet there.
HOLDER_NOW = sql("SELECT job_id FROM stepfast_key WHERE id = :id {for_update}")

HAND_OVER = sql("UPDATE stepfast_key SET job_id = :holder WHERE id = :id AND job_id = :job_id")

PROLONG = sql("UPDATE stepfast_key SET until_at = {now} + :keep WHERE id = :id AND until_at < {now} + :keep")

LET_GO = sql("DELETE FROM stepfast_key WHERE id = :id AND job_id = :job_id")

FORGET = sql("""
    DELETE FROM stepfast_key WHERE id {any_of:ids}
""")

EXPIRED = sql(
    "SELECT id FROM stepfast_key WHERE until_at <= {now} ORDER BY until_at LIMIT :limit {skip_locked}"
)


def remember(tx: Transaction, scope: str, key: str, job_id: str, keep: int, *, window: int = 1) -> str:
    """Claim `key` for `job_id`; returns the job that holds it, which is another one if we came late."""
    name = f"{scope}:{key}"
    for again in range(TRIES):
        tx.run(REMEMBER, id=name, job_id=job_id, keep=keep, window=window)
        tx.run(TAKE_OVER, id=name, job_id=job_id, keep=keep, window=window)
        holder = tx.first(HOLDER_NOW if again else HOLDER, id=name)
        if holder is not None:
            return str(holder)
        # Its time was over, and somebody forgot it between our insert and our look: it is free now.
    raise ContentionError(f"key {key!r} was forgotten {TRIES} times while we looked; try again")


def hand_over(tx: Transaction, scope: str, key: str, job_id: str, holder: str) -> None:
    """Remember the key for `holder` instead: our own job was not needed."""
    tx.run(HAND_OVER, id=f"{scope}:{key}", job_id=job_id, holder=holder)


def prolong(tx: Transaction, scope: str, key: str, keep: int) -> None:
    """Remember the key for `keep` microseconds from now at least."""
    tx.run(PROLONG, id=f"{scope}:{key}", keep=keep)


def let_go(tx: Transaction, scope: str, key: str, job_id: str) -> None:
    """Forget the key that we claimed for `job_id`: no such job came to be."""
    tx.run(LET_GO, id=f"{scope}:{key}", job_id=job_id)


def forget_expired(tx: Transaction, limit: int) -> int:
    """Drop keys whose time is over; returns how many."""
    ids = [row[0] for row in tx.rows(EXPIRED, limit=limit)]
    return tx.run(FORGET, ids=ids) if ids else 0
