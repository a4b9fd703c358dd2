"""Which queue to ask next, how many jobs to take, and where to start looking. Decisions only; no database."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepfast.steps.lease import Lease

HORIZON: Final = 0.2  # seconds of work to hold in advance: what a crash may leave behind
UNHINTED_EVERY: Final = 1.0  # a long transaction may commit an older time
UNHINTED_AFTER_WAKE: Final = 0.1  # a wake-up may mean more urgent work
UNHINTED_SHARE: Final = 20  # claims without the hint take a twentieth of the time at most
MARGIN: Final = 100_000  # microseconds before the lowest time seen: transactions commit out of order


@dataclass(frozen=True)
class Appetite:
    """How much to hold, and when to ask for more.

    Slow handlers get what they can start at once. Fast ones get `HORIZON` seconds of work in advance, up to
    one batch that runs and one that waits, and ask again when half of it is gone.
    """

    most: int
    low_water: int  # ask again when no more than this is held
    batch: int

    def want(self, held: int) -> int:
        """How many jobs to claim now."""
        return min(self.batch, self.most - held) if held <= self.low_water else 0


def appetite(slots: int, average: float, batch: int) -> Appetite:
    """The appetite of `slots` handlers that take `average` seconds each (0: not known yet)."""
    ahead = 0 if average <= 0 else min(2 * batch, int(slots * HORIZON / max(average, 1e-6)))
    if ahead <= slots:
        return Appetite(slots, slots - 1, batch)
    most = slots + ahead
    return Appetite(most, most - min(batch, most // 2), batch)


@dataclass
class Hint:
    """Where the next claim of one queue may start, so that it does not walk over dead index entries."""

    priority: int | None = None
    lowest: int = 0
    unhinted_at: float = field(default=-1e9)
    unhinted_took: float = 0.0  # seconds; with a foreign transaction open it grows with every job done
    woken: bool = False

    def start(self, now: float) -> tuple[int, int] | None:
        """(priority, lowest time), or None when the whole queue must be asked."""
        since = now - self.unhinted_at
        dear = self.unhinted_took * UNHINTED_SHARE
        if self.priority is None or since >= max(UNHINTED_EVERY, dear):
            return None
        if self.woken and since >= max(UNHINTED_AFTER_WAKE, dear):
            return None
        return (self.priority, self.lowest)

    def learn(
        self, leases: Sequence[Lease], limit: int, now: float, *, hinted: bool, took: float = 0.0
    ) -> None:
        """Remember what a claim saw. A claim that came back short knows nothing about where to start."""
        if not hinted:
            self.unhinted_at = now
            self.unhinted_took = took
            self.woken = False
        if len(leases) < limit or leases[0].priority != leases[-1].priority:
            self.priority = None
            return
        self.priority = leases[0].priority
        self.lowest = leases[0].ready_at - MARGIN
