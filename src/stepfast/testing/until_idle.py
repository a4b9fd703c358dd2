"""Run until idle, through the real path.

A drain starts the worker that your program starts, in this process, and stops it when nothing is left that it could
run now. So claims, timeouts, retries, effects, commits and rescues are those of production; there is no second way to
run a step. What a drain adds is that it knows when to stop, and that it can move the clock instead of waiting.
"""

from __future__ import annotations

import asyncio
import time
import weakref
from contextlib import ExitStack
from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from stepfast.clock import Duration, duration, moment
from stepfast.config import WorkerSettings
from stepfast.database.statement import sql
from stepfast.errors import ConfigurationError, ContentionError
from stepfast.limits.release import look_at_all, sweep
from stepfast.steps.joining import let_successors_go
from stepfast.steps.rescue import declare_dead, rescue
from stepfast.testing.left import Left, Scope, due_next, what_is_left
from stepfast.testing.moved_clock import Clock, clock
from stepfast.testing.recorder import Recorder
from stepfast.testing.report import PendingReport, Report
from stepfast.testing.stored import Picture
from stepfast.testing.watching import WatchedKinds
from stepfast.worker.maintenance import promote
from stepfast.worker.ticks import fire_due

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from stepfast.app import Stepfast
    from stepfast.database.connection import Transaction
    from stepfast.database.database import Database
    from stepfast.worker.loop import Worker

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
        self._do(let_successors_go)

    def _watch_over_runs(self) -> int:
        """What a worker does every two seconds, now: fail what gave up, ask again for what was lost."""
        feeds = self._app._feeds  # noqa: SLF001 - ours
        if not feeds:
            return 0
        from stepfast.worker.vigil import Vigil  # most programs have no feeds

        return Vigil(self._app.database, feeds, WorkerSettings.runs_kept).look()

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
    look_at_all(tx)
    return sweep(tx)
