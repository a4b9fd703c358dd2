"""Queues inside this process: for tests, for trying things out, and the plainest telling of what a broker does.

Everything is gone with the process. Threads and event loops may share a broker; `memory://name` names one.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from stepfast.transports.contract import (
    MOST_DELIVERIES,
    TOO_OFTEN,
    Abilities,
    Delivery,
    DeliveryLostError,
    Depth,
    Outgoing,
    Transport,
    TransportRefusedError,
    TransportUnavailableError,
    check_messages,
    check_queue,
)

# What the queues of `memory` are made of: messages on shelves, and bells for who waits.

NAME: Final = "memory"
REMEMBERED: Final = timedelta(minutes=10)  # how long an id is swallowed


@dataclass
class Kept:
    """A message in the broker."""

    message: Outgoing
    number: int
    sent_at: datetime
    visible_at: float
    gone_at: float | None
    attempt: int = 0
    turn: int = 0  # changes whenever somebody else may take it: what a receipt must show
    dead_reason: str = ""
    dead_detail: str = ""


@dataclass
class Shelf:
    """Messages of one queue, or what was put aside from it; `line` holds when each may be taken, stale entries too."""

    kept: dict[int, Kept] = field(default_factory=dict)
    line: list[tuple[float, int, int]] = field(default_factory=list)

    def put(self, it: Kept, at: float) -> None:
        it.turn += 1
        it.visible_at = at
        self.kept[it.number] = it
        heapq.heappush(self.line, (at, it.number, it.turn))

    def take(self, now: float) -> Kept | None:
        """The first that may be taken; it is out of the line until it is put back."""
        while self.line and self.line[0][0] <= now:
            _, number, turn = heapq.heappop(self.line)
            it = self.kept.get(number)
            if it is None or it.turn != turn:
                continue
            if it.gone_at is not None and it.gone_at <= now:
                del self.kept[number]
                continue
            return it
        return None


@dataclass
class Place:
    """A queue with its dead letters."""

    live: Shelf = field(default_factory=Shelf)
    dead: Shelf = field(default_factory=Shelf)
    seen: dict[str, float] = field(default_factory=dict)  # ids, and until when they are swallowed
    waiting: set[Bell] = field(default_factory=set)


@dataclass(eq=False)
class Bell:
    """Wakes one receive, from whatever thread."""

    loop: asyncio.AbstractEventLoop
    rung: asyncio.Event

    def ring(self) -> None:
        if not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self.rung.set)


@dataclass(frozen=True)
class Receipt:
    shelf: Shelf
    number: int
    turn: int


class MemoryBroker:
    """What several transports share. `away` lets a test pull the plug."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.places: dict[str, Place] = {}
        self.away = False
        self._numbers = itertools.count(1)

    def place(self, queue: str) -> Place:
        if self.away:
            raise TransportUnavailableError(NAME, "the broker is away")
        try:
            return self.places[queue]
        except KeyError:
            raise TransportRefusedError(NAME, f"there is no queue {queue!r}; create it first") from None

    def store(self, queue: str, message: Outgoing) -> None:
        place, now, clock = self.place(queue), time.monotonic(), datetime.now(UTC)
        if place.seen.get(message.id, 0.0) > now:
            return
        for old in [it for it, until in itertools.islice(place.seen.items(), 2) if until <= now]:
            del place.seen[
                old
            ]  # two for each that comes: the dictionary keeps the order, so it never grows old
        place.seen.pop(message.id, None)
        place.seen[message.id] = now + REMEMBERED.total_seconds()
        delay = (message.not_before - clock).total_seconds() if message.not_before else 0.0
        lives = message.lives_for
        place.live.put(
            Kept(message, next(self._numbers), clock, 0.0, now + lives.total_seconds() if lives else None),
            now + max(0.0, delay),
        )

    def ring(self, place: Place) -> None:
        for bell in place.waiting:
            bell.ring()

    def expire(self, delivery: Delivery) -> None:
        """For tests: let the time of this delivery be over."""
        with self.lock:
            it = delivery.receipt.shelf.kept[delivery.receipt.number]
            it.visible_at = 0.0
            heapq.heappush(delivery.receipt.shelf.line, (0.0, it.number, it.turn))
            self.ring(self.place(delivery.queue))


LARGEST: Final = 1024 * 1024

_brokers: Final[dict[str, MemoryBroker]] = {}
_naming: Final = threading.Lock()


def named_broker(name: str) -> MemoryBroker:
    """The broker that this process knows by this name."""
    with _naming:
        return _brokers.setdefault(name, MemoryBroker())


class MemoryTransport(Transport):
    """One user of a broker."""

    name = NAME

    def __init__(self, broker: MemoryBroker | None = None, *, most_deliveries: int = MOST_DELIVERIES) -> None:
        self.broker = broker or MemoryBroker()
        self.most_deliveries = most_deliveries
        self.abilities = Abilities(
            largest_body=LARGEST,
            detects_duplicates=True,
            longest_wait=timedelta(days=1),
            longest_hold=timedelta(days=7),
            most_deliveries=most_deliveries,
        )
        self._held: dict[int, Delivery] = {}

    async def open(self) -> None:
        if self.broker.away:
            raise TransportUnavailableError(NAME, "the broker is away")

    async def close(self) -> None:
        for delivery in list(self._held.values()):
            try:
                await self.release(delivery)
            except (DeliveryLostError, TransportUnavailableError):
                continue
        self._held.clear()

    async def ensure(self, queue: str) -> None:
        check_queue(NAME, queue)
        with self.broker.lock:
            if self.broker.away:
                raise TransportUnavailableError(NAME, "the broker is away")
            self.broker.places.setdefault(queue, Place())

    async def send(self, queue: str, messages: Sequence[Outgoing]) -> None:
        check_messages(NAME, self.abilities, messages)
        with self.broker.lock:
            place = self.broker.place(queue)
            for message in messages:
                self.broker.store(queue, message)
            self.broker.ring(place)

    async def receive(self, queue: str, *, at_most: int, wait: timedelta, hold: timedelta) -> list[Delivery]:
        until = time.monotonic() + wait.total_seconds()
        bell = Bell(asyncio.get_running_loop(), asyncio.Event())
        place = self.broker.place(queue)
        place.waiting.add(bell)
        try:
            while True:
                bell.rung.clear()
                found, next_at = self._take(queue, place.live, at_most, hold)
                rest = until - time.monotonic()
                if found or rest <= 0:
                    return found
                if next_at is not None:
                    rest = min(rest, max(0.0, next_at - time.monotonic()))
                with suppress(TimeoutError):
                    async with asyncio.timeout(rest + 0.001):  # wait_for may swallow that we are cancelled
                        await bell.rung.wait()
        finally:
            place.waiting.discard(bell)

    async def renew(self, delivery: Delivery, hold: timedelta) -> Delivery:
        with self.broker.lock:
            shelf, it = self._mine(delivery)
            shelf.put(it, time.monotonic() + hold.total_seconds())
            return self._hand_out(shelf, it, delivery.queue, hold)

    async def complete(self, delivery: Delivery) -> None:
        with self.broker.lock:
            shelf, it = self._mine(delivery)
            del shelf.kept[it.number]
            self._held.pop(it.number, None)

    async def release(self, delivery: Delivery, after: timedelta = timedelta(0)) -> None:
        with self.broker.lock:
            shelf, it = self._mine(delivery)
            shelf.put(it, time.monotonic() + after.total_seconds())
            self._held.pop(it.number, None)
            self.broker.ring(self.broker.place(delivery.queue))

    async def dead_letter(self, delivery: Delivery, reason: str, detail: str = "") -> None:
        with self.broker.lock:
            shelf, it = self._mine(delivery)
            self._put_aside(self.broker.place(delivery.queue), shelf, it, reason, detail)
            self._held.pop(it.number, None)

    async def dead_letters(self, queue: str, *, at_most: int, hold: timedelta) -> list[Delivery]:
        return self._take(queue, self.broker.place(queue).dead, at_most, hold)[0]

    async def depth(self, queue: str) -> Depth:
        now = time.monotonic()
        with self.broker.lock:
            place = self.broker.place(queue)
            kept = [it for it in place.live.kept.values() if it.gone_at is None or it.gone_at > now]
            ready = sum(it.visible_at <= now for it in kept)
            new = sum(it.visible_at > now and it.attempt == 0 for it in kept)
            return Depth(ready=ready, scheduled=new, held=len(kept) - ready - new, dead=len(place.dead.kept))

    def _take(
        self, queue: str, shelf: Shelf, at_most: int, hold: timedelta
    ) -> tuple[list[Delivery], float | None]:
        """What may be taken, and when the next one may."""
        found: list[Delivery] = []
        with self.broker.lock:
            place = self.broker.place(queue)
            while len(found) < at_most and (it := shelf.take(time.monotonic())) is not None:
                if shelf is place.live and it.attempt >= self.most_deliveries:
                    self._put_aside(place, shelf, it, TOO_OFTEN, f"not ended after {it.attempt} deliveries")
                    continue
                it.attempt += 1
                shelf.put(it, time.monotonic() + hold.total_seconds())
                found.append(self._hand_out(shelf, it, queue, hold))
            return found, shelf.line[0][0] if shelf.line else None

    def _hand_out(self, shelf: Shelf, it: Kept, queue: str, hold: timedelta) -> Delivery:
        delivery = Delivery(
            id=it.message.id,
            body=it.message.body,
            queue=queue,
            attempt=it.attempt,
            held_until=datetime.now(UTC) + hold,
            properties=dict(it.message.properties),
            subject=it.message.subject,
            sent_at=it.sent_at,
            dead_reason=it.dead_reason,
            dead_detail=it.dead_detail,
            receipt=Receipt(shelf, it.number, it.turn),
        )
        self._held[it.number] = delivery
        return delivery

    def _mine(self, delivery: Delivery) -> tuple[Shelf, Kept]:
        """The message, if nobody else may have it by now."""
        self.broker.place(delivery.queue)
        receipt: Any = delivery.receipt
        it = receipt.shelf.kept.get(receipt.number)
        if it is None or it.turn != receipt.turn or it.visible_at <= time.monotonic():
            self._held.pop(receipt.number, None)
            raise DeliveryLostError(NAME, delivery.queue, delivery.id)
        return receipt.shelf, it

    def _put_aside(self, place: Place, shelf: Shelf, it: Kept, reason: str, detail: str) -> None:
        shelf.kept.pop(it.number, None)
        it.dead_reason, it.dead_detail, it.gone_at = reason, detail, None
        place.dead.put(it, time.monotonic())


__all__ = ["MemoryBroker", "MemoryTransport", "named_broker"]
