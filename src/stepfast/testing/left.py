"""What is left to do: what one worker has or could take now, and when the next thing is due."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stepfast.database.statement import sql
from stepfast.runs.sweep_state import HELD
from stepfast.steps.joining import SUCCESSORS

if TYPE_CHECKING:
    from stepfast.database.connection import Transaction

_IN_SCOPE = "(:anywhere = 1 OR queue {any_of:queues})"
_NOT_PAUSED = "queue NOT IN (SELECT id FROM stepfast_queue WHERE paused_at IS NOT NULL)"
_HEAD = """
    :relay = 1 AND o.state = 'waiting' AND NOT EXISTS (
        SELECT 1 FROM stepfast_outbox e WHERE e.state = 'waiting' AND e.destination = o.destination AND e.seq < o.seq)
"""

# Who freed the slot in the moment when they were held has not seen them.
_FORGOTTEN = """
    SELECT count(*) FROM stepfast_limit l
     WHERE l.due_at IS NOT NULL AND l.slots > (SELECT count(*) FROM stepfast_slot s WHERE s.limit_id = l.id)
       AND EXISTS (SELECT 1 FROM stepfast_job h WHERE h.held_by = l.id AND h.state = 'held')
"""

# One statement sees all of it at one moment: what this worker has, what it could take, and what only has to be woken.
LEFT = sql(f"""
    SELECT count(CASE WHEN state = 'leased' THEN 1 END), count(CASE WHEN state = 'ready' THEN 1 END),
           count(CASE WHEN state = 'suspect' THEN 1 END),
           count(CASE WHEN state = 'scheduled' THEN 1 END)
             + (SELECT count(*) FROM stepfast_limit WHERE due_at <= {{now}}) + ({_FORGOTTEN})
             + (SELECT count(*) {SUCCESSORS}),
           (SELECT count(*) FROM stepfast_schedule WHERE next_at <= {{now}} AND paused_at IS NULL),
           (SELECT count(*) FROM stepfast_outbox o WHERE o.due_at <= {{now}} AND {_HEAD})
      FROM stepfast_job
     WHERE {_IN_SCOPE} AND (
           (state = 'leased' AND owner IN (SELECT incarnation FROM stepfast_worker WHERE worker_id = :worker_id))
        OR (state IN ('ready', 'suspect') AND ready_at <= {{now}} AND {_NOT_PAUSED})
        OR (state = 'scheduled' AND ready_at <= {{now}}))
""")

NEXT_JOB = sql(f"""
    SELECT min(ready_at) FROM stepfast_job
     WHERE state IN ('scheduled', 'ready') AND ready_at > {{now}} AND kind {{any_of:kinds}}
       AND {_IN_SCOPE} AND {_NOT_PAUSED}
       AND id NOT IN (SELECT r.job_id FROM stepfast_run r
                       WHERE r.job_id IS NOT NULL AND r.ended_at IS NULL AND r.frontier LIKE :held)
""")
NEXT_RATE = sql("SELECT min(due_at) FROM stepfast_limit WHERE due_at > {now} AND gap > 0")
NEXT_MESSAGE = sql(f"SELECT min(o.due_at) FROM stepfast_outbox o WHERE o.due_at > {{now}} AND {_HEAD}")


@dataclass(frozen=True)
class Scope:
    """What one drain is asked to do."""

    queues: tuple[str, ...]  # none: all
    limit: int | None
    with_scheduled: bool
    concurrency: int
    timeout: float
    relay: bool = False

    @property
    def queues_asked(self) -> dict[str, Any]:
        return {"queues": list(self.queues), "anywhere": int(not self.queues)}


@dataclass(frozen=True)
class Left:
    """What there is to do right now."""

    leased: int
    ready: int
    suspects: int
    due: int  # whose time has come
    ticks: int  # of schedules, due
    messages: int  # to be sent

    @property
    def nothing(self) -> bool:
        return not (self.busy or self.suspects or self.ticks)

    @property
    def busy(self) -> bool:
        return bool(self.leased or self.ready or self.due or self.messages)


def what_is_left(tx: Transaction, scope: Scope, worker_id: str) -> Left:
    return tx.all(LEFT, Left, worker_id=worker_id, relay=int(scope.relay), **scope.queues_asked)[0]


def due_next(tx: Transaction, scope: Scope, kinds: list[str]) -> int | None:
    """When the next job, rate or message is due. Schedules are not asked: they have always a next tick.

    Nor are sweeps that wait for a person: they would look again and again, for ever.
    """
    found = [
        tx.first(NEXT_JOB, kinds=kinds, held=HELD, **scope.queues_asked),
        tx.first(NEXT_RATE),
        tx.first(NEXT_MESSAGE, relay=int(scope.relay)),
    ]
    return min((int(at) for at in found if at is not None), default=None)
