"""How many requests are too many: a bucket for each account and each address, and a wall for those who push."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stepfast.diamonds.simulator.knobs import Knobs


@dataclass
class Bucket:
    """Tokens that come back at a steady rate."""

    tokens: float
    at: float

    def take(self, now: float, rate: float, burst: float) -> float:
        """0 if there was a token, else the seconds until there is one."""
        self.tokens = min(burst, self.tokens + (now - self.at) * rate)
        self.at = now
        if self.tokens >= 1:
            self.tokens -= 1
            return 0.0
        return (1 - self.tokens) / rate


class Throttle:
    """Admits a request, or says for how long not."""

    def __init__(self) -> None:
        self._buckets: dict[str, Bucket] = {}
        self._walls: dict[str, float] = {}
        self._under_way: dict[str, int] = {}

    def wall(self, address: str, now: float) -> float:
        """Seconds for which the firewall lets nobody through from here."""
        return max(0.0, self._walls.get(address, 0.0) - now)

    def admit(self, names: list[str], address: str, now: float, knobs: Knobs) -> float:
        """0, or the seconds to wait. Whoever is refused by the firewall meets it for a while, whatever he does."""
        wait = 0.0
        if knobs.requests_per_s:
            for name in names:
                bucket = self._buckets.setdefault(name, Bucket(knobs.burst, now))
                wait = max(wait, bucket.take(now, knobs.requests_per_s, knobs.burst))
        return self._refused(address, wait, now, knobs) if wait else 0.0

    def enter(self, name: str, address: str, now: float, knobs: Knobs) -> float:
        """One more request is under way for this account; 0, or the seconds to wait."""
        if knobs.concurrency and self._under_way.get(name, 0) >= knobs.concurrency:
            return self._refused(address, 1.0, now, knobs)
        self._under_way[name] = self._under_way.get(name, 0) + 1
        return 0.0

    def leave(self, name: str) -> None:
        self._under_way[name] -= 1

    def _refused(self, address: str, wait: float, now: float, knobs: Knobs) -> float:
        if knobs.limit_answer == "waf":
            self._walls[address] = now + knobs.cool_down_s
            return knobs.cool_down_s
        return wait
