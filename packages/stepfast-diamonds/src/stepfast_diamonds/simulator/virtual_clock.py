"""The source's own time: it may run faster than ours, stand still, or be pushed forward."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from stepfast.applications import duration, micros

if TYPE_CHECKING:
    from collections.abc import Callable

    from stepfast.applications import Duration


class VirtualClock:
    """Microseconds since 1970 as the simulated servers see them."""

    def __init__(
        self, start: int, speed: float = 1.0, *, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self.start = start
        self.speed = speed
        self._monotonic = monotonic
        self._since = monotonic()
        self._pushed = 0

    def now(self) -> int:
        return self.start + self._pushed + int((self._monotonic() - self._since) * self.speed * 1_000_000)

    def advance(self, by: Duration) -> int:
        """Let time pass at once, and say what time it is then."""
        self._pushed += micros(duration(by, "by"))
        return self.now()

    def for_limits(self) -> float:
        """Seconds for rates: a faster clock does not allow more requests; pushing it does, and so does our own time."""
        passed = self._monotonic() - self._since if self.speed else 0.0
        return passed + self._pushed / 1_000_000
