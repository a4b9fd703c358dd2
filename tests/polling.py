"""A worker and its intake inside this process, over a broker that the test holds in its hands."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from stepfast.tasks.envelope import queue_of
from stepfast.tasks.intake import Intake, IntakeSettings
from stepfast.transports.contract import Delivery, Depth, Outgoing
from stepfast.transports.memory import MemoryBroker, MemoryTransport

if TYPE_CHECKING:
    from stepfast import Stepfast
    from stepfast.tasks.intake import Acknowledge

CLIENT = "south"
QUEUE = queue_of(CLIENT)


@dataclass
class Broker:
    """What others see of the queue."""

    memory: MemoryBroker

    def __post_init__(self) -> None:
        asyncio.run(self._transport().ensure(QUEUE))

    def send(self, *bodies: str, first: int = 1) -> None:
        """Each under an id of its own: `m-1`, `m-2` and so on."""
        messages = [Outgoing(id=f"m-{first + at}", body=body) for at, body in enumerate(bodies)]
        asyncio.run(self._transport().send(QUEUE, messages))

    def task(self, task_type: str, task_id: str = "t-1", /, *, number: int = 1, **payload: Any) -> None:
        self.send(said(task_type, task_id, **payload), first=number)

    def receive(self) -> list[Delivery]:
        wait = timedelta(0)
        return asyncio.run(self._transport().receive(QUEUE, at_most=10, wait=wait, hold=timedelta(minutes=1)))

    def depth(self) -> Depth:
        return asyncio.run(self._transport().depth(QUEUE))

    @property
    def empty(self) -> bool:
        found = self.depth()
        return not found.ready and not found.held

    def dead(self) -> list[Delivery]:
        return asyncio.run(self._transport().dead_letters(QUEUE, at_most=10, hold=timedelta(milliseconds=1)))

    def _transport(self) -> MemoryTransport:
        return MemoryTransport(self.memory)


def said(task_type: str, task_id: str = "t-1", /, *, webhook_url: str | None = None, **payload: Any) -> str:
    return json.dumps(
        {"task_id": task_id, "task_type": task_type, "payload": payload, "webhook_url": webhook_url}
    )


@contextmanager
def polling(
    app: Stepfast,
    broker: Broker,
    acknowledge: Acknowledge = "stored",
    *,
    hold: timedelta = timedelta(minutes=1),
    concurrency: int = 4,
    most_deliveries: int = 5,
) -> Iterator[Intake]:
    """Both of them, until the block ends."""
    settings = IntakeSettings(
        client=CLIENT, acknowledge=acknowledge, hold=hold, concurrency=concurrency, poll=timedelta(seconds=1)
    )
    transport = MemoryTransport(broker.memory, most_deliveries=most_deliveries)
    intake = Intake(app, transport, settings, ended=lambda: None)
    with app.worker(queues=QUEUE, concurrency=concurrency, grace="2s"):
        intake.start()
        try:
            yield intake
        finally:
            intake.stop_taking()
    intake.leave(timedelta(0))
