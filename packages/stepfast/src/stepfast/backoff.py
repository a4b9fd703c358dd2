"""Pauses that grow: short after the first try or look in vain, longer after each further one, up to a bound.

    backoff = Backoff(first=0.1, longest=2.0, growth=1.5)
    while not (found := look()):
        stopping.wait(backoff.next())
    backoff.reset()

With `jitter=0.2` each pause is shortened at random by up to a fifth, so that processes which lost the same server at the
same moment do not come back at the same moment.
"""

from __future__ import annotations

import random


class Backoff:
    """How long to wait before the next try; not shared between threads."""

    __slots__ = ("_pause", "first", "growth", "jitter", "longest")

    def __init__(self, *, first: float, longest: float, growth: float = 2.0, jitter: float = 0.0) -> None:
        self.first = first  # seconds
        self.longest = longest  # seconds
        self.growth = growth
        self.jitter = jitter  # the share of a pause that chance may take away
        self._pause = min(first, longest)

    def next(self) -> float:
        """Seconds to wait now; the pause after this one is longer."""
        pause = self._pause
        self._pause = min(pause * self.growth, self.longest)
        return pause * random.uniform(1.0 - self.jitter, 1.0) if self.jitter else pause

    def reset(self) -> None:
        """Begin again with the first pause: something was found, or the server answered."""
        self._pause = min(self.first, self.longest)
