"""What happens to a job until it has ended: every line of its log, and its state and progress whenever they changed.

Each look reads what is new. A state or a percentage that came and went between two looks is not seen; a log line is
never missed and never repeated, also if its transaction commits after a later one (ids are given out before that).
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from stepfast.clock import moment
from stepfast.database.statement import sql
from stepfast.errors import ContentionError, UnreachableError, WaitTimeoutError
from stepfast.results.blocking import refuse_in_loop
from stepfast.results.outcome import JobOutcome, look, unknown
from stepfast.steps.job import JobState

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Sequence
    from datetime import datetime, timedelta

    from stepfast.database.connection import Transaction
    from stepfast.database.database import Database
    from stepfast.results.reading import Reading

FIRST_PAUSE: Final = 0.05  # seconds between looks while something happens
GROWTH: Final = 1.5
LONGEST_PAUSE: Final = 0.25
OUTAGE_PAUSE: Final = 0.5  # while the database is away
MOST: Final = 1_000  # lines read at once
LATE_LOOK: Final = 1.0  # seconds between looks for lines that were committed late
SETTLED_AFTER: Final = 60.0  # no transaction of ours is open for so long

LINES = sql("""
    SELECT id, at, level, step, message FROM stepfast_log
     WHERE job_id = :id AND id > :after ORDER BY id LIMIT :limit
""")
NUMBERS = sql("SELECT id FROM stepfast_log WHERE job_id = :id AND id > :after AND id <= :newest ORDER BY id")
LINE = sql("SELECT id, at, level, step, message FROM stepfast_log WHERE id = :number AND job_id = :id")


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
        reading: Callable[[str], Reading],
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
        reading: Callable[[str], Reading],
        *,
        beyond_death: bool,
    ) -> None:
        self._database = database
        self._job_id = job_id
        self._timeout = timeout
        self._reading = reading
        self._final = {JobState.DONE} if beyond_death else {JobState.DONE, JobState.DEAD, JobState.CANCELLED}
        self._since = time.monotonic()
        self._pause = FIRST_PAUSE
        self._state: StateChanged | None = None
        self._progress = Progressed(0, None)
        self._log = Log(job_id)
        self.over = False

    def look(self) -> list[Update]:
        """What is new; nothing while the database is away."""
        try:
            with self._database.reading() as tx:
                found = look(tx, [self._job_id], self._reading).get(self._job_id)
                # After the state: whatever was committed before the end is there now.
                lines = self._log.read(tx, to_the_end=found is not None and found.state in self._final)
        except (UnreachableError, ContentionError):
            self._pause = OUTAGE_PAUSE
            return []
        if found is None:
            raise unknown(self._job_id)
        updates = self._in_order(found, lines)
        self._pause = FIRST_PAUSE if updates else min(self._pause * GROWTH, LONGEST_PAUSE)
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
        while rows := tx.rows(LINES, id=self._job_id, after=self._newest, limit=MOST):
            for row in rows:
                self._take(row)
            self._newest = rows[-1][0]
            if len(rows) < MOST:
                break
        said, self._unsaid = self._unsaid, []
        return said

    def _read_late(self, tx: Transaction) -> None:
        """Lines with a smaller number than some we have, committed after them."""
        self._settle()
        asked = {"id": self._job_id, "after": self._settled, "newest": self._newest}
        numbers = [row[0] for row in tx.rows(NUMBERS, **asked)]
        for number in numbers:
            if number not in self._read:
                for row in tx.rows(LINE, number=number, id=self._job_id):
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
