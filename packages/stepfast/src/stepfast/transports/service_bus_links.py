"""Senders and receivers of Service Bus that stay open: making one takes half a second.

A receiver serves one receive at a time, so there are as many as there were receives side by side. Messages are ended
over any of them: a lock belongs to no link. A call of the SDK is never cancelled in the middle, because it may have read
half a frame; a caller that is cancelled leaves it to end by itself.

Also here: what the errors of the SDK mean.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from azure.core.exceptions import AzureError, ClientAuthenticationError
from azure.servicebus import ServiceBusSubQueue
from azure.servicebus.exceptions import (
    MessageAlreadySettled,
    MessageLockLostError,
    MessageNotFoundError,
    MessageSizeExceededError,
    MessagingEntityDisabledError,
    MessagingEntityNotFoundError,
    ServiceBusAuthenticationError,
    ServiceBusAuthorizationError,
)

from stepfast.transports.contract import (
    DeliveryLostError,
    TransportError,
    TransportRefusedError,
    TransportUnavailableError,
)

if TYPE_CHECKING:
    from azure.servicebus.aio import ServiceBusClient, ServiceBusReceiver, ServiceBusSender

    from stepfast.transports.contract import Delivery


# Errors of the SDK as our own: unavailable, refused, or delivery lost.

NAME: Final = "service-bus"
LOST: Final = (MessageLockLostError, MessageAlreadySettled, MessageNotFoundError)
REFUSED: Final = (
    ClientAuthenticationError,
    MessageSizeExceededError,
    MessagingEntityDisabledError,
    MessagingEntityNotFoundError,
    ServiceBusAuthenticationError,
    ServiceBusAuthorizationError,
)
# ValueError: a link that was closed meanwhile. RuntimeError: the SDK's word for a link that broke.
UNAVAILABLE: Final = (AzureError, OSError, TimeoutError, ValueError, RuntimeError)


@contextmanager
def raised_as_ours(queue: str, delivery: Delivery | None = None) -> Iterator[None]:
    """Raise errors of the SDK as our own; they name the queue, or the message that is lost."""
    try:
        yield
    except TransportError:
        raise
    except LOST as error:
        if delivery is None:
            raise TransportUnavailableError(NAME, f"queue {queue}: {error}") from error
        raise DeliveryLostError(NAME, queue, delivery.id) from error
    except REFUSED as error:
        raise TransportRefusedError(NAME, f"queue {queue}: {_said(error)}") from error
    except UNAVAILABLE as error:
        raise TransportUnavailableError(NAME, f"queue {queue}: {_said(error)}") from error


def may_work_again(error: BaseException) -> bool:
    """Whether the link may be to blame, and not the request."""
    return isinstance(error, UNAVAILABLE) and not isinstance(error, (*LOST, *REFUSED))


def _said(error: Exception) -> str:
    """The error with the reason inside it: about a refused token the SDK says nothing itself."""
    inner = getattr(error, "inner_exception", None)
    told = [str(it).strip() for it in (error, inner) if it is not None]
    return "; ".join(dict.fromkeys(filter(None, told))) or type(error).__name__


# Links.

OPENING: Final = 30.0  # seconds
ASKING: Final = 30.0
CLOSING: Final = 5.0
A_MOMENT: Final = 0.02  # seconds, for what is under way already

T = TypeVar("T")
L = TypeVar("L", "ServiceBusSender", "ServiceBusReceiver")


class SubQueue(NamedTuple):
    """The messages of a queue, or its dead letters."""

    queue: str
    dead: bool = False


class Links:
    """The open senders and receivers of one client."""

    def __init__(self, client: ServiceBusClient) -> None:
        self._client = client
        self._senders: dict[str, ServiceBusSender] = {}
        self._sending: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._idle: defaultdict[SubQueue, list[ServiceBusReceiver]] = defaultdict(list)
        self._open: defaultdict[SubQueue, list[ServiceBusReceiver]] = defaultdict(list)
        self._sockets: dict[object, Any] = {}
        self._tasks: set[asyncio.Task[Any]] = set()

    async def with_sender(self, queue: str, use: Callable[[ServiceBusSender], Awaitable[T]]) -> T:
        """Use the sender of this queue, one caller at a time; once more with a new one if a kept one is broken."""
        return await asyncio.shield(self.in_background(self._with_sender(queue, use)))

    async def with_receiver(
        self, place: SubQueue, use: Callable[[ServiceBusReceiver], Awaitable[T]], preferred: object = None
    ) -> T:
        """Renew, end or peek with a receiver; other callers may receive with it meanwhile."""
        return await asyncio.shield(self.in_background(self._with_receiver(place, use, preferred)))

    @asynccontextmanager
    async def lone_receiver(self, place: SubQueue) -> AsyncIterator[ServiceBusReceiver]:
        """A receiver for one caller alone."""
        receiver = self._idle[place].pop() if self._idle[place] else await self._new_receiver(place)
        try:
            yield receiver
        except BaseException:
            self.retire(place, receiver)
            raise
        if receiver in self._open[place]:
            self._idle[place].append(receiver)

    async def quieten(self, place: SubQueue, receiver: ServiceBusReceiver) -> None:
        """Ask for no more messages than came.

        After a receive that got fewer than it asked for the broker still owes us the rest, and would send it to a
        receiver that does not look: the SDK gives such messages back, up to five seconds later. It has no word of its
        own for this; if its inside has changed, we close the receiver instead.
        """
        link, connection = (
            _inside(receiver, "_handler", "_link"),
            _inside(receiver, "_handler", "_connection"),
        )
        try:
            owed = link.current_link_credit
            if owed > 0:
                await link.flow(link_credit=0)
                await connection.listen(wait=A_MOMENT, batch=owed)  # what was under way is given back at once
        except (AttributeError, TypeError, *UNAVAILABLE):
            self.retire(place, receiver)

    def retire(self, place: SubQueue, receiver: ServiceBusReceiver) -> None:
        """Stop using a receiver, and close it in the background."""
        for known in (self._open[place], self._idle[place]):
            if receiver in known:
                known.remove(receiver)
        self.in_background(self._closed(receiver))

    def in_background(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # its caller may be gone

    async def close(self) -> None:
        await asyncio.gather(*self._tasks, return_exceptions=True)
        links: list[Any] = [*self._senders.values(), *(it for found in self._open.values() for it in found)]
        self._senders.clear()
        self._open.clear()
        self._idle.clear()
        await asyncio.gather(*map(self._closed, links), return_exceptions=True)

    async def _with_sender(self, queue: str, use: Callable[[ServiceBusSender], Awaitable[T]]) -> T:
        async with self._sending[queue]:
            kept = self._senders.get(queue)
            try:
                if kept is not None:
                    return await in_time(use(kept))
            except UNAVAILABLE as error:
                self._forget_sender(queue)
                if not may_work_again(error):
                    raise
            self._senders[queue] = sender = await self._opened(self._client.get_queue_sender(queue))
            try:
                return await in_time(use(sender))
            except UNAVAILABLE:
                self._forget_sender(queue)
                raise

    async def _with_receiver(
        self, place: SubQueue, use: Callable[[ServiceBusReceiver], Awaitable[T]], preferred: object
    ) -> T:
        kept = next((it for it in self._open[place] if it is preferred), None)
        if kept is None and self._open[place]:
            kept = self._open[place][0]
        if kept is not None:
            try:
                return await in_time(use(kept))
            except UNAVAILABLE as error:
                if not may_work_again(error):
                    raise
                self.retire(place, kept)
        return await in_time(use(await self._new_receiver(place, idle=True)))

    def _forget_sender(self, queue: str) -> None:
        if (sender := self._senders.pop(queue, None)) is not None:
            self.in_background(self._closed(sender))

    async def _new_receiver(self, place: SubQueue, *, idle: bool = False) -> ServiceBusReceiver:
        dead = ServiceBusSubQueue.DEAD_LETTER if place.dead else None
        receiver = await self._opened(self._client.get_queue_receiver(place.queue, sub_queue=dead))
        self._open[place].append(receiver)
        if idle:
            self._idle[place].append(receiver)
        return receiver

    async def _opened(self, link: L) -> L:
        """Open a link now: a receive would count the opening as waiting, and with a short wait never succeed."""
        try:
            async with asyncio.timeout(OPENING):
                await link.__aenter__()
        except BaseException:
            await self._closed(link)
            raise
        self._sockets[link] = _inside(link, "_handler", "_connection", "_transport")
        return link

    async def _closed(self, link: ServiceBusSender | ServiceBusReceiver) -> None:
        """Close a link and its socket, which the SDK leaves open where a connection broke."""
        for end in (link, self._sockets.pop(link, None)):
            with suppress(*UNAVAILABLE):
                async with asyncio.timeout(CLOSING):
                    if end is not None:
                        await end.close()


async def in_time(asked: Awaitable[T]) -> T:
    async with asyncio.timeout(ASKING):
        return await asked


def _inside(start: object, *names: str) -> Any:
    found: Any = start
    for name in names:
        found = getattr(found, name, None)
    return found
