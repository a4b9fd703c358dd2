"""Send and receive messages, by a transport of ours or by the bare SDK; print (sent, received) a second.

`python -m benchmarks.subjects.messages ours|bare service-bus|storage-queue|database|memory QUEUE COUNT`

Connection strings come from the environment, as for any program. Links are opened before the clock starts.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, closing, suppress
from datetime import timedelta
from typing import Any

from stepfast import Stepfast
from stepfast.clock import new_id
from stepfast.transports.contract import MOST_AT_ONCE, Outgoing, Transport
from stepfast.transports.open import open_transport, transport_settings

LOT = 100  # messages of one send
HOLD = timedelta(minutes=2)
WAIT = timedelta(seconds=5)
BODY = json.dumps(
    {
        "type": "WORK_ITEM",
        "runId": new_id(),
        "traceId": new_id(),
        "partitionId": "partition-7",
        "minPrice": 1000,
        "maxPrice": 2000,
        "totalRecords": 900,
        "offset": 30,
        "limit": 30,
        "schemaVersion": 1,
        "epoch": 0,
    }
)

Send = Callable[[int], Awaitable[None]]  # so many messages
Take = Callable[[], Awaitable[int]]  # receive some and complete them; how many


async def measure(send: Send, take: Take, count: int) -> tuple[float, float]:
    await send(1)
    await take()  # links are open now
    began = time.monotonic()
    for lot in range(0, count, LOT):
        await send(min(LOT, count - lot))
    sent = time.monotonic()
    done = 0
    while done < count:
        done += await take()
    return count / (sent - began), count / (time.monotonic() - sent)


async def ours(transport: Transport, queue: str, count: int) -> tuple[float, float]:
    async with transport:
        await transport.ensure(queue)

        async def send(number: int) -> None:
            await transport.send(queue, [Outgoing(id=new_id(), body=BODY) for _ in range(number)])

        async def take() -> int:
            found = await transport.receive(queue, at_most=MOST_AT_ONCE, wait=WAIT, hold=HOLD)
            await asyncio.gather(*(transport.complete(it) for it in found))
            return len(found)

        return await measure(send, take, count)


async def bare_service_bus(queue: str, count: int) -> tuple[float, float]:
    from azure.servicebus import ServiceBusMessage
    from azure.servicebus.aio import ServiceBusClient

    text = os.environ["AZURE_SERVICE_BUS_CONNECTION_STRING"]
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(ServiceBusClient.from_connection_string(text))
        sender = await stack.enter_async_context(client.get_queue_sender(queue))
        receiver = await stack.enter_async_context(client.get_queue_receiver(queue))

        async def send(number: int) -> None:
            await sender.send_messages([ServiceBusMessage(BODY, message_id=new_id()) for _ in range(number)])

        async def take() -> int:
            found: Sequence[Any] = await receiver.receive_messages(
                max_message_count=MOST_AT_ONCE, max_wait_time=WAIT.total_seconds()
            )
            await asyncio.gather(*(receiver.complete_message(it) for it in found))
            return len(found)

        return await measure(send, take, count)


async def bare_storage_queue(queue: str, count: int) -> tuple[float, float]:
    from azure.core.exceptions import ResourceExistsError
    from azure.storage.queue.aio import QueueClient

    text = os.environ["AZURE_STORAGE_CONNECTION_STRING"]
    async with QueueClient.from_connection_string(text, queue) as client:
        with suppress(ResourceExistsError):
            await client.create_queue()

        async def send(number: int) -> None:
            await asyncio.gather(*(client.send_message(BODY) for _ in range(number)))

        async def take() -> int:
            found: list[Any] = []
            pages = client.receive_messages(
                messages_per_page=MOST_AT_ONCE, visibility_timeout=int(HOLD.total_seconds())
            ).by_page()
            async for page in pages:
                found = [it async for it in page]
                break
            await asyncio.gather(*(client.delete_message(it) for it in found))
            return len(found)

        return await measure(send, take, count)


def main() -> None:
    who, name, queue, count = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
    if who == "bare":
        work = {"service-bus": bare_service_bus, "storage-queue": bare_storage_queue}[name]
        rates = asyncio.run(work(queue, count))
    elif name == "database":
        with closing(Stepfast()) as app:
            settings = transport_settings(database=app.database)
            rates = asyncio.run(ours(open_transport("database://", settings), queue, count))
    else:
        rates = asyncio.run(ours(open_transport(f"{name}://"), queue, count))
    print(json.dumps(rates))


if __name__ == "__main__":
    main()
