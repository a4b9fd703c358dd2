"""Which messages are about work that the database knows, whatever became of it: one look for all of them.

The same question as `judge` asks, for those who need no more than yes or no.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Final

from stepfast.database.statement import sql
from stepfast.runs.hints import Hint, WorkItem

if TYPE_CHECKING:
    from stepfast.database.connection import Transaction

NONE: Final = -1  # no partition has this number

# Runs, each with those of its partitions whose number anybody named. (Lists are lists of texts for PostgreSQL, unless
# it is told.)
_NAMED = """
    SELECT r.id, r.feed, p.number
      FROM stepfast_run r LEFT JOIN stepfast_partition p ON p.run_id = r.id AND p.number {numbers}
     WHERE r.id {{any_of:ids}}
"""
NAMED = sql(
    _NAMED.format(numbers="{any_of:numbers}"),
    postgresql=_NAMED.format(numbers="= ANY(CAST(:numbers AS INTEGER[]))"),
)


def known(tx: Transaction, hints: Sequence[Hint], feeds: Collection[str]) -> list[bool]:
    """For each, whether it names a run, and a partition of that run. `feeds` are here; others know their own runs."""
    if not hints:
        return []
    numbers = {it.number for it in hints if isinstance(it, WorkItem) and it.number is not None}
    feed_of: dict[str, str] = {}
    partitions: dict[str, set[int]] = defaultdict(set)
    ids = sorted({it.run_id for it in hints})
    for run_id, feed, number in tx.rows(NAMED, ids=ids, numbers=sorted(numbers) or [NONE]):
        feed_of[run_id] = feed
        partitions[run_id].add(number)
    return [
        it.run_id in feed_of
        and (
            feed_of[it.run_id] not in feeds
            or not isinstance(it, WorkItem)
            or (it.number is not None and it.number in partitions[it.run_id])
        )
        for it in hints
    ]
