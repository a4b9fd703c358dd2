"""What every queue of messages promises us, and what it does not.

A queue delivers at least once and in no order. Whoever receives a message holds it for a while; who does not end it in
time finds it with another. So a message is never the truth: it is an envelope that becomes a job by its id, or a hint
that a step is ready, and the lease in the database decides. Each transport is tested by the same suite
(tests/transports), so a user of this contract need not know which one is behind it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final, Self

MOST_AT_ONCE: Final = 32  # messages of one receive; what the smallest of the queues gives


@dataclass(frozen=True, kw_only=True)
class Outgoing:
    """A message to be sent. Where duplicates are detected, a second one with this id is swallowed without a word."""

    id: str
    body: str
    properties: Mapping[str, str | int | bool] = field(default_factory=dict)
    subject: str = ""  # what kind of message it is, for people and filters
    not_before: datetime | None = None  # scheduled; None: at once
    lives_for: timedelta | None = None  # afterwards it vanishes; None: as long as the queue keeps messages


@dataclass(frozen=True, kw_only=True)
class Delivery:
    """A message that we hold for a while. `attempt` counts deliveries from 1, as the broker saw them."""

    id: str
    body: str
    queue: str
    attempt: int
    held_until: datetime  # by the broker's word when it was received or last renewed
    properties: Mapping[str, Any] = field(default_factory=dict)
    subject: str = ""
    sent_at: datetime | None = None
    dead_reason: str = ""  # of a dead letter: why
    dead_detail: str = ""
    receipt: Any = field(
        default=None, repr=False, compare=False
    )  # the transport's own; nobody else looks into it


@dataclass(frozen=True, kw_only=True)
class Depth:
    """How full a queue is. None where the broker does not tell."""

    ready: int
    held: int | None = None
    scheduled: int | None = None
    dead: int | None = None


@dataclass(frozen=True, kw_only=True)
class Abilities:
    """Where brokers differ, in figures."""

    largest_body: int  # bytes of UTF-8
    detects_duplicates: bool  # an id that was seen lately is swallowed
    longest_wait: (
        timedelta  # that one receive waits at the broker; zero: we ask again, more rarely while it is empty
    )
    longest_hold: timedelta  # that one receive or renewal may ask for
    counts_deliveries: bool = True
    chooses_hold: bool = True  # False: the queue says how long a message is held, whatever `hold` asks for
    delays_release: bool = True  # False: `after` is not heeded, the message comes back at once
    most_deliveries: int | None = None  # afterwards it is put aside by itself; None: the queue's own setting


class Transport(ABC):
    """A broker. Open it once, keep it open: links are slow to make.

    Every method may raise `TransportUnavailableError` (nothing is known; try later) or `TransportRefusedError` (it will
    never work so: wrong key, no such queue, too large). Methods on a delivery raise `DeliveryLostError` when another
    may hold the message by now; whoever gets it goes on, since the database decides.
    """

    name: str  # "memory", "database", "storage-queue", "service-bus": for logs, metrics and errors
    abilities: Abilities

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @abstractmethod
    async def open(self) -> None:
        """Reach the broker and be let in."""

    @abstractmethod
    async def close(self) -> None:
        """Give back what is held and not ended, where the broker lets us, and hang up."""

    @abstractmethod
    async def ensure(self, queue: str) -> None:
        """Create the queue and its place for dead letters where we may; otherwise check that they are there."""

    @abstractmethod
    async def send(self, queue: str, messages: Sequence[Outgoing]) -> None:
        """Store them all; after a return every one is stored. After an error some may be: send the same ids again."""

    @abstractmethod
    async def receive(self, queue: str, *, at_most: int, wait: timedelta, hold: timedelta) -> list[Delivery]:
        """Take up to `at_most` messages, waiting at most so long for the first; empty when there is none.

        Cancelling it loses no message: what was under way comes back by itself.
        """

    @abstractmethod
    async def renew(self, delivery: Delivery, hold: timedelta) -> Delivery:
        """Hold it for so long from now. Only the returned delivery can be ended afterwards."""

    @abstractmethod
    async def complete(self, delivery: Delivery) -> None:
        """Remove it: it was understood, and the database has what it said."""

    @abstractmethod
    async def release(self, delivery: Delivery, after: timedelta = timedelta(0)) -> None:
        """Give it back to be delivered again, not before `after` has passed (where the broker can wait)."""

    @abstractmethod
    async def dead_letter(self, delivery: Delivery, reason: str, detail: str = "") -> None:
        """Put it aside with the reason. A crash in the middle may leave it in both places, never in none."""

    @abstractmethod
    async def dead_letters(self, queue: str, *, at_most: int, hold: timedelta) -> list[Delivery]:
        """Take what was put aside, with its reason; `complete` removes it, `release` leaves it there."""

    @abstractmethod
    async def depth(self, queue: str) -> Depth:
        """How full it is, as far as the broker tells."""
