"""While the broker or the database is away: said once, tried again after growing pauses, and said when all is well."""

from __future__ import annotations

import asyncio
import math
import random
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from stepfast.errors import DatabaseError
from stepfast.telemetry import happened

if TYPE_CHECKING:
    from stepfast.errors import StepfastError


LONGEST: Final = 60.0  # seconds that whoever wants one message waits: somebody looks at the exit code


class Outages:
    """Those of one intake."""

    def __init__(
        self, transport: str, queue: str, stopping: asyncio.Event, *, longest: float = math.inf
    ) -> None:
        self._transport = transport
        self._queue = queue
        self._stopping = stopping
        self._longest = longest
        self._since: float | None = None

    def trouble(self, error: StepfastError) -> None:
        """Raises it if the outage lasts for longer than anybody waits."""
        if self._since is not None:
            if time.monotonic() > self._since + self._longest:
                raise error
            return
        self._since = time.monotonic()
        if isinstance(error, DatabaseError):
            happened("database.lost", error=error, note="no tasks are taken")
        else:
            happened("broker.lost", transport=self._transport, queue=self._queue, error=error)

    def well(self) -> None:
        if self._since is not None:
            self._since = None
            happened("broker.recovered", transport=self._transport, queue=self._queue)

    async def pause(self, seconds: float, longest: float) -> float:
        """Wait, unless we are asked to stop; returns how long to wait the next time."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), min(seconds, longest) * random.uniform(0.8, 1.0))
        return min(2 * seconds, longest)
