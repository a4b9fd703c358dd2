"""Cron expressions: five fields, read once, answered with the wall-clock minutes they name. Pure.

The rules are Vixie cron's: lists, ranges, steps and names; where both day fields are restricted, one of them is
enough. Which instant a wall-clock minute is, or whether it is one at all, is the time zone's business.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from functools import cached_property, lru_cache
from typing import Final, NoReturn

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
    """One of the five: its name, its least and greatest value, and what its names stand for."""

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
    """An expression that was understood."""

    text: str
    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]  # from 0, Sunday
    either_day: bool  # both day fields are restricted: the day of the month or the day of the week is enough

    @property
    def every_hour(self) -> bool:
        """Whether it means the hours that pass, and not certain times of the day."""
        return len(self.hours) == 24  # noqa: PLR2004 - a day

    def matches(self, wall: datetime) -> bool:
        return self._is_day(wall.date()) and wall.hour in self.hours and wall.minute in self.minutes

    def forwards(self, start: datetime) -> Iterator[datetime]:
        """The minutes it names at or after `start`, in their order."""
        skipped = bisect_left(self._times, start.time())
        for day in self._dates(start.date(), DAY):
            for at in self._times[skipped:] if day == start.date() else self._times:
                yield datetime.combine(day, at)

    def backwards(self, start: datetime) -> Iterator[datetime]:
        """The minutes it names at or before `start`, the latest first."""
        kept = bisect_right(self._times, start.time())
        for day in self._dates(start.date(), -DAY):
            for at in reversed(self._times[:kept] if day == start.date() else self._times):
                yield datetime.combine(day, at)

    @cached_property
    def _times(self) -> list[time]:
        """Of a day."""
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
    """Read an expression; whatever is wrong with it is said in a sentence."""
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
    """What contains it."""
    return {"minute": "hour", "hour": "day", "month": "year", "day of the week": "week"}.get(
        field.name, "month"
    )


def _refuse(text: str, field: Field, part: str, why: str) -> NoReturn:
    raise ConfigurationError(f"cron {text!r}: {field.name} {part!r}: {why}")


def _next_month(day: date) -> date:
    return (day.replace(day=28) + timedelta(days=4)).replace(day=1)
