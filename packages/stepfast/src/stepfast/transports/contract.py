"""What every queue of messages promises us, and what it does not.

A queue delivers at least once and in no order. Whoever receives a message holds it for a while; who does not end it in
time finds it with another. So a message is never the truth: it is an envelope that becomes a job by its id, or a hint
that a step is ready, and the lease in the database decides. Each transport is tested by the same suite
(tests/transports), so a user of this contract need not know which one is behind it.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final, Self

from stepfast.clock import instant
from stepfast.errors import StepfastError
from stepfast.telemetry.masking import without_secrets

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


# What a queue of others may answer, in three sentences: not now, never so, no longer yours.
#
# TransportError
# ├── TransportUnavailableError   nothing is known: try later, with the same ids
# ├── TransportRefusedError       it will never work so: somebody has to change something
# └── DeliveryLostError           another may hold the message by now: go on, the database decides


class TransportError(StepfastError):
    """Base of what queues answer."""

    def __init__(self, transport: str, problem: str) -> None:
        super().__init__(f"{transport}: {without_secrets(problem)}")
        self.transport = transport


class TransportUnavailableError(TransportError):
    """The broker does not answer, or is busy. Nothing is known of what was asked: try later, with the same ids."""


class TransportRefusedError(TransportError):
    """The broker said no, and will say no again: a wrong key, no such queue, a message that is too large."""


class DeliveryLostError(TransportError):
    """The message was held for too long, or was ended before. Go on: whoever has it now asks the database too."""

    def __init__(self, transport: str, queue: str, message_id: str) -> None:
        super().__init__(
            transport, f"message {message_id} of {queue} is no longer held by us; another may have it"
        )
        self.queue = queue
        self.message_id = message_id


# What no queue would take is refused before it is sent, with a sentence.

LONGEST_ID: Final = 128  # characters; what Service Bus keeps
LONGEST_NAME: Final = 128
MOST_DELIVERIES: Final = 5  # afterwards a message is put aside, so that one that kills its receivers ends
TOO_OFTEN: Final = "MaxDeliveryCountExceeded"  # the word of Service Bus; all of ours use it
_NAME: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._/-]*[A-Za-z0-9])?")


def check_messages(transport: str, abilities: Abilities, messages: Sequence[Outgoing]) -> None:
    """Raise before anything is sent: half a batch would be worse than none."""
    for it in messages:
        if not it.id or len(it.id) > LONGEST_ID or not it.id.isprintable():
            raise TransportRefusedError(
                transport, f"message id {it.id!r:.150}: 1 to {LONGEST_ID} characters that can be printed"
            )
        if len(it.subject) > LONGEST_ID:
            raise TransportRefusedError(
                transport, f"message {it.id}: a subject has at most {LONGEST_ID} characters"
            )
        if not all(map(_sendable, (it.body, it.subject, *it.properties.values()))):
            raise TransportRefusedError(
                transport, f"message {it.id}: a text with a NUL or with half a character in it cannot be sent"
            )
        if (size := len(it.body.encode())) > abilities.largest_body:
            raise TransportRefusedError(
                transport,
                f"message {it.id}: its body takes {size:,} bytes, at most {abilities.largest_body:,} fit; "
                "keep the data where the receiver can fetch it, and send its address",
            )
        if it.not_before is not None:
            instant(it.not_before, "not_before")  # a naive one is refused
        for name, value in it.properties.items():
            if not isinstance(value, str | int | bool):
                raise TransportRefusedError(
                    transport,
                    f"message {it.id}: property {name!r:.80} must be a text, an integer or a boolean",
                )


def check_queue(transport: str, queue: str) -> None:
    """Names that all of them can have; each may ask for more."""
    if len(queue) > LONGEST_NAME or not _NAME.fullmatch(queue):
        raise TransportRefusedError(
            transport,
            f"queue {queue!r:.150}: a name is 1 to {LONGEST_NAME} letters, digits and . _ / - between them",
        )


def _sendable(value: object) -> bool:
    return not isinstance(value, str) or not re.search("[\0\ud800-\udfff]", value)
