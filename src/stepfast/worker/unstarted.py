"""Leases that this process holds and has not started: what a crash would leave behind untouched."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from stepfast.steps.lease import Lease


class Unstarted(NamedTuple):
    lease: Lease
    chain: int  # how many steps its job has taken here in a row ...
    chain_since: float  # ... and since when
    waits_since: float


class UnstartedLeases:
    """Filled by the claimer, taken from the front by the event loop and from the back by who gives them back."""

    def __init__(self) -> None:
        self._leases: deque[Unstarted] = deque()

    def add(self, leases: Iterable[Lease], chain: int = 0, chain_since: float = 0.0) -> None:
        now = time.monotonic()
        new = tuple.__new__  # what Unstarted(…) does in the end, without its Python
        self._leases.extend([new(Unstarted, (lease, chain, chain_since, now)) for lease in leases])

    def take(self) -> Unstarted | None:
        """The next to start."""
        try:  # asking first would not help: another thread takes from the other end
            return self._leases.popleft()
        except IndexError:
            return None

    def take_last(self) -> Unstarted | None:
        """The last that would start."""
        try:
            return self._leases.pop()
        except IndexError:
            return None

    def longest_wait(self) -> float:
        """For how many seconds the first of them has waited here."""
        try:
            return time.monotonic() - self._leases[0].waits_since
        except IndexError:
            return 0.0
