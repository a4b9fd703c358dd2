"""Forget what runs leave behind: what partitions have seen, once nobody can need it, and whole runs when they are old.

Everything is found by walking along keys, and goes in bounded batches: no statement here takes long, however much there
is. Raw rows, target rows, quarantine and debts are not touched: they belong to the feed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from stepfast.database.statement import sql

if TYPE_CHECKING:
    from stepfast.database.connection import Transaction

BATCH: Final = 5_000

NEXT_SEEN = sql("SELECT min(partition_id) FROM stepfast_seen WHERE partition_id > :after")
# What a partition has seen is what its pages are anchored by, and the proof that it is complete. It is needed until the
# partition cannot be read on: it is done, or its run is complete, or a newer run has taken its place.
NEEDED = sql("""
    SELECT p.id FROM stepfast_partition p JOIN stepfast_run r ON r.id = p.run_id
     WHERE p.id = :id AND p.state NOT IN ('done', 'split')
       AND (r.ended_at IS NULL
            OR (r.state NOT IN ('completed', 'published_partial')
                AND NOT EXISTS (SELECT 1 FROM stepfast_run n
                                 WHERE n.feed = r.feed AND n.started_at > r.started_at AND n.kind NOT IN ('backfill', 'remap'))))
""")
LAST_SEEN_OF_BATCH = sql("""
    SELECT max(item_id) FROM (SELECT item_id FROM stepfast_seen WHERE partition_id = :id ORDER BY item_id LIMIT :limit) b
""")
FORGET_SEEN = sql("DELETE FROM stepfast_seen WHERE partition_id = :id AND item_id <= :until")

# The run that moved the watermark last is kept, whatever its age: it says where the feed stands.
OLD_RUN = sql("""
    SELECT r.id FROM stepfast_run r
     WHERE r.ended_at < {now} - :age AND NOT EXISTS (SELECT 1 FROM stepfast_feed f WHERE f.last_run = r.id)
     ORDER BY r.ended_at LIMIT 1
""")
PARTITIONS = sql("SELECT id FROM stepfast_partition WHERE run_id = :run_id ORDER BY id LIMIT :limit")
LAST_PAGE_OF_BATCH = sql("""
    SELECT epoch, seq FROM stepfast_page WHERE partition_id = :id ORDER BY epoch, seq LIMIT 1 OFFSET :offset
""")
FORGET_PAGES = sql("DELETE FROM stepfast_page WHERE partition_id = :id")
FORGET_FIRST_PAGES = sql("""
    DELETE FROM stepfast_page WHERE partition_id = :id AND (epoch < :epoch OR (epoch = :epoch AND seq <= :seq))
""")
FORGET_PARTITION = sql("DELETE FROM stepfast_partition WHERE id = :id")
FORGET_RUN = sql("DELETE FROM stepfast_run WHERE id = :id AND ended_at IS NOT NULL")


@dataclass(frozen=True)
class Pruned:
    """How many rows went, and whether there may be more."""

    rows: int = 0
    more: bool = False


def seen_by_nobody(tx: Transaction, after: str = "") -> str | None:
    """The next partition, in the order of ids, whose seen rows nobody needs."""
    while (found := tx.first(NEXT_SEEN, after=after)) is not None:
        if not tx.rows(NEEDED, id=found):
            return str(found)
        after = str(found)
    return None


def forget_seen(tx: Transaction, partition_id: str, limit: int = BATCH) -> Pruned:
    """One batch of what a partition has seen, if nobody needs it; in the order of its key, like those who write it."""
    if tx.rows(NEEDED, id=partition_id):
        return Pruned()
    until = tx.first(LAST_SEEN_OF_BATCH, id=partition_id, limit=limit)
    if until is None:
        return Pruned()
    rows = tx.run(FORGET_SEEN, id=partition_id, until=until)
    return Pruned(rows, more=rows >= limit)


def oldest(tx: Transaction, age: int) -> str | None:
    """A run that ended longer ago than `age`."""
    found = tx.first(OLD_RUN, age=age)
    return None if found is None else str(found)


def forget_run(tx: Transaction, run_id: str, limit: int = BATCH) -> Pruned:
    """One batch of an old run: pages, then their partition, and the run itself when it has none."""
    found = tx.rows(PARTITIONS, run_id=run_id, limit=1)
    if not found:
        return Pruned(tx.run(FORGET_RUN, id=run_id))
    partition_id = str(found[0][0])
    seen = forget_seen(tx, partition_id, limit)
    if seen.rows:
        return Pruned(seen.rows, more=True)
    last = tx.rows(LAST_PAGE_OF_BATCH, id=partition_id, offset=limit)
    if last:
        epoch, seq = last[0]
        return Pruned(tx.run(FORGET_FIRST_PAGES, id=partition_id, epoch=epoch, seq=seq), more=True)
    rows = tx.run(FORGET_PAGES, id=partition_id)
    return Pruned(rows + tx.run(FORGET_PARTITION, id=partition_id), more=True)
