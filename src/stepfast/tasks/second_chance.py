"""Messages that the broker put aside because they were delivered too often, and that the database never heard of.

Whoever received them died before the job was stored, which says nothing about the task. So each becomes a job after all,
and the database decides about it. What we put aside ourselves stays where it is.

All of them are looked at, which takes a while: the intake waits for none of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from stepfast.errors import DatabaseError
from stepfast.tasks.holding import Held, Holding
from stepfast.telemetry import happened
from stepfast.transports.checking import TOO_OFTEN
from stepfast.transports.contract import MOST_AT_ONCE
from stepfast.transports.failures import TransportError

if TYPE_CHECKING:
    from stepfast.tasks.outages import Outages
    from stepfast.tasks.storing import Stored
    from stepfast.transports.contract import Transport

MOST: Final = 1_000  # looked at in one pass: what we refused lies in front of what is worn out
EVERY: Final = 300.0  # seconds from the end of a pass to the next one

Store = Callable[[Sequence[Held]], Awaitable[Mapping[Held, "Stored"] | None]]


@dataclass(frozen=True, kw_only=True)
class SecondChance:
    """For what was put aside of one queue. It holds its messages apart: they take no room from others."""

    transport: Transport
    queue: str
    hold: timedelta
    store: Store
    stopping: asyncio.Event

    async def until_stopped(self, outages: Outages) -> None:
        """One pass after the other, with long pauses."""
        while not self.stopping.is_set():
            try:
                await self.give()
            except (TransportError, DatabaseError) as error:
                outages.trouble(error)
            except Exception as error:  # noqa: BLE001 - the letters stay where they are, and tasks are taken all the same
                happened(
                    "worker.failed", error=error, note=f"dead letters of {self.queue} were not looked at"
                )
            await outages.pause(EVERY, EVERY)

    async def give(self) -> int:
        """One pass: store what was worn out and can be read; returns how many."""
        holding = Holding(self.transport, self.hold)
        over = asyncio.Event()
        renewing = asyncio.create_task(holding.renew_until(over))
        try:
            return await self._give(holding)
        finally:
            over.set()
            await renewing

    async def _give(self, holding: Holding) -> int:
        passed: list[Held] = []  # held until the end: they would come again and again
        count = 0
        try:
            while len(passed) < MOST and not self.stopping.is_set():
                found = await self.transport.dead_letters(self.queue, at_most=MOST_AT_ONCE, hold=holding.hold)
                if not found:
                    return count
                aside = [holding.take(it) for it in found]
                passed += aside
                done = await self._stored([it for it in aside if it.delivery.dead_reason == TOO_OFTEN])
                await asyncio.gather(*(holding.complete(it) for it in done))
                passed = [it for it in passed if it not in done]
                count += len(done)
            if not self.stopping.is_set():
                happened("letters.skipped", queue=self.queue, looked_at=len(passed))
        finally:
            await asyncio.gather(*(holding.release(it) for it in passed))
        return count

    async def _stored(self, worn_out: Sequence[Held]) -> set[Held]:
        """Those that are jobs now."""
        stored = await self.store(worn_out) if worn_out else None  # None: asked to stop
        return {it for it in worn_out if stored and it in stored and stored[it].refused is None}
