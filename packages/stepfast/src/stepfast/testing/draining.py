"""`drain()`: run jobs until nothing is ready, through the real worker.

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
from stepfast.limits.limit_rows import look_at_all_limits, release_due
from stepfast.runs.sweep_rows import HELD_SWEEP
from stepfast.testing.jobs import JobSnapshot
from stepfast.testing.test_clock import Clock, clock
from stepfast.testing.watcher import WatchedKinds
from stepfast.worker.maintenance import promote
from stepfast.worker.scheduler import fire_due

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Generator, Sequence

    from stepfast.app import Stepfast
    from stepfast.database.connection import Transaction
    from stepfast.database.database import Database
    from stepfast.jobs.step import Step
    from stepfast.testing.jobs import StoredJob
    from stepfast.worker.worker import Worker

LOOK: Final = 0.001  # seconds between two looks at what remains
MOST_JUMPS: Final = 1_000  # of the clock, in one drain
OVERLOOKED_AFTER: Final = 1.0  # seconds; a worker looks for suspects when it starts, and then rarely
GRACE: Final = "2s"  # a drain stops its worker when no step runs, or when those that do must not delay it
DEAD_SESSIONS: Final = 5.0  # seconds that a server may take to end the sessions of a dead process
_draining: Final[weakref.WeakSet[Database]] = weakref.WeakSet()  # databases on which a drain is under way

COUNT_LEASED_JOBS = sql("SELECT count(*) FROM stepfast_job WHERE state = 'leased'")
COUNT_LEASES_OF_DEAD = sql("""
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
    """Run ready jobs, and the jobs that they make ready, until none is; in an async test, `await` it.

    `limit`: at most so many steps. `with_scheduled`: move the clock to the next job that is due, until none is.
    `raise_errors`: raise the error of a job that failed and is not done; otherwise the report has it.
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
    """Whether a drain of this application is under way, which runs jobs that become ready."""
    return app.database in _draining


@dataclass(frozen=True)
class Scope:
    """The arguments of a drain, checked."""

    queues: tuple[str, ...]  # none: all
    limit: int | None
    with_scheduled: bool
    concurrency: int
    timeout: float
    relay: bool = False

    @property
    def queues_asked(self) -> dict[str, Any]:
        return {"queues": list(self.queues), "anywhere": int(not self.queues)}


class Drain:
    """Starts a worker, and stops it when no work remains; starts another one for suspects that the first overlooked."""

    def __init__(self, app: Stepfast, scope: Scope) -> None:
        self._scope = scope
        self._recorder = Recorder(scope.limit)
        self._watched = copy(app)  # on the same database, with a recorder around each handler
        self._watched.kinds = WatchedKinds(app.kinds, self._recorder)
        self._watched._notifications = replace(self._watched.notifications, outbox_relay=scope.relay)  # noqa: SLF001 - ours
        self._app = app
        self._jumps = 0
        self._deadline = 0.0
        self._cleanup = ExitStack()

    def run(self, *, raise_errors: bool) -> Report:
        """Drain with an event loop of the worker's own."""
        __tracebackhide__ = True
        with self._cleanup:
            before = self._begin()
            more = True
            while more:
                with (worker := self._worker()):
                    more = self._until_idle(worker)
            return self._reported(before, raise_errors=raise_errors)

    async def run_here(self, *, raise_errors: bool) -> Report:
        """Drain on the event loop of the caller."""
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

    def _begin(self) -> JobSnapshot:
        self._deadline = time.monotonic() + self._scope.timeout
        _draining.add(self._app.database)
        self._cleanup.callback(_draining.discard, self._app.database)
        if self._scope.with_scheduled and self._app.database.shift is None:
            self._cleanup.enter_context(clock(self._app))
        with self._app.reading() as tx:
            before, leases = JobSnapshot.taken(tx), tx.first(COUNT_LEASED_JOBS)
        if leases:
            self._rescue()
        return before

    def _rescue(self) -> None:
        """Rescue jobs of dead workers, as a worker does that has watched them for a whole lease."""
        patience = time.monotonic() + DEAD_SESSIONS
        self._do(lambda tx: declare_dead(tx, me=0, trust_clock=True))
        while True:
            while self._do(lambda tx: rescue(tx, WorkerSettings.crash_limit).jobs):
                pass
            with self._app.reading() as tx:
                held = tx.first(COUNT_LEASES_OF_DEAD)
            if not held or time.monotonic() > patience:
                return
            time.sleep(LOOK)  # sessions of the dead still lock their rows

    def _worker(self) -> Worker:
        scope = self._scope
        return self._watched.worker(queues=scope.queues, concurrency=scope.concurrency, grace=GRACE)

    def _until_idle(self, worker: Worker) -> bool:
        """Wait until no work remains; returns whether another worker is needed, for suspects that this one overlooked."""
        overlooked = None
        try:
            while True:
                remaining = self._remaining(worker)
                if self._recorder.parked and worker.status().active_jobs <= len(self._recorder.parked):
                    worker.ask_to_stop(at_once=True)
                    return False
                if remaining.nothing and not self._watch_over_runs() and not self._jump():
                    remaining = self._remaining(worker)  # work that became due meanwhile
                    if remaining.nothing:
                        return False
                if remaining.due or remaining.ticks:
                    self._wake_due()
                overlooked = None if remaining.busy or remaining.nothing else overlooked or time.monotonic()
                if overlooked is not None and time.monotonic() - overlooked > OVERLOOKED_AFTER:
                    return remaining.suspects > 0  # else a tick is due whose kind is not registered here
                self._require_time(worker, remaining)
                time.sleep(LOOK)
        except BaseException:
            worker.ask_to_stop(at_once=True)
            raise

    def _remaining(self, worker: Worker) -> Remaining:
        with self._app.reading() as tx:
            return remaining_work(tx, self._scope, worker.settings.worker_id)

    def _wake_due(self) -> None:
        """Do now what a worker does about once a second: fire ticks, promote due jobs, release held jobs and successors."""
        fire_due(self._app.database)
        self._do(promote)
        self._do(_look_at_limits)
        self._do(promote_successors)

    def _watch_over_runs(self) -> int:
        """Do now what a worker does every two seconds: let the watchdog of runs look once."""
        feeds = self._app._feeds  # noqa: SLF001 - ours
        if not feeds:
            return 0
        from stepfast.worker.run_watchdog import RunWatchdog

        return RunWatchdog(self._app.database, feeds, WorkerSettings.runs_kept).look()

    def _jump(self) -> bool:
        """Move the clock to the next job, rate or message that is due; False if there is none."""
        if not self._scope.with_scheduled:
            return False
        with self._app.reading() as tx:
            due = next_due(tx, self._scope, self._app.kinds.names())
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

    def _reported(self, before: JobSnapshot, *, raise_errors: bool) -> Report:
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
            except ContentionError:  # a worker tries again, too
                if time.monotonic() > self._deadline:
                    raise

    def _require_time(self, worker: Worker, remaining: Remaining) -> None:
        if time.monotonic() > self._deadline:
            running = ", ".join(worker.status().active_job_ids) or "none"
            raise TimeoutError(
                f"drain: not idle after {self._scope.timeout:g} s: {remaining.leased} jobs are leased (running: {running}), "
                f"{remaining.ready + remaining.suspects} ready, {len(self._recorder.runs)} steps have run; "
                "give a longer timeout= or a limit="
            )


def _look_at_limits(tx: Transaction) -> int:
    look_at_all_limits(tx)
    return release_due(tx)


# The work that remains.

_IN_SCOPE = "(:anywhere = 1 OR queue {any_of:queues})"
_NOT_PAUSED = "queue NOT IN (SELECT id FROM stepfast_queue WHERE paused_at IS NOT NULL)"
_FIRST_OF_ITS_LINE = """
    :relay = 1 AND o.state = 'waiting' AND NOT EXISTS (
        SELECT 1 FROM stepfast_outbox e WHERE e.state = 'waiting' AND e.destination = o.destination AND e.seq < o.seq)
"""
# Held jobs whose limit has a free slot: the transaction that freed it could not see that they were held.
_HELD_BESIDE_A_FREE_SLOT = """
    SELECT count(*) FROM stepfast_limit l
     WHERE l.due_at IS NOT NULL AND l.slots > (SELECT count(*) FROM stepfast_slot s WHERE s.limit_id = l.id)
       AND EXISTS (SELECT 1 FROM stepfast_job h WHERE h.held_by = l.id AND h.state = 'held')
"""

# One statement sees it all at one moment: what this worker runs, what it could claim, and what is due.
REMAINING_WORK = sql(f"""
    SELECT count(CASE WHEN state = 'leased' THEN 1 END), count(CASE WHEN state = 'ready' THEN 1 END),
           count(CASE WHEN state = 'suspect' THEN 1 END),
           count(CASE WHEN state = 'scheduled' THEN 1 END)
             + (SELECT count(*) FROM stepfast_limit WHERE due_at <= {{now}}) + ({_HELD_BESIDE_A_FREE_SLOT})
             + (SELECT count(*) {SUCCESSORS}),
           (SELECT count(*) FROM stepfast_schedule WHERE next_at <= {{now}} AND paused_at IS NULL),
           (SELECT count(*) FROM stepfast_outbox o WHERE o.due_at <= {{now}} AND {_FIRST_OF_ITS_LINE})
      FROM stepfast_job
     WHERE {_IN_SCOPE} AND (
           (state = 'leased' AND owner IN (SELECT incarnation FROM stepfast_worker WHERE worker_id = :worker_id))
        OR (state IN ('ready', 'suspect') AND ready_at <= {{now}} AND {_NOT_PAUSED})
        OR (state = 'scheduled' AND ready_at <= {{now}}))
""")

NEXT_JOB_DUE = sql(f"""
    SELECT min(ready_at) FROM stepfast_job
     WHERE state IN ('scheduled', 'ready') AND ready_at > {{now}} AND kind {{any_of:kinds}}
       AND {_IN_SCOPE} AND {_NOT_PAUSED}
       AND id NOT IN (SELECT r.job_id FROM stepfast_run r
                       WHERE r.job_id IS NOT NULL AND r.ended_at IS NULL AND r.frontier LIKE :held)
""")
NEXT_RATE_DUE = sql("SELECT min(due_at) FROM stepfast_limit WHERE due_at > {now} AND gap > 0")
NEXT_MESSAGE_DUE = sql(
    f"SELECT min(o.due_at) FROM stepfast_outbox o WHERE o.due_at > {{now}} AND {_FIRST_OF_ITS_LINE}"
)


@dataclass(frozen=True)
class Remaining:
    """The work that a worker could do right now."""

    leased: int
    ready: int
    suspects: int
    due: int  # scheduled or held jobs that only have to be made ready
    ticks: int  # ticks of schedules that are due
    messages: int  # messages to be sent

    @property
    def nothing(self) -> bool:
        return not (self.busy or self.suspects or self.ticks)

    @property
    def busy(self) -> bool:
        return bool(self.leased or self.ready or self.due or self.messages)


def remaining_work(tx: Transaction, scope: Scope, worker_id: str) -> Remaining:
    return tx.all(
        REMAINING_WORK, Remaining, worker_id=worker_id, relay=int(scope.relay), **scope.queues_asked
    )[0]


def next_due(tx: Transaction, scope: Scope, kinds: list[str]) -> int | None:
    """When the next job, rate or message is due.

    Schedules do not count, because they always have a next tick; nor do sweeps that wait for an operator, because they
    look again for ever.
    """
    found = [
        tx.first(NEXT_JOB_DUE, kinds=kinds, held=HELD_SWEEP, **scope.queues_asked),
        tx.first(NEXT_RATE_DUE),
        tx.first(NEXT_MESSAGE_DUE, relay=int(scope.relay)),
    ]
    return min((int(at) for at in found if at is not None), default=None)


# What a drain did: every call of a handler, and every job that it touched.


class Recorder:
    """A `Watcher` that keeps one `Run` for each call of a handler, and allows at most `limit` of them."""

    def __init__(self, limit: int | None) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._runs: dict[Step, Run] = {}
        self.parked: set[str] = set()  # jobs whose next step would exceed the limit

    @property
    def runs(self) -> tuple[Run, ...]:
        with self._lock:
            return tuple(self._runs.values())

    def before_handler(self, step: Step, /) -> bool:
        with self._lock:
            if self._limit is not None and len(self._runs) >= self._limit:
                self.parked.add(step.job_id)
                return False
            self._runs[step] = Run(step.job_id, step.kind, step.number, step.attempt)
            return True

    def handler_raised(self, step: Step, error: BaseException, /) -> None:
        self._runs[step].error = error

    def handler_answered(self, step: Step, answer: Any, /) -> None:
        self._runs[step].answer = answer

    def before_effects(self, step: Step, /) -> None:
        self._runs[step].error = None  # of an earlier try to commit

    def effect_raised(self, step: Step, error: BaseException, /) -> None:
        if not isinstance(error, ContentionError | UnreachableError):  # the commit is tried again
            self._runs[step].error = error

    def after_effects(self, step: Step, /) -> None:
        pass


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
    known: frozenset[tuple[str, str]]  # (job id, error) of failures before this drain

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
        """Jobs that were begun and have not ended: waiting for a retry, a snooze, a limit, or the next drain."""
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
        """What runs raised, in their order; also of jobs whose next attempt succeeded."""
        return [it.error for it in self.runs if it.error is not None]

    @property
    def kinds(self) -> dict[str, Report]:
        """One report for each kind of job."""
        names = {it.kind for it in self.runs} | {it.kind for it in self.jobs}
        return {name: self.of(name) for name in sorted(names)}

    def of(self, kind: str) -> Report:
        """The report about one kind of job."""
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
        """Raise the exception of the first job that failed and is not done, with the name of the job in a note."""
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
        """The last failed run of a job; None if a later one succeeded, or if its handler wanted it to end like this."""
        if job.state in {JobState.DONE, JobState.CANCELLED}:
            return None
        last = next((it for it in reversed(self.runs) if it.job_id == job.id), None)
        if last is None:  # never called: unknown kind, arguments that do not fit, or it killed its worker
            is_new = job.error is not None and (job.id, job.error) not in self.known
            return Run(job.id, job.kind, job.step, job.failures + job.crashes) if is_new else None
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
        """Return this report: a drain outside an event loop has run when it returns."""
        yield from ()
        return self


class PendingReport(Report):
    """The report of a drain inside an event loop, which begins when it is awaited."""

    _begin: Callable[[], Coroutine[Any, Any, Report]]
    _work: (
        Coroutine[Any, Any, Report] | None
    )  # made at once, so that Python warns if the drain is never awaited

    def __init__(self, begin: Callable[[], Coroutine[Any, Any, Report]]) -> None:
        object.__setattr__(self, "_begin", begin)
        object.__setattr__(self, "_work", begin())

    def __await__(self) -> Generator[Any, Any, Report]:
        return (self._work or self._begin()).__await__()

    def __getattr__(self, name: str) -> Any:
        if name in {it.name for it in fields(Report)}:
            self._suppress_warning()
            raise StepfastError("inside an event loop a drain has to be awaited: write `await drain(…)`")
        raise AttributeError(name)

    def _suppress_warning(self) -> None:
        """Close the coroutine: the error replaces Python's warning that it was never awaited."""
        if self._work is not None and getcoroutinestate(self._work) == CORO_CREATED:
            self._work.close()
            object.__setattr__(self, "_work", None)

    def __repr__(self) -> str:
        return "<a drain that nobody awaited yet>"
