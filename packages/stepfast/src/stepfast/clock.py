"""Durations, instants and ids.

Instants are stored as integers of microseconds since 1970 (UTC), so that one comparison serves three
databases. The database's clock is the only one that decides; this process's own clocks measure spans.
"""

from __future__ import annotations

import math
import os
import re
import struct
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Final, NewType

from stepfast.errors import ConfigurationError

Micros = NewType("Micros", int)
Duration = (
    timedelta | float | str
)  # what callers may write: a timedelta, seconds, or "90s", "10m", "2h", "1d"

LONGEST_DURATION: Final = 100  # characters of a duration as a text
_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION: Final = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)\s*")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_LAST: Final = datetime(9999, 1, 1, tzinfo=UTC)  # a datetime ends with that year
# What is shown for a stored instant that no datetime can hold; in every time zone a datetime can hold these.
_TOO_EARLY: Final = datetime(1, 1, 2, tzinfo=UTC)
_TOO_LATE: Final = datetime(9999, 12, 31, tzinfo=UTC)
_BOOTTIME: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def duration(value: Duration, what: str = "duration") -> timedelta:
    """Read a duration as people write it; `what` names the setting in the error."""
    try:
        span = _span(value, what)
    except (OverflowError, ValueError) as error:
        raise ConfigurationError(f"{what}: {value!r} is longer than time itself ({error})") from error
    if span < timedelta(0):
        raise ConfigurationError(f"{what}: {value!r} is negative; a duration counts forwards")
    if span > _LAST - datetime.now(UTC):
        raise ConfigurationError(f"{what}: {value!r} from now lies beyond the year 9999")
    return span


def _span(value: Duration, what: str) -> timedelta:
    if isinstance(value, timedelta):
        return value
    if isinstance(value, str):
        if len(value) > LONGEST_DURATION:
            raise ConfigurationError(
                f"{what}: a text of {len(value):,} characters is not a duration; write '500ms', '90s', '10m', '2h' or '1d'"
            )
        parts = _DURATION.findall(value)
        if not parts or _DURATION.sub("", value):
            raise ConfigurationError(
                f"{what}: {value!r} is not a duration; write '500ms', '90s', '10m', '2h' or '1d'"
            )
        return timedelta(seconds=sum(float(number) * _UNITS[unit] for number, unit in parts))
    given: object = value  # whatever its type says
    if isinstance(given, bool) or not isinstance(given, int | float) or math.isnan(given):
        raise ConfigurationError(
            f"{what}: {value!r} is not a duration; use seconds, a timedelta or a text such as '10m'"
        )
    return timedelta(seconds=given)


def micros(span: timedelta) -> Micros:
    return Micros((span.days * 86_400 + span.seconds) * 1_000_000 + span.microseconds)


def instant(at: datetime, what: str = "run_at") -> Micros:
    """Cross from a datetime to a stored instant; a naive one is refused, because its time zone is unknown."""
    if not isinstance(at, datetime):
        raise ConfigurationError(f"{what}: {at!r} is not a datetime; use one such as datetime.now(UTC)")
    if at.tzinfo is None:
        raise ConfigurationError(
            f"{what}: {at!r} has no time zone; use an aware datetime such as datetime.now(UTC)"
        )
    if at >= _LAST:
        raise ConfigurationError(f"{what}: {at!r} lies beyond the year 9999")
    return micros(at - _EPOCH)


def moment(at: int) -> datetime:
    """Cross from a stored instant to an aware datetime; one that a datetime cannot hold becomes the first or last that it can."""
    try:
        return _EPOCH + timedelta(microseconds=at)
    except OverflowError:  # written by hand, for example in nanoseconds
        return _TOO_EARLY if at < 0 else _TOO_LATE
    except TypeError:  # a text, which only SQLite takes
        return _TOO_LATE


def boot_time() -> float:
    """Seconds that also pass while the machine is suspended: what a lease is measured with locally."""
    return time.clock_gettime(_BOOTTIME)


def spoken(span: timedelta) -> str:
    """A span as a person writes it: 450 ms, 12 s, 3 min, 2 h, 5 d."""
    seconds = span.total_seconds()
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s" if seconds >= 2 else f"{seconds * 1000:.0f} ms"  # noqa: PLR2004 - below two seconds, milliseconds


def short_id(job_id: str) -> str:
    """The last eight digits of an id that Stepfast made; the first ones are the same for all of one minute."""
    return job_id[-8:] if len(job_id) == 36 and job_id.count("-") == 4 else job_id  # noqa: PLR2004 - a UUID


class _Sequence:
    """UUIDv7 that never goes backwards inside a process, so that ids keep the order of their making.

    48 bits of milliseconds, then 12 + 14 bits that count up inside a millisecond, then 48 random bits.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last = 0

    def unlock(self) -> None:
        self._lock = threading.Lock()

    def take(self, count: int) -> list[str]:
        with self._lock:
            first = max(time.time_ns() // 1_000_000 << 26, self._last + 1)
            self._last = first + count - 1
        tails = iter(os.urandom(6 * count).hex("-", 6).split("-"))
        ids: list[str] = []
        while len(ids) < count:
            ids += _format(first + len(ids), count - len(ids), tails)
        return ids


def _format(ticks: int, most: int, tails: Iterator[str]) -> list[str]:
    """The ids from `ticks` on that begin alike: written together, each takes a quarter of a microsecond."""
    low = 0x8000 | ticks & 0x3FFF
    count = min(most, 0xC000 - low)
    stamp = f"{ticks >> 26:012x}"
    head = f"{stamp[:8]}-{stamp[8:]}-7{ticks >> 14 & 0xFFF:03x}"
    counted = struct.pack(f">{count}H", *range(low, low + count)).hex("-", 2).split("-")
    return [f"{head}-{number}-{tail}" for number, tail in zip(counted, tails, strict=False)]


_ids: Final = _Sequence()
if hasattr(os, "register_at_fork"):  # a child may be born while another thread of its parent takes an id
    os.register_at_fork(after_in_child=_ids.unlock)


def new_id() -> str:
    return _ids.take(1)[0]


def new_ids(count: int) -> list[str]:
    return _ids.take(count)


def new_fence() -> int:
    """A new token: 63 random bits, never zero."""
    return int.from_bytes(os.urandom(8), "big") >> 1 or 1


def utc(at: datetime, what: str) -> datetime:
    """The same instant in UTC; a naive datetime is refused."""
    instant(at, what)
    return at.astimezone(UTC)


def counted(number: int, one: str, many: str | None = None) -> str:
    """A number with its noun: "1 job", "3 jobs"."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"
