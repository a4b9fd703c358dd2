"""Azure Storage Queue: cheap and durable, without duplicate detection, long polling or dead letters of its own.

So this adapter adds the rest: dead letters are a second queue, `<queue>-poison`; a receive asks again and again, more
rarely while the queue is empty. A pop receipt fences only against a newer receive: a holder whose time is over may still
end a message that no other consumer has received since. The lease in the database is the fence.
"""

from __future__ import annotations

import asyncio
import json
import math
import re
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

import msgspec

from stepfast.backoff import Backoff
from stepfast.errors import ConfigurationError
from stepfast.transports.azure import CURE, async_credential, raised_as_ours, storage_url
from stepfast.transports.body import json_inside
from stepfast.transports.contract import (
    MOST_AT_ONCE,
    MOST_DELIVERIES,
    TOO_OFTEN,
    Abilities,
    Delivery,
    DeliveryLostError,
    Depth,
    Outgoing,
    Transport,
    TransportRefusedError,
    check_messages,
    check_queue,
)

if TYPE_CHECKING:
    from azure.storage.queue import QueueMessage
    from azure.storage.queue.aio import QueueClient, QueueServiceClient


NAME: Final = "storage-queue"
LONGEST: Final = timedelta(days=7)  # that a message may be hidden
TRIES: Final = 3  # of one request; afterwards the caller decides
POISON: Final = "-poison"
LONGEST_NAME: Final = 63 - len(POISON)
LARGEST_BODY: Final = 60 * 1024  # of 64; the rest is for the id, the subject and the properties
UNWRITABLE: Final = 500  # the status of a page that the service cannot write as XML
CAREFUL: Final = 60.0  # seconds
SIDE_BY_SIDE: Final = 16  # requests at a time
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 2.0  # seconds between two looks at an empty queue


@dataclass(frozen=True)
class Receipt:
    queue: str  # the queue itself, or the one with its dead letters
    message_id: str
    pop_receipt: str
    text: str


class StorageQueueTransport(Transport):
    """One account's queues: by its connection string, or by its name and the identity of this machine."""

    name = NAME

    def __init__(
        self,
        *,
        connection_string: str = "",
        account: str = "",
        most_deliveries: int = MOST_DELIVERIES,
        **client_options: Any,  # of the SDK: connection_verify=, transport=, …
    ) -> None:
        if bool(connection_string) == bool(account):
            raise ConfigurationError(
                "storage-queue: give the connection string, or the account, and not both"
            )
        self._connection_string = connection_string
        self._account = account
        self._options = client_options
        self._service: QueueServiceClient | None = None
        self._credential: Any = None
        self._backoffs: dict[str, Backoff] = {}  # by queue: they outlast a receive
        self._one_by_one: dict[str, float] = {}  # until when, on our own clock
        self._held: dict[tuple[str, str], Delivery] = {}
        self.most_deliveries = most_deliveries
        self.abilities = Abilities(
            largest_body=LARGEST_BODY,
            detects_duplicates=False,
            longest_wait=timedelta(0),
            longest_hold=LONGEST,
            most_deliveries=most_deliveries,
        )

    async def open(self) -> None:
        if self._account:
            self._credential = async_credential()
        self._service = open_service(self._connection_string, self._account, self._credential, self._options)

    async def close(self) -> None:
        if self._service is None:
            return
        await asyncio.gather(*map(self.release, list(self._held.values())), return_exceptions=True)
        self._held.clear()
        service, self._service = self._service, None
        await service.close()
        if self._credential is not None:
            await self._credential.close()

    async def ensure(self, queue: str) -> None:
        check_queue(NAME, queue)
        if len(queue) > LONGEST_NAME:
            raise TransportRefusedError(
                NAME, f"queue {queue!r}: at most {LONGEST_NAME} characters, since {POISON!r} is added to it"
            )
        for name in (queue, queue + POISON):
            async with self._asking(name) as client:
                await create(client)

    async def send(self, queue: str, messages: Sequence[Outgoing]) -> None:
        check_messages(NAME, self.abilities, messages)
        texts = [
            packed(Parts(id=it.id, body=it.body, properties=it.properties, subject=it.subject))
            for it in messages
        ]
        for message, text in zip(messages, texts, strict=True):
            if (size := len(text.encode())) > LARGEST_TEXT:
                raise TransportRefusedError(
                    NAME,
                    f"message {message.id}: it takes {size:,} bytes with its properties, at most {LARGEST_TEXT:,} fit",
                )
        delays = [delay(it) for it in messages]
        limit = asyncio.Semaphore(SIDE_BY_SIDE)

        async def send_one(message: Outgoing, text: str, hidden_for: int) -> None:
            async with limit, self._asking(queue) as client:
                await client.send_message(
                    text,
                    visibility_timeout=hidden_for or None,
                    # By default a message vanishes silently after a week.
                    time_to_live=-1 if message.lives_for is None else seconds(message.lives_for),
                )

        await all_or_raise([send_one(*given) for given in zip(messages, texts, delays, strict=True)])

    async def receive(self, queue: str, *, at_most: int, wait: timedelta, hold: timedelta) -> list[Delivery]:
        until = time.monotonic() + wait.total_seconds()
        while True:
            if found := await self._take(queue, queue, at_most, hold):
                self._backoffs.pop(queue, None)
                return found
            rest = until - time.monotonic()
            if rest <= 0:
                return []
            if queue not in self._backoffs:
                self._backoffs[queue] = Backoff(first=FIRST_PAUSE, longest=LONGEST_PAUSE, growth=1.5)
            await asyncio.sleep(min(rest, self._backoffs[queue].next()))

    async def renew(self, delivery: Delivery, hold: timedelta) -> Delivery:
        receipt: Receipt = delivery.receipt
        async with self._asking(receipt.queue, delivery) as client:
            found = await client.update_message(
                receipt.message_id, receipt.pop_receipt, visibility_timeout=seconds(hold)
            )
        # The old receipt is worth nothing from now on.
        renewed = replace(
            delivery,
            held_until=aware(found.next_visible_on),
            receipt=replace(receipt, pop_receipt=str(found.pop_receipt)),
        )
        self._held[receipt.queue, receipt.message_id] = renewed
        return renewed

    async def complete(self, delivery: Delivery) -> None:
        receipt: Receipt = delivery.receipt
        async with self._asking(receipt.queue, delivery) as client:
            await client.delete_message(receipt.message_id, receipt.pop_receipt)
        self._held.pop((receipt.queue, receipt.message_id), None)

    async def release(self, delivery: Delivery, after: timedelta = timedelta(0)) -> None:
        receipt: Receipt = delivery.receipt
        async with self._asking(receipt.queue, delivery) as client:
            await client.update_message(
                receipt.message_id, receipt.pop_receipt, visibility_timeout=seconds(after, least=0)
            )
        self._held.pop((receipt.queue, receipt.message_id), None)

    async def dead_letter(self, delivery: Delivery, reason: str, detail: str = "") -> None:
        # First check that it is still ours: a late holder must not put aside what another consumer works on.
        delivery = await self.renew(self._newest(delivery), timedelta(seconds=60))
        sent_at = delivery.sent_at.isoformat() if delivery.sent_at else ""
        text = packed_dead(
            Parts(
                id=delivery.id,
                body=delivery.body,
                properties=delivery.properties,
                subject=delivery.subject,
                dead={"reason": reason, "detail": detail, "sent_at": sent_at},
            )
        )
        async with self._asking(delivery.queue + POISON) as client:
            # A foreign text that leaves no room for the reason is kept without it.
            await client.send_message(text or delivery.receipt.text, time_to_live=-1)
        await self.complete(delivery)

    async def dead_letters(self, queue: str, *, at_most: int, hold: timedelta) -> list[Delivery]:
        return await self._take(queue, queue + POISON, at_most, hold)

    async def depth(self, queue: str) -> Depth:
        """Storage Queue counts what is held or scheduled with what is ready."""
        async with self._asking(queue) as client:
            ready = await client.get_queue_properties()
        async with self._asking(queue + POISON) as client:
            dead = await client.get_queue_properties()
        return Depth(ready=ready.approximate_message_count or 0, dead=dead.approximate_message_count or 0)

    def _newest(self, delivery: Delivery) -> Delivery:
        """The delivery with its newest receipt: a try to put it aside may have renewed it, and got no further."""
        found = self._held.get((delivery.receipt.queue, delivery.receipt.message_id), delivery)
        return found if found.attempt == delivery.attempt else delivery  # another may have received it since

    async def _take(self, queue: str, place: str, at_most: int, hold: timedelta) -> list[Delivery]:
        def look_at(response: Any) -> None:
            if response.http_response.status_code == UNWRITABLE:
                self._one_by_one[place] = time.monotonic() + 2 * hold.total_seconds() + CAREFUL

        # One text that no XML can carry makes the service fail for the whole page: then messages are taken one by one.
        alone = self._one_by_one.get(place, 0.0) > time.monotonic()
        # By page: the plain iterator would go on for ever while there are messages.
        async with self._asking(place) as client:
            pages = client.receive_messages(
                messages_per_page=1 if alone else min(at_most, MOST_AT_ONCE),
                visibility_timeout=seconds(hold),
                raw_response_hook=look_at,
            ).by_page()
            page = await anext(pages, None)
            messages = [] if page is None else [it async for it in page]
        found = []
        for it in messages:
            delivery = delivery_of(it, queue, place, hold)
            self._held[place, it.id] = delivery
            if place == queue and delivery.attempt > self.most_deliveries:
                with suppress(DeliveryLostError):
                    await self.dead_letter(
                        delivery, TOO_OFTEN, f"not ended after {self.most_deliveries} deliveries"
                    )
                continue
            found.append(delivery)
        return found

    @asynccontextmanager
    async def _asking(self, queue: str, delivery: Delivery | None = None) -> AsyncIterator[QueueClient]:
        """The client of a queue; errors inside the block are raised as our own."""
        if self._service is None:
            raise TransportRefusedError(NAME, "the transport is not open")
        try:
            with raised_as_ours(NAME, queue, delivery):
                yield self._service.get_queue_client(queue)
        except DeliveryLostError:
            if delivery is not None:
                self._held.pop((delivery.receipt.queue, delivery.receipt.message_id), None)
            raise


# Single requests.


def open_service(
    connection_string: str, account: str, credential: Any, given: dict[str, Any]
) -> QueueServiceClient:
    """The client of the account; it does not connect yet."""
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
    """Create a queue, or check that it is there where we may not create it."""
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
    """Wait for all calls, then raise the first error: no request is left behind."""
    for answer in await asyncio.gather(*calls, return_exceptions=True):
        if isinstance(answer, BaseException):
            raise answer


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
    """When a dead letter was sent; None if it was not written by us."""
    try:
        return datetime.fromisoformat(text).astimezone(UTC) if text else None
    except (ValueError, OverflowError):
        return None


def aware(at: datetime | None) -> datetime:
    return datetime.now(UTC) if at is None else at.astimezone(UTC)


# The text of a message. Storage Queue knows texts only: no ids of ours, no properties, no reasons. Ours stand in front,
# inside the object that the body is:
#
#     {"_stepfast":{"id":"…","subject":"…","properties":{…}},"task_id":"t-1",…}
#
# so that readers who know nothing of us (a Logic App that hands the text to a container, a person) still read the body. A
# body that is no JSON object, or that XML would spoil, is sent as a text in "_text". Messages of other senders are taken
# as they are, or as base64 of JSON, which many libraries write (see `body.py`).

OURS: Final = '{"_stepfast":'
TEXT: Final = ',"_text":'
LARGEST_TEXT: Final = 65_536  # bytes of a message
LONGEST_DETAIL: Final = 4_000
# Characters that XML 1.0 cannot write, or reads differently: \r becomes \n.
_SPOILT: Final = re.compile("[^\t\n\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@dataclass(frozen=True, kw_only=True)
class Parts:
    """The parts of a message's text."""

    id: str
    body: str
    properties: Mapping[str, Any] = field(default_factory=dict)
    subject: str = ""
    dead: Mapping[str, str] = field(default_factory=dict)  # reason, detail, sent_at of a dead letter


def packed(parts: Parts) -> str:
    """The text of a message."""
    head: dict[str, Any] = {"id": parts.id}
    head |= {"subject": parts.subject} if parts.subject else {}
    head |= {"properties": dict(parts.properties)} if parts.properties else {}
    head |= {"dead": dict(parts.dead)} if parts.dead else {}
    if _stands_alone(parts.body):
        rest = "}" if parts.body == "{}" else f",{parts.body[1:]}"
        return OURS + _json(head) + rest
    return OURS + _json({**head, "text": True}) + TEXT + _json(parts.body) + "}"


def packed_dead(parts: Parts) -> str | None:
    """The text of a dead letter; None where a foreign text leaves no room for the reason."""
    detail = parts.dead.get("detail", "")
    for length in (LONGEST_DETAIL, 200, 0):
        dead = {**parts.dead, "detail": detail[:length], "reason": parts.dead.get("reason", "")[:200]}
        text = packed(Parts(**{**_fields(parts), "dead": dead}))
        if len(text.encode()) <= LARGEST_TEXT:
            return text
    return None


def unpacked(text: str, broker_id: str) -> Parts:
    """The parts of a text, ours or foreign. Nothing is refused here: a consumer that cannot use it puts it aside."""
    if len(text) > LARGEST_TEXT:  # which Azure does not take: no sender of ours wrote it
        return Parts(id=broker_id, body=text)
    if not _is_json(text) and _is_json(inside := json_inside(text)):
        text = inside
    if text.startswith(OURS):
        try:
            return _ours(text)
        except Exception:  # noqa: BLE001, S110 - a foreign text after all, and no text may end a worker
            pass
    return Parts(id=broker_id, body=text)


def _ours(text: str) -> Parts:
    head, end = json.JSONDecoder().raw_decode(text, len(OURS))
    rest = text[end:]
    if head.get("text"):
        if not rest.startswith(TEXT):
            raise ValueError("no text")
        body = json.loads(rest[len(TEXT) : -1])
    else:
        body = "{}" if rest == "}" else "{" + rest.removeprefix(",")
    return Parts(
        id=str(head["id"]),
        body=str(body),
        properties=dict(head.get("properties", {})),
        subject=str(head.get("subject", "")),
        dead={str(name): str(value) for name, value in dict(head.get("dead", {})).items()},
    )


def _stands_alone(body: str) -> bool:
    """Whether a body is a JSON object that arrives unchanged."""
    if not body.startswith("{") or body != body.rstrip() or _SPOILT.search(body):
        return False
    try:
        found = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, msgspec.ValidationError, RecursionError):
        return False
    return "_stepfast" not in found and (bool(found) or body == "{}")


def _json(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return json.dumps(value, separators=(",", ":")) if _SPOILT.search(text) else text


def _is_json(text: str) -> bool:
    try:
        msgspec.json.decode(text, type=msgspec.Raw)
        msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return False
    return True


def _fields(parts: Parts) -> dict[str, Any]:
    return {"id": parts.id, "body": parts.body, "properties": parts.properties, "subject": parts.subject}
