"""After a failure: again, when, or never. Pure; the dice come in as an argument."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import timedelta

from stepfast.clock import Duration, duration
from stepfast.errors import ConfigurationError


@dataclass(frozen=True, kw_only=True)
class Retry:
    """Exponential back-off with jitter: between half and all of `first * factor ** (failures - 1)`."""

    attempts: int = 3
    first: Duration = "1s"
    factor: float = 2.0
    longest: Duration = "15m"

    def __post_init__(self) -> None:
        if self.attempts < 1:
            raise ConfigurationError(f"Retry(attempts={self.attempts}): a job is tried at least once")
        if not 1 <= self.factor < math.inf:
            raise ConfigurationError(f"Retry(factor={self.factor}): waits must not shrink; use 1 or more")
        duration(self.first, "Retry(first=…)")
        duration(self.longest, "Retry(longest=…)")

    def exhausted(self, failures: int) -> bool:
        return failures >= self.attempts

    def delay(self, failures: int, dice: float) -> timedelta:
        """How long to wait after the `failures`-th failure (from 1); `dice` is uniform in [0, 1)."""
        first, longest = duration(self.first).total_seconds(), duration(self.longest).total_seconds()
        try:
            ceiling = min(first * self.factor ** (failures - 1), longest)
        except OverflowError:  # a float ends at 10 ** 308
            ceiling = longest if first else 0.0
        return timedelta(seconds=ceiling * (0.5 + 0.5 * dice))
