"""Our messages as Service Bus writes them, and its messages as we read them.

Others send to our queues too: a body may be of any kind, an id may be missing. The SDK gives texts of properties as
bytes, and counts deliveries from 0.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, cast

from azure.servicebus import ServiceBusMessage, ServiceBusReceivedMessage
from azure.servicebus.amqp import AmqpMessageBodyType

from stepfast.transports.contract import Delivery, Outgoing, TransportRefusedError
from stepfast.transports.service_bus_failures import NAME

if TYPE_CHECKING:
    from azure.servicebus.aio import ServiceBusReceiver

    from stepfast.transports.service_bus_links import SubQueue


OF_DEAD_LETTERS: Final = {"DeadLetterReason", "DeadLetterErrorDescription"}


@dataclass(frozen=True)
class Receipt:
    """What is needed to end a delivery."""

    place: SubQueue
    receiver: ServiceBusReceiver
    message: ServiceBusReceivedMessage
    token: str  # of the lock; a message that was ended no longer tells it


def written(message: Outgoing) -> ServiceBusMessage:
    properties: dict[str | bytes, Any] = {
        name: _number(message, value) if type(value) is int else value
        for name, value in message.properties.items()
    }
    return ServiceBusMessage(
        message.body,
        message_id=message.id,
        subject=message.subject or None,
        application_properties=properties,
        scheduled_enqueue_time_utc=message.not_before,
        time_to_live=message.lives_for,
        content_type="application/json",
    )


def _number(message: Outgoing, value: int) -> Any:
    """A property with the type of its number, which the SDK would take for one of 32 bits."""
    if -(2**31) <= value < 2**31:
        return value
    if -(2**63) <= value < 2**63:
        return {"TYPE": "LONG", "VALUE": value}
    raise TransportRefusedError(NAME, f"message {message.id}: {value} has more than 64 bits")


def read(receipt: Receipt, queue: str) -> Delivery:
    message = receipt.message
    properties = {
        _text(key): _text(value) if isinstance(value, bytes) else value
        for key, value in (message.application_properties or {}).items()
    }
    return Delivery(
        id=str(message.message_id or f"sequence-{message.sequence_number}"),
        body=body_of(message),
        queue=queue,
        attempt=(message.delivery_count or 0) + 1,
        held_until=message.locked_until_utc or datetime.now(UTC),
        properties={key: value for key, value in properties.items() if key not in OF_DEAD_LETTERS},
        subject=message.subject or "",
        sent_at=message.enqueued_time_utc,
        dead_reason=message.dead_letter_reason or "",
        dead_detail=message.dead_letter_error_description or "",
        receipt=receipt,
    )


def body_of(message: ServiceBusReceivedMessage) -> str:
    """The body as a text, also if the sender wrote bytes in one piece or several, a value, or rows of values."""
    match message.body_type:
        case AmqpMessageBodyType.DATA:
            return b"".join(cast("Iterable[bytes]", message.body)).decode("utf-8", "replace")
        case AmqpMessageBodyType.VALUE if isinstance(message.body, str | bytes):
            return _text(message.body)
        case AmqpMessageBodyType.VALUE:
            return json.dumps(_plain(message.body))
        case _:
            return json.dumps(_plain(list(cast("Iterable[Any]", message.body))))


def _text(value: str | bytes) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def _plain(value: Any) -> Any:
    """A value of AMQP as JSON can write it."""
    match value:
        case bytes():
            return _text(value)
        case Mapping():
            return {str(_plain(key)): _plain(item) for key, item in value.items()}
        case list() | tuple():
            return [_plain(item) for item in value]
        case str() | int() | float() | None:
            return value
        case _:
            return str(value)
