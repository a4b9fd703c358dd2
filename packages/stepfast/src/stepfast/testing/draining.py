"""Run until idle, through the real path.

A drain starts the worker that your program starts, in this process, and stops it when nothing is left that it could
run now. So claims, timeouts, retries, effects, commits and rescues are those of production; there is no second way to
run a step. What a drain adds is that it knows when to stop, and that it can move the clock instead of waiting.
"""

from __future__ import annotations

import asyncio
import threading
import time
import weakref
from contextlib import ExitStack
from copy import copy
from dataclasses import dataclass, fields, replace
from inspect import CORO_CREATED, getcoroutinestate
from typing import TYPE_CHECKING, Any, Final

from stepfast.clock import Duration, duration, moment
from stepfast.config import WorkerSettings
from stepfast.database.statement import sql
from stepfast.errors import ConfigurationError, ContentionError, StepfastError, UnreachableError
from stepfast.jobs.debounce import SUCCESSORS, promote_successors
from stepfast.jobs.outcome import Continue, Reject, Snooze, Wait
from stepfast.jobs.rescue import declare_dead, rescue
from stepfast.jobs.state import JobState
from stepfast.limits.slots import look_at_all_limits, release_due
from stepfast.runs.sweep import HELD_SWEEP
from stepfast.testing.assertions import Picture
from stepfast.testing.test_clock import Clock, clock
from stepfast.testing.watching import WatchedKinds
from stepfast.worker.maintenance import promote
from stepfast.worker.scheduler import fire_due

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Generator, Sequence

    from stepfast.app import Stepfast
    from stepfast.database.connection import Transaction
    from stepfast.database.database import Database
    from stepfast.jobs.step import Step
    from stepfast.testing.assertions import StoredJob
    from stepfast.worker.worker import Worker


# What is left to do: what one worker has or could take now, and when the next thing is due.

_IN_SCOPE = "(:anywhere = 1 OR queue {any_of:queues})"
_NOT_PAUSED = "queue NOT IN (SELECT id FROM stepfast_queue WHERE paused_at IS NOT NULL)"
_HEAD = """
    :relay = 1 AND o.state = 'waiting' AND NOT EXISTS (
        SELECT 1 FROM stepfast_outbox e WHERE e.state = 'waiting' AND e.destination = o.destination AND e.seq < o.seq)
"""

# Who freed the slot in the moment when they were held has not seen them.
_FORGOTTEN = """
    SELECT count(*) FROM stepfast_limit l
     WHERE l.due_at IS NOT NULL AND l.slots > (SELECT count(*) FROM stepfast_slot s WHERE s.limit_id = l.id)
       AND EXISTS (SELECT 1 FROM stepfast_job h WHERE h.held_by = l.id AND h.state = 'held')
"""

# One statement sees all of it at one moment: what this worker has, what it could take, and what only has to be woken.
LEFT = sql(f"""
    SELECT count(CASE WHEN state = 'leased' THEN 1 END), count(CASE WHEN state = 'ready' THEN 1 END),
           count(CASE WHEN state = 'suspect' THEN 1 END),
           count(CASE WHEN state = 'scheduled' THEN 1 END)
             + (SELECT count(*) FROM stepfast_limit WHERE due_at <= {{now}}) + ({_FORGOTTEN})
             + (SELECT count(*) {SUCCESSORS}),
           (SELECT count(*) FROM stepfast_schedule WHERE next_at <= {{now}} AND paused_at IS NULL),
           (SELECT count(*) FROM stepfast_outbox o WHERE o.due_at <= {{now}} AND {_HEAD})
      FROM stepfast_job
     WHERE {_IN_SCOPE} AND (
           (state = 'leased' AND owner IN (SELECT incarnation FROM stepfast_worker WHERE worker_id = :worker_id))
        OR (state IN ('ready', 'suspect') AND ready_at <= {{now}} AND {_NOT_PAUSED})
        OR (state = 'scheduled' AND ready_at <= {{now}}))
""")

NEXT_JOB = sql(f"""
    SELECT min(ready_at) FROM stepfast_job
     WHERE state IN ('scheduled', 'ready') AND ready_at > {{now}} AND kind {{any_of:kinds}}
       AND {_IN_SCOPE} AND {_NOT_PAUSED}
       AND id NOT IN (SELECT r.job_id FROM stepfast_run r
                       WHERE r.job_id IS NOT NULL AND r.ended_at IS NULL AND r.frontier LIKE :held)
""")
NEXT_RATE = sql("SELECT min(due_at) FROM stepfast_limit WHERE due_at > {now} AND gap > 0")
NEXT_MESSAGE = sql(f"SELECT min(o.due_at) FROM stepfast_outbox o WHERE o.due_at > {{now}} AND {_HEAD}")


@dataclass(frozen=True)
class Scope:
    """What one drain is asked to do."""

    queues: tuple[str, ...]  # none: all
    limit: int | None
    with_scheduled: bool
    concurrency: int
    timeout: float
    relay: bool = False

    @property
    def queues_asked(self) -> dict[str, Any]:
        return {"queues": list(self.queues), "anywhere": int(not self.queues)}


@dataclass(frozen=True)
class Left:
    """What there is to do right now."""

    leased: int
    ready: int
    suspects: int
    due: int  # whose time has come
    ticks: int  # of schedules, due
    messages: int  # to be sent

    @property
    def nothing(self) -> bool:
        return not (self.busy or self.suspects or self.ticks)

    @property
    def busy(self) -> bool:
        return bool(self.leased or self.ready or self.due or self.messages)


def what_is_left(tx: Transaction, scope: Scope, worker_id: str) -> Left:
    return tx.all(LEFT, Left, worker_id=worker_id, relay=int(scope.relay), **scope.queues_asked)[0]


def due_next(tx: Transaction, scope: Scope, kinds: list[str]) -> int | None:
    """When the next job, rate or message is due. Schedules are not asked: they have always a next tick.

    Nor are sweeps that wait for a person: they would look again and again, for ever.
    """
    found = [
        tx.first(NEXT_JOB, kinds=kinds, held=HELD_SWEEP, **scope.queues_asked),
        tx.first(NEXT_RATE),
        tx.first(NEXT_MESSAGE, relay=int(scope.relay)),
    ]
    return min((int(at) for at in found if at is not None), default=None)


# What a drain did: every call of a handler, and every job it touched.


@dataclass
class Run:
    """One call of a handler."""

    job_id: str
    kind: str
    step: int  # which step of its job, from 0
    attempt: int  # which try of it, from 1
    answer: Any = None  # what it returned
    error: BaseException | None = None  # what it, or one of its effects, raised

    def __str__(self) -> str:
        return f"job {self.job_id} ({self.kind}, step {self.step}, attempt {self.attempt})"


@dataclass(frozen=True)
class Report:
    """What a drain did. In an async test, `await` it."""

    runs: tuple[Run, ...]  # in the order in which they began
    jobs: tuple[StoredJob, ...]  # all that were leased or ended, as they are now: first those that ended
    known: frozenset[tuple[str, str]]  # errors that jobs had met before

    @property
    def done(self) -> int:
        """Jobs that are done."""
        return self._count(JobState.DONE)

    @property
    def dead(self) -> int:
        """Jobs that are dead letters now."""
        return self._count(JobState.DEAD)

    @property
    def cancelled(self) -> int:
        return self._count(JobState.CANCELLED)

    @property
    def waiting(self) -> int:
        """Jobs that were begun and have not ended: they wait for a retry, a snooze, a limit, or the next drain."""
        return sum(not it.ended for it in self.jobs)

    @property
    def failed(self) -> int:
        """Runs that raised, or whose effects did."""
        return len(self.errors)

    @property
    def continued(self) -> int:
        """Runs that answered `Continue`."""
        return sum(isinstance(it.answer, Continue) for it in self.runs)

    @property
    def snoozed(self) -> int:
        """Runs that answered `Snooze`."""
        return sum(isinstance(it.answer, Snooze) for it in self.runs)

    @property
    def errors(self) -> list[BaseException]:
        """What was raised, in the order of the runs; also by those that were tried again with success."""
        return [it.error for it in self.runs if it.error is not None]

    @property
    def kinds(self) -> dict[str, Report]:
        """The same per kind of job."""
        names = {it.kind for it in self.runs} | {it.kind for it in self.jobs}
        return {name: self.of(name) for name in sorted(names)}

    def of(self, kind: str) -> Report:
        """The part that concerns one kind of job."""
        return replace(
            self,
            runs=tuple(it for it in self.runs if it.kind == kind),
            jobs=tuple(it for it in self.jobs if it.kind == kind),
        )

    def job(self, job_id: str) -> StoredJob:
        found = next((it for it in self.jobs if it.id == job_id), None)
        if found is None:
            raise StepfastError(f"this drain did not touch job {job_id}")
        return found

    def raise_errors(self) -> None:
        """Raise what the first job met that failed and is not done: its own exception, with the job's name in a note."""
        __tracebackhide__ = True
        failures = [(job, run) for job in self.jobs if (run := self._failure(job)) is not None]
        if not failures:
            return
        job, run = failures[0]
        error = run.error if isinstance(run.error, Exception) else StepfastError(f"{run} failed: {job.error}")
        error.add_note(f"{run} raised this; the job is {job.state} now")
        if len(failures) > 1:
            others = ", ".join(f"{run.kind} ({job.error})" for job, run in failures[1:6])
            error.add_note(f"{len(failures) - 1} other jobs failed, too: {others}")
        raise error

    def _failure(self, job: StoredJob) -> Run | None:
        """The run in which this job failed last, unless it has recovered or has ended as its handler wanted."""
        if job.state in {JobState.DONE, JobState.CANCELLED}:
            return None
        last = next((it for it in reversed(self.runs) if it.job_id == job.id), None)
        if (
            last is None
        ):  # not even called: nobody knows the kind, its arguments do not fit, it killed its worker
            unheard = job.error is not None and (job.id, job.error) not in self.known
            return Run(job.id, job.kind, job.step, job.failures + job.crashes) if unheard else None
        if last.error is None and isinstance(last.answer, Continue | Snooze | Wait | Reject):
            return None
        return last

    def _count(self, state: JobState) -> int:
        return sum(it.state is state for it in self.jobs)

    def __str__(self) -> str:
        parts = {
            "done": self.done,
            "dead": self.dead,
            "cancelled": self.cancelled,
            "waiting": self.waiting,
            "runs failed": self.failed,
        }
        return ", ".join(f"{count} {what}" for what, count in parts.items() if count) or "nothing to do"

    def __await__(self) -> Generator[Any, Any, Report]:
        """It is there already: a drain outside an event loop has run when it returns."""
        yield from ()
        return self


class PendingReport(Report):
    """The report of a drain inside an event loop, which begins when it is awaited."""

    _begin: Callable[[], Coroutine[Any, Any, Report]]
    _work: (
        Coroutine[Any, Any, Report] | None
    )  # made at once, so that Python warns of a drain that nobody awaits

    def __init__(self, begin: Callable[[], Coroutine[Any, Any, Report]]) -> None:
        object.__setattr__(self, "_begin", begin)
        object.__setattr__(self, "_work", begin())

    def __await__(self) -> Generator[Any, Any, Report]:
        return (self._work or self._begin()).__await__()

    def __getattr__(self, name: str) -> Any:
        if name in {it.name for it in fields(Report)}:
            self._need_no_warning()
            raise StepfastError("inside an event loop a drain has to be awaited: write `await drain(…)`")
        raise AttributeError(name)

    def _need_no_warning(self) -> None:
        """Whoever is told in a sentence needs not be told again when this is thrown away."""
        if self._work is not None and getcoroutinestate(self._work) == CORO_CREATED:
            self._work.close()
            object.__setattr__(self, "_work", None)

    def __repr__(self) -> str:
        return "<a drain that nobody awaited yet>"


# Writes down what handlers answer and raise, and lets no more of them begin than a test wants.


class Recorder:
    """A `Watcher` that keeps one `Run` for each call of a handler."""

    def __init__(self, limit: int | None) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._runs: dict[Step, Run] = {}
        self.parked: set[str] = set()  # jobs whose next step would be one too many

    @property
    def runs(self) -> tuple[Run, ...]:
        with self._lock:
            return tuple(self._runs.values())

    def begins(self, step: Step, /) -> bool:
        with self._lock:
            if self._limit is not None and len(self._runs) >= self._limit:
                self.parked.add(step.job_id)
                return False
            self._runs[step] = Run(step.job_id, step.kind, step.number, step.attempt)
            return True

    def raises(self, step: Step, error: BaseException, /) -> None:
        self._runs[step].error = error

    def answers(self, step: Step, answer: Any, /) -> None:
        self._runs[step].answer = answer

    def applies(self, step: Step, /) -> None:
        self._runs[step].error = None  # of an earlier try to commit

    def refuses(self, step: Step, error: BaseException, /) -> None:
        if not isinstance(error, ContentionError | UnreachableError):  # those are tried again
            self._runs[step].error = error

    def applied(self, step: Step, /) -> None:
        pass


LOOK: Final = 0.001  # seconds between looks whether there is anything left
MOST_JUMPS: Final = 1_000  # of the clock, in one drain
OVERLOOKED: Final = 1.0  # seconds; a worker counts suspects when it starts, and then rarely
GRACE: Final = "2s"  # when a drain stops its worker, nothing runs: or what does must not hold it up
GHOSTS: Final = 5.0  # seconds that a server may take to notice that the dead have gone
_draining: Final[weakref.WeakSet[Database]] = weakref.WeakSet()  # where a drain is under way

LEASES = sql("SELECT count(*) FROM stepfast_job WHERE state = 'leased'")
GHOST_LEASES = sql("""
    SELECT count(*) FROM stepfast_job
     WHERE state = 'leased' AND owner IN (SELECT incarnation FROM stepfast_worker WHERE state = 'dead')
""")


def drain(
    app: Stepfast,
    *,
    queues: Sequence[str] | str | None = None,
    limit: int | None = None,
    with_scheduled: bool = False,
    raise_errors: bool = True,
    concurrency: int = 1,
    timeout: Duration = "30s",
    relay: bool = False,
) -> Report:
    """Run what is ready, and what that makes ready, until nothing is; in an async test, `await` it.

    `limit`: at most so many steps. `with_scheduled`: move the clock to whatever is due next, instead of leaving it.
    `raise_errors`: raise what a job met that failed and is not done; otherwise it is in the report only.
    `relay`: also send webhooks and alerts, for real; otherwise they stay in the outbox.
    """
    __tracebackhide__ = True
    if limit is not None and limit < 1:
        raise ConfigurationError(f"drain(limit={limit}): at least one step")
    names = (queues,) if isinstance(queues, str) else tuple(queues or ())
    seconds = duration(timeout, "drain(timeout=…)").total_seconds()
    work = Drain(app, Scope(names, limit, with_scheduled, concurrency, seconds, relay))
    if _in_event_loop():
        return PendingReport(lambda: work.run_here(raise_errors=raise_errors))
    return work.run(raise_errors=raise_errors)


def _in_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def is_drained(app: Stepfast) -> bool:
    """Whether a drain is under way: then it runs whatever becomes ready."""
    return app.database in _draining


class Drain:
    """One worker after the other until nothing is left; nearly always one is enough."""

    def __init__(self, app: Stepfast, scope: Scope) -> None:
        self._scope = scope
        self._recorder = Recorder(scope.limit)
        self._watched = copy(app)  # the same database, with somebody looking over the handlers' shoulders
        self._watched.kinds = WatchedKinds(app.kinds, self._recorder)
        self._watched._notifications = replace(self._watched.notifications, outbox_relay=scope.relay)  # noqa: SLF001 - ours
        self._app = app
        self._jumps = 0
        self._deadline = 0.0
        self._cleanup = ExitStack()

    def run(self, *, raise_errors: bool) -> Report:
        """Handlers run on an event loop of their own."""
        __tracebackhide__ = True
        with self._cleanup:
            before = self._begin()
            more = True
            while more:
                with (worker := self._worker()):
                    more = self._until_idle(worker)
            return self._reported(before, raise_errors=raise_errors)

    async def run_here(self, *, raise_errors: bool) -> Report:
        """Handlers run on the event loop of the caller."""
        with self._cleanup:
            before = await asyncio.to_thread(self._begin)
            more = True
            while more:
                async with (worker := self._worker()):
                    try:
                        more = await asyncio.to_thread(self._until_idle, worker)
                    except BaseException:  # a test that was cancelled: the thread must not go on waiting
                        self._deadline = 0.0
                        raise
            return await asyncio.to_thread(self._reported, before, raise_errors=raise_errors)

    def _begin(self) -> Picture:
        self._deadline = time.monotonic() + self._scope.timeout
        _draining.add(self._app.database)
        self._cleanup.callback(_draining.discard, self._app.database)
        if self._scope.with_scheduled and self._app.database.shift is None:
            self._cleanup.enter_context(clock(self._app))
        with self._app.reading() as tx:
            before, leases = Picture.taken(tx), tx.first(LEASES)
        if leases:
            self._rescue()
        return before

    def _rescue(self) -> None:
        """Take back what the dead hold, as a worker does that has watched for a whole lease."""
        patience = time.monotonic() + GHOSTS
        self._do(lambda tx: declare_dead(tx, me=0, trust_clock=True))
        while True:
            while self._do(lambda tx: rescue(tx, WorkerSettings.crash_limit).jobs):
                pass
            with self._app.reading() as tx:
                ghosts = tx.first(GHOST_LEASES)
            if not ghosts or time.monotonic() > patience:
                return
            time.sleep(LOOK)  # their sessions still hold the rows

    def _worker(self) -> Worker:
        scope = self._scope
        return self._watched.worker(queues=scope.queues, concurrency=scope.concurrency, grace=GRACE)

    def _until_idle(self, worker: Worker) -> bool:
        """Wait; returns whether another worker is needed: suspects wait that this one was not told of."""
        overlooked = None
        try:
            while True:
                left = self._left(worker)
                if self._recorder.parked and worker.status().active_jobs <= len(self._recorder.parked):
                    worker.ask_to_stop(at_once=True)
                    return False
                if left.nothing and not self._watch_over_runs() and not self._jump():
                    left = self._left(worker)  # what became due while we looked for what is due later
                    if left.nothing:
                        return False
                if left.due or left.ticks:
                    self._wake_due()
                overlooked = None if left.busy or left.nothing else overlooked or time.monotonic()
                if overlooked is not None and time.monotonic() - overlooked > OVERLOOKED:
                    return left.suspects > 0  # or a schedule that nobody here can read
                self._require_time(worker, left)
                time.sleep(LOOK)
        except BaseException:
            worker.ask_to_stop(at_once=True)
            raise

    def _left(self, worker: Worker) -> Left:
        with self._app.reading() as tx:
            return what_is_left(tx, self._scope, worker.settings.worker_id)

    def _wake_due(self) -> None:
        """What a worker does about once a second, now: fire ticks, make ready what is due, let go whom a limit held."""
        fire_due(self._app.database)
        self._do(promote)
        self._do(_look_at_limits)
        self._do(promote_successors)

    def _watch_over_runs(self) -> int:
        """What a worker does every two seconds, now: fail what gave up, ask again for what was lost."""
        feeds = self._app._feeds  # noqa: SLF001 - ours
        if not feeds:
            return 0
        from stepfast.worker.run_watchdog import RunWatchdog

        return RunWatchdog(self._app.database, feeds, WorkerSettings.runs_kept).look()

    def _jump(self) -> bool:
        """Move the clock to what is due next; whether there is anything."""
        if not self._scope.with_scheduled:
            return False
        with self._app.reading() as tx:
            due = due_next(tx, self._scope, self._app.kinds.names())
        if due is None:
            return False
        self._jumps += 1
        if self._jumps > MOST_JUMPS or time.monotonic() > self._deadline:
            raise TimeoutError(
                f"drain(with_scheduled=True): the clock was moved {self._jumps} times and something is always due; "
                "does a job snooze for ever? Give a limit="
            )
        Clock(self._app).travel_to(moment(due))
        return True

    def _reported(self, before: Picture, *, raise_errors: bool) -> Report:
        __tracebackhide__ = True
        runs = self._recorder.runs
        ran = {it.job_id for it in runs}
        with self._app.reading() as tx:
            touched = before.touched(tx)
        jobs = [it for it in touched if it.ended or it.id in ran or (it.id, it.error) not in before.errors]
        report = Report(runs, tuple(jobs), before.errors)
        if raise_errors:
            report.raise_errors()
        return report

    def _do(self, act: Callable[[Transaction], int]) -> int:
        while True:
            try:
                with self._app.transaction() as tx:
                    return act(tx)
            except ContentionError:  # a worker does the same
                if time.monotonic() > self._deadline:
                    raise

    def _require_time(self, worker: Worker, left: Left) -> None:
        if time.monotonic() > self._deadline:
            running = ", ".join(worker.status().active_job_ids) or "none"
            raise TimeoutError(
                f"drain: not idle after {self._scope.timeout:g} s: {left.leased} jobs are leased (running: {running}), "
                f"{left.ready + left.suspects} ready, {len(self._recorder.runs)} steps have run; "
                "give a longer timeout= or a limit="
            )


def _look_at_limits(tx: Transaction) -> int:
    look_at_all_limits(tx)
    return release_due(tx)
