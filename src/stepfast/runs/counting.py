"""Count what a frontier asks for, a few ranges at the same time.

A step of a limited feed was let in for one request. For the others it takes the next places of the same limits, and
asks when their time has come. If one of them fails, all of the step has failed: nothing is learned from the others. So
while a source is in trouble it is asked for one after the other: of six counts one fails six times as often.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from stepfast.database.database import persist
from stepfast.limits.reserving import reserve
from stepfast.runs.asking import answer_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepfast.database.database import Database
    from stepfast.runs.declaration import Declaration
    from stepfast.runs.partitioning.contract import Frontier
    from stepfast.runs.ranges import Range
    from stepfast.runs.window import Window

LONGEST_WAIT: Final = timedelta(seconds=1)  # of a step for its places


async def count_next(
    database: Database,
    declared: Declaration,
    window: Window,
    frontier: Frontier,
    *,
    admitted: int = 1,
    troubled: bool = False,
) -> tuple[Frontier, int]:
    """The frontier with the answers, and how many requests that took. `admitted`: those that need no place any more."""
    asked = frontier.ask()[: 1 if troubled else None]
    waits = [0.0] * len(asked)
    if declared.limits and len(asked) > admitted:
        further = await asyncio.to_thread(_places, database, declared, len(asked) - admitted)
        waits = [*waits[:admitted], *further]
    if asked and not waits:
        await asyncio.sleep(LONGEST_WAIT.total_seconds())
    counts = await _counted(declared, window, asked[: len(waits)], waits)
    return frontier.learn(counts), len(counts)


def _places(database: Database, declared: Declaration, most: int) -> list[float]:
    return persist(database, lambda tx: reserve(tx, declared.limits, declared.name, most, LONGEST_WAIT))


async def _counted(
    declared: Declaration, window: Window, asked: Sequence[Range], waits: Sequence[float]
) -> dict[str, int]:
    """All of them, in their order, or the first failure. Whoever still asks then is stopped, and waited for."""

    async def count(part: Range, wait: float) -> Any:
        if wait:
            await asyncio.sleep(wait)
        return await answer_of(declared.feed.count, part, window)

    tasks = [asyncio.ensure_future(count(*it)) for it in zip(asked, waits, strict=True)]
    try:
        if tasks:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
    finally:
        for it in tasks:
            it.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for it in tasks:  # in their order: the same trouble is told the same way each time
        if not it.cancelled() and (error := it.exception()) is not None:
            raise error
    return {part.name: it.result() for part, it in zip(asked, tasks, strict=True)}
