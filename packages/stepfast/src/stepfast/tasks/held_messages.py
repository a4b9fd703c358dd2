"""Messages that we hold: kept from others while we need them, then ended in one of three ways.

Renewing and ending one message never overlap: with some brokers only the newest receipt ends it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
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
    from stepfast.transports.contract import Delivery, Transport


SHARE: Final = 3  # a message is renewed when a third of its time has passed
SHORTEST: Final = 0.05  # seconds between looks at what is to be renewed
LONGEST_REASON: Final = 1_000
FIRST_SENT: Final = "stepfastFirstSent"  # properties of a message that takes the place of another
DEATHS: Final = "stepfastDeaths"
PAUSE: Final = 1.0  # seconds between tries to end a message while the broker does not answer


class NotSentError(Exception):
    """The message that should have taken the place of another."""


@dataclass(eq=False)
class Held:
    """One message of ours."""

    delivery: Delivery
    span: float  # seconds that one renewal gives
    renewed: float  # monotonic
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    over: bool = False  # ended or lost: nothing more is done with it

    @property
    def due(self) -> float:
        return self.renewed + self.span / SHARE


class Holding:
    """All of them. Everything here runs on one event loop."""

    def __init__(self, transport: Transport, hold: timedelta, *, deaths_count: bool = False) -> None:
        self._transport = transport
        self._deaths_count = deaths_count  # a message that was delivered too often is taken for deadly
        self._hold = min(hold, transport.abilities.longest_hold)
        self._held: set[Held] = set()

    def __len__(self) -> int:
        return len(self._held)

    @property
    def hold(self) -> timedelta:
        """For how long to ask."""
        return self._hold

    def take(self, delivery: Delivery) -> Held:
        """Hold it from now on."""
        given = (delivery.held_until - datetime.now(UTC)).total_seconds()
        asked = self._hold.total_seconds()
        span = asked if self._transport.abilities.chooses_hold else min(max(given, 1.0), asked)
        held = Held(delivery, span, time.monotonic())
        self._held.add(held)
        return held

    async def renew_until(self, stopped: asyncio.Event) -> None:
        """Renew what is due, until there is nothing more to hold."""
        while not stopped.is_set():
            due = [it for it in self._held if it.due <= time.monotonic()]
            await asyncio.gather(*(self._renew(it) for it in due))
            # Never longer than it takes for something that is taken meanwhile to become due.
            longest = min([1.0, self._hold.total_seconds() / SHARE, *(it.span / SHARE for it in self._held)])
            soonest = min((it.due for it in self._held), default=time.monotonic() + longest)
            pause = min(longest, max(SHORTEST, soonest - time.monotonic()))
            try:
                await asyncio.wait_for(stopped.wait(), pause)
            except TimeoutError:
                continue

    async def complete(self, held: Held) -> bool:
        """Remove it: the database has what it said."""
        return await self._end(held, self._transport.complete)

    async def put_aside(self, held: Held, reason: str, detail: str = "") -> bool:
        """Put it where the broker keeps what nobody could do."""
        return await self._end(
            held, lambda it: self._transport.dead_letter(it, reason[:LONGEST_REASON], detail[:LONGEST_REASON])
        )

    async def release(self, held: Held) -> bool:
        """Let others have it."""
        return await self._end(held, self._transport.release, tries=1)

    async def give_back(self, held: Held) -> bool:
        """The same when we stop in good order, which must not be counted as the death of a worker.

        The broker counts it all the same. So one that was given back before goes as a new message.
        """
        if not self._deaths_count or not self._goes_anew(held.delivery):
            return await self.release(held)
        if not await self._renew(held):  # if it is another's by now, it is his to give back
            return await self.release(held)
        try:
            return await self._end(held, self._replacing(held.delivery))
        except NotSentError:
            return await self.release(held)

    async def give_back_all(self) -> int:
        """Let others have whatever we still hold; returns how many."""
        return sum(await asyncio.gather(*(self.give_back(it) for it in list(self._held))))

    def _goes_anew(self, it: Delivery) -> bool:
        """It was given back before, or its next delivery would be taken for the last."""
        most = self._transport.abilities.most_deliveries
        return it.attempt > 1 or (most is not None and it.attempt + deaths_before(it) + 1 >= most)

    def _replacing(self, it: Delivery) -> Callable[[Delivery], Awaitable[None]]:
        """Send it as a new message, once, and remove the old one. Whoever dies in between leaves both: one task."""
        again, sent = sent_anew(it), False

        async def replace(newest: Delivery) -> None:
            nonlocal sent
            if not sent:
                try:
                    await self._transport.send(it.queue, [again])
                except TransportError as error:
                    raise NotSentError from error
                sent = True
            await self._transport.complete(newest)

        return replace

    async def _renew(self, held: Held) -> bool:
        """Whether the broker says that it is still ours."""
        async with held.lock:
            if held.over:
                return False
            try:
                held.delivery = await self._transport.renew(held.delivery, self._hold)
            except TransportUnavailableError:
                held.renewed += SHORTEST  # soon again; if it takes too long, another gets it
                return False
            except TransportError as error:
                self._lost(held, error)
                return False
            held.renewed = time.monotonic()
            return True

    async def _end(self, held: Held, how: Callable[[Delivery], Awaitable[None]], tries: int = 5) -> bool:
        """Whether the broker has heard of it. If it has not, the message comes again, and finds its job."""
        async with held.lock:
            if held.over:
                return False
            for left in reversed(range(tries)):
                try:
                    await how(held.delivery)
                except TransportUnavailableError as error:
                    if left:
                        await asyncio.sleep(PAUSE)
                        continue
                    self._lost(held, error)
                    return False
                except (DeliveryLostError, TransportRefusedError) as error:
                    self._lost(held, error)
                    return False
                break
            held.over = True
            self._held.discard(held)
            return True

    def _lost(self, held: Held, error: TransportError) -> None:
        held.over = True
        self._held.discard(held)
        happened("message.lost", queue=held.delivery.queue, message_id=held.delivery.id, error=error)


def sent_anew(it: Delivery) -> Outgoing:
    """The same message under a new id, which no broker takes for a repetition. Real deaths go on counting.

    The first of its deliveries may have been given back as well: it is not held against it.
    """
    first = it.properties.get(FIRST_SENT) or (it.sent_at.isoformat() if it.sent_at else "")
    kept = {FIRST_SENT: first, DEATHS: deaths_before(it) + max(0, it.attempt - 2)}
    return Outgoing(id=new_id(), body=it.body, properties={**it.properties, **kept}, subject=it.subject)


def deaths_before(it: Delivery) -> int:
    """How many workers died of it before it became this message."""
    found = it.properties.get(DEATHS)
    return found if isinstance(found, int) and found > 0 else 0
