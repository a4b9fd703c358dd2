"""Durations as people write them: "1m30s", seconds, or a timedelta."""

from __future__ import annotations

import re
from datetime import timedelta

Duration = timedelta | float | str

LONGEST = 100  # characters of a duration as a text
_UNITS = {"ms": 0.001, "s": 1, "m": 60, "h": 3_600, "d": 86_400}
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")


def duration(value: Duration, what: str = "duration") -> timedelta:
    """Read a duration; `what` names the setting in the error."""
    if isinstance(value, timedelta):
        span = value
    elif isinstance(value, str):
        if len(value) > LONGEST:
            raise ValueError(f"{what}: a text of {len(value):,} characters is no duration")
        text = value.replace(" ", "")
        parts = _PART.findall(text)
        if not parts or "".join(number + unit for number, unit in parts) != text:
            raise ValueError(f"{what}: {value!r} is no duration; write it like 500ms, 30s, 5m or 1h30m")
        span = timedelta(seconds=sum(float(number) * _UNITS[unit] for number, unit in parts))
    else:
        span = timedelta(seconds=value)
    if span < timedelta(0):
        raise ValueError(f"{what}: {value!r} is negative; a duration counts forwards")
    return span
