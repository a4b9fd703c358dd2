"""The contract of every transport: what a queue of messages promises, and what it does not.

A queue delivers at least once and in no order. A consumer that receives a message holds it for a while; if it does not
end the message in time, another consumer receives it. So a message is never the truth: it is an envelope that becomes a
job by its id, or a hint that a step is ready, and the lease in the database decides. All transports pass the same tests
(tests/transports), so a user of this contract need not know which one is behind it.

    TransportError
    ├── TransportUnavailableError   nothing is known: try later, with the same ids
    ├── TransportRefusedError       it will never work so: something has to be changed
    └── DeliveryLostError           another consumer may hold the message by now: go on, the database decides
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
LONGEST_ID: Final = 128  # characters; what Service Bus keeps
LONGEST_NAME: Final = 128
MOST_DELIVERIES: Final = 5  # afterwards a message is put aside, so that one that kills its receivers ends
TOO_OFTEN: Final = "MaxDeliveryCountExceeded"  # the word of Service Bus; all of ours use it
_NAME: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._/-]*[A-Za-z0-9])?")


@dataclass(frozen=True, kw_only=True)
class Outgoing:
    """A message to be sent. Where duplicates are detected, a second one with this id is dropped silently."""

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
    receipt: Any = field(default=None, repr=False, compare=False)  # for the transport only


@dataclass(frozen=True, kw_only=True)
class Depth:
    """How many messages a queue has. None where the broker does not tell."""

    ready: int
    held: int | None = None
    scheduled: int | None = None
    dead: int | None = None


@dataclass(frozen=True, kw_only=True)
class Abilities:
    """What brokers differ in, as figures."""

    largest_body: int  # bytes of UTF-8
    detects_duplicates: bool  # a message whose id was seen lately is dropped
    longest_wait: timedelta  # of one receive at the broker; zero: we ask again, more rarely while it is empty
    longest_hold: timedelta  # that one receive or renewal may ask for
    chooses_hold: bool = True  # False: the queue says how long a message is held, whatever `hold` asks for
    delays_release: bool = True  # False: `after` is not heeded, the message comes back at once
    most_deliveries: int | None = None  # afterwards a message is put aside; None: the queue's own setting


class TransportError(StepfastError):
    """Base of the failures of a transport."""

    def __init__(self, transport: str, problem: str) -> None:
        super().__init__(f"{transport}: {without_secrets(problem)}")
        self.transport = transport


class TransportUnavailableError(TransportError):
    """The broker does not answer, or is busy. Nothing is known of what was asked: try later, with the same ids."""


class TransportRefusedError(TransportError):
    """The broker refuses, and will refuse again: a wrong key, no such queue, a message that is too large."""


class DeliveryLostError(TransportError):
    """The message was held for too long, or was ended before. Go on: its new holder asks the database too."""

    def __init__(self, transport: str, queue: str, message_id: str) -> None:
        super().__init__(
            transport, f"message {message_id} of {queue} is no longer held by us; another may have it"
        )
        self.queue = queue
        self.message_id = message_id


class Transport(ABC):
    """A broker. Open it once, keep it open: links are slow to make.

    Every method may raise `TransportUnavailableError` or `TransportRefusedError`. Methods on a delivery raise
    `DeliveryLostError` when another consumer may hold the message by now.
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
        """Connect to the broker and sign in."""

    @abstractmethod
    async def close(self) -> None:
        """Release messages that are held, where the broker can, and disconnect."""

    @abstractmethod
    async def ensure(self, queue: str) -> None:
        """Create the queue and that of its dead letters where we may; otherwise check that they are there."""

    @abstractmethod
    async def send(self, queue: str, messages: Sequence[Outgoing]) -> None:
        """Store all messages at the broker. After an error some may be stored: send the same ids again."""

    @abstractmethod
    async def receive(self, queue: str, *, at_most: int, wait: timedelta, hold: timedelta) -> list[Delivery]:
        """Take up to `at_most` messages, and wait at most so long for the first; empty when there is none.

        Cancelling loses no message: one that was under way comes back by itself.
        """

    @abstractmethod
    async def renew(self, delivery: Delivery, hold: timedelta) -> Delivery:
        """Hold a message for so long from now. Only the returned delivery can be ended afterwards."""

    @abstractmethod
    async def complete(self, delivery: Delivery) -> None:
        """Remove a message: it was understood, and the database has what it says."""

    @abstractmethod
    async def release(self, delivery: Delivery, after: timedelta = timedelta(0)) -> None:
        """Give a message back, to be delivered again when `after` has passed (where the broker can wait)."""

    @abstractmethod
    async def dead_letter(self, delivery: Delivery, reason: str, detail: str = "") -> None:
        """Move a message to the dead letters, with the reason. A crash may leave it in both places, never in none."""

    @abstractmethod
    async def dead_letters(self, queue: str, *, at_most: int, hold: timedelta) -> list[Delivery]:
        """Take dead letters, with their reasons; `complete` removes one, `release` leaves it there."""

    @abstractmethod
    async def depth(self, queue: str) -> Depth:
        """How many messages the queue has, as far as the broker tells."""


def check_messages(transport: str, abilities: Abilities, messages: Sequence[Outgoing]) -> None:
    """Refuse messages that no queue takes, before any is sent: half a batch would be worse than none."""
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
    """Refuse names that not all brokers take; each may refuse more."""
    if len(queue) > LONGEST_NAME or not _NAME.fullmatch(queue):
        raise TransportRefusedError(
            transport,
            f"queue {queue!r:.150}: a name is 1 to {LONGEST_NAME} letters, digits and . _ / - between them",
        )


def _sendable(value: object) -> bool:
    return not isinstance(value, str) or not re.search("[\0\ud800-\udfff]", value)
