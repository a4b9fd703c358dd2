"""Ranges are counted a few at the same time: all of them, or none."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from stepfast.errors import OutageError
from stepfast.runs.partitioning.partitioners import Fixed
from stepfast.runs.plan import count_next
from stepfast.runs.window import Window
from tests.support.feeds import price_ranges

RANGES = price_ranges(250, 500)  # three of them, which is what a step counts
NAMES = [it.name for it in RANGES]
WINDOW = Window(None, datetime(2026, 5, 1, tzinfo=UTC))

Count = Callable[[Any, Any], Awaitable[int]]


def asking(count: Count) -> Any:
    declared: Any = SimpleNamespace(feed=SimpleNamespace(count=count), limits=(), name="shop")
    nobody: Any = None  # without limits there is nobody to ask for a place
    return count_next(nobody, declared, WINDOW, Fixed(RANGES, counted=True).start(WINDOW))


def test_ranges_are_asked_for_at_the_same_time_and_told_in_their_order() -> None:
    together = asyncio.Barrier(len(RANGES))
    ended: list[str] = []

    async def count(part: Any, _: Any) -> int:
        async with together:  # nobody passes before all have come
            pass
        for _ in range(len(NAMES) - NAMES.index(part.name)):
            await asyncio.sleep(0)
        ended.append(part.name)
        return NAMES.index(part.name)

    frontier, asked = asyncio.run(asking(count))

    assert asked == 3
    assert ended == NAMES[::-1]
    assert [(it.range.name, it.estimate) for it in frontier.plan().partitions] == list(
        zip(NAMES, range(3), strict=True)
    )


def test_one_that_fails_is_the_failure_of_all_and_the_others_are_stopped() -> None:
    stopped: list[str] = []

    async def count(part: Any, _: Any) -> int:
        if part.name == NAMES[1]:
            raise OutageError("the source is away")
        try:
            await asyncio.Event().wait()
        finally:
            stopped.append(part.name)
        return 0

    with pytest.raises(OutageError, match="the source is away"):
        asyncio.run(asking(count))

    assert stopped == [NAMES[0], NAMES[2]]


def test_of_several_failures_the_first_in_their_order_is_told() -> None:
    async def count(part: Any, _: Any) -> int:
        raise OutageError(part.name)

    with pytest.raises(OutageError, match=NAMES[0]):
        asyncio.run(asking(count))


def test_who_is_cancelled_leaves_nobody_asking() -> None:
    stopped: list[str] = []

    async def count(part: Any, _: Any) -> int:
        try:
            await asyncio.Event().wait()
        finally:
            stopped.append(part.name)
        return 0

    async def cancelled() -> int:
        work = asyncio.ensure_future(asking(count))
        for _ in range(3):
            await asyncio.sleep(0)
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work
        return len(asyncio.all_tasks()) - 1

    assert asyncio.run(cancelled()) == 0
    assert stopped == NAMES
