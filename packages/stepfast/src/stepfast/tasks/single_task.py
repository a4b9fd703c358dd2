"""One task, in a process made for it: the environment variable `TASK_DATA` has it, and the exit code says how it ended.

`tasks/command.py` chooses this mode when the variable is set, `tasks/store.py` makes a job of the task, and
`tasks/enqueued_jobs.py` runs the jobs that its handler enqueues.

The work is done by a child process, an ordinary worker that serves a queue in which this task stands alone. The parent
runs none of the user's code meanwhile. So whatever becomes of the child, the parent is there: to start another one where
it crashed, to kill it when its time is over, and to stay until the webhook about the end was sent.
"""

from __future__ import annotations

import logging
import mmap
import os
import select
import signal
import struct
import sys
import threading
import time
import traceback
import warnings
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar

from stepfast.config import WorkerSettings
from stepfast.database.database import persist
from stepfast.database.failures import blames_a_row
from stepfast.database.statement import sql
from stepfast.errors import AccessRefusedError, DatabaseError, StepfastError
from stepfast.jobs.end_webhook import TaskTimeoutError
from stepfast.jobs.kinds import Kinds
from stepfast.jobs.rescue import declare_dead, rescue
from stepfast.results.watch import wait_for
from stepfast.tasks.enqueued_jobs import (
    is_parked,
    queues_of_jobs,
    report_left_jobs,
    unfinished_jobs,
    wait_for_jobs,
    wait_while_at_work,
)
from stepfast.tasks.envelope import PREFIX, TASK_DATA, TaskRefusedError, own_queue, queue_of
from stepfast.tasks.store import (
    Origin,
    TaskEnd,
    TaskJob,
    accept_task,
    give_up_task,
    job_counters,
    move_task,
    read_task,
    refuse_message,
    resend_end,
    task_ends,
    why_unsent,
)
from stepfast.telemetry import happened
from stepfast.telemetry.traces import export_spans, flush_spans
from stepfast.worker.leases import UNWIND
from stepfast.worker.process import HANGUP, STOP_SIGNALS, exit_stuck, on_stop_signal, say, serve
from stepfast.worker.relay import Relay
from stepfast.worker.worker import Worker

if TYPE_CHECKING:
    from collections.abc import Callable

    from stepfast.app_protocol import WholeApp
    from stepfast.database.connection import Transaction
    from stepfast.jobs.kinds import Kind


T = TypeVar("T")

COMPLETED: Final = 0  # exit codes of the parent
FAILED: Final = 1
FORCE: Final = 12.0  # seconds past its time that the child has to unwind, fail the task and leave
STOPPING: Final = 60.0  # seconds past the grace of a child that was asked to stop
SILENCE: Final = 2.0  # seconds without a sign of life: a handler keeps the interpreter from all other threads
LOOK: Final = 0.05
AWAY: Final = 1.0  # seconds between tries while the database does not answer
FRUITLESS: Final = 5  # children in a row that ended, and changed nothing
NO_INCARNATION: Final = 0  # of ours is alive: the child's is its own

# A task that an operator retries needs a queue that is served: nothing serves our own queue after this process.
HAND_OVER_JOB = sql("""
    UPDATE stepfast_archive SET queue = :queue WHERE id = :id AND queue <> :queue
""")


@dataclass(frozen=True, kw_only=True)
class SingleTask:
    """A task, and how long it may take."""

    text: str
    client: str
    timeout: timedelta | None = None  # for all tries together
    budget: timedelta = timedelta(minutes=2)  # to send the webhook about its end
    grace: timedelta = timedelta(seconds=30)
    crash_limit: int = 3


def run_single_task(app: WholeApp, task: SingleTask, say: Callable[[str], None]) -> int:
    """Do a task, send the webhook about its end, and return the exit code."""
    work = _Parent(app, task, say)
    job = work.store()
    end = work.until_ended(job)
    if end is None:
        return FAILED
    export_spans()  # as late as this: a child inherits no exporter
    work.hand_over(end)
    work.send_webhook(job, end)
    work.run_jobs(end.job_id, task_ended=True)
    work.report_left_jobs(end)
    happened("task.ended", task_id=work.task_id, job_id=end.job_id, state=end.state)
    say(f"task {work.task_id or '(without an id)'} {_spoken(end)}")
    return COMPLETED if end.state == "done" else FAILED


class _Parent:
    """The parent process: store → let children work → hand over → send the webhook → see to the jobs that it enqueued."""

    def __init__(self, app: WholeApp, task: SingleTask, say: Callable[[str], None]) -> None:
        self._app = app
        self._task = task
        self._say = say
        self._database = app.unchecked_database
        self._queue = own_queue(task.client, task.text)
        self._private = self._database.dialect.name == "sqlite"  # no worker will look into this file
        self._started = time.monotonic()
        self._asked: list[int] = []  # signals, in the order in which they came
        self._child: Child | None = None
        self._worked = False  # whether a child of ours had a part in it
        self.task_id = ""

    def store(self) -> TaskJob:
        """Store the task as a job; a repeated task is the same job."""
        self._patiently(lambda: self._app.database)  # are the tables there?
        origin = Origin(self._task.client, TASK_DATA, None, self._queue)
        try:
            envelope = read_task(self._task.text, self._app.kinds)
        except TaskRefusedError as why:
            return self._refuse(origin, why)
        self.task_id = envelope.task_id
        stored = self._write(lambda tx: accept_task(tx, origin, envelope))
        return stored if stored.conflict is None else self._refuse(origin, stored.conflict)

    def _refuse(self, origin: Origin, why: TaskRefusedError) -> TaskJob:
        self.task_id = why.task_id
        self._say(f"refused: {why}")
        stored = self._write(lambda tx: refuse_message(tx, origin, self._task.text, why, self._app.kinds))
        happened("task.refused", task_id=why.task_id, job_id=stored.job_id, error=why)
        return stored

    def until_ended(self, job: TaskJob) -> TaskEnd | None:
        """Let one child after the other work until the task has ended; None if we were asked to stop before."""
        for number in STOP_SIGNALS:
            signal.signal(number, self._on_signal)
        if HANGUP is not None and signal.getsignal(HANGUP) is not signal.SIG_IGN:
            signal.signal(HANGUP, self._on_signal)
        job_id, fruitless, before = job.job_id, 0, None
        while True:
            self._rescue()
            if self._remaining() == 0 and not self._asked:
                self._write(lambda tx: self._give_up(tx, job_id))
            # In this order: a job that ends in between is seen by the second look.
            now, end = self._read(lambda tx: (job_counters(tx, job_id), task_ends(tx, [job_id]).get(job_id)))
            if end is not None:
                return end
            if self._asked:
                self._leave(job_id)
                return None
            fruitless, before = (fruitless + 1 if now == before else 0), now
            if now is None:
                raise StepfastError(f"task {self.task_id}: {self._why_gone(job)}")
            if fruitless >= FRUITLESS:
                why = "its process ends again and again, nothing changes"
                raise StepfastError(f"task {self.task_id}: {why}; stepfast jobs show {job_id}")
            self._write(lambda tx: move_task(tx, job_id, self._queue))
            self.run_jobs(job_id)
            self._work_in_child(job_id, (self._queue,))

    def run_jobs(self, job_id: str, *, task_ended: bool = False) -> None:
        """Run the jobs that the task enqueued, where no other worker would, while the task itself has nothing to do.

        Never beside the task: a job that kills its process would take the end of the task with it.
        """
        fruitless, before = 0, -1
        while self._private and not self._asked and not self._late(0.0) and fruitless < FRUITLESS:
            self._rescue()
            left, may = self._read(
                lambda tx: (unfinished_jobs(tx, job_id), task_ended or is_parked(tx, job_id))
            )
            if not may or not left.can_run:
                return
            fruitless, before = (fruitless + 1 if len(left) == before else 0), len(left)
            queues = tuple(sorted({*queues_of_jobs(self._app.kinds), *left.queues}))
            if self._work_in_child(job_id, queues, task_ended=task_ended):
                return  # it did what it could; one that died is followed by another

    def report_left_jobs(self, end: TaskEnd) -> None:
        """Say where jobs are left that the task enqueued."""
        try:
            report_left_jobs(self._database, self.task_id, end.job_id, self._say)
        except DatabaseError as error:
            self._say(f"nobody can see whether task {self.task_id} left jobs unfinished: {error}")

    def hand_over(self, end: TaskEnd) -> None:
        """Move a task that did not end well to the client's queue: if an operator retries it, any worker may take it."""
        if end.state != "done":
            queue = queue_of(self._task.client)
            with suppress(DatabaseError):  # then a polling worker adopts it when it is retried
                self._write(lambda tx: tx.run(HAND_OVER_JOB, id=end.job_id, queue=queue))

    def send_webhook(self, job: TaskJob, end: TaskEnd) -> None:
        """Send the webhook about the end, until it arrived or the budget is spent. No outage changes how the task ended."""
        try:
            if not job.created and not self._worked:  # it had ended before we came
                self._write(lambda tx: resend_end(tx, end))
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

    def _work_in_child(self, job_id: str, queues: tuple[str, ...], *, task_ended: bool = False) -> bool:
        """Let a child work, and watch it until it ends; whether it ended in good order."""
        self._database.close()  # SQLite's locks belong to a process: the child must not inherit open files
        on_task = queues == (self._queue,)
        self._worked = self._worked or on_task
        self._child = child = Child(
            self._app, self._task, queues, job_id, self._remaining(), on_task=on_task, task_ended=task_ended
        )
        child.start()
        if self._asked:
            child.signal(signal.SIGTERM)  # it came while there was no child to pass it on to
        asked_at: float | None = None
        while not child.wait(LOOK if self._asked else min(1.0, self._remaining() or 1.0)):
            now = time.monotonic()
            asked_at = now if self._asked and asked_at is None else asked_at
            unwinding, stopping = (UNWIND, 0.0) if child.silence() > SILENCE else (FORCE, STOPPING)
            grace = self._task.grace.total_seconds() + stopping
            late = self._late(
                unwinding if on_task else grace
            )  # jobs may finish within the grace, as after a signal
            if late or (asked_at is not None and now > asked_at + grace):
                child.signal(signal.SIGKILL)
            elif self._late(0.0):
                with suppress(DatabaseError):  # it is away: we come here again in a second
                    # If it waits for its next try; one that runs is ended by the child.
                    persist(self._database, lambda tx: self._give_up(tx, job_id))
        self._child = None
        return child.code == WORKED

    def _late(self, by: float) -> bool:
        limit = self._task.timeout
        return limit is not None and time.monotonic() > self._started + limit.total_seconds() + by

    def _rescue(self) -> None:
        """Take back jobs of dead processes of this machine: our child, or another parent before us."""
        self._write(lambda tx: declare_dead(tx, NO_INCARNATION, trust_clock=False))
        while self._write(lambda tx: rescue(tx, self._task.crash_limit)).jobs:
            pass

    def _give_up(self, tx: Transaction, job_id: str) -> bool:
        assert self._task.timeout is not None  # noqa: S101 - only a task with a limit can reach it
        return give_up_task(tx, job_id, TaskTimeoutError(self._task.timeout))

    def _read(self, look: Callable[[Transaction], T]) -> T:
        def read() -> T:
            with self._database.reading() as tx:
                return look(tx)

        return self._patiently(read)

    def _write(self, work: Callable[[Transaction], T]) -> T:
        """Write in a transaction. A COMMIT whose answer was lost is tried again: all of this may be written twice."""
        return self._patiently(lambda: persist(self._database, work))

    def _patiently(self, act: Callable[[], T]) -> T:
        """Wait out an outage of the database, for as long as we would wait for a webhook, unless we are asked to stop."""
        until, reported = time.monotonic() + self._task.budget.total_seconds(), False
        while True:
            try:
                answer = act()
            except DatabaseError as error:
                refused = isinstance(error, AccessRefusedError) or blames_a_row(error)
                if self._asked or refused or time.monotonic() > until:
                    raise
                if not reported:
                    reported = True
                    happened("database.lost", error=error, note="the task waits")
                time.sleep(AWAY)
            else:
                if reported:
                    happened("database.recovered", note="the task goes on")
                return answer

    def _why_gone(self, job: TaskJob) -> str:
        """Why there is no job. Of a task that was given before, only its id may be left."""
        if job.created or self._worked:
            return "its job is gone, somebody deleted it"
        return "it ended before, and its job is no longer kept: nothing was done, nobody is told how it ended"

    def _leave(self, job_id: str) -> None:
        """Let another worker of the client go on: we were asked to stop before the end."""
        moved = self._write(lambda tx: move_task(tx, job_id, queue_of(self._task.client)))
        self._say(
            f"stopped before task {self.task_id} had ended{'; another worker may go on' if moved else ''}"
        )

    def _settled(self, job_id: str) -> bool:
        try:
            with self._database.reading() as tx:
                end = task_ends(tx, [job_id]).get(job_id)
        except DatabaseError:
            return False  # unknown: the budget decides
        return end is None or end.settled

    def _remaining(self) -> float | None:
        if self._task.timeout is None:
            return None
        return max(0.0, self._started + self._task.timeout.total_seconds() - time.monotonic())

    def _on_signal(self, number: int, _: Any) -> None:
        if number == HANGUP and self._asked:
            return  # a closed terminal is said twice: by the shell and by the system
        self._asked.append(number)
        if self._child is not None:
            self._child.signal(signal.SIGTERM)


def _spoken(end: TaskEnd) -> str:
    if end.state == "done":
        return "completed"
    return f"failed: {end.error.partition(os.linesep)[0]}" if end.state == "dead" else "was cancelled"


WORKED: Final = 0  # exit codes of the child
BROKE: Final = 1
SOONEST: Final = timedelta(milliseconds=1)
PULSE: Final = 0.25  # seconds between signs of life
_INSTANT: Final = struct.Struct("d")  # monotonic: one clock for all processes of a machine


class Child:
    """One child process. It is forked: it has the application as it was imported."""

    def __init__(
        self,
        app: WholeApp,
        task: SingleTask,
        queues: tuple[str, ...],
        job_id: str,
        remaining: float | None,
        *,
        on_task: bool,
        task_ended: bool,
    ) -> None:
        self._app = app
        self._task = task
        self._queues = queues
        self._job_id = job_id
        self._on_task = on_task  # else it runs jobs that the task enqueued
        self._task_ended = task_ended
        self._remaining = remaining
        self.code: int | None = None  # of its exit, once it has ended
        self._pid = 0
        self._watched: int | None = None
        self._pipe = -1  # when it closes, the child knows that the parent is gone
        self._alive_at = mmap.mmap(-1, _INSTANT.size)  # shared with the child: its last sign of life

    def start(self) -> None:
        theirs, self._pipe = os.pipe()
        self._show_life()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # about threads that the child does not need
            pid = os.fork()
        if not pid:
            os.close(self._pipe)
            self._live(theirs)
        os.close(theirs)
        self._pid = pid
        self._watched = os.pidfd_open(pid) if hasattr(os, "pidfd_open") else None

    def signal(self, number: signal.Signals) -> None:
        if self._pid:
            os.kill(self._pid, number)

    def silence(self) -> float:
        """Seconds since its last sign of life. A call in C that keeps the interpreter prevents such signs, too."""
        return time.monotonic() - float(_INSTANT.unpack_from(self._alive_at)[0])

    def wait(self, seconds: float) -> bool:
        """Wait for the end of the child, at most so long; whether it has come."""
        if self._watched is not None:
            select.select([self._watched], [], [], seconds)
        else:
            time.sleep(min(seconds, 0.05))
        pid, status = os.waitpid(self._pid, os.WNOHANG)
        if not pid:
            return False
        self._pid, self.code = 0, os.waitstatus_to_exitcode(status)
        for descriptor in (self._watched, self._pipe):
            if descriptor is not None:
                os.close(descriptor)
        self._alive_at.close()
        return True

    def _show_life(self) -> None:
        _INSTANT.pack_into(self._alive_at, 0, time.monotonic())

    # Everything below runs in the child.

    def _live(self, parent: int) -> NoReturn:
        """The whole life of the child; none of the parent's code may run after it."""
        code = BROKE
        try:
            code = self._work(parent)
        except StepfastError as error:
            say(str(error))
        except BaseException:  # noqa: BLE001 - the parent's stack goes on above us
            traceback.print_exc()
        finally:
            logging.shutdown()
            for stream in (sys.stdout, sys.stderr):
                with suppress(AttributeError, OSError, ValueError):  # none, or nobody reads it
                    stream.flush()
            os._exit(code)  # a handler that cannot be stopped would keep the interpreter from ending

    def _show_life_for_ever(self) -> None:
        while True:
            self._show_life()
            time.sleep(PULSE)

    def _work(self, parent: int) -> int:
        threading.Thread(target=self._show_life_for_ever, name="stepfast-pulse", daemon=True).start()
        export_spans()  # after the app, which may have its own way
        worker = Worker(
            self._app.database,
            self._kinds(),
            WorkerSettings(
                queues=self._queues,
                concurrency=1,
                grace=self._task.grace,
                crash_limit=self._task.crash_limit,
            ),
            stuck=exit_stuck,
            notifications=replace(self._app.notifications, outbox_relay=False),  # the parent's part
            declared={}
            if len(self._queues) > 1
            else self._app.declared,  # of a schedule it would run the jobs
        )
        on_stop_signal(worker.ask_to_stop)
        _in_thread(lambda: _until_closed(parent), worker)
        _in_thread(self._until_done, worker)
        if self._on_task and self._app.unchecked_database.dialect.name == "sqlite":
            _in_thread(lambda: wait_while_at_work(self._app.database, self._job_id), worker)

        def leave() -> int:
            flush_spans()
            return BROKE if worker.failed else WORKED

        return serve(worker, leave)

    def _until_done(self) -> None:
        """Wait for the end of the task, or of the jobs that it enqueued."""
        if self._on_task:
            wait_for(self._app, self._job_id)
        else:
            until = None if self._remaining is None else time.monotonic() + self._remaining
            over = lambda: until is not None and time.monotonic() > until  # noqa: E731 - a question
            wait_for_jobs(self._app.database, self._job_id, stopped=over, task_ended=self._task_ended)

    def _kinds(self) -> Kinds:
        if self._remaining is None or self._task.timeout is None:
            return self._app.kinds
        return LimitedKinds(self._app.kinds, self._task.timeout, time.monotonic() + self._remaining)


def _until_closed(pipe: int) -> None:
    while os.read(pipe, 1):
        pass


def _in_thread(wait: Callable[[], object], worker: Worker) -> None:
    """Stop the worker when the wait is over."""

    def run() -> None:
        try:
            wait()
        finally:
            worker.ask_to_stop()

    threading.Thread(target=run, name="stepfast-single-task", daemon=True).start()


class LimitedKinds(Kinds):
    """The kinds of an application; those of tasks with the time that is left for all tries together as their timeout."""

    def __init__(self, kinds: Kinds, limit: timedelta, until: float) -> None:
        vars(self).update(vars(kinds))
        self._unlimited = kinds
        self._limit = limit
        self._until = until  # monotonic

    def find(self, name: str) -> Kind | None:
        kind = self._unlimited.find(name)
        left = max(SOONEST, timedelta(seconds=self._until - time.monotonic()))
        if kind is None or not name.startswith(PREFIX) or (kind.timeout is not None and kind.timeout < left):
            return kind
        return replace(kind, timeout=left, time_limit=self._limit)
