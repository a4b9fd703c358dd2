"""Messages that the broker put aside because they were delivered too often, and that the database never heard of.

Whoever received them died before the job was stored, which says nothing about the task. So each becomes a job after all,
and the database decides about it. What we put aside ourselves stays where it is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from holdfast.transports.checking import TOO_OFTEN
from holdfast.transports.contract import MOST_AT_ONCE

if TYPE_CHECKING:
    from holdfast.tasks.holding import Held, Holding
    from holdfast.tasks.storing import Stored
    from holdfast.transports.contract import Transport

MOST: Final = 5_000  # passed in one pass: what we refused lies in front of what is worn out

Store = Callable[[Sequence["Held"]], Awaitable[Mapping["Held", "Stored"] | None]]


async def give_second_chance(transport: Transport, holding: Holding, queue: str, store: Store) -> int:
    """Store what was worn out and can be read; returns how many."""
    passed: list[Held] = []  # held until the end: they would come again and again
    count = 0
    try:
        while len(passed) < MOST:
            found = await transport.dead_letters(queue, at_most=MOST_AT_ONCE, hold=holding.hold)
            if not found:
                break
            aside = [holding.take(it) for it in found]
            passed += aside
            worn_out = [it for it in aside if it.delivery.dead_reason == TOO_OFTEN]
            stored = await store(worn_out) if worn_out else {}
            done = {it for it in worn_out if stored and it in stored and stored[it].refused is None}
            await asyncio.gather(*(holding.complete(it) for it in done))
            passed = [it for it in passed if it not in done]
            count += len(done)
            if stored is None:
                break  # asked to stop
    finally:
        await asyncio.gather(*(holding.release(it) for it in passed))
    return count
