"""Ticks that nobody fired in time, because no worker was there: which of them are fired now. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final, assert_never

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stepfast.schedules.timing import Timing

LATE: Final = 60 * 1_000_000  # microseconds; a tick that is fired within a minute was not missed
MOST: Final = 1_000  # ticks of one schedule that are made up; the newest
BATCH: Final = 50  # ticks of one transaction


class Missed(StrEnum):
    ONCE = "once"  # one job for all of them, as of the latest
    ALL = "all"  # one job for each, the oldest first
    SKIP = "skip"  # none, unless the latest is not late yet


@dataclass(frozen=True)
class Decision:
    """What becomes of a schedule that is due."""

    fire: tuple[int, ...]  # ticks that become jobs, oldest first
    next_at: int | None  # when it is due again; an instant that has passed if there is more to make up
    dropped_since: int | None  # the first tick that never becomes a job


def decide(timing: Timing, missed: Missed, due: int, now: int) -> Decision:
    """Judge a schedule whose tick `due` has come by `now`."""
    latest = max(timing.latest(now) or due, due)  # what time zone data say of the past may change
    following = timing.next_after(max(now, latest))
    match missed:
        case Missed.ONCE:
            return Decision((latest,), following, due if latest > due else None)
        case Missed.SKIP if now - latest <= LATE:
            return Decision((latest,), following, due if latest > due else None)
        case Missed.SKIP:
            return Decision((), following, due)
        case Missed.ALL:
            return _one_by_one(timing, due, now, following)
        case _:
            assert_never(missed)


def _one_by_one(timing: Timing, due: int, now: int, following: int | None) -> Decision:
    ticks = list(_first(timing, due, now, MOST + 1))
    dropped = len(ticks) > MOST
    if dropped:
        ticks = list(_last(timing, now, MOST))
    more = len(ticks) > BATCH
    return Decision(tuple(ticks[:BATCH]), ticks[BATCH] if more else following, due if dropped else None)


def _first(timing: Timing, due: int, now: int, limit: int) -> Iterator[int]:
    """Up to `limit` ticks from `due` to `now`."""
    tick: int | None = due
    while tick is not None and tick <= now and limit > 0:
        yield tick
        tick = timing.next_after(tick)
        limit -= 1


def _last(timing: Timing, now: int, limit: int) -> list[int]:
    """The last `limit` ticks up to `now`, oldest first."""
    ticks: list[int] = []
    tick = timing.latest(now)
    while tick is not None and len(ticks) < limit:
        ticks.append(tick)
        tick = timing.latest(tick - 1)
    return ticks[::-1]
