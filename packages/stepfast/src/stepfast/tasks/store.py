"""A message becomes a job, once: its task id is remembered for longer than any broker keeps a message.

So a repeated message, before, during or after the end of the first one's task, finds the job that the first one became.
A message that is no task becomes a job as well, one that has given up before it began: it stands among the dead letters
with the reason, and an operator can retry it when newer code understands it.

The second half of this file is about tasks that are jobs by now: in which queue they stand, whether they have ended, and
whether the webhook about their end was sent.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec

from stepfast.clock import micros, new_fence, new_id
from stepfast.database.database import persist
from stepfast.database.failures import blames_a_row
from stepfast.database.statement import sql
from stepfast.database.wakeup import OUTBOX
from stepfast.encryption import keyring, opened
from stepfast.errors import DatabaseError, SealedError
from stepfast.jobs.archive import archive
from stepfast.jobs.end_webhook import DoneWebhook, end_key, stage_failure_webhooks
from stepfast.jobs.enqueue import enqueue
from stepfast.jobs.keys import remember_key
from stepfast.jobs.kinds import Kind, Kinds
from stepfast.jobs.outcome import Done
from stepfast.jobs.payload import Arguments, decode, to_json
from stepfast.jobs.retry import Retry, describe, fingerprint
from stepfast.jobs.state import NewJob
from stepfast.jobs.step import Step  # noqa: TC001 - handlers' hints are read at run time
from stepfast.outbox.messages import stands_behind
from stepfast.tasks.envelope import (
    LONGEST_REASON,
    REFUSED,
    Envelope,
    TaskRefusedError,
    kind_of,
    own_queues,
    queue_of,
    read,
    unknown_type,
)
from stepfast.tasks.held_messages import deaths_before
from stepfast.telemetry import current_trace, happened
from stepfast.telemetry.masking import storable
from stepfast.telemetry.traces import sender_trace

if TYPE_CHECKING:
    from stepfast.database.connection import Transaction
    from stepfast.database.database import Database
    from stepfast.encryption import Encryption, Keyring
    from stepfast.transports.contract import Delivery


REMEMBERED: Final = timedelta(
    days=30
)  # by default Service Bus keeps a message for 14 days, Storage Queue for 7
LONGEST_KEY: Final = 50  # characters of a task id that are a key as they are
LONGEST_MESSAGE_ID: Final = 200  # characters of its column
LONGEST_TEXT: Final = 100_000  # characters of a refused message that are kept
RETRIED: Final = "retry"  # the source of a refused message that an operator tried again

KEEP_TASK = sql("""
    INSERT INTO stepfast_task (id, client, task_id, task_type, digest, webhook_url, source, message_id, received_at, until_at)
    VALUES (:id, :client, :task_id, :task_type, :digest, :webhook_url, :source, :message_id, {now}, {now} + :keep)
    {keep_existing}
""")
FIND_TASK = sql("SELECT task_type, digest FROM stepfast_task WHERE id = :id")
FIND_KEY = sql("SELECT job_id FROM stepfast_key WHERE id = :id AND until_at > {now}")

OLD_TASKS = sql(
    "SELECT id FROM stepfast_task WHERE until_at <= {now} ORDER BY until_at LIMIT :limit {skip_locked}"
)
# A dead letter waits for its operator, whatever its age, and its row says where its webhook goes.
FORGET_TASKS = sql("""
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
    queue: str | None = None  # in which its job stands; None: that of the client
    trace: str | None = None  # that its message names beside its body


@dataclass(frozen=True)
class TaskJob:
    """The job of a task, and whether this message created it."""

    job_id: str
    created: bool
    conflict: TaskRefusedError | None = None  # the job is another task's, which has the same id


@dataclass(frozen=True)
class StoredMessage:
    """What a message became."""

    job_id: str  # empty: not even a refusal could be stored
    created: bool
    task_id: str
    task_type: str
    refused: TaskRefusedError | None = None

    def report(self, queue: str, message_id: str) -> None:
        """Report `task.accepted`, `task.repeated` or `task.refused`."""
        task_id, job_id, kind = self.task_id, self.job_id, self.task_type
        if (why := self.refused) is not None:
            happened(
                "task.refused", queue=queue, message_id=message_id, task_id=task_id, job_id=job_id, error=why
            )
        elif self.created:
            happened("task.accepted", queue=queue, task_id=task_id, task_type=kind, job_id=job_id)
        else:
            happened("task.repeated", queue=queue, task_id=task_id, job_id=job_id)


def store_messages(
    database: Database, kinds: Kinds, origin: Origin, messages: Sequence[Delivery], last: int | None
) -> list[StoredMessage] | None:
    """Store all messages in one transaction, or none; None if one of them is to blame, and nothing tells which.

    Raises while the database takes nothing from anybody. Then the caller does it again: a commit whose answer was lost
    left its keys. A message whose delivery is the `last` is not tried again: no worker would be left to tell of its end.
    """
    try:
        return persist(database, partial(store_all, origin=origin, messages=messages, kinds=kinds, last=last))
    except Exception as error:
        if _blames_no_message(error):
            raise
        return [_store_refused(database, kinds, origin, messages[0], error)] if len(messages) == 1 else None


def store_all(
    tx: Transaction, *, origin: Origin, messages: Sequence[Delivery], kinds: Kinds, last: int | None
) -> list[StoredMessage]:
    """Store messages in the order of their keys: two workers that store the same ones must not wait for each other."""
    tasks = [_read(message.body, kinds) for message in messages]
    stored: dict[int, StoredMessage] = {}
    for at in sorted(range(len(tasks)), key=lambda at: task_key(tasks[at].task_id)):
        stored[at] = _store_one(tx, origin, messages[at], tasks[at], kinds=kinds, last=last)
    return [stored[at] for at in range(len(tasks))]


def _store_one(
    tx: Transaction,
    origin: Origin,
    message: Delivery,
    task: Envelope | TaskRefusedError,
    *,
    kinds: Kinds,
    last: int | None,
) -> StoredMessage:
    source = replace(origin, message_id=message.id, trace=sender_trace(message.properties))
    if isinstance(task, TaskRefusedError):
        job = refuse_message(tx, source, message.body, task, kinds)
        return StoredMessage(job.job_id, job.created, task.task_id, task.task_type, task)
    deliveries = message.attempt + deaths_before(message)
    worn_out = last is not None and deliveries >= last and not is_known(tx, origin.client, task.task_id)
    job = accept_task(tx, source, task)
    if job.conflict is not None:
        why = job.conflict
        job = refuse_message(tx, source, message.body, why, kinds)
        return StoredMessage(job.job_id, job.created, task.task_id, task.task_type, why)
    if not job.created:
        take_over_task(tx, job.job_id, queue_of(source.client))
    if worn_out:
        give_up_task(tx, job.job_id, _worn_out(deliveries))
    return StoredMessage(job.job_id, job.created, task.task_id, task.task_type)


def _store_refused(
    database: Database, kinds: Kinds, origin: Origin, message: Delivery, error: Exception
) -> StoredMessage:
    """Refuse a message that the database does not take; if it does not take the refusal either, the broker keeps it."""
    source = replace(origin, message_id=message.id, trace=sender_trace(message.properties))
    why = TaskRefusedError(f"it cannot be stored: {describe(error)}"[:LONGEST_REASON])
    try:
        job = persist(database, lambda tx: refuse_message(tx, source, message.body, why, kinds))
    except Exception as worse:
        if _blames_no_message(worse):
            raise
        happened("worker.failed", error=worse, note="a message that cannot be stored")
        return StoredMessage("", created=False, task_id="", task_type="", refused=why)
    return StoredMessage(job.job_id, job.created, "", "", why)


def _blames_no_message(error: Exception) -> bool:
    """A database that is away, full or read-only would refuse every message, and the queue would run empty."""
    return isinstance(error, DatabaseError) and not blames_a_row(error)


def _worn_out(times: int) -> TaskRefusedError:
    return TaskRefusedError(
        f"its message was delivered {times} times, and no worker lived long enough to end the task"
    )


def _read(text: str, kinds: Kinds) -> Envelope | TaskRefusedError:
    try:
        return read_task(text, kinds)
    except TaskRefusedError as why:
        return why


def read_task(text: str, kinds: Kinds) -> Envelope:
    """The task in a message, with the kind of its job; `TaskRefusedError` if it has no handler here."""
    envelope = read(text)
    if (problem := unknown_type(envelope.task_type, kinds)) is not None:
        raise TaskRefusedError(
            problem,
            task_id=envelope.task_id,
            task_type=envelope.task_type,
            webhook_url=envelope.webhook_url,
        )
    kind = kinds.get(kind_of(envelope.task_type))
    digest = payload_digest(envelope.payload, keyring() if kind.encrypted else None)
    return replace(envelope, kind=kind, digest=digest)


def payload_digest(payload: str, keys: Keyring | None) -> str:
    """What tells two payloads apart, however their JSON is written; with keys, nobody else can guess a payload by it.

    It begins with the name of its key: digests under different keys cannot be compared.
    """
    try:
        text = msgspec.json.encode(decode(payload), order="sorted").decode()
    except (ValueError, OverflowError, RecursionError):  # a number too large, half a character
        text = payload
    if keys is None:
        return f"sha256.{hashlib.sha256(text.encode(errors='backslashreplace')).hexdigest()[:32]}"
    return f"{keys.current}.{keys.sign(text, 'payload of a task').hex()[:32]}"


def accept_task(tx: Transaction, origin: Origin, envelope: Envelope) -> TaskJob:
    """Store a task, unless it was stored before."""
    job_id = new_id()
    holder = remember_key(tx, f"task:{origin.client}", task_key(envelope.task_id), job_id, micros(REMEMBERED))
    if holder != job_id:
        return TaskJob(holder, created=False, conflict=_conflict(tx, holder, envelope))
    job = NewJob(
        id=job_id,
        queue=origin.queue or queue_of(origin.client),
        kind=kind_of(envelope.task_type),
        payload=envelope.payload if envelope.kind is None else envelope.kind.stored(envelope.payload, job_id),
        trace=envelope.trace or origin.trace,
    )
    enqueue(tx, job)
    task_id, task_type, url = envelope.task_id, envelope.task_type, envelope.webhook_url
    _keep(tx, job_id, origin, task_id=task_id, task_type=task_type, webhook_url=url, digest=envelope.digest)
    return TaskJob(job_id, created=True)


def _conflict(tx: Transaction, job_id: str, envelope: Envelope) -> TaskRefusedError | None:
    """Why this is no repetition of the task that has its id: it is of another type, or has another payload."""
    rows = tx.rows(FIND_TASK, id=job_id)
    if not rows:
        return None
    task_type, digest = rows[0]
    if task_type != envelope.task_type:
        other = f"a task of type {task_type!r}"
    elif _differ(digest, envelope.digest):
        other = "a task with another payload"
    else:
        return None
    return TaskRefusedError(
        f"task_id {envelope.task_id!r} was used before, for {other} (job {job_id}): this one is not done; "
        f"send it under an id of its own (an id is remembered for {REMEMBERED.days} days)",
        task_id=envelope.task_id,
        task_type=envelope.task_type,
        webhook_url=envelope.webhook_url,
    )


def _differ(one: str | None, other: str | None) -> bool:
    """Whether two digests are known to be of different payloads."""
    if one is None or other is None or one.partition(".")[0] != other.partition(".")[0]:
        return False
    return one != other


def refuse_message(
    tx: Transaction, origin: Origin, text: str, why: TaskRefusedError, kinds: Kinds
) -> TaskJob:
    """Store a message that is no task as a dead letter. Its task id stays free for a message that is right."""
    job_id, text = new_id(), storable(text)
    message = hashlib.sha256(f"{origin.message_id}\n{text}".encode()).hexdigest()[:48]
    holder = remember_key(tx, f"refused:{origin.client}", message, job_id, micros(REMEMBERED))
    if holder != job_id:
        return TaskJob(holder, created=False)
    # A task of that id has a webhook of its own, about its own end.
    has_webhook = bool(why.task_id) and not is_known(tx, origin.client, why.task_id)
    payload = to_json({"message": text[:LONGEST_TEXT], "client": origin.client})
    queue, payload = origin.queue or queue_of(origin.client), kinds.stored(REFUSED, payload, job_id)
    enqueue(tx, NewJob(id=job_id, queue=queue, kind=REFUSED, payload=payload, trace=origin.trace))
    url = why.webhook_url if has_webhook else None
    _keep(tx, job_id, origin, task_id=why.task_id, task_type=why.task_type, webhook_url=url)
    give_up_task(tx, job_id, why)
    return TaskJob(job_id, created=True)


def _keep(
    tx: Transaction,
    job_id: str,
    origin: Origin,
    *,
    task_id: str,
    task_type: str,
    webhook_url: str | None,
    digest: str | None = None,
) -> None:
    tx.run(
        KEEP_TASK,
        id=job_id,
        client=origin.client,
        task_id=task_id,
        task_type=task_type,
        digest=digest,
        webhook_url=webhook_url,
        source=origin.source,
        message_id=(origin.message_id or "")[:LONGEST_MESSAGE_ID] or None,  # its sender chose how long it is
        keep=micros(REMEMBERED),
    )


def task_key(task_id: str) -> str:
    """The task's id as a key that fits: a long one by its digest."""
    if len(task_id) <= LONGEST_KEY and task_id.isascii():
        return task_id
    return f"sha256.{hashlib.sha256(task_id.encode()).hexdigest()[:40]}"


def is_known(tx: Transaction, client: str, task_id: str) -> bool:
    """Whether a task of this id was accepted before."""
    return bool(tx.rows(FIND_KEY, id=f"task:{client}:{task_key(task_id)}"))


def forget_old_tasks(tx: Transaction, limit: int) -> int:
    """Delete the rows of tasks whose ids are free again and whose jobs are gone; returns how many."""
    ids = [row[0] for row in tx.rows(OLD_TASKS, limit=limit)]
    return tx.run(FORGET_TASKS, ids=ids) if ids else 0


def refused_kind(kinds: Kinds, *, encrypted: Encryption) -> Kind:
    """The kind of a refused message: when an operator retries it and it is understood by now, it becomes its task."""

    async def try_again(step: Step, message: str, client: str) -> Done:
        envelope = read_task(message, kinds)
        origin = Origin(client, RETRIED, step.job_id, trace=current_trace())
        return Done("accepted", effects=[AcceptTask(origin, envelope)])

    return Kind(
        name=REFUSED,
        handler=try_again,
        arguments=Arguments(REFUSED, try_again),
        queue=queue_of("default"),
        priority=0,
        retry=Retry(attempts=1),
        timeout=None,
        is_async=True,
        encrypted=encrypted,
    )


@dataclass(frozen=True)
class AcceptTask:
    """The effect of a refused message that is understood by now."""

    origin: Origin
    envelope: Envelope

    def apply(self, tx: Transaction, /) -> None:
        if (why := accept_task(tx, self.origin, self.envelope).conflict) is not None:
            raise why


# Tasks that are jobs by now: where they stand, and how they ended.

RESULT_EXPIRED: Final = "it was kept for its time, and is gone"
RESULT_SEALED: Final = "it is encrypted, and the key is gone"

MOVE_JOB = sql(
    "UPDATE stepfast_job SET queue = :queue, updated_at = {now} WHERE id = :id AND queue <> :queue"
)
# What a container left in its own queue when it was killed as a whole. Its child, if it lived, would have taken it.
ADOPT_JOBS = sql("""
    UPDATE stepfast_job SET queue = :queue, updated_at = {now}
     WHERE queue > :first AND queue < :last AND state IN ('ready', 'suspect') AND updated_at < {now} - :after
""")
TAKE_OVER_JOB = sql("""
    UPDATE stepfast_job SET queue = :queue, updated_at = {now} WHERE id = :id AND queue > :first AND queue < :last
""")
# A new fence, so that no earlier owner takes the end for its own.
GIVE_UP_JOB = sql("""
    UPDATE stepfast_job SET fence = :fence, error_group = :error_group, last_error = :error, updated_at = {now}
     WHERE id = :id AND state IN ('scheduled', 'ready', 'suspect', 'held')
""")
JOB_COUNTERS = sql("SELECT step, failures, crashes FROM stepfast_job WHERE id = :id")

TASK_ENDS = sql("""
    SELECT a.id, a.kind, a.state, COALESCE(a.last_error, ''), a.committed_fence, a.failures + a.crashes, a.finished_at,
           a.result, a.result_expired_at,
           (SELECT count(*) FROM stepfast_outbox o
             WHERE o.job_id = a.id AND o.state = 'waiting' AND o.dedupe_key LIKE 'task-end:%')
      FROM stepfast_archive a WHERE a.id {any_of:ids}
""")
RESEND_END = sql("""
    UPDATE stepfast_outbox
       SET state = 'waiting', attempts = 0, since_at = {now}, due_at = {now}, ended_at = NULL
     WHERE job_id = :id AND dedupe_key = :key AND state IN ('sent', 'dead')
""")
FIND_END = sql("SELECT 1 FROM stepfast_outbox WHERE job_id = :id AND dedupe_key = :key")
UNSENT_END = sql("""
    SELECT id, last_error FROM stepfast_outbox
     WHERE job_id = :id AND dedupe_key LIKE 'task-end:%' AND state <> 'sent' ORDER BY seq DESC LIMIT 1
""")


def move_task(tx: Transaction, job_id: str, queue: str) -> bool:
    """Let the workers of this queue have a task. A worker that runs it keeps its lease."""
    tx.wakes.add(queue)
    return tx.run(MOVE_JOB, id=job_id, queue=queue) == 1


def adopt_tasks(tx: Transaction, queue: str, after: int) -> int:
    """Move the tasks of killed containers to the client's queue, if untouched for so long; returns how many."""
    first, last = own_queues(queue)
    adopted = tx.run(ADOPT_JOBS, queue=queue, first=first, last=last, after=after)
    if adopted:
        tx.wakes.add(queue)
    return adopted


def take_over_task(tx: Transaction, job_id: str, queue: str) -> bool:
    """Move a task that was requested again to this client's queue, at once. A worker that runs it keeps its lease."""
    first, last = own_queues(queue)
    if tx.run(TAKE_OVER_JOB, id=job_id, queue=queue, first=first, last=last) != 1:
        return False
    tx.wakes.add(queue)
    return True


def give_up_task(tx: Transaction, job_id: str, error: Exception) -> bool:
    """End a task that no worker runs at the moment as dead; whether there was one."""
    facts = {"error": describe(error), "error_group": fingerprint(error)}
    if tx.run(GIVE_UP_JOB, id=job_id, fence=new_fence(), **facts) != 1:
        return False
    archive(tx, [job_id], "dead")
    return True


def job_counters(tx: Transaction, job_id: str) -> tuple[int, int, int] | None:
    """How far an unfinished job has come: steps, failures and crashes. None if there is none."""
    rows = tx.rows(JOB_COUNTERS, id=job_id)
    return (rows[0][0], rows[0][1], rows[0][2]) if rows else None


@dataclass(frozen=True)
class TaskEnd:
    """How the job of a task ended."""

    job_id: str
    kind: str
    state: str  # done, dead or cancelled
    error: str
    fence: int
    attempts: int
    finished_at: int
    result: str | None  # as it is stored: it may be sealed
    result_expired_at: int | None
    unsent: int  # webhooks about it that are on their way

    @property
    def settled(self) -> bool:
        """Whether no webhook about it is on its way any more: it arrived, was given up, or was never wanted."""
        return self.unsent == 0


def task_ends(tx: Transaction, ids: Sequence[str]) -> dict[str, TaskEnd]:
    """How these jobs ended, by id, without those that have not."""
    return {end.job_id: end for end in tx.all(TASK_ENDS, TaskEnd, ids=list(ids))} if ids else {}


def resend_end(tx: Transaction, end: TaskEnd) -> None:
    """Send the webhook about an end once more, under its old id as long as that is kept."""
    tx.wakes.add(OUTBOX)
    key = end_key(end.job_id, end.fence)
    if tx.run(RESEND_END, id=end.job_id, key=key) or tx.rows(FIND_END, id=end.job_id, key=key):
        return
    if end.state == "done":
        result, omitted = _result(end)
        DoneWebhook(end.job_id, end.fence, end.attempts + 1, result, end.finished_at, omitted).apply(tx)
    else:
        stage_failure_webhooks(tx, [end.job_id])


def _result(end: TaskEnd) -> tuple[Any, str | None]:
    """The result of a task, and why it is missing if it is."""
    if end.result is None:
        return None, None if end.result_expired_at is None else RESULT_EXPIRED
    try:
        return decode(opened(end.result, f"result of {end.kind}", end.job_id)), None
    except SealedError:
        return None, RESULT_SEALED


def why_unsent(tx: Transaction, job_id: str) -> str | None:
    """Why the webhook about a task's end was not sent; None if it was, or none was wanted."""
    rows = tx.rows(UNSENT_END, id=job_id)
    if not rows:
        return None
    message_id, error = rows[0]
    behind = stands_behind(tx, message_id)
    reasons = [reason for reason in (error, behind and f"its webhook {behind}") if reason]
    return "; ".join(reasons) or "there was no time for it"
