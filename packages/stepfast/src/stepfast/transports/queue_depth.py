"""How many messages the queues of a broker have, reported again and again for metrics."""

from __future__ import annotations

import asyncio
import random
import time
from typing import TYPE_CHECKING, Final

from stepfast.telemetry import happened
from stepfast.telemetry.sinks import wanted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepfast.transports.contract import Transport

EVERY: Final = 30.0  # seconds between looks
SHARE: Final = (
    20  # a look rests so many times what it took: some brokers can only be counted message by message
)


async def report_depth(transport: Transport, queues: Sequence[str]) -> None:
    """Report `broker.measured` for each queue, until cancelled. Nothing is asked while no listener wants to know."""
    while True:
        began = time.monotonic()
        if wanted("broker.measured"):
            for queue in queues:
                await _report(transport, queue)
        pause = max(EVERY, SHARE * (time.monotonic() - began))
        await asyncio.sleep(pause * random.uniform(0.9, 1.1))


async def _report(transport: Transport, queue: str) -> None:
    try:
        depth = await transport.depth(queue)
    except Exception:  # noqa: BLE001 - no figures; the part that receives reports that the broker is away
        return
    happened(
        "broker.measured",
        transport=transport.name,
        queue=queue,
        ready=depth.ready,
        held=depth.held,
        scheduled=depth.scheduled,
        dead=depth.dead,
    )
