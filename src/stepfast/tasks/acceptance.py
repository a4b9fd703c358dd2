"""A message becomes a job, once: its task id is remembered for longer than any broker keeps a message.

So the same message again, before, during or after the first one's end, finds the job that it became. What is no task
becomes a job as well, one that has given up before it began: it stands among the dead letters with the reason, and can be
tried again when newer code understands it.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from stepfast.clock import micros, new_id
from stepfast.database.statement import sql
from stepfast.steps.enqueue import enqueue
from stepfast.steps.job import NewJob
from stepfast.steps.keys import remember
from stepfast.steps.payload import to_json
from stepfast.tasks.ends import give_up
from stepfast.tasks.names import REFUSED, kind_of, queue_of
from stepfast.telemetry.masking import storable

if TYPE_CHECKING:
    from stepfast.database.connection import Transaction
    from stepfast.steps.kinds import Kinds
    from stepfast.tasks.envelope import Envelope
    from stepfast.tasks.failures import TaskRefusedError

REMEMBERED: Final = timedelta(
    days=30
)  # Service Bus keeps a message for 14 days, Storage Queue for 7, if not told
LONGEST_KEY: Final = 50  # characters of a task id that are a key as they are
LONGEST_MESSAGE_ID: Final = 200  # characters of its column
LONGEST_TEXT: Final = 100_000  # characters of a refused message that are kept

KEEP = sql("""
    INSERT INTO stepfast_task (id, client, task_id, task_type, webhook_url, source, message_id, received_at, until_at)
    VALUES (:id, :client, :task_id, :task_type, :webhook_url, :source, :message_id, {now}, {now} + :keep)
    {keep_existing}
""")

KNOWN = sql("SELECT job_id FROM stepfast_key WHERE id = :id AND until_at > {now}")

OLD = sql("SELECT id FROM stepfast_task WHERE until_at <= {now} ORDER BY until_at LIMIT :limit {skip_locked}")
# A dead letter waits for its operator, whatever its age, and so does whoever wants to be told.
FORGET = sql("""
    DELETE FROM stepfast_task
     WHERE id {any_of:ids}
       AND NOT EXISTS (SELECT 1 FROM stepfast_job j WHERE j.id = stepfast_task.id)
       AND NOT EXISTS (SELECT 1 FROM stepfast_archive a WHERE a.id = stepfast_task.id)
""")


@dataclass(frozen=True)
class Origin:
    """Where a task came from."""

    client: str
    source: str  # the transport's name, or TASK_DATA
    message_id: str | None = None
    queue: str | None = None  # of our own, in which its job stands; None: that of the client


@dataclass(frozen=True)
class Accepted:
    """Which job does it, and whether this message made it."""

    job_id: str
    created: bool


def accept(tx: Transaction, origin: Origin, envelope: Envelope) -> Accepted:
    """Store the task, unless it was stored before."""
    mine = new_id()
    holder = remember(tx, f"task:{origin.client}", key_of(envelope.task_id), mine, micros(REMEMBERED))
    if holder != mine:
        return Accepted(holder, created=False)
    job = NewJob(
        id=mine,
        queue=origin.queue or queue_of(origin.client),
        kind=kind_of(envelope.task_type),
        payload=envelope.payload,
        trace=envelope.trace,
    )
    enqueue(tx, job)
    _keep(
        tx,
        mine,
        origin,
        task_id=envelope.task_id,
        task_type=envelope.task_type,
        webhook_url=envelope.webhook_url,
    )
    return Accepted(mine, created=True)


def known(tx: Transaction, client: str, task_id: str) -> bool:
    """Whether a task of this id was accepted before."""
    return bool(tx.rows(KNOWN, id=f"task:{client}:{key_of(task_id)}"))


def refuse(tx: Transaction, origin: Origin, text: str, why: TaskRefusedError, kinds: Kinds) -> Accepted:
    """Keep what is no task where an operator sees it. Its task id stays free for a message that is right."""
    mine, text = new_id(), storable(text)
    message = hashlib.sha256(f"{origin.message_id}\n{text}".encode()).hexdigest()[:48]
    holder = remember(tx, f"refused:{origin.client}", message, mine, micros(REMEMBERED))
    if holder != mine:
        return Accepted(holder, created=False)
    # A task of that id tells of its own end.
    told = bool(why.task_id) and not known(tx, origin.client, why.task_id)
    payload = to_json({"message": text[:LONGEST_TEXT], "client": origin.client})
    queue, payload = origin.queue or queue_of(origin.client), kinds.stored(REFUSED, payload)
    enqueue(tx, NewJob(id=mine, queue=queue, kind=REFUSED, payload=payload))
    url = why.webhook_url if told else None
    _keep(tx, mine, origin, task_id=why.task_id, task_type=why.task_type, webhook_url=url)
    give_up(tx, mine, why)
    return Accepted(mine, created=True)


def forget_old(tx: Transaction, limit: int) -> int:
    """Drop the rows of tasks whose ids are free again and whose jobs are gone; returns how many."""
    ids = [row[0] for row in tx.rows(OLD, limit=limit)]
    return tx.run(FORGET, ids=ids) if ids else 0


def key_of(task_id: str) -> str:
    """The task's id as a key that fits: a long one by its digest."""
    if len(task_id) <= LONGEST_KEY and task_id.isascii():
        return task_id
    return f"sha256.{hashlib.sha256(task_id.encode()).hexdigest()[:40]}"


def _keep(
    tx: Transaction, job_id: str, origin: Origin, *, task_id: str, task_type: str, webhook_url: str | None
) -> None:
    tx.run(
        KEEP,
        id=job_id,
        client=origin.client,
        task_id=task_id,
        task_type=task_type,
        webhook_url=webhook_url,
        source=origin.source,
        message_id=(origin.message_id or "")[:LONGEST_MESSAGE_ID] or None,  # whoever sent it chose it
        keep=micros(REMEMBERED),
    )
