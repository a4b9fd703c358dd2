"""Azure Storage Queue: cheap and durable, without duplicate detection, long polling or dead letters of its own.

So we bring the rest: dead letters are a second queue, `<queue>-poison`; a receive asks again and again, more rarely
while the queue is empty. A pop receipt fences only against a newer receive: a holder whose time is over may still end
a message that nobody has received since. The lease in the database is the fence.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from stepfast.errors import ConfigurationError
from stepfast.transports.azure_failures import told_as_ours
from stepfast.transports.checking import MOST_DELIVERIES, TOO_OFTEN, check_messages, check_queue
from stepfast.transports.contract import (
    MOST_AT_ONCE,
    Abilities,
    Delivery,
    Depth,
    Outgoing,
    Transport,
)
from stepfast.transports.failures import DeliveryLostError, TransportRefusedError
from stepfast.transports.identity import async_credential
from stepfast.transports.storage_queue_format import LARGEST_TEXT, Parts, packed, packed_dead
from stepfast.transports.storage_queue_requests import (
    LONGEST,
    NAME,
    Receipt,
    all_or_raise,
    aware,
    create,
    delay,
    delivery_of,
    open_service,
    seconds,
)

if TYPE_CHECKING:
    from azure.storage.queue.aio import QueueClient, QueueServiceClient

POISON: Final = "-poison"
LONGEST_NAME: Final = 63 - len(POISON)
LARGEST_BODY: Final = 60 * 1024  # of 64; the rest is for the id, the subject and the properties
STUMBLED: Final = 500  # the status of a page that the service cannot write
CAREFUL: Final = 60.0  # seconds
SIDE_BY_SIDE: Final = 16  # requests at a time
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 2.0  # seconds between two looks at an empty queue


class StorageQueueTransport(Transport):
    """One account's queues: by its connection string, or by its name and the identity of this machine."""

    name = NAME

    def __init__(
        self,
        *,
        connection_string: str = "",
        account: str = "",
        most_deliveries: int = MOST_DELIVERIES,
        **client_options: Any,  # of the SDK: connection_verify=, transport=, …
    ) -> None:
        if bool(connection_string) == bool(account):
            raise ConfigurationError(
                "storage-queue: give the connection string, or the account, and not both"
            )
        self._connection_string = connection_string
        self._account = account
        self._options = client_options
        self._service: QueueServiceClient | None = None
        self._credential: Any = None
        self._pauses: dict[str, float] = {}
        self._one_by_one: dict[str, float] = {}  # until when, on our own clock
        self._held: dict[tuple[str, str], Delivery] = {}
        self.most_deliveries = most_deliveries
        self.abilities = Abilities(
            largest_body=LARGEST_BODY,
            detects_duplicates=False,
            longest_wait=timedelta(0),
            longest_hold=LONGEST,
            most_deliveries=most_deliveries,
        )

    async def open(self) -> None:
        if self._account:
            self._credential = async_credential()
        self._service = open_service(self._connection_string, self._account, self._credential, self._options)

    async def close(self) -> None:
        if self._service is None:
            return
        await asyncio.gather(*map(self.release, list(self._held.values())), return_exceptions=True)
        self._held.clear()
        service, self._service = self._service, None
        await service.close()
        if self._credential is not None:
            await self._credential.close()

    async def ensure(self, queue: str) -> None:
        check_queue(NAME, queue)
        if len(queue) > LONGEST_NAME:
            raise TransportRefusedError(
                NAME, f"queue {queue!r}: at most {LONGEST_NAME} characters, since {POISON!r} is added to it"
            )
        for name in (queue, queue + POISON):
            async with self._asking(name) as client:
                await create(client)

    async def send(self, queue: str, messages: Sequence[Outgoing]) -> None:
        check_messages(NAME, self.abilities, messages)
        texts = [
            packed(Parts(id=it.id, body=it.body, properties=it.properties, subject=it.subject))
            for it in messages
        ]
        for it, text in zip(messages, texts, strict=True):
            if (size := len(text.encode())) > LARGEST_TEXT:
                raise TransportRefusedError(
                    NAME,
                    f"message {it.id}: it takes {size:,} bytes with its properties, at most {LARGEST_TEXT:,} fit",
                )
        delays = [delay(it) for it in messages]
        limit = asyncio.Semaphore(SIDE_BY_SIDE)

        async def send_one(it: Outgoing, text: str, hidden_for: int) -> None:
            async with limit, self._asking(queue) as client:
                await client.send_message(
                    text,
                    visibility_timeout=hidden_for or None,
                    # By default a message vanishes after a week, without a word.
                    time_to_live=-1 if it.lives_for is None else seconds(it.lives_for),
                )

        await all_or_raise([send_one(*given) for given in zip(messages, texts, delays, strict=True)])

    async def receive(self, queue: str, *, at_most: int, wait: timedelta, hold: timedelta) -> list[Delivery]:
        until = time.monotonic() + wait.total_seconds()
        while True:
            if found := await self._take(queue, queue, at_most, hold):
                self._pauses.pop(queue, None)
                return found
            rest = until - time.monotonic()
            if rest <= 0:
                return []
            pause = self._pauses.get(queue, FIRST_PAUSE)
            self._pauses[queue] = min(LONGEST_PAUSE, pause * 1.5)
            await asyncio.sleep(min(rest, pause))

    async def renew(self, delivery: Delivery, hold: timedelta) -> Delivery:
        receipt: Receipt = delivery.receipt
        async with self._asking(receipt.place, delivery) as client:
            found = await client.update_message(
                receipt.message_id, receipt.pop_receipt, visibility_timeout=seconds(hold)
            )
        # The old receipt is worth nothing from now on.
        renewed = replace(
            delivery,
            held_until=aware(found.next_visible_on),
            receipt=replace(receipt, pop_receipt=str(found.pop_receipt)),
        )
        self._held[receipt.place, receipt.message_id] = renewed
        return renewed

    async def complete(self, delivery: Delivery) -> None:
        receipt: Receipt = delivery.receipt
        async with self._asking(receipt.place, delivery) as client:
            await client.delete_message(receipt.message_id, receipt.pop_receipt)
        self._held.pop((receipt.place, receipt.message_id), None)

    async def release(self, delivery: Delivery, after: timedelta = timedelta(0)) -> None:
        receipt: Receipt = delivery.receipt
        async with self._asking(receipt.place, delivery) as client:
            await client.update_message(
                receipt.message_id, receipt.pop_receipt, visibility_timeout=seconds(after, least=0)
            )
        self._held.pop((receipt.place, receipt.message_id), None)

    async def dead_letter(self, delivery: Delivery, reason: str, detail: str = "") -> None:
        # First look whether it is still ours: a late holder must not put aside what another works on.
        delivery = await self.renew(self._newest(delivery), timedelta(seconds=60))
        sent_at = delivery.sent_at.isoformat() if delivery.sent_at else ""
        text = packed_dead(
            Parts(
                id=delivery.id,
                body=delivery.body,
                properties=delivery.properties,
                subject=delivery.subject,
                dead={"reason": reason, "detail": detail, "sent_at": sent_at},
            )
        )
        async with self._asking(delivery.queue + POISON) as client:
            # A stranger's text that leaves no room for the reason is kept without it.
            await client.send_message(text or delivery.receipt.text, time_to_live=-1)
        await self.complete(delivery)

    async def dead_letters(self, queue: str, *, at_most: int, hold: timedelta) -> list[Delivery]:
        return await self._take(queue, queue + POISON, at_most, hold)

    async def depth(self, queue: str) -> Depth:
        """Storage Queue counts what is held or scheduled with what is ready."""
        async with self._asking(queue) as client:
            ready = await client.get_queue_properties()
        async with self._asking(queue + POISON) as client:
            dead = await client.get_queue_properties()
        return Depth(ready=ready.approximate_message_count or 0, dead=dead.approximate_message_count or 0)

    def _newest(self, delivery: Delivery) -> Delivery:
        """With the receipt that counts: a try to put it aside may have renewed it, and got no further."""
        found = self._held.get((delivery.receipt.place, delivery.receipt.message_id), delivery)
        return found if found.attempt == delivery.attempt else delivery  # another may have received it since

    async def _take(self, queue: str, place: str, at_most: int, hold: timedelta) -> list[Delivery]:
        def look_at(response: Any) -> None:
            if response.http_response.status_code == STUMBLED:
                self._one_by_one[place] = time.monotonic() + 2 * hold.total_seconds() + CAREFUL

        # One text that no XML can carry makes the service stumble over its whole page: the others come one by one.
        alone = self._one_by_one.get(place, 0.0) > time.monotonic()
        # By page: the plain iterator would go on for ever while there are messages.
        async with self._asking(place) as client:
            pages = client.receive_messages(
                messages_per_page=1 if alone else min(at_most, MOST_AT_ONCE),
                visibility_timeout=seconds(hold),
                raw_response_hook=look_at,
            ).by_page()
            page = await anext(pages, None)
            messages = [] if page is None else [it async for it in page]
        found = []
        for it in messages:
            delivery = delivery_of(it, queue, place, hold)
            self._held[place, it.id] = delivery
            if place == queue and delivery.attempt > self.most_deliveries:
                with suppress(DeliveryLostError):
                    await self.dead_letter(
                        delivery, TOO_OFTEN, f"not ended after {self.most_deliveries} deliveries"
                    )
                continue
            found.append(delivery)
        return found

    @asynccontextmanager
    async def _asking(self, queue: str, delivery: Delivery | None = None) -> AsyncIterator[QueueClient]:
        """The client of a queue; what it raises inside becomes one of our three sentences."""
        if self._service is None:
            raise TransportRefusedError(NAME, "the transport is not open")
        try:
            with told_as_ours(NAME, queue, delivery):
                yield self._service.get_queue_client(queue)
        except DeliveryLostError:
            if delivery is not None:
                self._held.pop((delivery.receipt.place, delivery.receipt.message_id), None)
            raise
