"""Which queue to ask next, how many jobs to take, and where to start looking. Decisions only; no database."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.steps.lease import Lease

HORIZON: Final = 0.2  # seconds of work to hold in advance: what a crash may leave behind
UNHINTED_EVERY: Final = 1.0  # a long transaction may commit an older time
UNHINTED_AFTER_WAKE: Final = 0.1  # a wake-up may mean more urgent work
MARGIN: Final = 500_000  # microseconds before the lowest time seen: transactions commit out of order


def appetite(concurrency: int, held: int, average: float, batch: int) -> int:
    """How many jobs to claim now.

    Slow handlers get what they can start at once. Fast ones get `HORIZON` seconds of work in advance, up to
    one batch that runs and one that waits, and ask again when half of it is gone.
    """
    free = concurrency - held
    if average <= 0:
        return max(0, free)
    ahead = min(2 * batch, int(concurrency * HORIZON / max(average, 1e-6)))
    if ahead <= concurrency:
        return max(0, free)
    room = concurrency + ahead - held
    return min(batch, room) if room >= min(batch, (concurrency + ahead) // 2) else 0


@dataclass
class Hint:
    """Where the next claim of one queue may start, so that it does not walk over dead index entries."""

    priority: int | None = None
    lowest: int = 0
    unhinted_at: float = field(default=-1e9)
    woken: bool = False

    def start(self, now: float) -> tuple[int, int] | None:
        """(priority, lowest time), or None when the whole queue must be asked."""
        since = now - self.unhinted_at
        if self.priority is None or since >= UNHINTED_EVERY or (self.woken and since >= UNHINTED_AFTER_WAKE):
            return None
        return (self.priority, self.lowest)

    def learn(self, leases: Sequence[Lease], limit: int, now: float, *, hinted: bool) -> None:
        """Remember what a claim saw. A claim that came back short knows nothing about where to start."""
        if not hinted:
            self.unhinted_at = now
            self.woken = False
        if len(leases) < limit or leases[0].priority != leases[-1].priority:
            self.priority = None
            return
        self.priority = leases[0].priority
        self.lowest = leases[0].ready_at - MARGIN
