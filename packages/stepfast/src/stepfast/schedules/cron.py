"""When a schedule ticks: by a cron expression in a time zone, at a steady beat, or once. Pure.

Cron expressions have five fields; the rules are Vixie cron's: lists, ranges, steps and names; where both day fields are
restricted, one of them is enough. Twice a year a wall clock jumps: forwards, some minutes never come; backwards, some
come twice.

An expression that names certain hours means times of the day. A time that the clock jumps over ticks when the clock has
jumped; one that the clock shows twice ticks the first time. An expression of every hour means the hours that pass: it
ticks whenever the clock shows one of its minutes.
"""

from __future__ import annotations

import re
import zoneinfo
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from difflib import get_close_matches
from functools import cached_property, lru_cache
from typing import Final, NoReturn

from stepfast.clock import instant, moment
from stepfast.errors import ConfigurationError

LONGEST: Final = 200  # characters of an expression
LAST_YEAR: Final = 9998  # a datetime ends with the year after it
DAY: Final = timedelta(days=1)

NICKNAMES: Final = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
MONTHS: Final = ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")
WEEKDAYS: Final = ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")
LONGEST_MONTH: Final = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)


@dataclass(frozen=True)
class Field:
    """One of the five fields: its name, its least and greatest value, and the numbers that names stand for."""

    name: str
    least: int
    most: int
    names: dict[str, int]


FIELDS: Final = (
    Field("minute", 0, 59, {}),
    Field("hour", 0, 23, {}),
    Field("day of the month", 1, 31, {}),
    Field("month", 1, 12, {name: number for number, name in enumerate(MONTHS, 1)}),
    Field("day of the week", 0, 7, {name: number for number, name in enumerate(WEEKDAYS)}),
)
SUNDAY: Final = 7  # as well as 0

_PART: Final = re.compile(r"(\*|\w+)(?:-(\w+))?(?:/(\w+))?")


@dataclass(frozen=True)
class Cron:
    """A cron expression that was read."""

    text: str
    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]  # from 0, Sunday
    either_day: bool  # both day fields are restricted: the day of the month or the day of the week is enough

    @property
    def every_hour(self) -> bool:
        """Whether the expression means the hours that pass, and not certain times of the day."""
        return len(self.hours) == 24  # noqa: PLR2004 - a day

    def matches(self, wall: datetime) -> bool:
        return self._is_day(wall.date()) and wall.hour in self.hours and wall.minute in self.minutes

    def forwards(self, start: datetime) -> Iterator[datetime]:
        """The minutes of the expression at or after `start`, in their order."""
        skipped = bisect_left(self._times, start.time())
        for day in self._dates(start.date(), DAY):
            for at in self._times[skipped:] if day == start.date() else self._times:
                yield datetime.combine(day, at)

    def backwards(self, start: datetime) -> Iterator[datetime]:
        """The minutes of the expression at or before `start`, the latest first."""
        kept = bisect_right(self._times, start.time())
        for day in self._dates(start.date(), -DAY):
            for at in reversed(self._times[:kept] if day == start.date() else self._times):
                yield datetime.combine(day, at)

    @cached_property
    def _times(self) -> list[time]:
        """The times of a day."""
        return [time(hour, minute) for hour in self.hours for minute in self.minutes]

    def _dates(self, day: date, step: timedelta) -> Iterator[date]:
        while 1 < day.year <= LAST_YEAR:
            if day.month not in self.months:
                day = _next_month(day) if step > timedelta(0) else day.replace(day=1) - DAY
                continue
            if self._is_day(day):
                yield day
            day += step

    def _is_day(self, day: date) -> bool:
        if day.month not in self.months:
            return False
        by_month, by_week = day.day in self.days, day.isoweekday() % 7 in self.weekdays
        return by_month or by_week if self.either_day else by_month and by_week


@lru_cache(maxsize=1_024)
def parse(text: str) -> Cron:
    """Read a cron expression; raises `ConfigurationError` with the reason if it is wrong."""
    if len(text) > LONGEST:
        raise ConfigurationError(f"cron {text[:40]!r}…: {len(text)} characters; at most {LONGEST} fit")
    words = _spelled_out(text).split()
    if len(words) != len(FIELDS):
        more = "; seconds are not known here, use every='10s' for that" if len(words) > len(FIELDS) else ""
        raise ConfigurationError(
            f"cron {text!r}: five fields are needed (minute, hour, day of the month, month, day of the week), "
            f"not {len(words)}{more}"
        )
    minutes, hours, days, months, weekdays = (
        _values(text, field, word) for field, word in zip(FIELDS, words, strict=True)
    )
    cron = Cron(
        text=text,
        minutes=tuple(sorted(minutes)),
        hours=tuple(sorted(hours)),
        days=frozenset(days),
        months=frozenset(months),
        weekdays=frozenset(number % SUNDAY for number in weekdays),
        either_day=not words[2].startswith("*") and not words[4].startswith("*"),
    )
    if not cron.either_day and not any(min(days) <= LONGEST_MONTH[month - 1] for month in months):
        raise ConfigurationError(
            f"cron {text!r} would never fire: no month among {words[3]} has a day {min(days)}"
        )
    return cron


def _spelled_out(text: str) -> str:
    word = text.strip().lower()
    if not word.startswith("@"):
        return text
    if word not in NICKNAMES:
        hint = "a worker's start is no tick; call the job there" if word == "@reboot" else "use one of them"
        raise ConfigurationError(f"cron {text!r}: known are {', '.join(NICKNAMES)}; {hint}")
    return NICKNAMES[word]


def _values(text: str, field: Field, word: str) -> set[int]:
    values: set[int] = set()
    for part in word.split(","):
        values |= _part(text, field, part)
    return values


def _part(text: str, field: Field, part: str) -> set[int]:
    found = _PART.fullmatch(part)
    if found is None:
        _refuse(
            text, field, part, f"use numbers from {field.least} to {field.most}, *, lists, ranges and steps"
        )
    first, last, step = found.groups()
    if first == "*":
        if last is not None:
            _refuse(text, field, part, "a range has a number on both sides")
        low, high = field.least, field.most - (field.most == SUNDAY)
    else:
        low = high = _number(text, field, part, first)
        if last is not None:
            high = _number(text, field, part, last)
            if last.upper() == WEEKDAYS[0]:
                high = SUNDAY  # FRI-SUN is a week's end
        elif step is not None:
            _refuse(text, field, part, f"a step needs a range before it; write {first}-{field.most}/{step}")
    if low > high:
        _refuse(text, field, part, f"the range runs backwards; write {low}-{field.most},{field.least}-{high}")
    return set(range(low, high + 1, 1 if step is None else _step(text, field, part, step)))


def _number(text: str, field: Field, part: str, word: str) -> int:
    number = field.names.get(word.upper())
    if number is None:
        if not (word.isascii() and word.isdigit()):
            names = f", or {', '.join(field.names)}" if field.names else ""
            _refuse(text, field, part, f"{word!r} is none of {field.least} to {field.most}{names}")
        number = int(word)
    if not field.least <= number <= field.most:
        _refuse(text, field, part, f"{number} is outside {field.least} to {field.most}")
    return number


def _step(text: str, field: Field, part: str, word: str) -> int:
    if not (word.isascii() and word.isdigit()) or int(word) < 1:
        _refuse(text, field, part, "a step is a whole number from 1")
    if int(word) > field.most:
        _refuse(
            text,
            field,
            part,
            f"a step beyond {field.most} begins anew with every {_greater(field)}; use every=… for a steady beat",
        )
    return int(word)


def _greater(field: Field) -> str:
    """The unit that contains a field: a minute is part of an hour."""
    return {"minute": "hour", "hour": "day", "month": "year", "day of the week": "week"}.get(
        field.name, "month"
    )


def _refuse(text: str, field: Field, part: str, why: str) -> NoReturn:
    raise ConfigurationError(f"cron {text!r}: {field.name} {part!r}: {why}")


def _next_month(day: date) -> date:
    return (day.replace(day=28) + timedelta(days=4)).replace(day=1)


# Time zones: the instants at which a wall clock shows a minute.

SECOND: Final = 1_000_000
AROUND: Final = timedelta(hours=26)  # a jump over the date line takes a day


@lru_cache(maxsize=1_024)
def zone(name: str) -> tzinfo:
    """The time zone of this name; UTC needs no time zone data, every other one does."""
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
    """The time on the wall clock at an instant; `fold` is 1 while the clock shows it for the second time."""
    return moment(at).astimezone(where).replace(tzinfo=None)


def occurrences(wall: datetime, where: tzinfo) -> tuple[int, ...]:
    """The instants at which the clock shows `wall`: one, or two, or none."""
    found = sorted({_by_offset(wall, where, fold) for fold in (0, 1)})
    return tuple(at for at in found if wall_at(at, where).replace(fold=0) == wall.replace(fold=0))


def first_occurrence(wall: datetime, where: tzinfo) -> int:
    """The first instant at which the clock shows `wall`; if it never does, the one at which it jumps over it."""
    found = occurrences(wall, where)
    return found[0] if found else _jump(wall, where)


def repeated(at: int, where: tzinfo) -> timedelta:
    """How far the clock has jumped back, if it shows the time of this instant for the second time; else zero."""
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


# Timings: instants in, instants out.


@dataclass(frozen=True)
class Calendar:
    """Ticks by a cron expression on the clocks of a time zone."""

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
        wall = wall_at(at, self.where) + repeated(
            at, self.where
        )  # the latest time that the clock has shown by then
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
            if shown and shown[0] > at:  # all following minutes are shown later than this one
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
    """Ticks at a steady beat, counted from 1970: it cannot drift, and every process knows it without asking."""

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
