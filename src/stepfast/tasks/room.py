"""How many more messages are wanted: a few more than can be worked on at once, so that nobody waits.

What is held until its end is better off with a worker that is free. A task that has ended takes no slot, but its
message is held until whoever asked has been told. If webhooks cannot leave, such messages become many; so their number
has a bound, and whoever comes to it says so: nothing is taken any more, although nobody is at work.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from stepfast.database.statement import sql
from stepfast.telemetry import happened

if TYPE_CHECKING:
    from stepfast.database.database import Database
    from stepfast.tasks.following import Following
    from stepfast.tasks.holding import Holding

AHEAD: Final = 2  # times the concurrency: so many jobs may wait before no more messages are taken
MOST_HELD: Final = 256

WAITING = sql("""
    SELECT count(*) FROM (
        SELECT 1 AS one FROM stepfast_job WHERE queue = :queue AND state = 'ready' LIMIT :limit
    ) waiting
""")


@dataclass(kw_only=True)
class Room:
    """That of one intake."""

    database: Database
    queue: str
    concurrency: int
    until_end: bool  # whether messages are held until their tasks have ended
    holding: Holding
    following: Following
    full: bool = False

    def left(self) -> int:
        """For how many; for none, if that is not positive."""
        most = MOST_HELD - len(self.holding)
        self._tell(most)
        return min(self._wanted(), most)

    def _wanted(self) -> int:
        if self.until_end:
            return self.concurrency - self.following.at_work
        most = AHEAD * self.concurrency
        with self.database.looking() as tx:
            return most - int(tx.first(WAITING, queue=self.queue, limit=most))

    def _tell(self, left: int) -> None:
        """Once, until half of them are gone."""
        if left <= 0 and not self.full:
            self.full = True
            held, at_work = len(self.holding), self.following.at_work
            happened("intake.filled", queue=self.queue, held=held, at_work=at_work)
        elif left > MOST_HELD // 2:
            self.full = False
