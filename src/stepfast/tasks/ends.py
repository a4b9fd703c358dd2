"""How tasks stand: whether they have ended, how, and whether whoever asked has been told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from stepfast.clock import new_fence
from stepfast.database.statement import sql
from stepfast.database.wakeup import OUTBOX
from stepfast.errors import SealedError
from stepfast.outbox.waiting import stands_behind
from stepfast.sealing import opened
from stepfast.steps.archive import archive
from stepfast.steps.failure import describe, fingerprint
from stepfast.steps.payload import decode
from stepfast.steps.task_ends import TellDone, end_key, tell_failures
from stepfast.tasks.names import own_queues

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepfast.database.connection import Transaction

EMPTIED: Final = "it was kept for its time, and is gone"
SEALED: Final = "it is encrypted, and the key is gone"

ENDS = sql("""
    SELECT a.id, a.kind, a.state, COALESCE(a.last_error, ''), a.committed_fence, a.failures + a.crashes, a.finished_at,
           a.result, a.result_expired_at,
           (SELECT count(*) FROM stepfast_outbox o
             WHERE o.job_id = a.id AND o.state = 'waiting' AND o.dedupe_key LIKE 'task-end:%')
      FROM stepfast_archive a WHERE a.id {any_of:ids}
""")

STANDING = sql("SELECT step, failures, crashes FROM stepfast_job WHERE id = :id")

MOVE = sql("UPDATE stepfast_job SET queue = :queue, updated_at = {now} WHERE id = :id AND queue <> :queue")

# What a container left in its own queue when it was killed as a whole. Its child, if it lived, would have taken it.
ADOPT = sql("""
    UPDATE stepfast_job SET queue = :queue, updated_at = {now}
     WHERE queue > :first AND queue < :last AND state IN ('ready', 'suspect') AND updated_at < {now} - :after
""")
TAKE_OVER = sql("""
    UPDATE stepfast_job SET queue = :queue, updated_at = {now} WHERE id = :id AND queue > :first AND queue < :last
""")

# A new fence, so that nobody who held it before takes the end for its own.
GIVE_UP = sql("""
    UPDATE stepfast_job SET fence = :fence, error_group = :error_group, last_error = :error, updated_at = {now}
     WHERE id = :id AND state IN ('scheduled', 'ready', 'suspect', 'held')
""")

SAY_AGAIN = sql("""
    UPDATE stepfast_outbox
       SET state = 'waiting', attempts = 0, since_at = {now}, due_at = {now}, ended_at = NULL
     WHERE job_id = :id AND dedupe_key = :key AND state IN ('sent', 'dead')
""")
SAID = sql("SELECT 1 FROM stepfast_outbox WHERE job_id = :id AND dedupe_key = :key")
UNSENT = sql("""
    SELECT id, last_error FROM stepfast_outbox
     WHERE job_id = :id AND dedupe_key LIKE 'task-end:%' AND state <> 'sent' ORDER BY seq DESC LIMIT 1
""")


@dataclass(frozen=True)
class End:
    """A job that has ended."""

    job_id: str
    kind: str
    state: str  # done, dead or cancelled
    error: str
    fence: int
    attempts: int
    finished_at: int
    result: str | None  # as it is stored: it may be sealed
    result_expired_at: int | None
    untold: int  # webhooks about it that are on their way

    @property
    def settled(self) -> bool:
        """Whoever asked knows of it, or nobody can tell him."""
        return self.untold == 0


def ends(tx: Transaction, ids: Sequence[str]) -> dict[str, End]:
    """Those of these jobs that have ended."""
    return {it.job_id: it for it in tx.all(ENDS, End, ids=list(ids))} if ids else {}


def standing(tx: Transaction, job_id: str) -> tuple[int, int, int] | None:
    """How far an unfinished job has come: steps, failures and crashes. None if there is none."""
    rows = tx.rows(STANDING, id=job_id)
    return (rows[0][0], rows[0][1], rows[0][2]) if rows else None


def move(tx: Transaction, job_id: str, queue: str) -> bool:
    """Let whoever serves this queue have it; whoever runs it now goes on."""
    tx.wakes.add(queue)
    return tx.run(MOVE, id=job_id, queue=queue) == 1


def adopt(tx: Transaction, queue: str, after: int) -> int:
    """Let the client's workers have what nobody has touched for so long; returns how many."""
    first, last = own_queues(queue)
    adopted = tx.run(ADOPT, queue=queue, first=first, last=last, after=after)
    if adopted:
        tx.wakes.add(queue)
    return adopted


def take_over(tx: Transaction, job_id: str, queue: str) -> bool:
    """The same for one that was asked for again: at once, and whoever runs it now goes on."""
    first, last = own_queues(queue)
    if tx.run(TAKE_OVER, id=job_id, queue=queue, first=first, last=last) != 1:
        return False
    tx.wakes.add(queue)
    return True


def give_up(tx: Transaction, job_id: str, error: Exception) -> bool:
    """End a task that nobody runs at the moment; whether it was one."""
    facts = {"error": describe(error), "error_group": fingerprint(error)}
    if tx.run(GIVE_UP, id=job_id, fence=new_fence(), **facts) != 1:
        return False
    archive(tx, [job_id], "dead")
    return True


def tell_again(tx: Transaction, end: End) -> None:
    """Tell of an end once more, under the same id as before, as long as that is kept."""
    tx.wakes.add(OUTBOX)
    key = end_key(end.job_id, end.fence)
    if tx.run(SAY_AGAIN, id=end.job_id, key=key) or tx.rows(SAID, id=end.job_id, key=key):
        return
    if end.state == "done":
        result, omitted = _result(end)
        TellDone(end.job_id, end.fence, end.attempts + 1, result, end.finished_at, omitted).apply(tx)
    else:
        tell_failures(tx, [end.job_id])


def why_unsent(tx: Transaction, job_id: str) -> str | None:
    """Why nobody could be told of its end; None if somebody was, or nobody asked."""
    rows = tx.rows(UNSENT, id=job_id)
    if not rows:
        return None
    message_id, error = rows[0]
    behind = stands_behind(tx, message_id)
    reasons = [it for it in (error, behind and f"its webhook {behind}") if it]
    return "; ".join(reasons) or "there was no time for it"


def _result(end: End) -> tuple[Any, str | None]:
    """What it was, and why that cannot be told."""
    if end.result is None:
        return None, None if end.result_expired_at is None else EMPTIED
    try:
        return decode(opened(end.result, f"result of {end.kind}")), None
    except SealedError:
        return None, SEALED
