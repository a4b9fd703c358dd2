"""Nobody waits for ever behind more urgent work: a job that has waited long enough rises by one priority.

Only where there is somebody more urgent in its queue: in a queue of one priority the order of age holds anyway,
and nothing is written. A job keeps the priority it has risen to until it ends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from stepfast.database.statement import sql

if TYPE_CHECKING:
    from stepfast.database.connection import Transaction

BATCH: Final = 500

# The lowest and the highest priority that wait in a queue: two probes of the ready index.
SPREAD = sql("""
    SELECT (SELECT priority FROM stepfast_job WHERE queue = :queue AND state = 'ready' ORDER BY priority LIMIT 1),
           (SELECT priority FROM stepfast_job WHERE queue = :queue AND state = 'ready' ORDER BY priority DESC LIMIT 1)
""")

# Next to rise at one priority. `updated_at` is when a job became ready, or last rose.
OVERDUE = sql("""
    SELECT id FROM stepfast_job
     WHERE queue = :queue AND state = 'ready' AND priority = :priority
       AND ready_at < {now} - :age AND updated_at < {now} - :age
     ORDER BY ready_at, id
     LIMIT :limit
    {skip_locked}
""")

NEXT_PRIORITY = sql("""
    SELECT min(priority) FROM stepfast_job WHERE queue = :queue AND state = 'ready' AND priority > :priority
""")

RISE = sql("""
    UPDATE stepfast_job SET priority = priority + 1, updated_at = {now} WHERE id {any_of:ids} AND state = 'ready'
""")


def age(tx: Transaction, queue: str, after: int, limit: int = BATCH) -> int:
    """Let one batch of those who have waited `after` microseconds at their priority rise; returns how many."""
    lowest, highest = tx.rows(SPREAD, queue=queue)[0]
    risen = 0
    priority = highest
    levels = []
    while lowest is not None and lowest < highest:
        levels.append(lowest)
        lowest = tx.first(NEXT_PRIORITY, queue=queue, priority=lowest)
    for priority in reversed(levels):  # from the top: nobody rises twice in one pass
        ids = [row[0] for row in tx.rows(OVERDUE, queue=queue, priority=priority, age=after, limit=limit)]
        if ids:
            risen += tx.run(RISE, ids=ids)
    return risen
