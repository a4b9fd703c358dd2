"""A receive that is cancelled ends at any moment, so that a stopping worker does not hang."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from stepfast.transports.memory import MemoryTransport

QUEUE = "south-tasks"


@pytest.mark.parametrize("turns", range(5))
def test_a_receive_that_is_cancelled_while_its_bell_rings_ends(turns: int) -> None:
    """asyncio.wait_for swallows it, if what it waits for is over by then."""

    async def scene() -> bool:
        transport = MemoryTransport()
        await transport.ensure(QUEUE)
        wait = timedelta(seconds=1)
        asking = asyncio.create_task(transport.receive(QUEUE, at_most=1, wait=wait, hold=wait))
        await asyncio.sleep(0.01)
        (bell,) = transport.broker.find(QUEUE).waiting
        bell.rung.set()
        for _ in range(turns):
            await asyncio.sleep(0)
        asking.cancel()
        await asyncio.wait({asking}, timeout=0.2)
        ended = asking.done()
        asking.cancel()
        return ended

    assert asyncio.run(scene())
