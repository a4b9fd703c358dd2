"""Hear what is reported while a test runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from stepfast.telemetry import EVENTS, Fact, listen, unlisten

Told = list[tuple[str, dict[str, Fact]]]


@contextmanager
def hearing() -> Iterator[Told]:
    """`with hearing() as told`: every event, with its fields, in the order of their telling."""
    told: Told = []

    def hear(event: str, facts: Mapping[str, Fact]) -> None:
        told.append((event, dict(facts)))

    listen(hear, EVENTS)
    try:
        yield told
    finally:
        unlisten(hear)


def named(told: Told, event: str) -> list[dict[str, Fact]]:
    """The fields of each time that this was told."""
    return [facts for name, facts in told if name == event]
