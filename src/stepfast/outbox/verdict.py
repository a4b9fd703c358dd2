"""After a failed try: again, when, or never. Pure; the dice come in as an argument."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from stepfast.notifications.delivery import Failed, Patience

if TYPE_CHECKING:
    from stepfast.notifications.settings import NotificationSettings

FIRST: Final = timedelta(seconds=5)
FACTOR: Final = 3.0
LONGEST: Final = timedelta(hours=6)
WAITS: Final = timedelta(seconds=30)  # for a worker whose settings can send it
FEW: Final = 5  # tries where the receiver says no


@dataclass(frozen=True)
class Again:
    delay: timedelta
    charged: bool = True  # whether it counts as a try


@dataclass(frozen=True)
class GiveUp:
    reason: str


Verdict = Again | GiveUp


def decide(
    failed: Failed, attempts: int, age: timedelta, settings: NotificationSettings, dice: float
) -> Verdict:
    """Judge the `attempts`-th failed try (from 1) of a message so old; `dice` is uniform in [0, 1)."""
    if failed.patience is Patience.FREE:
        return Again(WAITS, charged=False)
    most = {Patience.FULL: settings.outbox_attempts, Patience.LITTLE: FEW, Patience.NONE: 1}[failed.patience]
    most = min(most, settings.outbox_attempts)
    if attempts >= most:
        return GiveUp(f"gave up after {attempts} {'try' if attempts == 1 else 'tries'}")
    if age >= settings.outbox_age:
        return GiveUp(f"gave up at an age of {age.total_seconds() / 3600:.0f} h, after {attempts} tries")
    wait = backoff(attempts, dice)
    return Again(wait if failed.not_before is None else min(max(wait, failed.not_before), LONGEST))


def backoff(attempts: int, dice: float) -> timedelta:
    """Between half and all of 5 s, 15 s, 45 s … 6 h."""
    ceiling = min(FIRST.total_seconds() * FACTOR ** min(attempts - 1, 20), LONGEST.total_seconds())
    return timedelta(seconds=ceiling * (0.5 + 0.5 * dice))
