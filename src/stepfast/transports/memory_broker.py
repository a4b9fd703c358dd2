"""What the queues of `memory` are made of: messages on shelves, and bells for who waits."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import threading
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from stepfast.transports.failures import TransportRefusedError, TransportUnavailableError

if TYPE_CHECKING:
    from stepfast.transports.contract import Delivery, Outgoing

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
