"""Record the events that are reported while a test runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from stepfast.telemetry import EVENTS, Fact, listen, unlisten

Told = list[tuple[str, dict[str, Fact]]]


@contextmanager
def hearing() -> Iterator[Told]:
    """`with hearing() as told`: every reported event with its fields, in order."""
    told: Told = []

    def hear(event: str, facts: Mapping[str, Fact]) -> None:
        told.append((event, dict(facts)))

    listen(hear, EVENTS)
    try:
        yield told
    finally:
        unlisten(hear)


def named(told: Told, event: str) -> list[dict[str, Fact]]:
    """The fields of every event of this name."""
    return [facts for name, facts in told if name == event]
