"""The broker's clock, and what is to happen at which time. A test moves it instead of sleeping until a lock expires."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

SOON: Final = 0.001  # seconds: a timer of the loop may ring that much early


@dataclass(order=True, slots=True)
class Alarm:
    """Something that happens at a time, unless it is cancelled."""

    at: int
    number: int
    action: Callable[[], None] = field(compare=False)
    cancelled: bool = field(default=False, compare=False)

    def cancel(self) -> None:
        self.cancelled = True


class Timeline:
    """Milliseconds since 1970; runs with ours, ahead of it by what it was moved."""

    def __init__(self) -> None:
        self._ahead = 0
        self._alarms: list[Alarm] = []
        self._numbers = itertools.count()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ringing: asyncio.TimerHandle | None = None

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._wind()

    def stop(self) -> None:
        self._loop = None
        if self._ringing is not None:
            self._ringing.cancel()

    def now(self) -> int:
        return time.time_ns() // 1_000_000 + self._ahead

    def at(self, when: int, action: Callable[[], None]) -> Alarm:
        """Do it then; never before this call has returned."""
        alarm = Alarm(when, next(self._numbers), action)
        heapq.heappush(self._alarms, alarm)
        if self._alarms[0] is alarm:
            self._wind()
        return alarm

    def advance(self, span: int) -> None:
        """Let so many milliseconds pass at once; what is due meanwhile happens at its own time, in order."""
        until = self.now() + span
        while (alarm := self._next(until)) is not None:
            self._ahead += max(0, alarm.at - self.now())
            alarm.action()
        self._ahead += max(0, until - self.now())
        self._wind()

    def _next(self, until: int) -> Alarm | None:
        """Take the earliest alarm that is due by then."""
        while self._alarms and (self._alarms[0].cancelled or self._alarms[0].at <= until):
            alarm = heapq.heappop(self._alarms)
            if not alarm.cancelled:
                return alarm
        return None

    def _ring(self) -> None:
        while (alarm := self._next(self.now())) is not None:
            alarm.action()
        self._wind()

    def _wind(self) -> None:
        """Have the loop wake us at the next alarm."""
        if self._ringing is not None:
            self._ringing.cancel()
            self._ringing = None
        if self._loop is not None and self._alarms:
            delay = max(0, self._alarms[0].at - self.now()) / 1_000
            self._ringing = self._loop.call_later(delay + SOON, self._ring)
