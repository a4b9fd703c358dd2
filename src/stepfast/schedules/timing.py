"""When a schedule ticks: by the calendar, at a steady beat, or once. Pure; instants in, instants out.

A calendar that names certain hours means times of the day. One that the clock jumps over ticks when the clock has
jumped; one that the clock shows twice ticks the first time. A calendar of every hour means the hours that pass: it
ticks whenever the clock shows one of its minutes, and nothing is made up or left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import tzinfo
from typing import TYPE_CHECKING

from stepfast.schedules.zone import first_occurrence, occurrences, repeated, unrest, wall_at

if TYPE_CHECKING:
    from stepfast.schedules.cron import Cron


@dataclass(frozen=True)
class Calendar:
    """The minutes that a cron expression names on the clocks of a time zone."""

    cron: Cron
    where: tzinfo

    def next_after(self, at: int) -> int | None:
        """The first tick after this instant; None if there is none before the end of the calendar."""
        wall = wall_at(at, self.where).replace(second=0, microsecond=0)
        if self.cron.every_hour:
            return self._next_shown(at)
        ticks = (first_occurrence(it, self.where) for it in self.cron.forwards(wall))
        return next((tick for tick in ticks if tick > at), None)

    def latest(self, at: int) -> int | None:
        """The last tick up to this instant."""
        if self.cron.every_hour:
            return self._latest_shown(at)
        wall = wall_at(at, self.where) + repeated(at, self.where)  # what the clock has shown by then
        ticks = (first_occurrence(it, self.where) for it in self.cron.backwards(wall))
        return next((tick for tick in ticks if tick <= at), None)

    def _next_shown(self, at: int) -> int | None:
        best: int | None = None
        wall = wall_at(at, self.where).replace(second=0, microsecond=0)
        for minute in self.cron.forwards(wall - unrest(at, self.where)):
            shown = occurrences(minute, self.where)
            for tick in shown:
                if tick > at and (best is None or tick < best):
                    best = tick
            if shown and shown[0] > at:  # all that follow are shown later than this one
                break
        return best

    def _latest_shown(self, at: int) -> int | None:
        best: int | None = None
        for minute in self.cron.backwards(wall_at(at, self.where) + unrest(at, self.where)):
            shown = occurrences(minute, self.where)
            for tick in shown:
                if tick <= at and (best is None or tick > best):
                    best = tick
            if shown and shown[-1] <= at:
                break
        return best


@dataclass(frozen=True)
class Every:
    """A steady beat, counted from 1970: it cannot drift, and every process knows it without asking."""

    period: int  # microseconds

    def next_after(self, at: int) -> int | None:
        return (at // self.period + 1) * self.period

    def latest(self, at: int) -> int | None:
        return at // self.period * self.period


@dataclass(frozen=True)
class Once:
    """One tick."""

    at: int

    def next_after(self, at: int) -> int | None:
        return self.at if self.at > at else None

    def latest(self, at: int) -> int | None:
        return self.at if self.at <= at else None


Timing = Calendar | Every | Once
