"""Limits: what is taken, who waits, and when there is room again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from stepfast.admin.rows import reader
from stepfast.database.statement import sql
from stepfast.limits.limit import room_in_rate

if TYPE_CHECKING:
    from datetime import datetime

    from stepfast.database.connection import Transaction


@dataclass(frozen=True)
class LimitReport:
    limit: str
    slots: int | None  # how many may run at once; None for a rate
    taken: int | None
    room: int  # how many may start now
    held: int  # jobs that wait for it
    next_look_at: datetime | None  # when held jobs are looked at, if nobody frees a slot before


# Those that hold somebody first, then those in use; 100,000 keys are not a list to read.
LIMITS = sql("""
    SELECT l.id, l.slots, l.arrival_at, l.gap, l.tolerance, l.due_at, {now},
           (SELECT count(*) FROM stepfast_slot s WHERE s.limit_id = l.id),
           (SELECT count(*) FROM stepfast_job j WHERE j.held_by = l.id AND j.state = 'held')
      FROM stepfast_limit l
     WHERE :everything = 1 OR l.due_at IS NOT NULL OR EXISTS (SELECT 1 FROM stepfast_slot s WHERE s.limit_id = l.id)
     ORDER BY CASE WHEN l.due_at IS NULL THEN 1 ELSE 0 END, l.id
     LIMIT :limit
""")


def list_limits(tx: Transaction, *, everything: bool = False, limit: int = 100) -> list[LimitReport]:
    """Limits that hold jobs or are in use; with `everything`, also those that were asked lately."""
    read = reader(LimitReport)
    found = []
    for name, slots, arrival, gap, tolerance, due, now, taken, held in tx.rows(
        LIMITS, everything=int(everything), limit=limit
    ):
        if slots or not gap:
            found.append(read(name, slots or None, int(taken), max(0, slots - int(taken)), int(held), due))
        else:
            room = room_in_rate(now, arrival, gap, tolerance)
            found.append(read(name, None, None, room, int(held), due))
    return found
