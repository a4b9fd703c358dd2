"""Jobs that wait for others which ended without telling them: rows that were deleted or moved by hand.

Whoever ends a job tells those who wait, in the same transaction. So nothing should ever be found here; but a job that
waits for ever is the worst that can happen to one, and nobody would notice.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

from stepfast.database.statement import sql
from stepfast.steps.dependants import AWAITED, PURGED, parents_ended
from stepfast.steps.dependencies import look_at

if TYPE_CHECKING:
    from stepfast.database.connection import Transaction

OPEN = sql("""
    SELECT child_id, parent_id, on_dead FROM stepfast_dependency
     WHERE state = 'open' AND child_id >= :child AND (child_id > :child OR parent_id > :parent)
     ORDER BY child_id, parent_id LIMIT :limit
""")
LIVE = sql("SELECT id FROM stepfast_job WHERE id {any_of:ids}")
ENDED = sql("SELECT id, state FROM stepfast_archive WHERE id {any_of:ids}")


class Place(NamedTuple):
    """How far the open edges have been looked at."""

    child: str = ""
    parent: str = ""


BEGINNING = Place()


def stranded(tx: Transaction, place: Place, limit: int) -> tuple[list[str], Place]:
    """Parents that have ended, among the next open edges; and where to go on. A look that takes no lock."""
    edges = tx.rows(OPEN, child=place.child, parent=place.parent, limit=limit)
    if not edges:
        return [], BEGINNING
    asked = sorted({str(row[1]) for row in edges})
    live = {row[0] for row in tx.rows(LIVE, ids=asked)}
    gone = [it for it in asked if it not in live]
    dead = {row[0] for row in tx.rows(ENDED, ids=gone) if row[1] != "done"} if gone else set()
    late = {
        str(parent)
        for _, parent, on_dead in edges
        if parent not in live and not (parent in dead and on_dead == "wait")
    }
    last = Place(str(edges[-1][0]), str(edges[-1][1])) if len(edges) == limit else BEGINNING
    return sorted(late), last


def tell(tx: Transaction, parents: list[str]) -> int:
    """Tell those who wait for these, as far as they have ended; returns for how many parents that was needed."""
    standing = look_at(tx, parents)
    by_state: dict[str, list[str]] = defaultdict(list)
    for row in tx.rows(AWAITED, ids=parents):  # most ended a moment ago, and told it
        by_state[standing.get(row[0], PURGED)].append(row[0])
    by_state.pop("live", None)
    for state, ids in by_state.items():
        parents_ended(tx, ids, state)
    return sum(map(len, by_state.values()))
