"""Time zones: which instants a wall clock shows a minute at. Pure.

Twice a year a wall clock jumps. Forwards, some minutes never come; backwards, some come twice. Both are found here, so
that a schedule can say what it does about them.
"""

from __future__ import annotations

import zoneinfo
from datetime import UTC, datetime, timedelta, tzinfo
from difflib import get_close_matches
from functools import lru_cache
from typing import Final

from stepfast.clock import instant, moment
from stepfast.errors import ConfigurationError

SECOND: Final = 1_000_000
AROUND: Final = timedelta(hours=26)  # a jump over the date line takes a day


@lru_cache(maxsize=1_024)
def zone(name: str) -> tzinfo:
    """The zone of this name; UTC needs no data, every other one does."""
    if name == "UTC":
        return UTC
    try:
        return zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError) as error:
        known = zoneinfo.available_timezones()
        if not known:
            raise ConfigurationError(
                f"tz {name!r}: this machine has no time zone data; install it: pip install tzdata"
            ) from error
        near = get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]!r}?" if near else "write an IANA name such as 'Europe/Paris'"
        raise ConfigurationError(f"tz {name!r} is no time zone; {hint}") from error


def wall_at(at: int, where: tzinfo) -> datetime:
    """What the clock on the wall shows at an instant; `fold` is 1 while it shows it for the second time."""
    return moment(at).astimezone(where).replace(tzinfo=None)


def occurrences(wall: datetime, where: tzinfo) -> tuple[int, ...]:
    """The instants at which the clock shows `wall`: one, or two, or none."""
    found = sorted({_by_offset(wall, where, fold) for fold in (0, 1)})
    return tuple(at for at in found if wall_at(at, where).replace(fold=0) == wall.replace(fold=0))


def first_occurrence(wall: datetime, where: tzinfo) -> int:
    """When the clock shows `wall`, for the first time; if it never does, when it has jumped over it."""
    found = occurrences(wall, where)
    return found[0] if found else _jump(wall, where)


def repeated(at: int, where: tzinfo) -> timedelta:
    """How far the clock has jumped back, if it shows for the second time what it shows at this instant; else nothing."""
    wall = wall_at(at, where)
    if not wall.fold:
        return timedelta(0)
    return timedelta(microseconds=at - _by_offset(wall, where, 0))


def unrest(at: int, where: tzinfo) -> timedelta:
    """How far the clock jumps around this instant, a day before and after it."""
    before, after = ((moment(at) + span).astimezone(where).utcoffset() for span in (-AROUND, AROUND))
    return abs((after or timedelta(0)) - (before or timedelta(0)))


def _by_offset(wall: datetime, where: tzinfo, fold: int) -> int:
    return instant(wall.replace(tzinfo=where, fold=fold), "tick")


def _jump(wall: datetime, where: tzinfo) -> int:
    """The instant at which the clock jumps over `wall`.

    Read with the offset that was in force before, it lies after the jump; read with the one after, before it.
    """
    early = _by_offset(wall, where, 1) // SECOND * SECOND
    late = -(-_by_offset(wall, where, 0) // SECOND) * SECOND
    after = moment(late).astimezone(where).utcoffset()
    while late - early > SECOND:
        middle = (early + late) // (2 * SECOND) * SECOND
        if moment(middle).astimezone(where).utcoffset() == after:
            late = middle
        else:
            early = middle
    return late
