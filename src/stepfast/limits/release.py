"""Let held jobs go on: by whoever frees a slot, and by a sweep when a rate's time has come.

They become ready in the order of their urgency and ask again when they are claimed, so nothing is reserved for
a job that somebody cancels meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from stepfast.database.statement import sql
from stepfast.errors import CRASH_GROUP
from stepfast.limits.limit import Limit, is_of, room_in_rate
from stepfast.limits.rows import LimitRow
from stepfast.limits.slots import count_slots, drop_stale_slots, free_slots

if TYPE_CHECKING:
    from collections.abc import Mapping

    from stepfast.database.connection import Transaction

Declared = Callable[
    [str, str], list[tuple[str, Limit]] | None
]  # (kind, queue) → limits; None: not known here

BATCH: Final = 200  # limits of one sweep
MOST_AT_ONCE: Final = 1_000  # jobs of one limit in one sweep
LOOK_AGAIN: Final = (
    30_000_000  # microseconds after which a full limit is looked at, even if nobody freed a slot
)
# The same after a job was held: who freed its slot in that very moment has not seen it.
LOOK_SOON: Final = 1_000_000

DUE = sql("""
    SELECT id, arrival_at, gap, tolerance, slots, due_at, {now} FROM stepfast_limit
     WHERE due_at IS NOT NULL AND due_at <= {now}
     ORDER BY due_at LIMIT :limit {skip_locked}
""")
LOOKED_AT = sql("""
    UPDATE stepfast_limit
       SET due_at = :due_at, arrival_at = :arrival_at, gap = :gap, tolerance = :tolerance, slots = :slots
     WHERE id = :id
""")
LOOK_AT_ALL = sql("UPDATE stepfast_limit SET due_at = {now} WHERE due_at > {now}")

# Nobody may know that slots of these jobs are free: their worker is dead.
LOOK_NOW = sql("""
    UPDATE stepfast_limit SET due_at = {now}
     WHERE due_at IS NOT NULL AND id IN (SELECT limit_id FROM stepfast_slot WHERE job_id {any_of:ids})
""")

# A rate whose arrival has passed, or slots of which none is taken: a new row would say the same.
IDLE = sql("""
    SELECT id FROM stepfast_limit
     WHERE due_at IS NULL AND arrival_at < {now} - :age
       AND NOT EXISTS (SELECT 1 FROM stepfast_slot WHERE limit_id = stepfast_limit.id)
     LIMIT :limit {skip_locked}
""")
FORGET = sql("DELETE FROM stepfast_limit WHERE id {any_of:ids}")

WAITED_FOR = sql("SELECT DISTINCT held_by FROM stepfast_job WHERE held_by {any_of:limits} AND state = 'held'")

WHO = sql("SELECT kind, queue FROM stepfast_job WHERE held_by = :limit_id AND state = 'held' LIMIT 1")

HELD = sql("""
    SELECT id, queue FROM stepfast_job
     WHERE held_by = :limit_id AND state = 'held'
     ORDER BY priority DESC, ready_at, id
     LIMIT :most
    {skip_locked}
""")
# Who was held as a suspect comes back as one.
LET_GO = sql(f"""
    UPDATE stepfast_job
       SET state = CASE WHEN error_group = '{CRASH_GROUP}' THEN 'suspect' ELSE 'ready' END,
           held_by = NULL, updated_at = {{now}}
     WHERE id {{any_of:ids}} AND state = 'held'
""")


def free(tx: Transaction, job_ids: list[str], fence: int, freed: Mapping[str, int]) -> None:
    """These steps end in this transaction: their slots (`freed` of each limit) go to as many held jobs."""
    free_slots(tx, job_ids, fence)
    waited_for = {row[0] for row in tx.rows(WAITED_FOR, limits=list(freed))}
    for limit_id in sorted(waited_for):
        let_go(tx, limit_id, freed[limit_id])


def let_go(tx: Transaction, limit_id: str, most: int) -> int:
    """Make up to `most` of the jobs that this limit holds ready, the most urgent first; returns how many."""
    rows = tx.rows(HELD, limit_id=limit_id, most=most)
    if rows:
        tx.run(LET_GO, ids=[row[0] for row in rows])
        tx.wakes.update(row[1] for row in rows)
    return len(rows)


def forget_idle(tx: Transaction, age: int, limit: int) -> int:
    """Remove a batch of limits that nobody has asked for in `age`; who asks again makes them anew."""
    ids = [row[0] for row in tx.rows(IDLE, age=age, limit=limit)]
    if ids:
        tx.run(FORGET, ids=ids)
    return len(ids)


def look_now(tx: Transaction, job_ids: list[str]) -> None:
    """The workers of these jobs died: whoever waits for their slots need not wait for the next look."""
    tx.run(LOOK_NOW, ids=job_ids)


def look_at_all(tx: Transaction) -> None:
    """The numbers may have changed: what was to be looked at later is looked at now."""
    tx.run(LOOK_AT_ALL)


def sweep(tx: Transaction, declared: Declared | None = None, limit: int = BATCH) -> int:
    """Let go what due limits have room for; returns how many limits were looked at.

    `declared` tells the limits of a kind of job, as they are now: who was held by other numbers, or by a limit that
    is no more, does not wait for what nobody counts any longer.
    """
    due = [(LimitRow(*row[:6]), int(row[6])) for row in tx.rows(DUE, limit=limit)]
    counted = [row.id for row, _ in due if row.slots]
    if counted:
        drop_stale_slots(tx, counted)
    taken = count_slots(tx, counted) if counted else {}
    for row, now in due:
        _look_at(tx, row, now, taken.get(row.id, 0), declared)
    return len(due)


def _look_at(tx: Transaction, row: LimitRow, now: int, taken: int, declared: Declared | None) -> None:
    who = tx.rows(WHO, limit_id=row.id)
    if not who:
        _looked_at(tx, row, None)
        return
    known = None if declared is None else declared(*who[0])
    if known is not None:
        new = next((limit for family, limit in known if is_of(row.id, family)), None)
        if new is None:  # nobody limits them any more
            gone = let_go(tx, row.id, MOST_AT_ONCE)
            _looked_at(tx, row, now if gone == MOST_AT_ONCE else None)
            return
        row = renumbered(row, new, now)
    room = row.slots - taken if row.slots else room_in_rate(now, row.arrival_at, row.gap, row.tolerance)
    wanted = max(0, min(room, MOST_AT_ONCE))
    gone = let_go(tx, row.id, wanted) if wanted else 0
    if wanted and gone < wanted:
        _looked_at(tx, row, None)  # nobody is held any more
    elif row.slots:
        _looked_at(tx, row, now + LOOK_AGAIN)
    else:
        _looked_at(tx, row, max(row.arrival_at, now) + gone * row.gap - row.tolerance)


def renumbered(row: LimitRow, limit: Limit, now: int) -> LimitRow:
    """The row with the numbers that its limit has now. A wider one need not wait for what a narrower one promised."""
    if (row.gap, row.tolerance, row.slots) == (limit.gap, limit.tolerance, limit.slots):
        return row
    arrival = min(row.arrival_at, now + limit.tolerance + limit.gap) if limit.gap else 0
    return LimitRow(row.id, arrival, limit.gap, limit.tolerance, limit.slots, row.due_at)


def _looked_at(tx: Transaction, row: LimitRow, due_at: int | None) -> None:
    tx.run(LOOKED_AT, **row._replace(due_at=due_at)._asdict())
