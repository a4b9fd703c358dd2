"""How numbers of things, partitions and times are said about a run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from datetime import datetime

NAMED: Final = 5  # partitions that are named; of the others their number is told


def partitions_named(numbers: tuple[int, ...]) -> str:
    named = ", ".join(f"partition-{it}" for it in numbers[:NAMED])
    rest = len(numbers) - NAMED
    return f"{named} and {rest} more" if rest > 0 else named


def some(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def are(count: int, one: str = "is", many: str = "are") -> str:
    return one if count == 1 else many


def clock_time(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M:%S} UTC"
