"""While the broker or the database is away: said once, tried again after growing pauses, and said when all is well."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from typing import TYPE_CHECKING

from holdfast.errors import DatabaseError
from holdfast.telemetry import happened

if TYPE_CHECKING:
    from holdfast.errors import HoldfastError


class Outages:
    """Those of one intake."""

    def __init__(self, transport: str, queue: str, stopping: asyncio.Event) -> None:
        self._transport = transport
        self._queue = queue
        self._stopping = stopping
        self._troubled = False

    def trouble(self, error: HoldfastError) -> None:
        if self._troubled:
            return
        self._troubled = True
        if isinstance(error, DatabaseError):
            happened("database.lost", error=error, note="no tasks are taken")
        else:
            happened("broker.lost", transport=self._transport, queue=self._queue, error=error)

    def well(self) -> None:
        if self._troubled:
            self._troubled = False
            happened("broker.recovered", transport=self._transport, queue=self._queue)

    async def pause(self, seconds: float, longest: float) -> float:
        """Wait, unless we are asked to stop; returns how long to wait the next time."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), min(seconds, longest) * random.uniform(0.8, 1.0))
        return min(2 * seconds, longest)
