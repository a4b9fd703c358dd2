"""Messages become rows: all that came together in one transaction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from stepfast.database.database import persist
from stepfast.database.failures import blames_a_row
from stepfast.errors import DatabaseError
from stepfast.steps.failure import describe
from stepfast.tasks.acceptance import Origin, accept, key_of, known, refuse
from stepfast.tasks.ends import give_up, take_over
from stepfast.tasks.envelope import LONGEST_REASON
from stepfast.tasks.failures import TaskRefusedError
from stepfast.tasks.holding import deaths_before
from stepfast.tasks.names import queue_of
from stepfast.tasks.refusal import understood
from stepfast.telemetry import happened

if TYPE_CHECKING:
    from stepfast.database.connection import Transaction
    from stepfast.steps.kinds import Kinds
    from stepfast.tasks.app import App
    from stepfast.tasks.envelope import Envelope
    from stepfast.tasks.holding import Held


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
