"""One task, in a process made for it: `TASK_DATA` has it, and the exit code says how it ended.

The work is done by a child, an ordinary worker that serves a queue in which this task stands alone. We, its parent, run
none of the user's code meanwhile. So whatever becomes of the child, we are there: to let it go on where it crashed, to end
it by force when its time is over, and to stay until whoever asked has been told.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, TypeVar

from stepfast.database.database import persist
from stepfast.database.failures import blames_a_row
from stepfast.database.statement import sql
from stepfast.errors import DatabaseError, StepfastError
from stepfast.steps.rescue import declare_dead, rescue
from stepfast.steps.task_ends import TaskTimeoutError
from stepfast.tasks.acceptance import Accepted, Origin, accept, refuse
from stepfast.tasks.child import Child, SingleTask
from stepfast.tasks.ends import End, ends, give_up, move, standing, tell_again, why_unsent
from stepfast.tasks.failures import TaskRefusedError
from stepfast.tasks.names import TASK_DATA, own_queue, queue_of
from stepfast.tasks.refusal import understood
from stepfast.telemetry import happened
from stepfast.worker.execution import UNWIND
from stepfast.worker.relay import Relay

if TYPE_CHECKING:
    from collections.abc import Callable

    from stepfast.database.connection import Transaction
    from stepfast.tasks.app import App

T = TypeVar("T")

COMPLETED: Final = 0
FAILED: Final = 1
FORCE: Final = 12.0  # seconds past its time that the child has to unwind, fail the task and leave
STOPPING: Final = 60.0  # seconds past the grace of a child that was asked to stop
SILENCE: Final = (
    2.0  # seconds of a child that cannot do either: a handler keeps the interpreter from all others
)
LOOK: Final = 0.05
AWAY: Final = 1.0  # seconds between tries while the database does not answer
FRUITLESS: Final = 5  # children in a row that ended, and changed nothing
NOBODY: Final = 0  # no incarnation of ours is alive: the child's is its own

# So that whoever retries it finds a worker: nobody serves our own queue when we have gone.
HAND_OVER = sql("""
    UPDATE stepfast_archive SET queue = :queue WHERE id = :id AND queue <> :queue
""")


def run_single_task(app: App, task: SingleTask, say: Callable[[str], None]) -> int:
    """Do it, tell of it, and return the exit code."""
    work = _Work(app, task, say)
    accepted = work.store()
    end = work.until_ended(accepted)
    if end is None:
        return FAILED
    work.hand_over(end)
    work.tell(accepted, end)
    happened("task.ended", task_id=work.task_id, job_id=end.job_id, state=end.state)
    say(f"task {work.task_id or '(without an id)'} {_spoken(end)}")
    return COMPLETED if end.state == "done" else FAILED


class _Work:
    """The parent's part."""

    def __init__(self, app: App, task: SingleTask, say: Callable[[str], None]) -> None:
        self._app = app
        self._task = task
        self._say = say
        self._database = app.database
        self._queue = own_queue(task.client, task.text)
        self._started = time.monotonic()
        self._asked: list[int] = []  # signals, in the order in which they came
        self._child: Child | None = None
        self._worked = False  # whether a child of ours had a part in it
        self.task_id = ""

    def store(self) -> Accepted:
        """The task as a job; the same task again is the same job."""
        origin = Origin(self._task.client, TASK_DATA, None, self._queue)
        try:
            envelope = understood(self._task.text, self._app.kinds)
        except TaskRefusedError as why:
            self.task_id, error = why.task_id, why
            self._say(f"refused: {why}")
            stored = self._write(lambda tx: refuse(tx, origin, self._task.text, error, self._app.kinds))
            happened("task.refused", task_id=why.task_id, job_id=stored.job_id, error=why)
            return stored
        self.task_id = envelope.task_id
        return self._write(lambda tx: accept(tx, origin, envelope))

    def until_ended(self, accepted: Accepted) -> End | None:
        """Let a child work until the task has ended; None if we were asked to stop before."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        job_id, fruitless, before = accepted.job_id, 0, None
        while True:
            self._rescue()
            if self._remaining() == 0 and not self._asked:
                self._write(lambda tx: self._give_up(tx, job_id))
            # In this order: a job that ends in between is seen by the second look.
            now, end = self._read(lambda tx: (standing(tx, job_id), ends(tx, [job_id]).get(job_id)))
            if end is not None:
                return end
            if self._asked:
                self._leave(job_id)
                return None
            fruitless, before = (fruitless + 1 if now == before else 0), now
            if now is None:
                raise StepfastError(f"task {self.task_id}: {self._gone(accepted)}")
            if fruitless >= FRUITLESS:
                why = "its process ends again and again, nothing changes"
                raise StepfastError(f"task {self.task_id}: {why}; stepfast jobs show {job_id}")
            self._write(lambda tx: move(tx, job_id, self._queue))
            self._work_in_child(job_id)

    def hand_over(self, end: End) -> None:
        """If an operator tries it again, that is for any worker of the client."""
        if end.state != "done":
            queue = queue_of(self._task.client)
            with suppress(DatabaseError):  # then whoever polls adopts it when it is tried again
                self._write(lambda tx: tx.run(HAND_OVER, id=end.job_id, queue=queue))

    def tell(self, accepted: Accepted, end: End) -> None:
        """Send what was staged, until whoever asked knows or the budget is spent. No outage changes how it ended."""
        try:
            if not accepted.created and not self._worked:  # it had ended before we came
                self._write(lambda tx: tell_again(tx, end))
            if self._app.notifications.outbox_relay and not self._settled(end.job_id):
                self._relay_until_settled(end.job_id)
            with self._database.reading() as tx:
                unsent = why_unsent(tx, end.job_id)
        except DatabaseError as error:
            self._say(f"nobody can see who was told of the end of task {self.task_id}: {error}")
            return
        if unsent is not None:
            self._say(f"nobody could be told of the end of task {self.task_id}: {unsent}")

    def _relay_until_settled(self, job_id: str) -> None:
        relay = Relay(self._database, self._app.notifications)
        relay.start()
        until = time.monotonic() + self._task.budget.total_seconds()
        while not self._settled(job_id) and time.monotonic() < until and len(self._asked) < 2:  # noqa: PLR2004 - asked twice
            time.sleep(LOOK)
        relay.stop()

    def _work_in_child(self, job_id: str) -> None:
        self._database.close()  # SQLite's locks belong to a process: the child must not inherit open files
        self._worked = True
        self._child = child = Child(self._app, self._task, self._queue, job_id, self._remaining())
        child.start()
        if self._asked:
            child.signal(signal.SIGTERM)  # it came while there was nobody to pass it on to
        asked_at: float | None = None
        while not child.wait(LOOK if self._asked else min(1.0, self._remaining() or 1.0)):
            now = time.monotonic()
            asked_at = now if self._asked and asked_at is None else asked_at
            unwinding, stopping = (UNWIND, 0.0) if child.silence() > SILENCE else (FORCE, STOPPING)
            grace = self._task.grace.total_seconds() + stopping
            if self._late(unwinding) or (asked_at is not None and now > asked_at + grace):
                child.signal(signal.SIGKILL)
            elif self._late(0.0):
                with suppress(DatabaseError):  # it is away: we come here again in a second
                    # If it waits for its next try; one that runs is ended by the child.
                    persist(self._database, lambda tx: self._give_up(tx, job_id))
        self._child = None

    def _late(self, by: float) -> bool:
        limit = self._task.timeout
        return limit is not None and time.monotonic() > self._started + limit.total_seconds() + by

    def _rescue(self) -> None:
        """Take back what dead processes of this machine had: our child, or whoever was here before us."""
        self._write(lambda tx: declare_dead(tx, NOBODY, trust_clock=False))
        while self._write(lambda tx: rescue(tx, self._task.crash_limit)).jobs:
            pass

    def _give_up(self, tx: Transaction, job_id: str) -> bool:
        assert self._task.timeout is not None  # noqa: S101 - only who has a limit can reach it
        return give_up(tx, job_id, TaskTimeoutError(self._task.timeout))

    def _read(self, look: Callable[[Transaction], T]) -> T:
        def read() -> T:
            with self._database.reading() as tx:
                return look(tx)

        return self._patiently(read)

    def _write(self, work: Callable[[Transaction], T]) -> T:
        """All that is written here may be written twice: a COMMIT whose answer was lost is tried again."""
        return self._patiently(lambda: persist(self._database, work))

    def _patiently(self, act: Callable[[], T]) -> T:
        """An outage of the database is waited out, for as long as we would wait for a webhook, unless we are to stop."""
        until, told = time.monotonic() + self._task.budget.total_seconds(), False
        while True:
            try:
                return act()
            except DatabaseError as error:
                if self._asked or blames_a_row(error) or time.monotonic() > until:
                    raise
                if not told:
                    told = True
                    happened("database.lost", error=error, note="the task waits")
                time.sleep(AWAY)

    def _gone(self, accepted: Accepted) -> str:
        """Why there is no job. Of a task that we were given before, only its id may be left."""
        if accepted.created or self._worked:
            return "its job is gone, somebody deleted it"
        return "it ended before, and its job is no longer kept: nothing was done, nobody is told how it ended"

    def _leave(self, job_id: str) -> None:
        """We were asked to stop before the end: another may go on."""
        moved = self._write(lambda tx: move(tx, job_id, queue_of(self._task.client)))
        self._say(
            f"stopped before task {self.task_id} had ended{'; another worker may go on' if moved else ''}"
        )

    def _settled(self, job_id: str) -> bool:
        try:
            with self._database.reading() as tx:
                found = ends(tx, [job_id]).get(job_id)
        except DatabaseError:
            return False  # nobody knows: the budget decides
        return found is None or found.settled

    def _remaining(self) -> float | None:
        if self._task.timeout is None:
            return None
        return max(0.0, self._started + self._task.timeout.total_seconds() - time.monotonic())

    def _on_signal(self, number: int, _: Any) -> None:
        self._asked.append(number)
        if self._child is not None:
            self._child.signal(signal.SIGTERM)


def _spoken(end: End) -> str:
    if end.state == "done":
        return "completed"
    return f"failed: {end.error.partition(os.linesep)[0]}" if end.state == "dead" else "was cancelled"
