"""A clock that a test moves.

Time in Stepfast is the database's clock. Here it is moved for one application: every statement that it sends sees the
moved time, whichever thread sends it. Other processes, the defaults of columns and your own `datetime.now()` do not.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from stepfast.clock import Duration, duration, instant, micros, moment
from stepfast.database.dialects import DIALECTS, Shift
from stepfast.database.statement import sql
from stepfast.process_identity import this_process
from stepfast.testing.jobs import DATABASE_TIME

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime

    from stepfast.app import Stepfast


COUNT_WORKERS_OF_PROCESS = sql(
    "SELECT count(*) FROM stepfast_worker WHERE process = :process AND state = 'alive'"
)

# The leases of workers of this process are extended by the time that was skipped: else they would seem dead.
EXTEND_WORKER_LEASES = sql("""
    UPDATE stepfast_worker SET alive_until = alive_until + :passed, beat_at = beat_at + :passed
     WHERE process = :process AND state = 'alive'
""")


class Clock:
    """The time of one application. Made by `clock(app)`."""

    def __init__(self, app: Stepfast) -> None:
        self._app = app

    def now(self) -> datetime:
        """The time that Stepfast sees."""
        return moment(self._now())

    def advance(self, span: Duration) -> datetime:
        """Let time pass; returns the new time."""
        shift, passed = self._shift, micros(duration(span, "advance"))
        frozen_at = None if shift.frozen_at is None else shift.frozen_at + passed
        return self._set(Shift(shift.offset + passed, frozen_at))

    def travel_to(self, at: datetime) -> datetime:
        """Set the time. If it lies in the past, jobs that are ready now become due later."""
        wanted = instant(at, "travel_to")
        if self._shift.frozen_at is not None:
            return self._set(Shift(frozen_at=wanted))
        return self._set(Shift(wanted - self._real()))

    def freeze(self, at: datetime | None = None) -> datetime:
        """Stop the time, now or there: until it is moved or resumed, everything happens at the same instant."""
        return self._set(Shift(frozen_at=self._now() if at is None else instant(at, "freeze")))

    def resume(self) -> datetime:
        """Let a frozen time run on from where it stands."""
        frozen_at = self._shift.frozen_at
        return self.now() if frozen_at is None else self._set(Shift(frozen_at - self._real()))

    def restore(self, shift: Shift | None) -> None:
        """Set the clock to an earlier shift; None is the real time."""
        before = self._now()
        self._app.database.shift_clock(shift)
        passed = self._now() - before
        me = this_process()
        with self._app.reading() as tx:
            living = tx.first(COUNT_WORKERS_OF_PROCESS, process=me)
        if living:
            with self._app.transaction() as tx:
                tx.run(EXTEND_WORKER_LEASES, process=me, passed=passed)

    def _set(self, shift: Shift) -> datetime:
        self.restore(shift)
        return self.now()

    @property
    def _shift(self) -> Shift:
        return self._app.database.shift or Shift()

    def _now(self) -> int:
        with self._app.reading() as tx:
            return int(tx.first(DATABASE_TIME))

    def _real(self) -> int:
        """The time of the database, not moved."""
        with self._app.reading() as tx:
            return int(tx.query(f"SELECT {DIALECTS[tx.dialect.name].words['now']} AS at")[0]["at"])


@contextmanager
def clock(app: Stepfast) -> Iterator[Clock]:
    """`with clock(app) as time:` move the time inside the block; afterwards it is as before."""
    before = app.database.shift
    app.database.shift_clock(before or Shift())
    time = Clock(app)
    try:
        yield time
    finally:
        time.restore(before)
