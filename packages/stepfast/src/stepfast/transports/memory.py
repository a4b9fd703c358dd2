"""Queues inside this process: for tests, for trying things out, and the plainest description of what a broker does.

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

NAME: Final = "memory"
REMEMBERED: Final = timedelta(minutes=10)  # how long a repeated id is dropped
LARGEST: Final = 1024 * 1024


@dataclass
class KeptMessage:
    """A message in the broker."""

    message: Outgoing
    number: int
    sent_at: datetime
    visible_at: float
    gone_at: float | None
    attempt: int = 0
    turn: int = 0  # changes whenever another consumer may take it: what a receipt must show
    dead_reason: str = ""
    dead_detail: str = ""


@dataclass
class Shelf:
    """The messages of a queue, or its dead letters; `line` holds when each may be taken, stale entries too."""

    kept: dict[int, KeptMessage] = field(default_factory=dict)
    line: list[tuple[float, int, int]] = field(default_factory=list)

    def put(self, kept: KeptMessage, at: float) -> None:
        kept.turn += 1
        kept.visible_at = at
        self.kept[kept.number] = kept
        heapq.heappush(self.line, (at, kept.number, kept.turn))

    def take(self, now: float) -> KeptMessage | None:
        """The first message that may be taken; it is out of the line until it is put back."""
        while self.line and self.line[0][0] <= now:
            _, number, turn = heapq.heappop(self.line)
            kept = self.kept.get(number)
            if kept is None or kept.turn != turn:
                continue
            if kept.gone_at is not None and kept.gone_at <= now:
                del self.kept[number]
                continue
            return kept
        return None


@dataclass
class MemoryQueue:
    """A queue with its dead letters."""

    live: Shelf = field(default_factory=Shelf)
    dead: Shelf = field(default_factory=Shelf)
    seen: dict[str, float] = field(default_factory=dict)  # ids, and until when repeated ones are dropped
    waiting: set[Bell] = field(default_factory=set)


@dataclass(eq=False)
class Bell:
    """Wakes one receive, from any thread."""

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
    """The queues that several transports share. With `away` a test can simulate an outage."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.queues: dict[str, MemoryQueue] = {}
        self.away = False
        self._numbers = itertools.count(1)

    def find(self, queue: str) -> MemoryQueue:
        """The queue of this name; raises if there is none, or the broker is away."""
        if self.away:
            raise TransportUnavailableError(NAME, "the broker is away")
        try:
            return self.queues[queue]
        except KeyError:
            raise TransportRefusedError(NAME, f"there is no queue {queue!r}; create it first") from None

    def store(self, queue: str, message: Outgoing) -> None:
        shelves, now, clock = self.find(queue), time.monotonic(), datetime.now(UTC)
        if shelves.seen.get(message.id, 0.0) > now:
            return
        # Two old ids for each new one: the dictionary keeps their order, so it does not grow.
        for old in [seen for seen, until in itertools.islice(shelves.seen.items(), 2) if until <= now]:
            del shelves.seen[old]
        shelves.seen.pop(message.id, None)
        shelves.seen[message.id] = now + REMEMBERED.total_seconds()
        delay = (message.not_before - clock).total_seconds() if message.not_before else 0.0
        lives = message.lives_for
        shelves.live.put(
            KeptMessage(
                message, next(self._numbers), clock, 0.0, now + lives.total_seconds() if lives else None
            ),
            now + max(0.0, delay),
        )

    def ring(self, shelves: MemoryQueue) -> None:
        for bell in shelves.waiting:
            bell.ring()

    def expire(self, delivery: Delivery) -> None:
        """For tests: end the hold of a delivery now."""
        with self.lock:
            kept = delivery.receipt.shelf.kept[delivery.receipt.number]
            kept.visible_at = 0.0
            heapq.heappush(delivery.receipt.shelf.line, (0.0, kept.number, kept.turn))
            self.ring(self.find(delivery.queue))


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
            self.broker.queues.setdefault(queue, MemoryQueue())

    async def send(self, queue: str, messages: Sequence[Outgoing]) -> None:
        check_messages(NAME, self.abilities, messages)
        with self.broker.lock:
            shelves = self.broker.find(queue)
            for message in messages:
                self.broker.store(queue, message)
            self.broker.ring(shelves)

    async def receive(self, queue: str, *, at_most: int, wait: timedelta, hold: timedelta) -> list[Delivery]:
        until = time.monotonic() + wait.total_seconds()
        bell = Bell(asyncio.get_running_loop(), asyncio.Event())
        shelves = self.broker.find(queue)
        shelves.waiting.add(bell)
        try:
            while True:
                bell.rung.clear()
                found, next_at = self._take(queue, shelves.live, at_most, hold)
                rest = until - time.monotonic()
                if found or rest <= 0:
                    return found
                if next_at is not None:
                    rest = min(rest, max(0.0, next_at - time.monotonic()))
                with suppress(TimeoutError):
                    async with asyncio.timeout(rest + 0.001):  # wait_for may swallow that we are cancelled
                        await bell.rung.wait()
        finally:
            shelves.waiting.discard(bell)

    async def renew(self, delivery: Delivery, hold: timedelta) -> Delivery:
        with self.broker.lock:
            shelf, kept = self._mine(delivery)
            shelf.put(kept, time.monotonic() + hold.total_seconds())
            return self._hand_out(shelf, kept, delivery.queue, hold)

    async def complete(self, delivery: Delivery) -> None:
        with self.broker.lock:
            shelf, kept = self._mine(delivery)
            del shelf.kept[kept.number]
            self._held.pop(kept.number, None)

    async def release(self, delivery: Delivery, after: timedelta = timedelta(0)) -> None:
        with self.broker.lock:
            shelf, kept = self._mine(delivery)
            shelf.put(kept, time.monotonic() + after.total_seconds())
            self._held.pop(kept.number, None)
            self.broker.ring(self.broker.find(delivery.queue))

    async def dead_letter(self, delivery: Delivery, reason: str, detail: str = "") -> None:
        with self.broker.lock:
            shelf, kept = self._mine(delivery)
            self._put_aside(self.broker.find(delivery.queue), shelf, kept, reason, detail)
            self._held.pop(kept.number, None)

    async def dead_letters(self, queue: str, *, at_most: int, hold: timedelta) -> list[Delivery]:
        return self._take(queue, self.broker.find(queue).dead, at_most, hold)[0]

    async def depth(self, queue: str) -> Depth:
        now = time.monotonic()
        with self.broker.lock:
            shelves = self.broker.find(queue)
            live = [kept for kept in shelves.live.kept.values() if kept.gone_at is None or kept.gone_at > now]
            ready = sum(kept.visible_at <= now for kept in live)
            new = sum(kept.visible_at > now and kept.attempt == 0 for kept in live)
            return Depth(
                ready=ready, scheduled=new, held=len(live) - ready - new, dead=len(shelves.dead.kept)
            )

    def _take(
        self, queue: str, shelf: Shelf, at_most: int, hold: timedelta
    ) -> tuple[list[Delivery], float | None]:
        """Messages that may be taken now, and when the next one may."""
        found: list[Delivery] = []
        with self.broker.lock:
            shelves = self.broker.find(queue)
            while len(found) < at_most and (kept := shelf.take(time.monotonic())) is not None:
                if shelf is shelves.live and kept.attempt >= self.most_deliveries:
                    self._put_aside(
                        shelves, shelf, kept, TOO_OFTEN, f"not ended after {kept.attempt} deliveries"
                    )
                    continue
                kept.attempt += 1
                shelf.put(kept, time.monotonic() + hold.total_seconds())
                found.append(self._hand_out(shelf, kept, queue, hold))
            return found, shelf.line[0][0] if shelf.line else None

    def _hand_out(self, shelf: Shelf, kept: KeptMessage, queue: str, hold: timedelta) -> Delivery:
        delivery = Delivery(
            id=kept.message.id,
            body=kept.message.body,
            queue=queue,
            attempt=kept.attempt,
            held_until=datetime.now(UTC) + hold,
            properties=dict(kept.message.properties),
            subject=kept.message.subject,
            sent_at=kept.sent_at,
            dead_reason=kept.dead_reason,
            dead_detail=kept.dead_detail,
            receipt=Receipt(shelf, kept.number, kept.turn),
        )
        self._held[kept.number] = delivery
        return delivery

    def _mine(self, delivery: Delivery) -> tuple[Shelf, KeptMessage]:
        """The message of a delivery; raises if another consumer may have it by now."""
        self.broker.find(delivery.queue)
        receipt: Any = delivery.receipt
        kept = receipt.shelf.kept.get(receipt.number)
        if kept is None or kept.turn != receipt.turn or kept.visible_at <= time.monotonic():
            self._held.pop(receipt.number, None)
            raise DeliveryLostError(NAME, delivery.queue, delivery.id)
        return receipt.shelf, kept

    def _put_aside(
        self, shelves: MemoryQueue, shelf: Shelf, kept: KeptMessage, reason: str, detail: str
    ) -> None:
        shelf.kept.pop(kept.number, None)
        kept.dead_reason, kept.dead_detail, kept.gone_at = reason, detail, None
        shelves.dead.put(kept, time.monotonic())


__all__ = ["MemoryBroker", "MemoryTransport", "named_broker"]
