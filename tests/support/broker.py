"""Runs and tasks over a broker in this process, and ways to let that broker misbehave.

shop = brokered(app)                   # the catalogue of tests/support/feeds.py, over a broker of its own
run = app.runs.start("catalogue")
with app.worker():
    ended(app, run.id)
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from stepfast.clock import new_id
from stepfast.runs.broker import Broker
from stepfast.tasks.envelope import queue_of
from stepfast.tasks.intake import Intake, IntakeSettings
from stepfast.transports.contract import Delivery, Depth, Outgoing
from stepfast.transports.memory import MemoryBroker, MemoryTransport, named_broker
from tests.support import rows
from tests.support.failing_runs import run_row
from tests.support.feeds import Catalogue, Shop, prepare

if TYPE_CHECKING:
    from stepfast import Stepfast
    from stepfast.admin.run_reports import RunReport
    from stepfast.tasks.intake import Acknowledge


T = TypeVar("T")

WORK_ITEMS, CONSOLIDATE, WORK_DONE = "work-items", "consolidate", "work-done"
PATIENT = "1h"  # a head start that no test waits for: what is taken was told


def brokered(app: Stepfast, *, items: int = 100, head_start: str = PATIENT, **settings: Any) -> Shop:
    """A shop whose catalogue is read over a broker of its own."""
    broker = Broker(f"memory://{new_id()}", head_start=head_start)
    shop = Shop.with_items(items)
    app.feed(Catalogue(shop, **({"transport": broker} | settings)))
    prepare(app)
    return shop


def broker_of(app: Stepfast, feed: str = "catalogue") -> Broker:
    found = app.feeds.get(feed).broker
    assert found is not None
    return found


def inside(app: Stepfast) -> MemoryBroker:
    """The broker in memory behind a feed."""
    return named_broker(broker_of(app).url.removeprefix("memory://"))


def transport(app: Stepfast) -> MemoryTransport:
    """Another client of that broker."""
    return MemoryTransport(inside(app))


def there(app: Stepfast, queue: str = WORK_ITEMS) -> list[Outgoing]:
    """The messages in a queue, held ones included."""
    return [it.message for it in inside(app).queues[queue].live.kept.values()]


def put_aside(app: Stepfast, queue: str = WORK_ITEMS) -> dict[str, str]:
    """The reasons of a queue's dead letters, by message id."""
    return {it.message.id: it.dead_reason for it in inside(app).queues[queue].dead.kept.values()}


def put(app: Stepfast, *bodies: dict[str, Any] | str, queue: str = WORK_ITEMS) -> list[str]:
    """Send messages as any other program could; returns their ids."""
    messages = [Outgoing(id=new_id(), body=it if isinstance(it, str) else json.dumps(it)) for it in bodies]

    async def send() -> None:
        sender = transport(app)
        await sender.ensure(queue)
        await sender.send(queue, messages)

    asyncio.run(send())
    return [it.id for it in messages]


def run_now(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(work)


def staged(app: Stepfast, kind: str = "WORK_ITEM") -> list[dict[str, Any]]:
    """The broker messages of the outbox, each with the id that the broker sees."""
    found = []
    for row in rows.query(
        app, "SELECT body, headers FROM stepfast_outbox WHERE channel = 'broker' ORDER BY seq"
    ):
        body, headers = json.loads(row["body"]), json.loads(row["headers"])
        if body["type"] == kind:
            found.append(
                body | {"id": headers["message-id"], "properties": json.loads(headers["properties"])}
            )
    return found


def ended(app: Stepfast, run_id: str, patience: float = 40.0) -> RunReport:
    """Wait until a run has ended."""

    def look() -> RunReport | None:
        found = run_row(app, run_id)
        return found if found.ended_at is not None else None

    return rows.eventually(look, patience)


def end_head_starts(app: Stepfast) -> None:
    """End the head start of all ready jobs, so that every worker may take them."""
    rows.change(app, "UPDATE stepfast_job SET ready_at = 1 WHERE state = 'ready'")


def bodies(messages: Sequence[Outgoing]) -> list[dict[str, Any]]:
    return [json.loads(it.body) for it in messages]


CLIENT = "south"
QUEUE = queue_of(CLIENT)


@dataclass
class TaskQueue:
    """The queue of one client, as programs outside of Stepfast use it."""

    memory: MemoryBroker

    def __post_init__(self) -> None:
        asyncio.run(self._transport().ensure(QUEUE))

    def send(self, *bodies: str, first: int = 1) -> None:
        """Send messages with the ids `m-1`, `m-2` and so on."""
        messages = [Outgoing(id=f"m-{first + at}", body=body) for at, body in enumerate(bodies)]
        asyncio.run(self._transport().send(QUEUE, messages))

    def task(self, task_type: str, task_id: str = "t-1", /, *, number: int = 1, **payload: Any) -> None:
        self.send(task_message(task_type, task_id, **payload), first=number)

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
        """A look: they are held for a moment only, in which a busy machine may see one twice."""
        look = self._transport().dead_letters(QUEUE, at_most=10, hold=timedelta(milliseconds=1))
        return list({it.id: it for it in asyncio.run(look)}.values())

    def _transport(self) -> MemoryTransport:
        return MemoryTransport(self.memory)


def task_message(
    task_type: str, task_id: str = "t-1", /, *, webhook_url: str | None = None, **payload: Any
) -> str:
    return json.dumps(
        {"task_id": task_id, "task_type": task_type, "payload": payload, "webhook_url": webhook_url}
    )


@contextmanager
def polling(
    app: Stepfast,
    broker: TaskQueue,
    acknowledge: Acknowledge = "stored",
    *,
    hold: timedelta = timedelta(minutes=1),
    concurrency: int = 4,
    most_deliveries: int = 5,
) -> Iterator[Intake]:
    """Run an intake and a worker until the block ends."""
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
