"""The messages that an intake holds: renewed while they are needed, then completed, put aside or given back.

Renewing and ending one message never overlap: with some brokers only the newest receipt ends it. All of this runs on the
event loop of the intake.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from stepfast.clock import new_id
from stepfast.telemetry import happened
from stepfast.transports.contract import (
    DeliveryLostError,
    Outgoing,
    TransportError,
    TransportRefusedError,
    TransportUnavailableError,
)

if TYPE_CHECKING:
    from stepfast.tasks.store import StoredMessage
    from stepfast.transports.contract import Delivery, Transport


SHARE: Final = 3  # a message is renewed when a third of its time has passed
SHORTEST: Final = 0.05  # seconds between looks at what is to be renewed
LONGEST_REASON: Final = 1_000
FIRST_SENT: Final = "stepfastFirstSent"  # properties of a message that takes the place of another
DEATHS: Final = "stepfastDeaths"
TRIES: Final = 5  # to end a message while the broker does not answer
PAUSE: Final = 1.0  # seconds between them


@dataclass(eq=False)
class HeldMessage:
    """A message that this process holds, and its task if it is held until that has ended."""

    delivery: Delivery
    span: float  # seconds that one renewal gives
    renewed: float  # monotonic
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    over: bool = False  # ended or lost: nothing more is done with the message
    task: StoredMessage | None = None  # set: the message is held until this task has ended
    task_ended: bool = False
    at_work: bool = False  # its task has a slot of the worker, or wants one
    missing: int = 0  # looks in a row that found no job of the task

    @property
    def renewal_due(self) -> float:
        return self.renewed + self.span / SHARE

    @property
    def task_unfinished(self) -> bool:
        """Whether nothing is known of the end of its task, if it has one."""
        return self.task is not None and not self.task_ended


class HeldMessages:
    """Messages of one transport."""

    def __init__(self, transport: Transport, hold: timedelta, *, deaths_count: bool = False) -> None:
        self._transport = transport
        self._deaths_count = deaths_count  # a message that was delivered too often is taken for deadly
        self._messages: set[HeldMessage] = set()
        self.hold = min(hold, transport.abilities.longest_hold)  # how long a receive or a renewal asks for
        self.lost_tasks = 0  # messages that another consumer has by now, before their tasks had ended

    def __len__(self) -> int:
        return len(self._messages)

    def __iter__(self) -> Iterator[HeldMessage]:
        return iter(list(self._messages))

    @property
    def at_work(self) -> int:
        """How many messages have a task that was at work when last looked at."""
        return sum(message.at_work for message in self._messages)

    def take(self, delivery: Delivery) -> HeldMessage:
        """Hold a message from now on."""
        given = (delivery.held_until - datetime.now(UTC)).total_seconds()
        asked = self.hold.total_seconds()
        span = asked if self._transport.abilities.chooses_hold else min(max(given, 1.0), asked)
        message = HeldMessage(delivery, span, time.monotonic())
        self._messages.add(message)
        return message

    def hold_for(self, message: HeldMessage, task: StoredMessage) -> None:
        """Hold a message until its task has ended."""
        message.task, message.at_work = task, True
        self.lost_tasks += message.over  # lost while it was stored

    async def renew_until(self, stopped: asyncio.Event) -> None:
        """Renew each message when it is due."""
        while not stopped.is_set():
            due = [message for message in self._messages if message.renewal_due <= time.monotonic()]
            await asyncio.gather(*(self._renew(message) for message in due))
            # Never longer than it takes for a message that is taken meanwhile to become due.
            spans = (message.span / SHARE for message in self._messages)
            longest = min([1.0, self.hold.total_seconds() / SHARE, *spans])
            soonest = min((it.renewal_due for it in self._messages), default=time.monotonic() + longest)
            pause = min(longest, max(SHORTEST, soonest - time.monotonic()))
            try:
                await asyncio.wait_for(stopped.wait(), pause)
            except TimeoutError:
                continue

    async def _renew(self, message: HeldMessage) -> bool:
        """Hold a message for longer; whether the broker confirms that it is still ours."""
        async with message.lock:
            if message.over:
                return False
            try:
                message.delivery = await self._transport.renew(message.delivery, self.hold)
            except TransportUnavailableError:
                message.renewed += SHORTEST  # tried again soon; if that takes too long, another gets it
                return False
            except TransportError as error:
                self._lose(message, error)
                return False
            message.renewed = time.monotonic()
            return True

    async def complete(self, message: HeldMessage) -> bool:
        """Remove a message at the broker: the database has what it says."""
        return await self._end(message, self._transport.complete)

    async def put_aside(self, message: HeldMessage, reason: str, detail: str = "") -> bool:
        """Move a message to the dead letters of the broker."""

        async def dead_letter(newest: Delivery) -> None:
            await self._transport.dead_letter(newest, reason[:LONGEST_REASON], detail[:LONGEST_REASON])

        return await self._end(message, dead_letter)

    async def release(self, message: HeldMessage) -> bool:
        """Let other consumers have a message. The broker counts this delivery."""
        return await self._end(message, self._transport.release, tries=1)

    async def give_back(self, message: HeldMessage) -> bool:
        """Release a message when the worker stops in good order, which must not be counted as the death of a worker.

        The broker counts a release as a delivery. So a message that was given back before is sent as a new message.
        """
        if not self._deaths_count or not self._goes_anew(message.delivery):
            return await self.release(message)
        if not await self._renew(message):  # another consumer may have it by now: it is his to give back
            return await self.release(message)
        try:
            return await self._end(message, self._replacement(message.delivery))
        except NotSentError:
            return await self.release(message)

    async def give_back_all(self) -> int:
        """Give back all messages that are still held; returns how many the broker took back."""
        return sum(await asyncio.gather(*(self.give_back(message) for message in self)))

    def _goes_anew(self, delivery: Delivery) -> bool:
        """Whether the message was given back before, or its next delivery would be taken for the last."""
        most = self._transport.abilities.most_deliveries
        next_to_last = most is not None and delivery.attempt + deaths_before(delivery) + 1 >= most
        return delivery.attempt > 1 or next_to_last

    def _replacement(self, delivery: Delivery) -> Callable[[Delivery], Awaitable[None]]:
        """A way to end a message: send it as a new one, once, and remove the old one.

        A death in between leaves both messages, and both say the same task, which is done once.
        """
        again, sent = sent_anew(delivery), False

        async def replace(newest: Delivery) -> None:
            nonlocal sent
            if not sent:
                try:
                    await self._transport.send(delivery.queue, [again])
                except TransportError as error:
                    raise NotSentError from error
                sent = True
            await self._transport.complete(newest)

        return replace

    async def _end(
        self, message: HeldMessage, end: Callable[[Delivery], Awaitable[None]], tries: int = TRIES
    ) -> bool:
        """Whether the broker confirmed the end. If it did not, the message comes again, and finds its job."""
        async with message.lock:
            if message.over:
                return False
            for left in reversed(range(tries)):
                try:
                    await end(message.delivery)
                except TransportUnavailableError as error:
                    if left:
                        await asyncio.sleep(PAUSE)
                        continue
                    self._lose(message, error)
                    return False
                except (DeliveryLostError, TransportRefusedError) as error:
                    self._lose(message, error)
                    return False
                break
            self._drop(message)
            return True

    def _lose(self, message: HeldMessage, error: TransportError) -> None:
        self.lost_tasks += message.task_unfinished
        self._drop(message)
        happened("message.lost", queue=message.delivery.queue, message_id=message.delivery.id, error=error)

    def _drop(self, message: HeldMessage) -> None:
        message.over = True
        self._messages.discard(message)


class NotSentError(Exception):
    """The message that should have taken the place of another could not be sent."""


def sent_anew(delivery: Delivery) -> Outgoing:
    """The message under a new id, which no broker takes for a repetition. Deaths of workers go on counting.

    The first of its deliveries may have been given back as well: it is not counted as a death.
    """
    first = delivery.properties.get(FIRST_SENT) or (delivery.sent_at.isoformat() if delivery.sent_at else "")
    kept = {FIRST_SENT: first, DEATHS: deaths_before(delivery) + max(0, delivery.attempt - 2)}
    return Outgoing(
        id=new_id(),
        body=delivery.body,
        properties={**delivery.properties, **kept},
        subject=delivery.subject,
    )


def deaths_before(delivery: Delivery) -> int:
    """How many workers died of a message before it was sent anew as this one."""
    found = delivery.properties.get(DEATHS)
    return found if isinstance(found, int) and found > 0 else 0
