"""The values that settings of a feed may have; who gives another is told what would be right."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from datetime import timedelta
from typing import Final

from stepfast.clock import Duration, duration
from stepfast.errors import ConfigurationError

TABLE: Final = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)?", re.ASCII)
COLUMN: Final = re.compile(r"[A-Za-z_]\w*", re.ASCII)
LONGEST_VERSION: Final = 200


def checked_number(name: str, value: object, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise ConfigurationError(f"{name}={value!r}: a whole number from 1 to {most:,}")
    return value


def checked_count(name: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ConfigurationError(f"{name}={value!r}: a number of rows, or None for any")
    return value


def checked_switch(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise ConfigurationError(f"{name}={value!r:.80}: True or False")
    return value


def checked_span(name: str, value: Duration) -> timedelta:
    found = duration(value, name)
    if not found:
        raise ConfigurationError(f"{name}={value!r}: more than no time at all; '30m' is half an hour")
    return found


def checked_share(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise ConfigurationError(f"{name}={value!r}: a share of the rows, from 0 to 1; 0.05 is one in twenty")
    return float(value)


def checked_text(name: str, value: object) -> str | None:
    if value is not None and (not isinstance(value, str) or not value.strip()):
        raise ConfigurationError(f"{name}={value!r}: a text, or leave it out")
    return value


def checked_version(name: str, value: object) -> str:
    text = checked_text(name, str(value)) or ""
    if len(text) > LONGEST_VERSION:
        raise ConfigurationError(f"{name} has {len(text):,} characters; at most {LONGEST_VERSION} fit")
    return text


def checked_fields(name: str, value: object) -> tuple[str, ...]:
    """One text is one field."""
    fields = (value,) if isinstance(value, str) else value
    if not isinstance(fields, Collection) or not all(isinstance(it, str) and it for it in fields):
        raise ConfigurationError(f"{name}={value!r:.80}: names of fields, such as ['seen_at']")
    return tuple(fields)


def checked_columns(name: str, value: str | Sequence[str]) -> tuple[str, ...]:
    if not isinstance(value, Collection):
        raise ConfigurationError(f"{name}={value!r:.80}: a column, or a list of them")
    columns = (value,) if isinstance(value, str) else tuple(value)
    if not columns or len(set(columns)) < len(columns):
        raise ConfigurationError(f"{name}={value!r}: one column or more, each once")
    return tuple(checked_identifier(name, it, COLUMN) for it in columns)


def checked_identifier(what: str, value: object, pattern: re.Pattern[str]) -> str:
    if not isinstance(value, str) or not pattern.fullmatch(value):
        raise ConfigurationError(
            f"{what}={value!r}: letters, digits and _, as the database has it"
            + ("; set table, if the feed's name is not the table's" if what == "table" else "")
        )
    return value
