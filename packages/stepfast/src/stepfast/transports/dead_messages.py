"""Dead letters of brokers, kept in our own table beside dead jobs: one list, one way to retry.

A message is stored first and removed at the broker afterwards. A crash in between brings it a second time, which its
`source` tells.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from stepfast.clock import instant, moment, new_id
from stepfast.database.statement import sql
from stepfast.database.stored import stored_fields
from stepfast.telemetry.masking import storable, without_secrets

if TYPE_CHECKING:
    from stepfast.database.connection import Transaction
    from stepfast.transports.contract import Delivery


LONGEST_REASON: Final = 200
LONGEST_DETAIL: Final = 4_000

KEEP_DEAD_MESSAGE = sql("""
    INSERT INTO stepfast_dead_message (id, source, transport, address, queue, message_id, subject, attempts, reason, detail,
                                       sent_at, found_at, properties, body)
    VALUES (:id, :source, :transport, :address, :queue, :message_id, :subject, :attempts, :reason, :detail,
            :sent_at, {now}, :properties, :body)
    {keep_existing}
""")
KEPT_MESSAGE = sql("SELECT id FROM stepfast_dead_message WHERE source = :source")

COLUMNS = "id, transport, address, queue, message_id, subject, attempts, reason, detail, sent_at, found_at, properties, body"
_MATCHES = """
    (:any_kind = 1 OR subject = :kind) AND (:any_queue = 1 OR queue = :queue)
       AND (:any_error = 1 OR reason = :error_group)
"""
NEWEST_DEAD_MESSAGES = sql(f"""
    SELECT {COLUMNS} FROM stepfast_dead_message WHERE {_MATCHES} ORDER BY found_at DESC, id DESC LIMIT :limit
""")
OLDEST_DEAD_MESSAGES = sql(f"""
    SELECT {COLUMNS} FROM stepfast_dead_message
     WHERE {_MATCHES} AND found_at <= :until ORDER BY found_at, id LIMIT :limit {{skip_locked}}
""")
COUNT_DEAD_MESSAGES = sql(f"SELECT count(*) FROM stepfast_dead_message WHERE {_MATCHES}")
FIND_DEAD_MESSAGE = sql(f"SELECT {COLUMNS} FROM stepfast_dead_message WHERE id = :id")
REMOVE_DEAD_MESSAGES = sql("DELETE FROM stepfast_dead_message WHERE id {any_of:ids}")


@dataclass(frozen=True)
class DeadMessage:
    """A message that a broker put aside."""

    id: str  # ours
    transport: str
    address: str  # where its broker is
    queue: str
    message_id: str  # the broker's
    subject: str
    attempts: int
    reason: str
    detail: str
    sent_at: datetime | None
    found_at: datetime
    properties: Mapping[str, Any]
    body: str

    @property
    def origin(self) -> str:
        """The transport and the queue that the message came from."""
        return f"{self.transport}:{self.queue}"


def keep_dead_message(
    tx: Transaction,
    delivery: Delivery,
    *,
    transport: str,
    address: str,
    reason: str = "",
    detail: str = "",
    subject: str = "",
) -> str:
    """Store a dead letter, once; returns its id in our list. Without a `reason` that of the broker is kept."""
    sent = None if delivery.sent_at is None else instant(delivery.sent_at)
    place = "\0".join((address, delivery.queue, delivery.id, str(sent)))
    source = hashlib.sha256(place.encode(errors="backslashreplace")).hexdigest()
    mine = new_id()
    tx.run(
        KEEP_DEAD_MESSAGE,
        id=mine,
        source=source,
        transport=transport,
        address=address,
        queue=delivery.queue,
        message_id=_clean(delivery.id, LONGEST_REASON),
        subject=_clean(subject or delivery.subject, LONGEST_REASON),
        attempts=delivery.attempt,
        reason=_clean(reason or delivery.dead_reason or "unknown", LONGEST_REASON),
        detail=without_secrets(_clean(detail or delivery.dead_detail, LONGEST_DETAIL)),
        sent_at=sent,
        properties=json.dumps(_clean_properties(delivery.properties), default=str),
        body=_clean(delivery.body),
    )
    return str(tx.first(KEPT_MESSAGE, source=source))


def newest(tx: Transaction, asked: Mapping[str, Any], limit: int) -> list[DeadMessage]:
    """Dead messages, the latest first. `asked` is a filter of dead letters: kind is the subject, error the reason."""
    return tx.all(NEWEST_DEAD_MESSAGES, _read, **asked, limit=limit)


def oldest(tx: Transaction, asked: Mapping[str, Any], until: int, limit: int) -> list[DeadMessage]:
    """Dead messages that were found until then, the oldest first, locked until the commit."""
    return tx.all(OLDEST_DEAD_MESSAGES, _read, **asked, until=until, limit=limit)


def count(tx: Transaction, asked: Mapping[str, Any]) -> int:
    return int(tx.first(COUNT_DEAD_MESSAGES, **asked))


def find(tx: Transaction, message_id: str) -> DeadMessage | None:
    found = tx.all(FIND_DEAD_MESSAGE, _read, id=message_id)
    return found[0] if found else None


def remove(tx: Transaction, ids: Sequence[str]) -> int:
    """Delete dead messages that were retried or purged; returns how many were still there."""
    return tx.run(REMOVE_DEAD_MESSAGES, ids=list(ids)) if ids else 0


def _read(*row: Any) -> DeadMessage:
    *facts, sent, found, properties, body = row
    at = None if sent is None else moment(sent)
    about = {
        "sent_at": at,
        "found_at": moment(found),
        "properties": stored_fields(properties),
        "body": body,
    }
    return DeadMessage(*facts, **about)


def _clean_properties(given: Mapping[str, Any]) -> dict[str, Any]:
    """The properties as texts that can be stored, shown and sent again."""
    return {_clean(name): _clean(value) if isinstance(value, str) else value for name, value in given.items()}


def _clean(text: str, most: int | None = None) -> str:
    """The text as all three databases can store it."""
    return storable(text.replace("\0", "\ufffd"))[:most]
