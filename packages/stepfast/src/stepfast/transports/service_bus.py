"""Azure Service Bus, by its own SDK.

The queue says how long a message is held (its lock, which `renew` makes run anew), how often it may be delivered, and
for how long ids are remembered: see docs/howto/azure-service-bus.md for how to set one up. A send whose acknowledgement
is lost is sent again with the same id, which a queue with duplicate detection swallows.

The open connections, and errors of the SDK as our own, are in `service_bus_links.py`; making and counting queues is in
`service_bus_administration.py`; the contract that all transports keep is `contract.py`, and `open.py` chooses the transport.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from stepfast.errors import ConfigurationError, install_hint
from stepfast.transports.body import text_of
from stepfast.transports.contract import (
    MOST_AT_ONCE,
    Abilities,
    Delivery,
    DeliveryLostError,
    Depth,
    Outgoing,
    Transport,
    TransportError,
    TransportRefusedError,
    TransportUnavailableError,
    check_messages,
    check_queue,
)

try:
    from azure.servicebus import ServiceBusMessage
    from azure.servicebus.amqp import AmqpMessageBodyType
    from azure.servicebus.exceptions import MessageSizeExceededError

    from stepfast.transports.service_bus_administration import Administration, counted_by_looking
    from stepfast.transports.service_bus_links import (
        NAME,
        REFUSED,
        UNAVAILABLE,
        Links,
        SubQueue,
        may_work_again,
        raised_as_ours,
    )
except ImportError as missing:
    raise ConfigurationError(f"Service Bus needs an extra: {install_hint('azure')}") from missing

if TYPE_CHECKING:
    from azure.core.credentials_async import AsyncTokenCredential
    from azure.servicebus import ServiceBusReceivedMessage
    from azure.servicebus.aio import ServiceBusClient, ServiceBusReceiver, ServiceBusSender

LARGEST: Final = 192 * 1024  # bytes of a body: a message may have 256 KiB, of which 64 KiB for properties
LONGEST_LOCK: Final = timedelta(minutes=5)  # that a queue can be set to
RENEWAL: Final = timedelta(seconds=30)  # at the latest, should our clock be behind the broker's
LONGEST_WAIT: Final = timedelta(minutes=1)
SHORTEST_WAIT: Final = 0.3  # seconds: a receive has to hear the answer to its own question
LONGEST_REASON: Final = 4_096  # characters that the service keeps of a reason
SLICE: Final = 1.0  # seconds of one receive of the SDK, which is never cancelled

T = TypeVar("T")


class ServiceBusTransport(Transport):
    """A namespace: by its connection string, or by its name and an identity (of this machine, if none is given)."""

    name = NAME
    abilities = Abilities(
        largest_body=LARGEST,
        detects_duplicates=True,
        longest_wait=LONGEST_WAIT,
        longest_hold=LONGEST_LOCK,
        chooses_hold=False,
    )

    def __init__(
        self,
        *,
        connection_string: str = "",
        namespace: str = "",
        credential: AsyncTokenCredential | None = None,
    ) -> None:
        self._administration = Administration(connection_string, namespace, credential)
        self._client: ServiceBusClient | None = None
        self._opened: Links | None = None
        self._held: dict[str, Delivery] = {}  # by the token of the lock
        self._receiving: set[asyncio.Event] = set()  # an event is set when its receive has no caller any more
        self._waiting: dict[str, asyncio.Task[None]] = {}  # by token: messages that are released later

    async def open(self) -> None:
        """Make the client. It connects when a queue is used: a token is for a queue, not for a namespace."""
        if self._client is None:
            # Without retries of its own: we try again with a new link, and keep none that broke.
            self._client = self._administration.client(retry_total=0)
            self._opened = Links(self._client)

    async def close(self) -> None:
        if self._client is None or self._opened is None:
            return
        for enough in self._receiving:
            enough.set()
        for task in list(self._waiting.values()):
            task.cancel()
        await asyncio.gather(*(self._give_back(it) for it in list(self._held.values())))
        self._held.clear()
        self._waiting.clear()
        await self._opened.close()
        await self._client.close()
        await self._administration.close()
        self._client = self._opened = None

    async def ensure(self, queue: str) -> None:
        """Create the queue; where we may not, check that a sender or a receiver can be opened."""
        check_queue(NAME, queue)
        if await self._administration.create(queue):
            return
        with raised_as_ours(queue):
            try:
                await self._links.with_sender(queue, nothing)
            except REFUSED:
                await self._links.with_receiver(SubQueue(queue), nothing)

    async def send(self, queue: str, messages: Sequence[Outgoing]) -> None:
        check_messages(NAME, self.abilities, messages)
        if not messages:
            return
        with raised_as_ours(queue):
            await self._links.with_sender(queue, lambda sender: send_all(sender, messages))

    async def receive(self, queue: str, *, at_most: int, wait: timedelta, hold: timedelta) -> list[Delivery]:
        del hold  # the queue decides
        return await self._receive(SubQueue(queue), at_most, min(wait, LONGEST_WAIT))

    async def dead_letters(self, queue: str, *, at_most: int, hold: timedelta) -> list[Delivery]:
        del hold
        return await self._receive(SubQueue(queue, dead=True), at_most, timedelta(0))

    async def renew(self, delivery: Delivery, hold: timedelta) -> Delivery:
        del hold
        receipt: Receipt = delivery.receipt
        until = await self._with_link(delivery, lambda receiver: receiver.renew_message_lock(receipt.message))
        renewed = replace(delivery, held_until=until)
        if (token := _token(delivery)) in self._held:
            self._held[token] = renewed
        return renewed

    async def complete(self, delivery: Delivery) -> None:
        await self._end(delivery, "complete_message")

    async def release(self, delivery: Delivery, after: timedelta = timedelta(0)) -> None:
        """Release a message. The service knows no delay: we hold the message for so long; a crash brings it back earlier."""
        if after <= timedelta(0):
            await self._end(delivery, "abandon_message")
            return
        renewed = await self.renew(delivery, after)  # raises at once if it is lost
        task = self._links.in_background(self._give_back_after(renewed, after))
        self._waiting[_token(delivery)] = task

    async def dead_letter(self, delivery: Delivery, reason: str, detail: str = "") -> None:
        words = {"reason": reason[:LONGEST_REASON], "error_description": detail[:LONGEST_REASON]}
        await self._end(delivery, "dead_letter_message", **words)

    async def depth(self, queue: str) -> Depth:
        """The size of a queue. The service counts held messages as ready; we know only those that we hold."""
        self._forget_lapsed()
        ours = sum(it.queue == queue and not it.receipt.place.dead for it in self._held.values())
        counted = await self._administration.count(queue)
        if counted is None:
            live, dead = await self._look(SubQueue(queue)), await self._look(SubQueue(queue, dead=True))
            counted = Depth(ready=live.ready, scheduled=live.scheduled, dead=dead.ready)
        return replace(counted, ready=max(0, counted.ready - ours))

    # -- one delivery

    async def _receive(self, place: SubQueue, at_most: int, wait: timedelta) -> list[Delivery]:
        with raised_as_ours(place.queue):
            try:
                found = await self._receive_apart(place, at_most, wait)
            except UNAVAILABLE as error:  # a link that was kept may have died meanwhile
                if not may_work_again(error):
                    raise
                found = await self._receive_apart(place, at_most, wait)
        deliveries = [from_service_bus(it, place.queue) for it in found]
        self._forget_lapsed()
        self._held.update({_token(it): it for it in deliveries})
        return deliveries

    async def _receive_apart(self, place: SubQueue, at_most: int, wait: timedelta) -> list[Receipt]:
        """Receive in a task that is never cancelled; if the caller is, messages that come later are given back."""
        enough = asyncio.Event()
        self._receiving.add(enough)
        most = min(at_most, MOST_AT_ONCE)
        receiving = self._links.in_background(self._receive_until(place, most, wait, enough))
        receiving.add_done_callback(lambda _: self._receiving.discard(enough))
        try:
            return await asyncio.shield(receiving)
        except asyncio.CancelledError:
            enough.set()
            self._links.in_background(self._give_back_all(receiving))
            raise

    async def _receive_until(
        self, place: SubQueue, at_most: int, wait: timedelta, enough: asyncio.Event
    ) -> list[Receipt]:
        until = time.monotonic() + wait.total_seconds()
        async with self._links.lone_receiver(place) as receiver:
            found: list[ServiceBusReceivedMessage] = []
            while not (found or enough.is_set()):
                seconds = min(SLICE, max(SHORTEST_WAIT, until - time.monotonic()))
                found = await receiver.receive_messages(at_most, max_wait_time=seconds)
                if time.monotonic() >= until:
                    break
            if len(found) < at_most:
                await self._links.quieten(place, receiver)
            return [Receipt(place, receiver, it, str(it.lock_token)) for it in found]

    async def _give_back_all(self, receiving: asyncio.Task[list[Receipt]]) -> None:
        with suppress(*UNAVAILABLE):
            for receipt in await receiving:
                await self._give_back(from_service_bus(receipt, receipt.place.queue))

    async def _end(self, delivery: Delivery, how: str, **words: str) -> None:
        receipt: Receipt = delivery.receipt

        async def end(receiver: ServiceBusReceiver) -> None:
            await getattr(receiver, how)(receipt.message, **words)

        await self._with_link(delivery, end)
        self._held.pop(_token(delivery), None)

    async def _with_link(self, delivery: Delivery, use: Callable[[ServiceBusReceiver], Awaitable[T]]) -> T:
        """Use the link on which a message came, if it is still open, else another one."""
        receipt: Receipt = delivery.receipt
        try:
            with raised_as_ours(delivery.queue, delivery):
                return await self._links.with_receiver(receipt.place, use, receipt.receiver)
        except DeliveryLostError:
            self._held.pop(_token(delivery), None)
            raise

    async def _give_back_after(self, delivery: Delivery, after: timedelta) -> None:
        until = datetime.now(UTC) + after
        try:
            while (left := until - datetime.now(UTC)) > timedelta(0):
                half = min((delivery.held_until - datetime.now(UTC)) / 2, RENEWAL)
                await asyncio.sleep(max(0.05, min(left, half).total_seconds()))
                if left > half:
                    delivery = await self.renew(delivery, after)
            await self._end(delivery, "abandon_message")
        except TransportError:
            pass  # its lock ends by itself
        finally:
            self._waiting.pop(_token(delivery), None)

    async def _give_back(self, delivery: Delivery) -> None:
        with suppress(TransportError):  # then its lock ends by itself
            await self._end(delivery, "abandon_message")

    def _forget_lapsed(self) -> None:
        """Drop deliveries whose lock has ended: they are no longer ours."""
        now = datetime.now(UTC)
        for token in [token for token, it in self._held.items() if it.held_until < now]:
            del self._held[token]

    @property
    def _links(self) -> Links:
        if self._opened is None:
            raise TransportUnavailableError(NAME, "it is not open")
        return self._opened

    async def _look(self, place: SubQueue) -> Depth:
        with raised_as_ours(place.queue):
            return await self._links.with_receiver(place, counted_by_looking)


async def nothing(_: object) -> None:
    """Do nothing with a link: that it could be opened is enough."""


async def send_all(sender: ServiceBusSender, messages: Sequence[Outgoing]) -> None:
    """Send messages in as few transfers as they fit into."""
    batch = await sender.create_message_batch()
    for message in messages:
        it = to_service_bus(message)
        try:
            batch.add_message(it)
        except MessageSizeExceededError:
            # The batch is full; a message that does not fit into a new one is too large.
            await sender.send_messages(batch)
            batch = await sender.create_message_batch()
            batch.add_message(it)
    await sender.send_messages(batch)


def _token(delivery: Delivery) -> str:
    return str(delivery.receipt.token)


# Our messages as Service Bus writes them, and its messages as we read them.
#
# Others send to our queues too: a body may be of any kind, an id may be missing. The SDK gives texts of properties as
# bytes, and counts deliveries from 0.

OF_DEAD_LETTERS: Final = {"DeadLetterReason", "DeadLetterErrorDescription"}


@dataclass(frozen=True)
class Receipt:
    """What is needed to end a delivery."""

    place: SubQueue
    receiver: ServiceBusReceiver
    message: ServiceBusReceivedMessage
    token: str  # of the lock; a message that was ended no longer tells it


def to_service_bus(message: Outgoing) -> ServiceBusMessage:
    properties: dict[str | bytes, Any] = {
        name: _number(message, value) if type(value) is int else value
        for name, value in message.properties.items()
    }
    return ServiceBusMessage(
        message.body,
        message_id=message.id,
        subject=message.subject or None,
        application_properties=properties,
        scheduled_enqueue_time_utc=message.not_before,
        time_to_live=message.lives_for,
        content_type="application/json",
    )


def _number(message: Outgoing, value: int) -> Any:
    """A property with the type of its number, which the SDK would take for one of 32 bits."""
    if -(2**31) <= value < 2**31:
        return value
    if -(2**63) <= value < 2**63:
        return {"TYPE": "LONG", "VALUE": value}
    raise TransportRefusedError(NAME, f"message {message.id}: {value} has more than 64 bits")


def from_service_bus(receipt: Receipt, queue: str) -> Delivery:
    message = receipt.message
    properties = {
        _text(key): _text(value) if isinstance(value, bytes) else value
        for key, value in (message.application_properties or {}).items()
    }
    return Delivery(
        id=str(message.message_id or f"sequence-{message.sequence_number}"),
        body=body_of(message),
        queue=queue,
        attempt=(message.delivery_count or 0) + 1,
        held_until=message.locked_until_utc or datetime.now(UTC),
        properties={key: value for key, value in properties.items() if key not in OF_DEAD_LETTERS},
        subject=message.subject or "",
        sent_at=message.enqueued_time_utc,
        dead_reason=message.dead_letter_reason or "",
        dead_detail=message.dead_letter_error_description or "",
        receipt=receipt,
    )


def body_of(message: ServiceBusReceivedMessage) -> str:
    """The body as a text, also if the sender wrote bytes in one piece or several, a value, or rows of values."""
    match message.body_type:
        case AmqpMessageBodyType.DATA:
            return text_of(b"".join(cast("Iterable[bytes]", message.body)))
        case AmqpMessageBodyType.VALUE if isinstance(message.body, bytes):
            return text_of(message.body)
        case AmqpMessageBodyType.VALUE if isinstance(message.body, str):
            return message.body
        case AmqpMessageBodyType.VALUE:
            return json.dumps(_plain(message.body))
        case _:
            return json.dumps(_plain(list(cast("Iterable[Any]", message.body))))


def _text(value: str | bytes) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def _plain(value: Any) -> Any:
    """A value of AMQP as JSON can write it."""
    match value:
        case bytes():
            return _text(value)
        case Mapping():
            return {str(_plain(key)): _plain(item) for key, item in value.items()}
        case list() | tuple():
            return [_plain(item) for item in value]
        case str() | int() | float() | None:
            return value
        case _:
            return str(value)
