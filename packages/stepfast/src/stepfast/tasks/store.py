"""Messages become rows: all that came together in one transaction."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from stepfast.clock import micros, new_fence, new_id
from stepfast.database.database import persist
from stepfast.database.failures import blames_a_row
from stepfast.database.statement import sql
from stepfast.database.wakeup import OUTBOX
from stepfast.encryption import opened
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
from stepfast.telemetry import happened
from stepfast.telemetry.masking import storable

if TYPE_CHECKING:
    from stepfast.database.connection import Transaction
    from stepfast.tasks.command import App
    from stepfast.tasks.held_messages import Held


# How tasks stand: whether they have ended, how, and whether whoever asked has been told.

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
        DoneWebhook(end.job_id, end.fence, end.attempts + 1, result, end.finished_at, omitted).apply(tx)
    else:
        stage_failure_webhooks(tx, [end.job_id])


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


# A message becomes a job, once: its task id is remembered for longer than any broker keeps a message.
#
# So the same message again, before, during or after the first one's end, finds the job that it became. What is no task
# becomes a job as well, one that has given up before it began: it stands among the dead letters with the reason, and can be
# tried again when newer code understands it.

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
    holder = remember_key(tx, f"task:{origin.client}", key_of(envelope.task_id), mine, micros(REMEMBERED))
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
    holder = remember_key(tx, f"refused:{origin.client}", message, mine, micros(REMEMBERED))
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


# A message that is no task is a dead letter, and an operator may try it again.
#
# By then newer code may understand it: then it becomes the task that it always was.

SOURCE: Final = "retry"  # a refused message that an operator tried again


def understood(text: str, kinds: Kinds) -> Envelope:
    """The task in a message that somebody here can do, its payload as it is stored; or `TaskRefusedError`."""
    envelope = read(text)
    if (problem := unknown_type(envelope.task_type, kinds)) is not None:
        raise TaskRefusedError(
            problem,
            task_id=envelope.task_id,
            task_type=envelope.task_type,
            webhook_url=envelope.webhook_url,
        )
    return replace(envelope, payload=kinds.stored(kind_of(envelope.task_type), envelope.payload))


@dataclass(frozen=True)
class Accept:
    """The effect of a refused message that is understood by now."""

    origin: Origin
    envelope: Envelope

    def apply(self, tx: Transaction, /) -> None:
        accept(tx, self.origin, self.envelope)


def refused_kind(kinds: Kinds, *, encrypted: bool) -> Kind:
    """The kind of job that refused messages are."""

    async def try_again(step: Step, message: str, client: str) -> Done:
        envelope = understood(message, kinds)
        origin = Origin(client, SOURCE, step.job_id)
        return Done("accepted", effects=[Accept(origin, envelope)])

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
class Stored:
    """What a message became."""

    job_id: str
    created: bool
    task_id: str
    task_type: str
    refused: TaskRefusedError | None = None

    def report(self, queue: str, message_id: str) -> None:
        task_id, job_id, kind = self.task_id, self.job_id, self.task_type
        if (why := self.refused) is not None:
            happened(
                "task.refused", queue=queue, message_id=message_id, task_id=task_id, job_id=job_id, error=why
            )
        elif self.created:
            happened("task.accepted", queue=queue, task_id=task_id, task_type=kind, job_id=job_id)
        else:
            happened("task.repeated", queue=queue, task_id=task_id, job_id=job_id)


class Storage:
    """Where messages of one queue go."""

    def __init__(self, app: App, client: str, source: str, last: int | None) -> None:
        self._app = app
        self._client = client
        self._source = source
        self._last = last

    def store(self, held: Sequence[Held]) -> dict[Held, Stored] | None:
        """All of them, or none; None if one of them is to blame, and nobody knows which.

        Raises while the database takes nothing from anybody. Then it is done again: a commit whose answer was lost
        left its keys.
        """
        origin = (self._client, self._source)
        work = partial(store, origin=origin, held=held, kinds=self._app.kinds, last=self._last)
        try:
            return persist(self._app.database, work)
        except Exception as error:
            if _blames_no_message(error):
                raise
            return {held[0]: self._put_up_with(held[0], error)} if len(held) == 1 else None

    def _put_up_with(self, held: Held, error: Exception) -> Stored:
        """No database takes what this message says: it is refused, and at worst the broker alone keeps it."""
        origin = Origin(self._client, self._source, held.delivery.id)
        why = TaskRefusedError(f"it cannot be stored: {describe(error)}"[:LONGEST_REASON])
        try:
            kept = persist(
                self._app.database, lambda tx: refuse(tx, origin, held.delivery.body, why, self._app.kinds)
            )
        except Exception as worse:
            if _blames_no_message(worse):
                raise
            happened("worker.failed", error=worse, note="a message that cannot be stored")
            return Stored("", created=False, task_id="", task_type="", refused=why)
        return Stored(kept.job_id, kept.created, "", "", why)


def store(
    tx: Transaction, *, origin: tuple[str, str], held: Sequence[Held], kinds: Kinds, last: int | None
) -> dict[Held, Stored]:
    """Store them, in the order of their keys: two who store the same ones must not wait for each other.

    A message whose delivery is the `last` is not tried again: nobody would be left to tell of its end.
    """
    found: dict[Held, Stored] = {}
    read = [(it, _read(it.delivery.body, kinds)) for it in held]
    for it, what in sorted(read, key=lambda pair: key_of(pair[1].task_id)):
        delivery = it.delivery
        source = Origin(*origin, message_id=delivery.id)
        if isinstance(what, TaskRefusedError):
            kept = refuse(tx, source, delivery.body, what, kinds)
            found[it] = Stored(kept.job_id, kept.created, what.task_id, what.task_type, what)
            continue
        times = delivery.attempt + deaths_before(delivery)
        worn_out = last is not None and times >= last and not known(tx, origin[0], what.task_id)
        kept = accept(tx, source, what)
        if not kept.created:
            take_over(tx, kept.job_id, queue_of(source.client))
        found[it] = Stored(kept.job_id, kept.created, what.task_id, what.task_type)
        if worn_out:
            give_up(tx, kept.job_id, _worn_out(times))
    return found


def _read(text: str, kinds: Kinds) -> Envelope | TaskRefusedError:
    try:
        return understood(text, kinds)
    except TaskRefusedError as why:
        return why


def _blames_no_message(error: Exception) -> bool:
    """A database that is away, full or read-only would refuse every message, and the queue would run empty."""
    return isinstance(error, DatabaseError) and not blames_a_row(error)


def _worn_out(times: int) -> TaskRefusedError:
    return TaskRefusedError(
        f"its message was delivered {times} times, and no worker lived long enough to end the task"
    )
