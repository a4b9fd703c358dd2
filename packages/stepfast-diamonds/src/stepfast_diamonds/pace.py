"""The pace of requests to the source after a throttle: a pause, then half the rate, and slowly more.

The engine's rate is a configured number; the rate that the source allows is known when it has been exceeded. So each
throttle halves the pace of all workers of all feeds, and every ten quiet seconds give a tenth of the full rate back.
Without trouble nothing is counted here: one read of a row per second is all it costs.
"""

from __future__ import annotations

import asyncio
import hashlib
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, Protocol

from stepfast import sql
from stepfast.applications import duration, happened, micros
from stepfast.errors import DatabaseError, ThrottledError
from stepfast_diamonds.schema import naming_the_command

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepfast import Stepfast, Transaction


SECOND: Final = 1_000_000
SLOWEST: Final = 2 * SECOND  # between two requests
GIVEN_BACK: Final = 0.1  # of the full rate
GIVEN_BACK_EVERY: Final = 10 * SECOND
FASTEST: Final = 50  # requests per second, to begin with, where no rate is set
SHORTEST_QUIET: Final = timedelta(seconds=1)
LONGEST_WAIT: Final = 5 * SECOND  # that a step waits for its slot; a longer wait is left to the engine
LOOK_EVERY: Final = 1.0


class PaceKeeper:
    """Keeps requests to the pace. `rate`: how many per second when all is well; 0: not configured.

    `tells`: whether a throttle slows all others. A preview keeps to their pace, and does not slow them down.
    """

    def __init__(self, rows: PaceRows, rate: int, *, tells: bool = True) -> None:
        self._rows = rows
        self._tells = tells
        self._full = SECOND // (rate or FASTEST)
        self._well_until = 0.0

    async def admit(self) -> None:
        """Wait for our turn; raises ThrottledError if that is later than a step should wait."""
        if time.monotonic() < self._well_until:
            return
        pace, now = await asyncio.to_thread(self._rows.read)
        if pace.quiet_until > now:
            raise _left_alone(pace.quiet_until - now)
        if not pace.gap_at(now, self._full):
            self._well_until = time.monotonic() + LOOK_EVERY
            return
        if pace.arrival - now > LONGEST_WAIT:
            raise _left_alone(pace.arrival - now)
        wait = await asyncio.to_thread(self._take)
        if wait:
            await asyncio.sleep(wait / SECOND)

    async def throttled(self, error: ThrottledError) -> None:
        """The source throttled us: slow all workers down."""
        self._well_until = 0.0
        if not self._tells:
            return
        quiet = SHORTEST_QUIET if error.delay is None else max(SHORTEST_QUIET, duration(error.delay))
        await asyncio.to_thread(
            self._rows.change, lambda pace, now: pace.slowed(now, self._full, micros(quiet))
        )
        happened("source.slowed", source="nivoda", quiet_s=quiet.total_seconds())

    def _take(self) -> int:
        waits: list[int] = []

        def decide(pace: Pace, now: int) -> Pace:
            taken, wait = pace.slot(now, self._full)
            waits.append(wait)
            return taken

        self._rows.change(decide)
        return waits[-1]


def _left_alone(left: int) -> ThrottledError:
    wait = timedelta(microseconds=left)
    return ThrottledError(
        f"Nivoda wanted fewer requests; it is left alone for {wait.total_seconds():.1f} s", retry_after=wait
    )


@dataclass(frozen=True)
class Pace:
    """Microseconds; `gap` 0: as fast as the engine allows."""

    gap: int = 0  # between two requests, when it was last changed
    changed_at: int = 0
    arrival: int = 0  # when the next request would be on time
    quiet_until: int = 0

    def gap_at(self, now: int, full: int) -> int:
        """What is left of the gap; 0 once the full rate is reached again."""
        if not self.gap:
            return 0
        tenths = max(0, now - self.changed_at) // GIVEN_BACK_EVERY
        rate = SECOND / self.gap + tenths * GIVEN_BACK * SECOND / full
        return 0 if rate * full >= SECOND else int(SECOND / rate)

    def slowed(self, now: int, full: int, quiet: int) -> Pace:
        """The pace after a throttle. Requests that were under way meet it, too: they do not halve it again."""
        until = max(self.quiet_until, now + quiet)
        if self.quiet_until > now:
            return replace(self, quiet_until=until)
        gap = min(SLOWEST, 2 * (self.gap_at(now, full) or full))
        return Pace(gap, until, until, until)

    def slot(self, now: int, full: int) -> tuple[Pace, int]:
        """The pace after the next request, and how long that has to wait."""
        gap = self.gap_at(now, full)
        if not gap:
            return Pace(quiet_until=self.quiet_until), 0
        at = max(self.arrival, now)
        return replace(self, arrival=at + gap), at - now


class PaceRows(Protocol):
    """Where the pace is kept."""

    def read(self) -> tuple[Pace, int]:
        """The pace, and the present time."""
        ...

    def change(self, decide: Callable[[Pace, int], Pace]) -> None:
        """Replace the pace by what `decide` makes of it, one change at a time."""
        ...


class PaceInMemory:
    """For one process."""

    def __init__(self) -> None:
        self._pace = Pace()
        self._lock = threading.Lock()

    def read(self) -> tuple[Pace, int]:
        return self._pace, time.monotonic_ns() // 1_000

    def change(self, decide: Callable[[Pace, int], Pace]) -> None:
        with self._lock:
            self._pace = decide(self._pace, time.monotonic_ns() // 1_000)


_COLUMNS = "SELECT gap, changed_at, arrival, quiet_until, {now} FROM nivoda_pace WHERE id = :id"
READ_PACE = sql(_COLUMNS)
LOCK_PACE = sql(_COLUMNS + " {for_update}")
CLOCK = sql("SELECT {now}")
BEGIN_PACE = sql(
    "INSERT INTO nivoda_pace (id, gap, changed_at, arrival, quiet_until) VALUES (:id, 0, 0, 0, 0) {keep_existing}"
)
WRITE_PACE = sql("""
    UPDATE nivoda_pace SET gap = :gap, changed_at = :changed_at, arrival = :arrival, quiet_until = :quiet_until
     WHERE id = :id
""")


class PaceInDatabase:
    """For all processes that ask the same address."""

    def __init__(self, app: Stepfast, url: str) -> None:
        self._app = app
        self._id = hashlib.blake2b(url.encode(), digest_size=16).hexdigest()

    def read(self) -> tuple[Pace, int]:
        with self._app.reading() as tx:
            try:
                found = tx.rows(READ_PACE, id=self._id)
            except DatabaseError as error:
                raise naming_the_command(error) from error
            return _pace_of(found[0]) if found else (Pace(), _clock(tx))

    def change(self, decide: Callable[[Pace, int], Pace]) -> None:
        with self._app.transaction() as tx:
            tx.run(BEGIN_PACE, id=self._id)
            pace, now = _pace_of(tx.rows(LOCK_PACE, id=self._id)[0])
            new = decide(pace, now)
            tx.run(
                WRITE_PACE,
                id=self._id,
                gap=new.gap,
                changed_at=new.changed_at,
                arrival=new.arrival,
                quiet_until=new.quiet_until,
            )


def _pace_of(row: Sequence[Any]) -> tuple[Pace, int]:
    gap, changed_at, arrival, quiet_until, now = (int(it) for it in row)
    return Pace(gap, changed_at, arrival, quiet_until), now


def _clock(tx: Transaction) -> int:
    return int(tx.first(CLOCK) or 0)
