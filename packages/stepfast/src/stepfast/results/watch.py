"""The answer to an enqueue: which job will do it, and the way to what becomes of it."""

from __future__ import annotations

import heapq
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Coroutine
from concurrent.futures import Future
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from itertools import count
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar, overload

from stepfast.clock import Duration, duration, moment
from stepfast.database.statement import sql
from stepfast.errors import ContentionError, StateError, StepfastError, UnreachableError, WaitTimeoutError
from stepfast.jobs.outcome import Continue, Done, Reject, Snooze, Wait
from stepfast.jobs.state import JobState
from stepfast.results.outcome import (
    JobOutcome,
    ResultReader,
    read_outcomes,
    reader_of,
    refuse_in_loop,
    unknown_job,
)
from stepfast.telemetry import happened

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
    from datetime import datetime, timedelta

    from stepfast.database.connection import Transaction
    from stepfast.database.database import Database
    from stepfast.jobs.kinds import Kinds


# Wait for the ends of jobs: everybody in a process who waits on one database shares one thread.
#
# It asks for all of them with one statement, soon at first and then ever more rarely (5 ms to 250 ms), and at once
# when a worker in this process has ended one of them. Nobody is told through the database: a NOTIFY for each job would
# cost every commit, for the few jobs that somebody waits for.

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
            found = read_outcomes(tx, sorted({it.job_id for it in due}))
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
                _raise(waiter, unknown_job(waiter.job_id))
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


# What happens to a job until it has ended: every line of its log, and its state and progress whenever they changed.
#
# Each look reads what is new. A state or a percentage that came and went between two looks is not seen; a log line is
# never missed and never repeated, also if its transaction commits after a later one (ids are given out before that).

FIRST_PAUSE_WATCHING: Final = 0.05  # seconds between looks while something happens
GROWTH_WATCHING: Final = 1.5
LONGEST_PAUSE_WATCHING: Final = 0.25
OUTAGE_PAUSE_WATCHING: Final = 0.5  # while the database is away
MOST_WATCHING: Final = 1_000  # lines read at once
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
        self._pause = FIRST_PAUSE_WATCHING
        self._state: StateChanged | None = None
        self._progress = Progressed(0, None)
        self._log = Log(job_id)
        self.over = False

    def look(self) -> list[Update]:
        """What is new; nothing while the database is away."""
        try:
            with self._database.reading() as tx:
                found = read_outcomes(tx, [self._job_id], self._reading).get(self._job_id)
                # After the state: whatever was committed before the end is there now.
                lines = self._log.read(tx, to_the_end=found is not None and found.state in self._final)
        except (UnreachableError, ContentionError):
            self._pause = OUTAGE_PAUSE_WATCHING
            return []
        if found is None:
            raise unknown_job(self._job_id)
        updates = self._in_order(found, lines)
        self._pause = (
            FIRST_PAUSE_WATCHING if updates else min(self._pause * GROWTH_WATCHING, LONGEST_PAUSE_WATCHING)
        )
        return updates

    def pause(self) -> float:
        """Seconds until the next look; raises when the time is over."""
        if self._timeout is None:
            return self._pause
        left = self._timeout.total_seconds() - (time.monotonic() - self._since)
        if left <= 0:
            state = None if self._state is None else self._state.state
            raise WaitTimeoutError(self._job_id, state, self._timeout)
        return min(left, self._pause)

    def _in_order(self, found: JobOutcome[Any], lines: list[Logged]) -> list[Update]:
        """A step begins before it speaks; whatever else became of the job comes after its words."""
        ended = found.state in self._final
        state = StateChanged(found.state, found.step, found.attempts, found.error)
        moved = [state] if state != self._state and not ended else []
        progress = Progressed(found.progress, found.note)
        progressed = [progress] if progress != self._progress else []
        self._state, self._progress, self.over = state, progress, ended
        if found.state is JobState.LEASED:
            return [*moved, *lines, *progressed]
        return [*lines, *progressed, *moved, *([Ended(found)] if ended else [])]


class Log:
    """Which lines of a job's log were read."""

    def __init__(self, job_id: str) -> None:
        self._job_id = job_id
        self._newest = 0
        self._settled = 0  # no line up to here can still appear
        self._recent: deque[tuple[float, int]] = deque()  # when a line was read, and its number
        self._read: set[int] = set()  # of those after `_settled`
        self._unsaid: list[Logged] = []  # read, but not given out: the next statement may have failed
        self._late_look = 0.0

    def read(self, tx: Transaction, *, to_the_end: bool) -> list[Logged]:
        """Lines that were not read before, oldest first."""
        now = time.monotonic()
        if to_the_end or now - self._late_look >= LATE_LOOK:
            self._late_look = now
            self._read_late(tx)
        while rows := tx.rows(LOG_LINES, id=self._job_id, after=self._newest, limit=MOST_WATCHING):
            for row in rows:
                self._take(row)
            self._newest = rows[-1][0]
            if len(rows) < MOST_WATCHING:
                break
        said, self._unsaid = self._unsaid, []
        return said

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
        self._unsaid.append(Logged(moment(at), level, step, message))


# The ways to the end of a job: look, wait, watch.


class App(Protocol):
    """What results need of their application."""

    @property
    def database(self) -> Database: ...
    @property
    def kinds(self) -> Kinds: ...


class Results:
    """How the jobs of one application end."""

    def __init__(self, app: App) -> None:
        self._app = app

    def look(self, job_id: str, tx: Transaction | None = None) -> JobOutcome[Any]:
        """Where the job stands now, or as `tx` sees it."""
        with self._app.database.looking() if tx is None else nullcontext(tx) as looking:
            found = read_outcomes(looking, [job_id]).get(job_id)
        if found is None:
            raise unknown_job(job_id)
        return self._readable(found)

    def wait(self, job_id: str, timeout: Duration | None = None) -> JobOutcome[Any]:
        """Block this thread until the job has ended."""
        refuse_in_loop("job.wait()", "await job.result()")
        patience = None if timeout is None else duration(timeout, "timeout")
        waiter = self._waiter(job_id)
        try:
            end = waiter.end.result(None if patience is None else patience.total_seconds())
        except TimeoutError:
            raise _late(waiter, patience) from None
        finally:
            waiting(self._app.database).leave(waiter)
        return self._readable(end)

    async def result(self, job_id: str, timeout: Duration | None = None) -> Any:  # noqa: ASYNC109 - as `wait` has it
        """Let others run until the job has ended; return what it answered. No thread waits with us."""
        import asyncio  # heavy, and not for programs that only enqueue

        patience = None if timeout is None else duration(timeout, "timeout")
        waiter = self._waiter(job_id)
        try:
            async with asyncio.timeout(None if patience is None else patience.total_seconds()):
                end = await asyncio.wrap_future(waiter.end)
        except TimeoutError:
            raise _late(waiter, patience) from None
        finally:
            waiting(self._app.database).leave(waiter)
        return self._readable(end).result

    def watch(self, job_id: str, timeout: Duration | None = None) -> Watch:
        """What happens to the job, from its beginning to its end."""
        patience = None if timeout is None else duration(timeout, "timeout")
        return Watch(self._app.database, job_id, patience, self._reading)

    def _waiter(self, job_id: str) -> Waiter:
        database = self._app.database
        if database.locked_here:
            raise StateError(
                f"waiting for job {job_id} inside a transaction of this thread: SQLite lets nobody else write until "
                "it ends, so no worker could finish the job; leave the transaction first"
            )
        return waiting(database).add(job_id)

    def _readable(self, end: JobOutcome[Any]) -> JobOutcome[Any]:
        return replace(end, reading=self._reading(end.kind))

    def _reading(self, kind: str) -> ResultReader:
        return reader_of(self._app.kinds, kind)


def _late(waiter: Waiter, patience: timedelta | None) -> Exception:
    assert patience is not None  # noqa: S101 - who has all the time cannot be late
    return WaitTimeoutError(waiter.job_id, waiter.state, patience)


R_co = TypeVar("R_co", covariant=True)  # what the handler returns
T = TypeVar("T")
Coro = Coroutine[Any, Any, T]
Answer = Done | Continue | Snooze | Wait | Reject | None  # says nothing about the result's type


class EnqueuedJob(Generic[R_co]):
    """Which job will do it, and whether this call created it. Others hold the same job under the same id."""

    __slots__ = (
        "_app",
        "created",
        "id",
    )  # by hand: a frozen dataclass takes 2 µs to make, and thousands are made

    def __init__(self, id: str, created: bool, app: App) -> None:  # noqa: A002, FBT001 - the words users know
        self.id = id
        self.created = created
        self._app = app

    def __eq__(self, other: object) -> bool:
        return isinstance(other, EnqueuedJob) and (self.id, self.created) == (other.id, other.created)

    def __hash__(self) -> int:
        return hash((self.id, self.created))

    def __repr__(self) -> str:
        return f"EnqueuedJob(id={self.id!r}, created={self.created})"

    @overload
    def wait(
        self: EnqueuedJob[Answer] | EnqueuedJob[Coro[Answer]], timeout: Duration | None = None
    ) -> JobOutcome[Any]: ...
    @overload
    def wait(self: EnqueuedJob[Coro[T]], timeout: Duration | None = None) -> JobOutcome[T]: ...
    @overload
    def wait(self: EnqueuedJob[T], timeout: Duration | None = None) -> JobOutcome[T]: ...
    def wait(self, timeout: Duration | None = None) -> JobOutcome[Any]:
        """Block this thread until the job has ended: done, dead or cancelled."""
        return self._ends.wait(self.id, timeout)

    @overload
    def result(
        self: EnqueuedJob[Answer] | EnqueuedJob[Coro[Answer]], timeout: Duration | None = None
    ) -> Coro[Any]: ...
    @overload
    def result(self: EnqueuedJob[Coro[T]], timeout: Duration | None = None) -> Coro[T]: ...
    @overload
    def result(self: EnqueuedJob[T], timeout: Duration | None = None) -> Coro[T]: ...
    def result(self, timeout: Duration | None = None) -> Coro[Any]:
        """Await the end of the job and get what its handler answered; raises if it has no result."""
        return self._ends.result(self.id, timeout)

    def watch(self, timeout: Duration | None = None) -> Watch:
        """What happens to the job, for `for` and `async for`, until it has ended."""
        return self._ends.watch(self.id, timeout)

    @property
    def _ends(self) -> Results:
        from stepfast.results.watch import Results

        return Results(self._app)
