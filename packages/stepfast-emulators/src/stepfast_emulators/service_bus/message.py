"""A message as the broker keeps it: what the sender wrote, and what the broker adds for each receiver."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any
from uuid import UUID, uuid4

from stepfast_emulators.service_bus.amqp import (
    Code,
    Described,
    Int,
    Long,
    MalformedError,
    Symbol,
    Timestamp,
    UInt,
    decode,
    described,
    fields,
)

SCHEDULED_AT = Symbol("x-opt-scheduled-enqueue-time")
ENQUEUED_AT = Symbol("x-opt-enqueued-time")
SEQUENCE = Symbol("x-opt-sequence-number")
STATE = Symbol("x-opt-message-state")
LOCKED_UNTIL = Symbol("x-opt-locked-until")
LOCK_TOKEN = Symbol("x-opt-lock-token")
DEAD_LETTER_SOURCE = Symbol("x-opt-deadletter-source")


class State(IntEnum):
    """As a client sees it when it peeks."""

    ACTIVE = 0  # waits, or is held by somebody
    DEFERRED = 1  # put aside: only who knows its sequence number gets it
    SCHEDULED = 2  # its time has not come


@dataclass(slots=True, eq=False)
class Message:
    """Instants are milliseconds of the broker's clock."""

    header: list[Any]
    annotations: dict[Any, Any]
    properties: list[Any]
    application_properties: dict[Any, Any]
    properties_section: bytes  # as it came
    body: bytes  # its sections, as they came
    sequence: int = 0
    enqueued_at: int = 0
    expires_at: int | None = None
    deliveries: int = 0  # that failed
    state: State = State.ACTIVE
    dead_letter_source: str = ""
    notes: dict[str, Any] = field(default_factory=dict)  # properties that receivers added

    @property
    def id(self) -> Any:
        return self.properties[0] if self.properties else None

    def assign_id(self) -> None:
        """Give an id to a message whose sender gave it none. Clients need one: JavaScript's cannot settle without."""
        if self.id is None:
            self.properties = [uuid4().hex, *self.properties[1:]]
            self.properties_section = described(Code.PROPERTIES, self.properties)

    @property
    def lives_for(self) -> int | None:
        lives_for: int | None = self.header[2]
        return lives_for

    @property
    def scheduled_at(self) -> int | None:
        return self.annotations.get(SCHEDULED_AT)

    def encode(self, token: UUID | None = None, locked_until: int | None = None) -> bytes:
        """For a receiver; with a token for one that holds it now."""
        durable, priority, lives_for, first, _ = self.header
        annotations = {
            **self.annotations,
            ENQUEUED_AT: Timestamp(self.enqueued_at),
            SEQUENCE: Long(self.sequence),
            STATE: Int(self.state),
        }
        if locked_until is not None:
            annotations[LOCKED_UNTIL] = Timestamp(locked_until)
        if self.dead_letter_source:
            annotations[DEAD_LETTER_SOURCE] = self.dead_letter_source
        sections = [described(Code.HEADER, [durable, priority, lives_for, first, UInt(self.deliveries)])]
        if token is not None:
            sections.append(described(Code.DELIVERY_ANNOTATIONS, {LOCK_TOKEN: token}))
        sections += [described(Code.ANNOTATIONS, annotations), self.properties_section]
        if self.application_properties or self.notes:
            together = {**self.application_properties, **self.notes}
            sections.append(described(Code.APPLICATION_PROPERTIES, together))
        return b"".join([*sections, self.body])


def parse(payload: bytes) -> Message:
    """The message that a sender wrote."""
    message = Message(fields([], 5), {}, [], {}, b"", b"")
    for section, wire in sections(payload):
        match section.code:
            case Code.HEADER:
                message.header = fields(section.value, 5)
            case Code.ANNOTATIONS:
                message.annotations = section.value
            case Code.PROPERTIES:
                message.properties, message.properties_section = section.value, wire
            case Code.APPLICATION_PROPERTIES:
                message.application_properties = section.value
            case Code.DELIVERY_ANNOTATIONS:
                pass  # meant for us alone
            case _:
                message.body += wire
    return message


def unpack(payload: bytes) -> list[Message]:
    """The messages of a batch."""
    return [parse(section.value) for section, _ in sections(payload) if section.code == Code.DATA]


def sections(payload: bytes) -> Iterator[tuple[Described, bytes]]:
    """Each section with its wire form."""
    at = 0
    while at < len(payload):
        section, end = decode(payload, at)
        if not isinstance(section, Described):
            raise MalformedError("a message is made of sections")
        yield section, payload[at:end]
        at = end
