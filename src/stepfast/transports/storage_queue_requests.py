"""Single requests to Storage Queue: how its client is opened, and what its answers mean."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from stepfast.errors import ConfigurationError
from stepfast.transports.contract import Delivery, Outgoing
from stepfast.transports.failures import TransportRefusedError
from stepfast.transports.identity import CURE, storage_url
from stepfast.transports.storage_queue_format import unpacked

if TYPE_CHECKING:
    from azure.storage.queue import QueueMessage
    from azure.storage.queue.aio import QueueClient, QueueServiceClient

NAME: Final = "storage-queue"
LONGEST: Final = timedelta(days=7)  # that a message may be hidden
TRIES: Final = 3  # of one request; afterwards the caller decides


@dataclass(frozen=True)
class Receipt:
    place: str  # the queue itself, or the one with its dead letters
    message_id: str
    pop_receipt: str
    text: str


def open_service(
    connection_string: str, account: str, credential: Any, given: dict[str, Any]
) -> QueueServiceClient:
    """The client; it reaches nobody yet."""
    try:
        from azure.storage.queue.aio import QueueServiceClient
    except ImportError as missing:
        raise ConfigurationError(f"Storage Queue needs an extra: {CURE}") from missing
    # The library's own patience is a minute and a half; ours is the caller's.
    patience = {
        "initial_backoff": 0,
        "increment_base": 1,
        "retry_total": TRIES - 1,
        "random_jitter_range": 0.5,
    }
    options = {"connection_timeout": 5, "read_timeout": 30, **patience, **given}
    try:
        if connection_string:
            return QueueServiceClient.from_connection_string(connection_string, **options)
        return QueueServiceClient(storage_url(account, "queue"), credential=credential, **options)
    except ValueError as error:
        raise TransportRefusedError(
            NAME, f"the connection string or account cannot be read: {error}"
        ) from error


async def create(client: QueueClient) -> None:
    """Make it, or see that it is there where we may not make it."""
    from azure.core.exceptions import HttpResponseError, ResourceExistsError

    try:
        await client.create_queue()
    except ResourceExistsError:
        return
    except HttpResponseError as error:
        if error.status_code != 403:  # noqa: PLR2004 - forbidden: others make the queues
            raise
        await client.get_queue_properties()


async def all_or_raise(calls: Sequence[Any]) -> None:
    """Wait for all of them, then raise the first error: no request is left behind on its own."""
    answers = await asyncio.gather(*calls, return_exceptions=True)
    for it in answers:
        if isinstance(it, BaseException):
            raise it


def delivery_of(message: QueueMessage, queue: str, place: str, hold: timedelta) -> Delivery:
    text = str(message.content or "")
    parts = unpacked(text, message.id)
    return Delivery(
        id=parts.id,
        body=parts.body,
        queue=queue,
        attempt=message.dequeue_count or 1,
        held_until=aware(message.next_visible_on) if message.next_visible_on else datetime.now(UTC) + hold,
        properties=parts.properties,
        subject=parts.subject,
        sent_at=_moment(parts.dead.get("sent_at", "")) or aware(message.inserted_on),
        dead_reason=parts.dead.get("reason", ""),
        dead_detail=parts.dead.get("detail", ""),
        receipt=Receipt(place, message.id, str(message.pop_receipt), text),
    )


def delay(message: Outgoing) -> int:
    if message.not_before is None:
        return 0
    delay = message.not_before - datetime.now(UTC)
    if delay > LONGEST:
        raise TransportRefusedError(
            NAME, f"message {message.id}: it can be scheduled at most 7 days ahead; use a schedule instead"
        )
    return max(0, math.ceil(delay.total_seconds()))


def seconds(span: timedelta, least: int = 1) -> int:
    return max(least, math.ceil(min(span, LONGEST).total_seconds()))


def _moment(text: str) -> datetime | None:
    """When a dead letter was sent; None if whoever wrote it did not use our words."""
    try:
        return datetime.fromisoformat(text).astimezone(UTC) if text else None
    except (ValueError, OverflowError):
        return None


def aware(at: datetime | None) -> datetime:
    return datetime.now(UTC) if at is None else at.astimezone(UTC)
