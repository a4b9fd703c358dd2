"""Let held jobs go on: by whoever frees a slot, and by a sweep when a rate's time has come.

They become ready in the order of their urgency and ask again when they are claimed, so nothing is reserved for
a job that somebody cancels meanwhile.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from holdfast.database.statement import sql
from holdfast.errors import CRASH_GROUP
from holdfast.limits.limit import room_in_rate
from holdfast.limits.slots import count_slots, drop_stale_slots, free_slots

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.database.connection import Transaction

BATCH: Final = 200  # limits of one sweep
MOST_AT_ONCE: Final = 1_000  # jobs of one limit in one sweep
LOOK_AGAIN: Final = (
    30_000_000  # microseconds after which a full limit is looked at, even if nobody freed a slot
)

DUE = sql("""
    SELECT id, arrival_at, gap, tolerance, slots, {now} FROM holdfast_limit
     WHERE due_at IS NOT NULL AND due_at <= {now}
     ORDER BY due_at LIMIT :limit {skip_locked}
""")
SET_DUE = sql("UPDATE holdfast_limit SET due_at = :due WHERE id = :id")

# Nobody may know that slots of these jobs are free: their worker is dead.
LOOK_NOW = sql("""
    UPDATE holdfast_limit SET due_at = {now}
     WHERE due_at IS NOT NULL AND id IN (SELECT limit_id FROM holdfast_slot WHERE job_id {any_of:ids})
""")

# A rate whose arrival has passed, or slots of which none is taken: a new row would say the same.
IDLE = sql("""
    SELECT id FROM holdfast_limit
     WHERE due_at IS NULL AND arrival_at < {now} - :age
       AND NOT EXISTS (SELECT 1 FROM holdfast_slot WHERE limit_id = holdfast_limit.id)
     LIMIT :limit {skip_locked}
""")
FORGET = sql("DELETE FROM holdfast_limit WHERE id {any_of:ids}")

WAITED_FOR = sql("SELECT DISTINCT held_by FROM holdfast_job WHERE held_by {any_of:limits} AND state = 'held'")

HELD = sql("""
    SELECT id, queue FROM holdfast_job
     WHERE held_by = :limit_id AND state = 'held'
     ORDER BY priority DESC, ready_at, id
     LIMIT :most
    {skip_locked}
""")
# Who was held as a suspect comes back as one.
LET_GO = sql(f"""
    UPDATE holdfast_job
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


def sweep(tx: Transaction, limit: int = BATCH) -> int:
    """Let go what due limits have room for; returns how many limits were looked at."""
    due = tx.rows(DUE, limit=limit)
    full = [row[0] for row in due if row[4]]
    if full:
        drop_stale_slots(tx, full)
    taken = count_slots(tx, full) if full else {}
    for limit_id, arrival, gap, tolerance, slots, now in due:
        room = slots - taken.get(limit_id, 0) if slots else room_in_rate(now, arrival, gap, tolerance)
        wanted = max(0, min(room, MOST_AT_ONCE))
        gone = let_go(tx, limit_id, wanted) if wanted else 0
        if wanted and gone < wanted:
            again = None  # nobody is held any more
        elif slots:
            again = now + LOOK_AGAIN
        else:
            again = max(arrival, now) + gone * gap - tolerance
        tx.run(SET_DUE, id=limit_id, due=again)
    return len(due)
