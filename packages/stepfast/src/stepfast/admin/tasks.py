"""Tasks that came from queues, with their jobs and the webhooks about their ends."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from stepfast.admin.jobs import shown_text
from stepfast.clock import moment
from stepfast.database.statement import sql
from stepfast.errors import NotFoundError
from stepfast.outbox.messages import as_shown

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepfast.database.connection import Transaction


@dataclass(frozen=True)
class TaskSummary:
    """A task in one line."""

    job_id: str
    client: str
    task_id: str
    task_type: str
    source: str
    received_at: datetime
    state: str
    error: str | None
    finished_at: datetime | None


@dataclass(frozen=True)
class EndWebhook:
    """The webhook that tells of a task's end."""

    id: str
    state: str
    address: str
    attempts: int
    error: str | None


@dataclass(frozen=True)
class ReceivedEnd:
    """A webhook about a task's end, as a receiver on this database has saved it."""

    id: str
    status: str
    received_at: datetime


@dataclass(frozen=True)
class TaskDetail:
    """A task with everything that is stored about it."""

    task: TaskSummary
    result: str | None
    webhooks: list[EndWebhook]
    received: list[ReceivedEnd]


# A job that is neither live nor in the archive was forgotten after its retention time.
_TASK = """
    SELECT t.id, t.client, t.task_id, t.task_type, t.source, t.received_at,
           COALESCE(j.state, a.state, 'forgotten'), COALESCE(j.last_error, a.last_error), a.finished_at
      FROM stepfast_task t LEFT JOIN stepfast_job j ON j.id = t.id LEFT JOIN stepfast_archive a ON a.id = t.id
"""
LATEST_TASKS = sql(f"""
    {_TASK}
     WHERE (:any_client = 1 OR t.client = :client)
       AND (:any_state = 1 OR COALESCE(j.state, a.state, 'forgotten') = :state)
     ORDER BY t.received_at DESC, t.id DESC LIMIT :limit
""")
ONE_TASK = sql(f"""
    {_TASK}
     WHERE (t.id = :id OR t.task_id = :id) AND (:any_client = 1 OR t.client = :client)
     ORDER BY t.received_at DESC, t.id DESC LIMIT 1
""")
TASK_RESULT = sql("SELECT result FROM stepfast_archive WHERE id = :id")
END_WEBHOOKS = sql("""
    SELECT id, state, address, attempts, last_error FROM stepfast_outbox
     WHERE job_id = :id AND dedupe_key LIKE 'task-end:%' ORDER BY seq
""")
RECEIVED_ENDS = sql("""
    SELECT id, status, received_at FROM stepfast_received
     WHERE task_id = :task_id AND client = :client ORDER BY received_at, id LIMIT 50
""")


def list_tasks(
    tx: Transaction, *, client: str | None = None, state: str | None = None, limit: int = 50
) -> list[TaskSummary]:
    """Tasks, the latest first."""
    given = {
        "client": client,
        "any_client": int(client is None),
        "state": state,
        "any_state": int(state is None),
    }
    return [_summary(row) for row in tx.rows(LATEST_TASKS, **given, limit=limit)]


def show_task(tx: Transaction, task_id: str, *, client: str | None = None) -> TaskDetail:
    """Everything about one task, by its id or that of its job. If several clients have the id, the latest."""
    rows = tx.rows(ONE_TASK, id=task_id, client=client, any_client=int(client is None))
    if not rows:
        whose = "" if client is None else f" of client {client!r}"
        raise NotFoundError(f"there is no task {task_id!r}{whose}; ids are forgotten a month after they came")
    task = _summary(rows[0])
    webhooks = [
        EndWebhook(id_, state, as_shown("webhook", address), attempts, error)
        for id_, state, address, attempts, error in tx.rows(END_WEBHOOKS, id=task.job_id)
    ]
    told_here = tx.rows(RECEIVED_ENDS, task_id=task.task_id, client=task.client)
    received = [ReceivedEnd(it[0], it[1], moment(it[2])) for it in told_here]
    result = tx.first(TASK_RESULT, id=task.job_id)
    shown = None if result is None else shown_text(result)
    return TaskDetail(task, shown, webhooks, received)


def _summary(row: Sequence[Any]) -> TaskSummary:
    job_id, client, task_id, task_type, source, received_at, state, error, finished_at = row
    return TaskSummary(
        job_id=job_id,
        client=client,
        task_id=task_id,
        task_type=task_type,
        source=source,
        received_at=moment(received_at),
        state=state,
        error=error,
        finished_at=None if finished_at is None else moment(finished_at),
    )
