"""Wait for the ends of jobs: everybody in a process who waits on one database shares one thread.

It asks for all of them with one statement, soon at first and then ever more rarely (5 ms to 250 ms), and at once
when a worker in this process has ended one of them. Nobody is told through the database: a NOTIFY for each job would
cost every commit, for the few jobs that somebody waits for.
"""

from __future__ import annotations

import heapq
import os
import threading
import time
import weakref
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any, Final

from stepfast.errors import ContentionError, StepfastError, UnreachableError
from stepfast.results.outcome import JobOutcome, look, unknown
from stepfast.telemetry import happened

if TYPE_CHECKING:
    from collections.abc import Iterable

    from stepfast.database.database import Database

FIRST_PAUSE: Final = 0.005  # seconds between the first two looks
GROWTH: Final = 1.6
LONGEST_PAUSE: Final = 0.25
GATHER: Final = 0.005  # who is due so soon is looked for together with who is due now
OUTAGE_PAUSE: Final = 0.5  # while the database is away
LINGER: Final = 2.0  # how long the thread stays when nobody waits any more
MOST: Final = 1_000  # jobs asked for in one statement
NOW: Final = 0.0  # a due time that has come
TAKEN: Final = -1.0  # ... of a waiter who is being looked for at this moment

_numbers: Final = count()


@dataclass(eq=False)
class Waiter:
    """Somebody who waits for one job; `end` is how it is told."""

    job_id: str
    pause: float
    end: Future[JobOutcome[Any]] = field(default_factory=Future)
    state: str | None = None  # of the job, when it was last seen
    due: float = NOW

    def postpone(self, pause: float | None) -> None:
        self.due = time.monotonic() + (self.pause if pause is None else pause)
        self.pause = min(self.pause * GROWTH, LONGEST_PAUSE)


class Waiting:
    """All who wait on one database, and the thread that looks for them."""

    def __init__(self, database: Database) -> None:
        self._database = weakref.ref(database)
        self._changed = threading.Condition()
        self._line: list[tuple[float, int, Waiter]] = []  # by due time; who left or was moved is skipped
        self._waiters: dict[str, set[Waiter]] = {}
        self._thread: threading.Thread | None = None
        self._closed = False
        self._failing = False

    def add(self, job_id: str) -> Waiter:
        """Begin to wait; who stops must say so with `leave`."""
        waiter = Waiter(job_id, FIRST_PAUSE)
        with self._changed:
            self._waiters.setdefault(job_id, set()).add(waiter)
            self._enter(waiter)
            self._closed = False
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._look_around, name="stepfast-results", daemon=True
                )
                self._thread.start()
        return waiter

    def leave(self, waiter: Waiter) -> bool:
        """Stop waiting; whether it did. Whoever takes a waiter out of the line is the one to tell it."""
        with self._changed:
            mine = self._waiters.get(waiter.job_id, set())
            waited = waiter in mine
            mine.discard(waiter)
            if not mine:
                self._waiters.pop(waiter.job_id, None)
            return waited

    def tell(self, ids: Iterable[str]) -> None:
        """These jobs have got somewhere: look at once, if anybody waits for one of them."""
        if not self._waiters:
            return
        with self._changed:
            for job_id in ids:
                for waiter in self._waiters.get(job_id, ()):
                    waiter.due = NOW
                    self._enter(waiter)

    def close(self) -> None:
        """Nobody waits any longer; whoever does is told that the application was closed."""
        with self._changed:
            self._closed = True
            left = [it for waiters in self._waiters.values() for it in waiters]
            self._waiters = {}
            thread = self._thread
            self._changed.notify()
        for waiter in left:
            _raise(waiter, StepfastError(f"the application was closed while waiting for job {waiter.job_id}"))
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout=5)

    def _enter(self, waiter: Waiter) -> None:
        heapq.heappush(self._line, (waiter.due, next(_numbers), waiter))
        self._changed.notify()

    # Everything below runs on the thread.

    def _look_around(self) -> None:
        while due := self._next():
            try:
                self._look(due)
                if self._failing:
                    self._failing = False
                    happened("database.recovered", note="results are heard of again")
            except (UnreachableError, ContentionError) as error:
                if not self._failing:
                    self._failing = True
                    happened("database.lost", error=error, note="results wait")
                self._later(due, OUTAGE_PAUSE)
            except Exception as error:  # noqa: BLE001 - who waits must hear of it
                for waiter in due:
                    if self.leave(waiter):
                        _raise(waiter, error)

    def _next(self) -> list[Waiter]:
        """Those whose turn it is; waits until there are some. Nobody: the thread's work is over."""
        with self._changed:
            while not self._closed:
                now = time.monotonic()
                due = self._due(now)
                if due:
                    return due
                patience = self._line[0][0] - now if self._line else LINGER
                if not self._changed.wait(patience) and not self._line and not self._waiters:
                    break
            self._thread = None
            return []

    def _due(self, now: float) -> list[Waiter]:
        """Take who is due now, or so soon that one statement may serve all."""
        due: list[Waiter] = []
        while self._line and self._line[0][0] <= (now + GATHER if due else now) and len(due) < MOST:
            at, _, waiter = heapq.heappop(self._line)
            if at == waiter.due and waiter in self._waiters.get(waiter.job_id, ()):
                waiter.due = TAKEN
                due.append(waiter)
        return due

    def _look(self, due: list[Waiter]) -> None:
        database = self._database()
        if database is None:
            raise StepfastError("the application is gone")
        with database.looking() as tx:
            found = look(tx, sorted({it.job_id for it in due}))
        open_ones = []
        for waiter in due:
            outcome = found.get(waiter.job_id)
            if outcome is not None and not outcome.ended:
                waiter.state = outcome.state
                open_ones.append(waiter)
                continue
            if not self.leave(waiter):
                continue
            if outcome is None:
                _raise(waiter, unknown(waiter.job_id))
            elif waiter.end.set_running_or_notify_cancel():
                waiter.end.set_result(outcome)
        self._later(open_ones)

    def _later(self, waiters: list[Waiter], pause: float | None = None) -> None:
        with self._changed:
            for waiter in waiters:
                # Else somebody told us of it while we looked: its turn has come again.
                if waiter.due == TAKEN:
                    waiter.postpone(pause)
                    self._enter(waiter)


def _raise(waiter: Waiter, error: Exception) -> None:
    if waiter.end.set_running_or_notify_cancel():
        waiter.end.set_exception(error)


_everywhere: Final[weakref.WeakKeyDictionary[Database, Waiting]] = weakref.WeakKeyDictionary()


def waiting(database: Database) -> Waiting:
    """Those who wait on this database."""
    known = _everywhere.get(database)
    return _everywhere.setdefault(database, Waiting(database)) if known is None else known


def ended(database: Database, ids: Iterable[str]) -> None:
    """Steps of these jobs were committed by a worker of this process."""
    if (known := _everywhere.get(database)) is not None:
        known.tell(ids)


def close(database: Database) -> None:
    if (known := _everywhere.get(database)) is not None:
        known.close()


if hasattr(os, "register_at_fork"):  # who waits, and the thread, stay behind
    os.register_at_fork(after_in_child=_everywhere.clear)
