"""Wait for the end of a job, or watch what happens to it until then.

Both look at the database again and again, soon at first and then ever more rarely. All callers that *wait* on one
database share one thread: it asks for all of their jobs with one statement, and at once when a worker of this process has
committed one of them. The database announces no ends: a NOTIFY for each job would cost every commit, for the few jobs
that a caller waits for. A caller that *watches* reads by itself, as fast as it takes the updates: every line of the
job's log, and its state and progress whenever they changed.
"""

from __future__ import annotations

import heapq
import os
import sys
import threading
import time
import weakref
from collections import deque
from concurrent.futures import Future
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, Final

from stepfast.backoff import Backoff
from stepfast.clock import Duration, duration, moment
from stepfast.database.statement import sql
from stepfast.errors import ContentionError, StateError, StepfastError, UnreachableError, WaitTimeoutError
from stepfast.jobs.state import JobState
from stepfast.results.outcome import JobOutcome, ResultReader, read_outcomes, reader_of, unknown_job
from stepfast.telemetry import happened

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
    from datetime import datetime, timedelta

    from stepfast.app_protocol import AppLike
    from stepfast.database.connection import Transaction
    from stepfast.database.database import Database


WAIT_PAUSE: Final = 0.005  # seconds between the first two looks of a caller that waits
WATCH_PAUSE: Final = 0.05  # ... of one that watches, and after each look that found something
LONGEST_PAUSE: Final = 0.25
GROWTH: Final = 1.6
OUTAGE_PAUSE: Final = 0.5  # while the database is away
MOST: Final = 1_000  # jobs, or lines of a log, that one statement reads


def look_at(app: AppLike, job_id: str, tx: Transaction | None = None) -> JobOutcome[Any]:
    """Where the job stands now, or as `tx` sees it."""
    with app.database.looking() if tx is None else nullcontext(tx) as looking:
        found = read_outcomes(looking, [job_id]).get(job_id)
    if found is None:
        raise unknown_job(job_id)
    return _readable(app, found)


def wait_for(app: AppLike, job_id: str, timeout: Duration | None = None) -> JobOutcome[Any]:
    """Block this thread until the job has ended."""
    refuse_in_loop("job.wait()", "await job.result()")
    patience = None if timeout is None else duration(timeout, "timeout")
    waiter = _waiter(app.database, job_id)
    try:
        end = waiter.end.result(None if patience is None else patience.total_seconds())
    except TimeoutError:
        raise _late(waiter, patience) from None
    finally:
        waits_on(app.database).leave(waiter)
    return _readable(app, end)


async def await_result(app: AppLike, job_id: str, timeout: Duration | None = None) -> Any:  # noqa: ASYNC109 - as `wait` has it
    """Let other tasks run until the job has ended; return what it answered. No thread waits with us."""
    import asyncio  # heavy, and not for programs that only enqueue

    patience = None if timeout is None else duration(timeout, "timeout")
    waiter = _waiter(app.database, job_id)
    try:
        async with asyncio.timeout(None if patience is None else patience.total_seconds()):
            end = await asyncio.wrap_future(waiter.end)
    except TimeoutError:
        raise _late(waiter, patience) from None
    finally:
        waits_on(app.database).leave(waiter)
    return _readable(app, end).result


def watch(app: AppLike, job_id: str, timeout: Duration | None = None) -> Watch:
    """What happens to the job, from its beginning to its end."""
    patience = None if timeout is None else duration(timeout, "timeout")
    return Watch(app.database, job_id, patience, partial(reader_of, app.kinds))


def refuse_in_loop(blocking: str, instead: str) -> None:
    """Refuse to block a thread that runs an event loop: everything on it would stand still, perhaps the very job."""
    asyncio = sys.modules.get("asyncio")  # a running loop has imported it
    if asyncio is not None and asyncio._get_running_loop() is not None:  # noqa: SLF001 - documented, and never raises
        raise StateError(f"{blocking} would block the event loop that runs here; write: {instead}")


def _readable(app: AppLike, end: JobOutcome[Any]) -> JobOutcome[Any]:
    return replace(end, reading=reader_of(app.kinds, end.kind))


def _waiter(database: Database, job_id: str) -> Waiter:
    if database.locked_here:
        raise StateError(
            f"waiting for job {job_id} inside a transaction of this thread: SQLite lets nobody else write until "
            "it ends, so no worker could finish the job; leave the transaction first"
        )
    return waits_on(database).add(job_id)


def _late(waiter: Waiter, patience: timedelta | None) -> Exception:
    assert patience is not None  # noqa: S101 - only a wait with a timeout ends by it
    return WaitTimeoutError(waiter.job_id, waiter.state, patience)


def _backoff(first: float) -> Backoff:
    return Backoff(first=first, longest=LONGEST_PAUSE, growth=GROWTH)


# --- Waiting: one thread for all callers.

GATHER: Final = 0.005  # a waiter that is due so soon is looked for together with one that is due now
LINGER: Final = 2.0  # how long the thread stays when the last waiter has left
NOW: Final = 0.0  # a due time that has come
TAKEN: Final = -1.0  # ... of a waiter that is being looked for at this moment

_numbers: Final = count()


@dataclass(eq=False)
class Waiter:
    """A caller that waits for one job; `end` is how it gets the outcome."""

    job_id: str
    end: Future[JobOutcome[Any]] = field(default_factory=Future)
    state: str | None = None  # of the job, when it was last seen
    due: float = NOW
    backoff: Backoff = field(default_factory=lambda: _backoff(WAIT_PAUSE))

    def postpone(self, pause: float | None) -> None:
        grown = self.backoff.next()
        self.due = time.monotonic() + (grown if pause is None else pause)


class Waits:
    """All waiters on one database, and the thread that looks for their jobs."""

    def __init__(self, database: Database) -> None:
        self._database = weakref.ref(database)
        self._changed = threading.Condition()
        self._line: list[tuple[float, int, Waiter]] = []  # by due time; one that left or was moved is skipped
        self._waiters: dict[str, set[Waiter]] = {}
        self._thread: threading.Thread | None = None
        self._closed = False
        self._failing = False

    def add(self, job_id: str) -> Waiter:
        """Begin to wait; the caller ends it with `leave`."""
        waiter = Waiter(job_id)
        with self._changed:
            self._waiters.setdefault(job_id, set()).add(waiter)
            self._enter(waiter)
            self._closed = False
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="stepfast-results", daemon=True)
                self._thread.start()
        return waiter

    def leave(self, waiter: Waiter) -> bool:
        """Stop waiting; returns whether it did. The caller that takes a waiter out of the line resolves its future."""
        with self._changed:
            mine = self._waiters.get(waiter.job_id, set())
            waited = waiter in mine
            mine.discard(waiter)
            if not mine:
                self._waiters.pop(waiter.job_id, None)
            return waited

    def look_now(self, ids: Iterable[str]) -> None:
        """Look at these jobs at once, if a caller waits for one of them: something happened to them."""
        if not self._waiters:
            return
        with self._changed:
            for job_id in ids:
                for waiter in self._waiters.get(job_id, ()):
                    waiter.due = NOW
                    self._enter(waiter)

    def close(self) -> None:
        """End all waits: each raises that the application was closed."""
        with self._changed:
            self._closed = True
            left = [waiter for waiters in self._waiters.values() for waiter in waiters]
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

    def _run(self) -> None:
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
                self._postpone(due, OUTAGE_PAUSE)
            except Exception as error:  # noqa: BLE001 - raised where each caller waits
                for waiter in due:
                    if self.leave(waiter):
                        _raise(waiter, error)

    def _next(self) -> list[Waiter]:
        """The waiters that are due; blocks until there are some. None: the thread's work is over."""
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
        """Take the waiters that are due now, or so soon that one statement may serve all."""
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
            outcomes = read_outcomes(tx, sorted({waiter.job_id for waiter in due}))
        unfinished = []
        for waiter in due:
            outcome = outcomes.get(waiter.job_id)
            if outcome is not None and not outcome.ended:
                waiter.state = outcome.state
                unfinished.append(waiter)
                continue
            if not self.leave(waiter):
                continue
            if outcome is None:
                _raise(waiter, unknown_job(waiter.job_id))
            elif waiter.end.set_running_or_notify_cancel():
                waiter.end.set_result(outcome)
        self._postpone(unfinished)

    def _postpone(self, waiters: list[Waiter], pause: float | None = None) -> None:
        with self._changed:
            for waiter in waiters:
                # Else `look_now` came while we looked: its turn has come again.
                if waiter.due == TAKEN:
                    waiter.postpone(pause)
                    self._enter(waiter)


def _raise(waiter: Waiter, error: Exception) -> None:
    if waiter.end.set_running_or_notify_cancel():
        waiter.end.set_exception(error)


WAITS: Final[weakref.WeakKeyDictionary[Database, Waits]] = weakref.WeakKeyDictionary()


def waits_on(database: Database) -> Waits:
    """The waits of this process on this database."""
    known = WAITS.get(database)
    return WAITS.setdefault(database, Waits(database)) if known is None else known


def notify_waiting(database: Database, ids: Iterable[str]) -> None:
    """A worker of this process has committed steps of these jobs: callers that wait for one of them look at once."""
    if (known := WAITS.get(database)) is not None:
        known.look_now(ids)


def close(database: Database) -> None:
    """End the waits of this process on this database."""
    if (known := WAITS.get(database)) is not None:
        known.close()


if hasattr(os, "register_at_fork"):  # waiters, and the thread, stay behind in the parent
    os.register_at_fork(after_in_child=WAITS.clear)


# --- Watching: updates of one job.
#
# Each look reads what is new. A state or a percentage that came and went between two looks is not seen; a log line is
# never missed and never repeated, also if its transaction commits after a later one (ids are given out before that).


@dataclass(frozen=True)
class StateChanged:
    """The job is in another state, at another step, or in another try."""

    state: JobState
    step: int
    attempts: int
    error: str | None  # its last one


@dataclass(frozen=True)
class Progressed:
    """The handler said how far it is."""

    percent: int
    note: str | None


@dataclass(frozen=True)
class Logged:
    """The handler, or an operator, wrote a line to the job's log."""

    at: datetime
    level: str
    step: int
    message: str


@dataclass(frozen=True)
class Ended:
    """The last of all updates."""

    outcome: JobOutcome[Any]


Update = StateChanged | Progressed | Logged | Ended


class Watch:
    """The updates of one job, for `for` and for `async for`. Each iteration begins at the beginning."""

    def __init__(
        self,
        database: Database,
        job_id: str,
        timeout: timedelta | None,
        reading: Callable[[str], ResultReader],
        *,
        beyond_death: bool = False,
    ) -> None:
        self._database = database
        self._job_id = job_id
        self._timeout = timeout
        self._reading = reading
        self._beyond_death = beyond_death  # an operator may revive what is dead or cancelled: go on

    def __iter__(self) -> Iterator[Update]:
        refuse_in_loop("for update in job.watch()", "async for update in job.watch()")
        observer = self._observer()
        while not observer.over:
            yield from observer.look()
            if not observer.over:
                time.sleep(observer.pause())

    async def __aiter__(self) -> AsyncIterator[Update]:
        import asyncio  # heavy, and not for programs that only enqueue

        observer = self._observer()
        loop = asyncio.get_running_loop()
        while not observer.over:
            for update in await loop.run_in_executor(None, observer.look):
                yield update
            if not observer.over:
                await asyncio.sleep(observer.pause())

    def _observer(self) -> Observer:
        return Observer(
            self._database, self._job_id, self._timeout, self._reading, beyond_death=self._beyond_death
        )


class Observer:
    """Remembers what was seen of one job, and finds what is new."""

    def __init__(
        self,
        database: Database,
        job_id: str,
        timeout: timedelta | None,
        reading: Callable[[str], ResultReader],
        *,
        beyond_death: bool,
    ) -> None:
        self._database = database
        self._job_id = job_id
        self._timeout = timeout
        self._reading = reading
        self._final = {JobState.DONE} if beyond_death else {JobState.DONE, JobState.DEAD, JobState.CANCELLED}
        self._since = time.monotonic()
        self._backoff = _backoff(WATCH_PAUSE)
        self._away = False  # whether the database did not answer the last look
        self._state: StateChanged | None = None
        self._progress = Progressed(0, None)
        self._log = LogReader(job_id)
        self.over = False

    def look(self) -> list[Update]:
        """What is new; nothing while the database is away."""
        try:
            with self._database.reading() as tx:
                found = read_outcomes(tx, [self._job_id], self._reading).get(self._job_id)
                # After the state: whatever was committed before the end is there now.
                lines = self._log.read(tx, to_the_end=found is not None and found.state in self._final)
        except (UnreachableError, ContentionError):
            self._away = True
            return []
        self._away = False
        if found is None:
            raise unknown_job(self._job_id)
        updates = self._in_order(found, lines)
        if updates:
            self._backoff.reset()
        return updates

    def pause(self) -> float:
        """Seconds until the next look; raises when the time is over."""
        pause = OUTAGE_PAUSE if self._away else self._backoff.next()
        if self._timeout is None:
            return pause
        left = self._timeout.total_seconds() - (time.monotonic() - self._since)
        if left <= 0:
            state = None if self._state is None else self._state.state
            raise WaitTimeoutError(self._job_id, state, self._timeout)
        return min(left, pause)

    def _in_order(self, found: JobOutcome[Any], lines: list[Logged]) -> list[Update]:
        """A step begins before its log lines; any other change of the job comes after them."""
        ended = found.state in self._final
        state = StateChanged(found.state, found.step, found.attempts, found.error)
        moved = [state] if state != self._state and not ended else []
        progress = Progressed(found.progress, found.note)
        progressed = [progress] if progress != self._progress else []
        self._state, self._progress, self.over = state, progress, ended
        if found.state is JobState.LEASED:
            return [*moved, *lines, *progressed]
        return [*lines, *progressed, *moved, *([Ended(found)] if ended else [])]


LATE_LOOK: Final = 1.0  # seconds between looks for lines that were committed late
SETTLED_AFTER: Final = 60.0  # no transaction of ours is open for so long

LOG_LINES = sql("""
    SELECT id, at, level, step, message FROM stepfast_log
     WHERE job_id = :id AND id > :after ORDER BY id LIMIT :limit
""")
LOG_LINE_NUMBERS = sql(
    "SELECT id FROM stepfast_log WHERE job_id = :id AND id > :after AND id <= :newest ORDER BY id"
)
LOG_LINE = sql("SELECT id, at, level, step, message FROM stepfast_log WHERE id = :number AND job_id = :id")


class LogReader:
    """Reads each line of a job's log once."""

    def __init__(self, job_id: str) -> None:
        self._job_id = job_id
        self._newest = 0
        self._settled = 0  # no line up to here can still appear
        self._recent: deque[tuple[float, int]] = deque()  # when a line was read, and its number
        self._read: set[int] = set()  # of those after `_settled`
        self._pending: list[Logged] = []  # read, but not returned: the next statement may have failed
        self._late_look = 0.0

    def read(self, tx: Transaction, *, to_the_end: bool) -> list[Logged]:
        """Lines that were not read before, oldest first."""
        now = time.monotonic()
        if to_the_end or now - self._late_look >= LATE_LOOK:
            self._late_look = now
            self._read_late(tx)
        while rows := tx.rows(LOG_LINES, id=self._job_id, after=self._newest, limit=MOST):
            for row in rows:
                self._take(row)
            self._newest = rows[-1][0]
            if len(rows) < MOST:
                break
        lines, self._pending = self._pending, []
        return lines

    def _read_late(self, tx: Transaction) -> None:
        """Lines with a smaller number than some we have, committed after them."""
        self._settle()
        asked = {"id": self._job_id, "after": self._settled, "newest": self._newest}
        numbers = [row[0] for row in tx.rows(LOG_LINE_NUMBERS, **asked)]
        for number in numbers:
            if number not in self._read:
                for row in tx.rows(LOG_LINE, number=number, id=self._job_id):
                    self._take(row)

    def _settle(self) -> None:
        while self._recent and time.monotonic() - self._recent[0][0] > SETTLED_AFTER:
            number = self._recent.popleft()[1]
            self._settled = max(self._settled, number)
            self._read.discard(number)

    def _take(self, row: Sequence[Any]) -> None:
        number, at, level, step, message = row
        self._read.add(number)
        self._recent.append((time.monotonic(), number))
        self._pending.append(Logged(moment(at), level, step, message))
