"""Jobs that the handler of a task enqueued, and those that they enqueued in turn: which of them have not ended.

A process that exits with its task looks at them. Where nobody else uses the database (SQLite) it runs them first;
elsewhere it reports where it leaves them. They are found by their trace, which is that of the task. Other tasks of the
same sender may share the trace, so tasks themselves are left out.
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from stepfast.database.drivers import masked
from stepfast.database.statement import sql
from stepfast.errors import DatabaseError
from stepfast.tasks.envelope import PREFIX, REFUSED
from stepfast.telemetry import happened, trace_id_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from stepfast.database.connection import Transaction
    from stepfast.database.database import Database
    from stepfast.jobs.kinds import Kinds


PATIENCE: Final = 120.0  # seconds that a process waits for a job that is not yet due, or does not begin
LOOK: Final = 0.1  # seconds between looks at jobs that are worked on
PARKED: Final = frozenset({"scheduled", "waiting"})  # states of a job that no worker can take now
EVERY_QUEUE: Final = "*"  # as a worker's row says it
SECOND: Final = 1e6  # in microseconds

TRACE_OF_TASK = sql("""
    SELECT trace FROM stepfast_job WHERE id = :id UNION ALL SELECT trace FROM stepfast_archive WHERE id = :id
""")
UNFINISHED_JOBS_OF_TASK = sql("""
    SELECT queue, state, count(*), min(ready_at) - {now} FROM stepfast_job
     WHERE trace LIKE :trace AND id <> :id AND kind NOT LIKE 'task.%' GROUP BY queue, state
""")
STATE_OF_TASK = sql("SELECT state FROM stepfast_job WHERE id = :id")
QUEUES_OF_WORKERS = sql("SELECT queues FROM stepfast_worker WHERE state = 'alive' AND alive_until >= {now}")


@dataclass(frozen=True)
class UnfinishedJobs:
    """The unfinished jobs that a task has enqueued."""

    queues: dict[str, int]  # how many, by queue
    running: int
    due_in: float | None  # seconds until the first can run; None: each waits for an event or for another job

    @property
    def can_run(self) -> bool:
        """Whether one of them is running, or can run soon."""
        return self.running > 0 or (self.due_in is not None and self.due_in <= PATIENCE)

    def __len__(self) -> int:
        return sum(self.queues.values())

    def __str__(self) -> str:
        jobs = "1 job" if len(self) == 1 else f"{len(self)} jobs"
        names = ", ".join(sorted(self.queues))
        return f"{jobs} in the queue{'' if len(self.queues) == 1 else 's'} {names}"


def unfinished_jobs(tx: Transaction, job_id: str) -> UnfinishedJobs:
    """The unfinished jobs of the task with this job."""
    rows = tx.rows(TRACE_OF_TASK, id=job_id)
    trace = trace_id_of(job_id, rows[0][0] if rows else None)
    queues: dict[str, int] = {}
    running = 0
    due: list[float] = []
    for queue, state, many, wait in tx.rows(UNFINISHED_JOBS_OF_TASK, id=job_id, trace=f"00-{trace}-%"):
        queues[queue] = queues.get(queue, 0) + int(many)
        running += int(many) if state == "leased" else 0
        if state == "scheduled":
            due.append(max(0.0, int(wait) / SECOND))
        elif state != "waiting":
            due.append(0.0)
    return UnfinishedJobs(queues, running, min(due, default=None))


def is_parked(tx: Transaction, job_id: str) -> bool:
    """Whether a task has nothing to do before a later moment, an event or the end of another job."""
    rows = tx.rows(STATE_OF_TASK, id=job_id)
    return bool(rows) and rows[0][0] in PARKED


def wait_for_jobs(
    database: Database, job_id: str, *, stopped: Callable[[], bool], task_ended: bool = True
) -> None:
    """Wait until the jobs of a task have ended, while a worker of this process runs them.

    Returns earlier if `stopped` says so, when none of them runs and none can run within `PATIENCE`, and when a task that
    has not ended can go on.
    """
    ran_at = time.monotonic()
    while not stopped() and time.monotonic() < ran_at + PATIENCE:
        with suppress(DatabaseError):  # nothing is known
            with database.reading() as tx:
                found, may = unfinished_jobs(tx, job_id), task_ended or is_parked(tx, job_id)
            if not may or not found.can_run:
                return
            ran_at = time.monotonic() if found.running else ran_at
        time.sleep(LOOK)


def wait_while_at_work(database: Database, job_id: str) -> None:
    """Wait until a task is parked and jobs that it enqueued can run."""
    while True:
        with suppress(DatabaseError), database.reading() as tx:
            if is_parked(tx, job_id) and unfinished_jobs(tx, job_id).can_run:
                return
        time.sleep(LOOK)


def report_left_jobs(database: Database, task_id: str, job_id: str, say: Callable[[str], None]) -> None:
    """Report the jobs that a task leaves unfinished: where they are, and whether a worker will run them."""
    with database.reading() as tx:
        left = unfinished_jobs(tx, job_id)
        served = (
            {name for row in tx.rows(QUEUES_OF_WORKERS) for name in str(row[0]).split(",")} if left else set()
        )
    if not left:
        return
    unserved = [] if EVERY_QUEUE in served else sorted(set(left.queues) - served)
    jobs, queues = len(left), ",".join(sorted(left.queues))
    if not unserved:
        happened("jobs.passed-on", task_id=task_id, job_id=job_id, jobs=jobs, queues=queues)
        return
    happened("jobs.left", task_id=task_id, job_id=job_id, jobs=jobs, queues=queues)
    say(
        f"task {task_id} has enqueued {left} of {masked(database.url)}, and no worker runs them now: "
        "start one there (stepfast worker MODULE:APP)"
    )


def queues_of_jobs(kinds: Kinds) -> list[str]:
    """The queues of the app's jobs that are no tasks: what handlers of tasks enqueue stands there."""
    found = (kinds.get(name) for name in kinds.names() if name != REFUSED and not name.startswith(PREFIX))
    return sorted({kind.queue for kind in found})
