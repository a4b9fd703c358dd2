"""Messages as rows: sent, taken under a fence, ended. The lease in miniature.

A row whose hold is over may be taken by another, who writes a fence of his own: whoever comes late shows the old one
and changes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from stepfast.clock import instant, micros, moment, new_fence, new_ids
from stepfast.database.statement import sql
from stepfast.database.wakeup import MESSAGES
from stepfast.transports.checking import TOO_OFTEN
from stepfast.transports.contract import Delivery, Depth, Outgoing

if TYPE_CHECKING:
    from stepfast.database.connection import Transaction

REMEMBERED: Final = timedelta(minutes=10)  # how long an id is swallowed after it was sent
LONGEST_REASON: Final = 200

MAKE = sql("INSERT INTO stepfast_message_queue (id) VALUES (:queue) {keep_existing}")
KNOWN = sql("SELECT id FROM stepfast_message_queue WHERE id = :queue")

FORGET = sql("""
    UPDATE stepfast_message SET remembered = NULL
     WHERE queue = :queue AND remembered {any_of:ids}
       AND (until_at <= {now} OR (state IN ('done', 'dead') AND sent_at <= {now} - :remembered))
""")
SEND = sql("""
    INSERT INTO stepfast_message (id, queue, message_id, remembered, visible_at, until_at, subject, properties, body)
    VALUES (:id, :queue, :message_id, :message_id, CASE WHEN :visible_at > {now} THEN :visible_at ELSE {now} END,
            {now} + :lives_for, :subject, :properties, :body)
    {keep_existing}
""")

_PICK = """
    SELECT id, message_id, body, attempts, subject, properties, sent_at, reason, detail, {{now}}
      FROM stepfast_message {index}
     WHERE queue = :queue AND state = '{state}' AND visible_at <= {{now}} AND (until_at IS NULL OR until_at > {{now}})
     ORDER BY visible_at, id
     LIMIT :limit
    {{skip_locked}}
"""
# MariaDB would sort the whole queue, and lock it while it does.
_FORCED = "FORCE INDEX (stepfast_message_ready)"
PICK = sql(_PICK.format(state="ready", index=""), mariadb=_PICK.format(state="ready", index=_FORCED))
PICK_DEAD = sql(_PICK.format(state="dead", index=""), mariadb=_PICK.format(state="dead", index=_FORCED))

TAKE = sql("""
    UPDATE stepfast_message SET fence = :fence, attempts = attempts + 1, visible_at = {now} + :hold
     WHERE id {any_of:ids} AND state IN ('ready', 'dead') AND visible_at <= {now}
""")
RENEW = sql("""
    UPDATE stepfast_message SET visible_at = {now} + :hold
     WHERE id = :id AND fence = :fence AND state IN ('ready', 'dead') AND visible_at > {now}
""")
RELEASE = sql("""
    UPDATE stepfast_message SET fence = 0, visible_at = {now} + :after
     WHERE id = :id AND fence = :fence AND state IN ('ready', 'dead') AND visible_at > {now}
""")
GIVE_BACK = sql("""
    UPDATE stepfast_message SET fence = 0, visible_at = {now}, attempts = attempts - 1
     WHERE id = :id AND fence = :fence AND state IN ('ready', 'dead') AND visible_at > {now}
""")
COMPLETE = sql("""
    UPDATE stepfast_message SET state = 'done', fence = 0, until_at = sent_at + :remembered, body = '', detail = NULL
     WHERE id = :id AND fence = :fence AND state IN ('ready', 'dead') AND visible_at > {now}
""")
PUT_ASIDE = sql("""
    UPDATE stepfast_message SET state = 'dead', fence = 0, visible_at = {now}, until_at = NULL,
                                reason = :reason, detail = :detail
     WHERE id = :id AND fence = :fence AND state = 'ready' AND visible_at > {now}
""")
PUT_ASIDE_UNTAKEN = sql("""
    UPDATE stepfast_message SET state = 'dead', fence = 0, visible_at = {now}, until_at = NULL,
                                reason = :reason, detail = :detail
     WHERE id = :id AND state = 'ready' AND visible_at <= {now}
""")

DEPTH = sql("""
    SELECT count(CASE WHEN state = 'ready' AND visible_at <= {now} THEN 1 END),
           count(CASE WHEN state = 'ready' AND visible_at > {now} AND fence <> 0 THEN 1 END),
           count(CASE WHEN state = 'ready' AND visible_at > {now} AND fence = 0 THEN 1 END),
           count(CASE WHEN state = 'dead' THEN 1 END)
      FROM stepfast_message
     WHERE queue = :queue AND state IN ('ready', 'dead') AND (until_at IS NULL OR until_at > {now})
""")
OLD = sql(
    "SELECT id FROM stepfast_message WHERE until_at <= {now} ORDER BY until_at LIMIT :limit {skip_locked}"
)
PRUNE = sql("DELETE FROM stepfast_message WHERE id {any_of:ids} AND until_at <= {now}")


@dataclass(frozen=True)
class Receipt:
    id: str
    fence: int


def make(tx: Transaction, queue: str) -> None:
    tx.run(MAKE, queue=queue)


def is_known(tx: Transaction, queue: str) -> bool:
    return tx.first(KNOWN, queue=queue) is not None


def send(tx: Transaction, queue: str, messages: Sequence[Outgoing]) -> None:
    """Store them; one whose id is remembered is swallowed."""
    wanted = sorted({it.id for it in messages})
    tx.run(FORGET, queue=queue, ids=wanted, remembered=micros(REMEMBERED))
    rows = [
        {
            "id": row_id,
            "queue": queue,
            "message_id": it.id,
            "visible_at": 0 if it.not_before is None else instant(it.not_before),
            "lives_for": None if it.lives_for is None else micros(it.lives_for),
            "subject": it.subject,
            "properties": json.dumps(dict(it.properties)),
            "body": it.body,
        }
        for row_id, it in zip(new_ids(len(messages)), messages, strict=True)
    ]
    tx.run_many(SEND, rows)
    tx.wakes.add(MESSAGES)


def take(
    tx: Transaction, queue: str, limit: int, hold: timedelta, most_deliveries: int, *, dead: bool
) -> list[Delivery]:
    """Up to so many, under one new fence; what was delivered too often is put aside on the way."""
    rows = tx.rows(PICK_DEAD if dead else PICK, queue=queue, limit=limit)
    worn = [] if dead else [row for row in rows if row[3] >= most_deliveries]
    for row in worn:
        tx.run(PUT_ASIDE_UNTAKEN, id=row[0], reason=TOO_OFTEN, detail=f"not ended after {row[3]} deliveries")
    fresh = [row for row in rows if row not in worn]
    if not fresh:
        return []
    fence = new_fence()
    tx.run(TAKE, ids=[row[0] for row in fresh], fence=fence, hold=micros(hold))
    return [_delivery(row, queue, fence, hold) for row in fresh]


def renew(tx: Transaction, receipt: Receipt, hold: timedelta) -> bool:
    return tx.run(RENEW, id=receipt.id, fence=receipt.fence, hold=micros(hold)) == 1


def release(tx: Transaction, receipt: Receipt, after: timedelta) -> bool:
    tx.wakes.add(MESSAGES)
    return tx.run(RELEASE, id=receipt.id, fence=receipt.fence, after=micros(after)) == 1


def give_back(tx: Transaction, receipts: Sequence[Receipt]) -> None:
    """What was taken and never handed to anybody: it counts as no delivery."""
    tx.run_many(GIVE_BACK, [{"id": it.id, "fence": it.fence} for it in receipts])
    tx.wakes.add(MESSAGES)


def complete(tx: Transaction, receipt: Receipt) -> bool:
    return tx.run(COMPLETE, id=receipt.id, fence=receipt.fence, remembered=micros(REMEMBERED)) == 1


def complete_all(tx: Transaction, receipts: Sequence[Receipt]) -> list[bool]:
    """Each for itself: one that was lost does not hold up the others."""
    ended = [False] * len(receipts)
    for at in sorted(
        range(len(receipts)), key=lambda it: receipts[it].id
    ):  # in one order: nobody waits in a circle
        ended[at] = complete(tx, receipts[at])
    return ended


def put_aside(tx: Transaction, receipt: Receipt, reason: str, detail: str) -> bool:
    short = reason[:LONGEST_REASON]
    return tx.run(PUT_ASIDE, id=receipt.id, fence=receipt.fence, reason=short, detail=detail) == 1


def depth(tx: Transaction, queue: str) -> Depth:
    ready, held, scheduled, dead = map(int, tx.rows(DEPTH, queue=queue)[0])
    return Depth(ready=ready, held=held, scheduled=scheduled, dead=dead)


def prune(tx: Transaction, limit: int) -> int:
    """Remove what nobody needs to remember any more."""
    old = [row[0] for row in tx.rows(OLD, limit=limit)]
    return tx.run(PRUNE, ids=old) if old else 0


def _delivery(row: Sequence[Any], queue: str, fence: int, hold: timedelta) -> Delivery:
    row_id, message_id, body, attempts, subject, properties, sent_at, reason, detail, now = row
    return Delivery(
        id=message_id,
        body=body,
        queue=queue,
        attempt=attempts + 1,
        held_until=moment(int(now)) + hold,
        properties=json.loads(properties),
        subject=subject,
        sent_at=moment(sent_at),
        dead_reason=reason or "",
        dead_detail=detail or "",
        receipt=Receipt(row_id, fence),
    )
