"""The webhook that reports the end of a task, staged in the transaction of that end.

A task that is done stages it as an effect of its step. All other ends come through `archive`: a step that gave up, a
rescue that convicted, an operator who cancelled. So there is no end without its webhook, and one webhook per end: a task
that is revived and ends again is reported again. (The engine knows the table of `tasks/` here, because any process may end
the job of a task.)
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, ClassVar, Final

from stepfast.clock import moment
from stepfast.database.statement import sql
from stepfast.errors import ArgumentsError, StepfastError
from stepfast.jobs.payload import encode, to_json
from stepfast.suspects import CRASH_GROUP
from stepfast.telemetry import when_committed
from stepfast.telemetry.traces import traceparent_of_job

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import timedelta

    from stepfast.database.connection import Transaction


TASK_PREFIX: Final = "task."  # of the kinds of jobs that tasks are
VERSION: Final = 1  # of what the webhook says
LARGEST_RESULT: Final = 240 * 1024  # that a webhook carries; the rest of its room is for everything else

# The words of an error's beginning that say more than "it failed".
CAUSES: Final = {
    "StepTimeout": "timeout",
    "TaskTimeoutError": "timeout",
    "Rejected": "rejected",
    "ArgumentsError": "refused",
    "TaskRefusedError": "refused",
}

FAILED_TASKS = sql("""
    SELECT t.id, t.client, t.task_id, t.task_type, t.webhook_url, a.state, a.last_error, a.error_group,
           a.failures + a.crashes, a.committed_fence, a.finished_at, a.trace
      FROM stepfast_task t JOIN stepfast_archive a ON a.id = t.id
     WHERE t.id {any_of:ids} AND t.webhook_url IS NOT NULL AND a.state IN ('dead', 'cancelled')
""")

TASK_WEBHOOK = sql("""
    SELECT client, task_id, task_type, webhook_url, {now} FROM stepfast_task
     WHERE id = :id AND webhook_url IS NOT NULL
""")


TASK_ID = sql("SELECT task_id FROM stepfast_task WHERE id = :id")


def task_id_of(tx: Transaction, job_id: str) -> str | None:
    """The id under which its sender knows the task of this job; None: it is none, or its row was pruned."""
    found = tx.first(TASK_ID, id=job_id)
    return None if found is None else str(found)


class TaskTimeoutError(StepfastError):
    """A task had no time left: all its tries together took longer than WORKER_TASK_TIMEOUT allows."""

    def __init__(self, timeout: timedelta) -> None:
        super().__init__(f"did not finish within {timeout.total_seconds():g} s, with all its tries")


@dataclass(frozen=True)
class FailedTask:
    """A task that ended without a result, and the URL to which that is reported."""

    job_id: str
    client: str
    task_id: str
    task_type: str
    url: str
    state: str
    error: str | None
    error_group: str | None
    attempts: int
    fence: int
    finished_at: int
    trace: str | None

    def body(self) -> str:
        about = _about(self.client, self.task_id, self.task_type, moment(self.finished_at), self.attempts)
        return to_json(about | {"status": "failed", "error": error_of(self)})


@dataclass(frozen=True)
class DoneWebhook:
    """The effect of a task that is done: its webhook, if it asked for one."""

    job_id: str
    fence: int
    attempts: int
    result: Any
    finished_at: int | None = None  # None: in this very transaction
    omitted: str | None = None  # why the result is left out
    by_key: ClassVar = True
    turn: ClassVar = (1, "")  # with the messages, behind all other effects

    def apply(self, tx: Transaction, /) -> None:
        rows = tx.rows(TASK_WEBHOOK, id=self.job_id)
        if rows:
            client, task_id, task_type, url, now = rows[0]
            at = moment(now if self.finished_at is None else self.finished_at)
            about = _about(client, task_id, task_type, at, self.attempts)
            body = done_body(about, self.result, self.omitted)
            _stage(tx, url, body, task_id=task_id, job_id=self.job_id, fence=self.fence)


def stage_failure_webhooks(tx: Transaction, ids: Sequence[str]) -> None:
    """Stage the webhooks of the tasks among these jobs, which have just ended without a result."""
    for task in tx.all(FAILED_TASKS, FailedTask, ids=list(ids)):
        _stage(
            tx,
            task.url,
            task.body(),
            task_id=task.task_id,
            job_id=task.job_id,
            fence=task.fence,
            trace=traceparent_of_job(task.job_id, task.trace),
        )


def end_key(job_id: str, fence: int) -> str:
    """The key under which a webhook is staged once. Jobs that are claimed together share a fence, lives of one job never do."""
    return f"task-end:{job_id}:{fence}"


def done_body(about: dict[str, Any], result: Any, omitted: str | None = None) -> str:
    """The webhook of a task that is done. A result that is too large for it stays in the database."""
    text = encode(result)
    if (size := len(text.encode())) > LARGEST_RESULT:
        omitted = f"it takes {size:,} bytes, more than a webhook carries; stepfast tasks show has it"
    if omitted is not None:
        return to_json(about | {"status": "completed", "result": None, "result_omitted": omitted})
    head = to_json(about | {"status": "completed"})
    return f'{head[:-1]},"result":{text}}}'


def error_of(failure: FailedTask) -> dict[str, str]:
    """The error's type and message, and in one word what kind of end it was."""
    text = failure.error or "for no stated reason"
    if failure.state == "cancelled":
        return {"type": "Cancelled", "message": text, "cause": "cancelled"}
    if failure.error_group == CRASH_GROUP:
        return {"type": "WorkerCrashed", "message": text, "cause": "crash"}
    kind, colon, message = text.partition(": ")
    if not kind.replace(".", "").replace("<locals>", "").isidentifier():
        return {"type": "Error", "message": text, "cause": "error"}
    return {"type": kind, "message": message if colon else text, "cause": CAUSES.get(kind, "error")}


def _about(client: str, task_id: str, task_type: str, finished_at: datetime, attempts: int) -> dict[str, Any]:
    return {
        "schema_version": VERSION,
        "client_id": client,
        "task_id": task_id,
        "task_type": task_type,
        "finished_at": finished_at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "attempts": attempts,
    }


def _stage(
    tx: Transaction, url: str, body: str, *, task_id: str, job_id: str, fence: int, trace: str | None = None
) -> None:
    """Stage the webhook. A URL that cannot be used must not keep the task from ending."""
    from stepfast.outbox.messages import stage, webhook

    try:
        message = webhook(url, body, key=end_key(job_id, fence), job_id=job_id)
    except ArgumentsError as error:
        when_committed(tx, "task.untold", task_id=task_id, job_id=job_id, error=error)
        return
    stage(tx, message if message.trace or trace is None else replace(message, trace=trace))
