"""Numbers and spans of time as variables of the environment have them: one way to read them for all who do."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Final

from stepfast.clock import duration
from stepfast.errors import ConfigurationError

MOST_RETRIES: Final = 1_000
_SECONDS: Final = re.compile(r"[0-9]+(\.[0-9]+)?")


def span(text: str, what: str) -> timedelta:
    """Such as 30s, 10m or 2h; a bare number means seconds."""
    written = text.strip()
    found = duration(float(written) if _SECONDS.fullmatch(written) else written, what)
    if not found:
        raise ConfigurationError(f"{what}: no time at all; write 30s, 10m or a number of seconds")
    return found


def retries(text: str, what: str) -> int:
    """How often to try again."""
    written = text.strip()
    if not re.fullmatch(r"[0-9]{1,9}", written) or int(written) > MOST_RETRIES:
        raise ConfigurationError(f"{what}: {written!r:.40} is no whole number from 0 to {MOST_RETRIES}")
    return int(written)
