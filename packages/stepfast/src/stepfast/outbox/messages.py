"""Messages that are staged in a transaction, to be sent after its commit.

If that transaction rolls back, there never was a message. If it commits, the relay sends the message at least once,
always under the same id: receivers tell a repetition by it.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any, ClassVar, Final
from urllib.parse import urlsplit

from stepfast.clock import new_id
from stepfast.database.statement import sql
from stepfast.database.wakeup import OUTBOX
from stepfast.errors import ArgumentsError
from stepfast.notifications.webhook import LARGEST_BODY, problem_of, shown
from stepfast.telemetry import current_trace
from stepfast.telemetry.masking import without_secrets

if TYPE_CHECKING:
    from stepfast.database.connection import Transaction


class MessageState(StrEnum):
    WAITING = "waiting"  # stands in the line of its destination
    SENT = "sent"  # the receiver has it; deleted after the retention time, a hint for workers at once
    DEAD = "dead"  # given up; waits for an operator


class Channel(StrEnum):
    WEBHOOK = "webhook"  # a request to a program
    ALERT = "alert"  # a message to a person
    EXPORT = "export"  # a document in a file or a blob
    BROKER = "broker"  # a message for a queue of a broker


TRANSITIONS: Final[dict[MessageState, dict[MessageState, str]]] = {
    MessageState.WAITING: {
        MessageState.WAITING: "fail, and try again later",
        MessageState.SENT: "the receiver has it",
        MessageState.DEAD: "give up",
    },
    MessageState.SENT: {},
    MessageState.DEAD: {MessageState.WAITING: "retry"},
}

WEBHOOK: Final = Channel.WEBHOOK.value
ALERT: Final = Channel.ALERT.value
EXPORT: Final = Channel.EXPORT.value
BROKER: Final = Channel.BROKER.value
LONGEST_KEY: Final = 128
LONGEST_TYPE: Final = 200
LONGEST_HEADERS: Final = 8_000
_HEADER: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}")
_HEADER_VALUE: Final = re.compile(r"[\x21-\x7e]([\x20-\x7e]{0,1000}[\x21-\x7e])?")
_OUR_HEADERS: Final = re.compile(
    r"webhook-.*|host|content-length|content-type|connection|transfer-encoding|traceparent"
)
_SECRET_HEADERS: Final = re.compile(r".*(auth|cookie|token|secret|passw|api-?key|signature|session).*")

STAGE_MESSAGE = sql("""
    INSERT INTO stepfast_outbox (id, channel, destination, address, dedupe_key, state, created_at, since_at, due_at,
                                 job_id, trace, headers, body)
    VALUES (:id, :channel, :destination, :address, :dedupe_key, 'waiting', {now}, {now}, {now},
            :job_id, :trace, :headers, :body)
    {keep_existing}
""")

KEY_HOLDER = sql(
    "SELECT id FROM stepfast_outbox WHERE destination = :destination AND dedupe_key = :dedupe_key"
)


@dataclass(frozen=True)
class StagedMessage:
    """The answer to staging: which message will be sent, and whether this call created it."""

    id: str
    created: bool


@dataclass(frozen=True, kw_only=True)
class Message:
    """Something to be sent, as it is stored. An effect: it is staged with the step's commit or not at all."""

    id: str
    channel: str
    destination: str  # in whose line it stands
    address: str
    body: str
    headers: Mapping[str, str] | None = None
    key: str | None = None  # the same key is staged once for a destination
    job_id: str | None = None
    trace: str | None = None
    turn: ClassVar = (1, "")  # behind all effects that are not messages, and in the order of their staging

    def apply(self, tx: Transaction, /) -> None:
        stage(tx, self)


def stage(tx: Transaction, message: Message) -> StagedMessage:
    """Store a message; of several with one key for one destination, the first is sent."""
    tx.run(STAGE_MESSAGE, **_row(message))
    tx.wakes.add(OUTBOX)
    if message.key is None:
        return StagedMessage(message.id, created=True)
    holder = str(tx.first(KEY_HOLDER, destination=message.destination, dedupe_key=message.key))
    return StagedMessage(holder, created=holder == message.id)


def stage_many(tx: Transaction, messages: Sequence[Message]) -> None:
    """Store messages that have no keys, in their order."""
    if messages:
        tx.run_many(STAGE_MESSAGE, [_row(message) for message in messages])
        tx.wakes.add(OUTBOX)


def _row(message: Message) -> dict[str, Any]:
    return {
        "id": message.id,
        "channel": message.channel,
        "destination": message.destination,
        "address": message.address,
        "dedupe_key": message.key,
        "job_id": message.job_id,
        "trace": message.trace,
        "headers": json.dumps(dict(message.headers)) if message.headers else None,
        "body": message.body,
    }


def webhook(
    url: str,
    data: str,
    *,
    type: str | None = None,  # noqa: A002 - the word of Standard Webhooks
    key: str | None = None,
    headers: Mapping[str, str] | None = None,
    job_id: str | None = None,
) -> Message:
    """A webhook that posts `data` (JSON): as it is, or with a `type` inside the envelope of Standard Webhooks."""
    if (problem := problem_of(url)) is not None:
        raise ArgumentsError("webhook", problem)
    _check_key(key)
    body = data if type is None else _envelope(type, data)
    if (size := len(body.encode())) > LARGEST_BODY:
        raise ArgumentsError(
            "webhook",
            f"the body takes {size:,} bytes, at most {LARGEST_BODY:,} are sent; keep the data where the receiver can fetch it, and send its id",
        )
    return Message(
        id=new_id(),
        channel=WEBHOOK,
        destination=destination_of(WEBHOOK, urlsplit(url).netloc, url),
        address=url,
        body=body,
        headers=_checked_headers(headers),
        key=key,
        job_id=job_id,
        trace=current_trace(),
    )


def destination_of(channel: str, name: str, address: str) -> str:
    """A short name for the line in which messages to one address stand: readable, and different for each address."""
    return f"{channel}:{name[:60]}:{hashlib.sha256(address.encode()).hexdigest()[:24]}"


def as_shown(channel: str, address: str) -> str:
    """An address as it may be listed."""
    return without_secrets(shown(address) if channel == WEBHOOK else address)


def _envelope(kind: object, data: str) -> str:
    if not isinstance(kind, str) or not re.fullmatch(r"[\w.:/-]+", kind) or len(kind) > LONGEST_TYPE:
        raise ArgumentsError(
            "webhook",
            f"type={kind!r:.80}: write 1 to {LONGEST_TYPE} letters, digits and . _ : / -, such as 'order.paid'",
        )
    at = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return f'{{"type":{json.dumps(kind)},"timestamp":"{at}","data":{data}}}'


def _check_key(key: object) -> None:
    if key is None:
        return
    if not isinstance(key, str) or not 0 < len(key) <= LONGEST_KEY or key != key.strip() or "\0" in key:
        raise ArgumentsError(
            "webhook", f"key={key!r:.150}: a text of 1 to {LONGEST_KEY} characters, without spaces around it"
        )


def _checked_headers(headers: Mapping[str, str] | None) -> dict[str, str] | None:
    if not headers:
        return None
    for name, value in headers.items():
        if (problem := _problem_of_header(name, value)) is not None:
            raise ArgumentsError("webhook", f"header {name!r:.100} {problem}")
    if sum(len(name) + len(value) for name, value in headers.items()) > LONGEST_HEADERS:
        raise ArgumentsError("webhook", f"the headers take more than {LONGEST_HEADERS:,} characters")
    return dict(headers)


def _problem_of_header(name: object, value: object) -> str | None:
    if not isinstance(name, str) or not _HEADER.fullmatch(name):
        return "is no name of a header; use letters, digits and -"
    if not isinstance(value, str) or not _HEADER_VALUE.fullmatch(value):
        return "has no value that can be sent: 1 to 1,000 ASCII characters without spaces around them"
    if _OUR_HEADERS.fullmatch(name.lower()):
        return "is set by Stepfast"
    if _SECRET_HEADERS.fullmatch(name.lower()):
        return "looks like a credential, which would be stored in the clear; receivers verify the signature instead"
    return None


_BEFORE = """
    SELECT (SELECT count(*) FROM stepfast_outbox b {index}
             WHERE b.state = 'waiting' AND b.destination = o.destination AND b.seq < o.seq),
           (SELECT h.last_error FROM stepfast_outbox h {index}
             WHERE h.state = 'waiting' AND h.destination = o.destination ORDER BY h.seq LIMIT 1)
      FROM stepfast_outbox o WHERE o.id = :id AND o.state = 'waiting'
"""
# MariaDB might count along the primary key, over everything that was sent before.
MESSAGES_BEFORE = sql(
    _BEFORE.format(index=""), mariadb=_BEFORE.format(index="FORCE INDEX (stepfast_outbox_waiting)")
)


def stands_behind(tx: Transaction, message_id: str) -> str | None:
    """Why a message is not sent yet: how many go first, and the error of the first of them; None if none does."""
    rows = tx.rows(MESSAGES_BEFORE, id=message_id)
    if not rows or not rows[0][0]:
        return None
    count, error = rows[0]
    others = "1 other" if count == 1 else f"{count:,} others"
    return f"stands behind {others} to the same address{f', the first of which failed: {error}' if error else ''}"
