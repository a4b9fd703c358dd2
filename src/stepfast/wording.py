"""Numbers in sentences."""

from __future__ import annotations


def counted(number: int, one: str, many: str | None = None) -> str:
    """ "1 job", "3 jobs"."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"
