"""Queues in the application's own database: programs run as with a broker, and there is nothing more to operate.

A message is a row: sent, taken under a fence, ended. When its hold is over another consumer may take it under a fence of
its own: a late holder shows the old one and changes nothing. Database code is synchronous: each call is one short
transaction on a thread of the loop's.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from stepfast.backoff import Backoff
from stepfast.clock import instant, micros, moment, new_fence, new_ids
from stepfast.database.database import persist
from stepfast.database.dialects import Plans
from stepfast.database.statement import sql
from stepfast.database.stored import stored_fields
from stepfast.database.wakeup import MESSAGES
from stepfast.errors import DatabaseError
from stepfast.transports.contract import (
    MOST_DELIVERIES,
    TOO_OFTEN,
    Abilities,
    Delivery,
    DeliveryLostError,
    Depth,
    Outgoing,
    Transport,
    TransportError,
    TransportRefusedError,
    TransportUnavailableError,
    check_messages,
    check_queue,
)

if TYPE_CHECKING:
    from stepfast.database.connection import Transaction
    from stepfast.database.database import Database


T = TypeVar("T")

NAME: Final = "database"
LARGEST: Final = 1024 * 1024
FIRST_PAUSE, LONGEST_PAUSE = 0.01, 0.25  # seconds between two looks at an empty queue, without wake-ups
COMPLETED_AT_ONCE: Final = 200
PRUNED_EVERY: Final = 30.0  # seconds
PRUNED_AT_ONCE: Final = 1_000
REMEMBERED: Final = timedelta(minutes=10)  # how long a repeated id is dropped after it was sent
LONGEST_REASON: Final = 200

CREATE_QUEUE = sql("INSERT INTO stepfast_message_queue (id) VALUES (:queue) {keep_existing}")
FIND_QUEUE = sql("SELECT id FROM stepfast_message_queue WHERE id = :queue")

FORGET_IDS = sql("""
    UPDATE stepfast_message SET remembered = NULL
     WHERE queue = :queue AND remembered {any_of:ids}
       AND (until_at <= {now} OR (state IN ('done', 'dead') AND sent_at <= {now} - :remembered))
""")
INSERT_MESSAGE = sql("""
    INSERT INTO stepfast_message (id, queue, message_id, remembered, visible_at, until_at, subject, properties, body)
    VALUES (:id, :queue, :message_id, :message_id, CASE WHEN :visible_at > {now} THEN :visible_at ELSE {now} END,
            {now} + :lives_for, :subject, :properties, :body)
    {keep_existing}
""")

_PICK_MESSAGES = """
    SELECT id, message_id, body, attempts, subject, properties, sent_at, reason, detail, {{now}}
      FROM stepfast_message {index}
     WHERE queue = :queue AND state = '{state}' AND visible_at <= {{now}} AND (until_at IS NULL OR until_at > {{now}})
     ORDER BY visible_at, id
     LIMIT :limit
    {{skip_locked}}
"""
# MariaDB would sort the whole queue, and lock it while it does.
_FORCED = "FORCE INDEX (stepfast_message_ready)"
PICK_MESSAGES = sql(
    _PICK_MESSAGES.format(state="ready", index=""),
    mariadb=_PICK_MESSAGES.format(state="ready", index=_FORCED),
)
PICK_DEAD_MESSAGES = sql(
    _PICK_MESSAGES.format(state="dead", index=""), mariadb=_PICK_MESSAGES.format(state="dead", index=_FORCED)
)

TAKE_MESSAGES = sql("""
    UPDATE stepfast_message SET fence = :fence, attempts = attempts + 1, visible_at = {now} + :hold
     WHERE id {any_of:ids} AND state IN ('ready', 'dead') AND visible_at <= {now}
""")
RENEW_MESSAGE = sql("""
    UPDATE stepfast_message SET visible_at = {now} + :hold
     WHERE id = :id AND fence = :fence AND state IN ('ready', 'dead') AND visible_at > {now}
""")
RELEASE_MESSAGE = sql("""
    UPDATE stepfast_message SET fence = 0, visible_at = {now} + :after
     WHERE id = :id AND fence = :fence AND state IN ('ready', 'dead') AND visible_at > {now}
""")
GIVE_BACK_MESSAGE = sql("""
    UPDATE stepfast_message SET fence = 0, visible_at = {now}, attempts = attempts - 1
     WHERE id = :id AND fence = :fence AND state IN ('ready', 'dead') AND visible_at > {now}
""")
COMPLETE_MESSAGE = sql("""
    UPDATE stepfast_message SET state = 'done', fence = 0, until_at = sent_at + :remembered, body = '', detail = NULL
     WHERE id = :id AND fence = :fence AND state IN ('ready', 'dead') AND visible_at > {now}
""")
PUT_ASIDE_MESSAGE = sql("""
    UPDATE stepfast_message SET state = 'dead', fence = 0, visible_at = {now}, until_at = NULL,
                                reason = :reason, detail = :detail
     WHERE id = :id AND fence = :fence AND state = 'ready' AND visible_at > {now}
""")
PUT_ASIDE_WORN_OUT = sql("""
    UPDATE stepfast_message SET state = 'dead', fence = 0, visible_at = {now}, until_at = NULL,
                                reason = :reason, detail = :detail
     WHERE id = :id AND state = 'ready' AND visible_at <= {now}
""")

QUEUE_DEPTH = sql("""
    SELECT count(CASE WHEN state = 'ready' AND visible_at <= {now} THEN 1 END),
           count(CASE WHEN state = 'ready' AND visible_at > {now} AND fence <> 0 THEN 1 END),
           count(CASE WHEN state = 'ready' AND visible_at > {now} AND fence = 0 THEN 1 END),
           count(CASE WHEN state = 'dead' THEN 1 END)
      FROM stepfast_message
     WHERE queue = :queue AND state IN ('ready', 'dead') AND (until_at IS NULL OR until_at > {now})
""")
OLD_MESSAGES = sql(
    "SELECT id FROM stepfast_message WHERE until_at <= {now} ORDER BY until_at LIMIT :limit {skip_locked}"
)
PRUNE_MESSAGES = sql("DELETE FROM stepfast_message WHERE id {any_of:ids} AND until_at <= {now}")


@dataclass(frozen=True)
class Receipt:
    id: str
    fence: int


class DatabaseTransport(Transport):
    """A transport whose broker is the database."""

    name = NAME

    def __init__(self, database: Database, *, most_deliveries: int = MOST_DELIVERIES) -> None:
        self._database = database
        self._known: set[str] = set()
        self._held: dict[str, Delivery] = {}
        self._pruned_at = time.monotonic()
        self._ending: list[tuple[Receipt, asyncio.Future[bool]]] = []
        self._completing: asyncio.Task[None] | None = None
        self._bell: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self.most_deliveries = most_deliveries
        self.abilities = Abilities(
            largest_body=LARGEST,
            detects_duplicates=True,
            longest_wait=timedelta(days=1),
            longest_hold=timedelta(days=7),
            most_deliveries=most_deliveries,
        )

    async def open(self) -> None:
        if self._loop is not None:
            return
        await self._persist(lambda tx: queue_exists(tx, ""))
        self._loop, self._bell = asyncio.get_running_loop(), asyncio.Event()
        self._database.listen(self._heard, MESSAGES)

    async def close(self) -> None:
        if self._loop is None:
            return
        self._database.unlisten(self._heard)
        self._loop = self._bell = None
        if self._completing is not None:
            await self._completing
        for delivery in list(self._held.values()):
            try:
                await self.release(delivery)
            except TransportError:
                continue  # the message comes back by itself
        self._held.clear()

    async def ensure(self, queue: str) -> None:
        check_queue(NAME, queue)
        await self._persist(lambda tx: create_queue(tx, queue))
        self._known.add(queue)

    async def send(self, queue: str, messages: Sequence[Outgoing]) -> None:
        check_messages(NAME, self.abilities, messages)
        await self._require(queue)
        if messages:
            await self._persist(lambda tx: insert_messages(tx, queue, messages))

    async def receive(self, queue: str, *, at_most: int, wait: timedelta, hold: timedelta) -> list[Delivery]:
        await self._require(queue)
        await self._prune()
        until = time.monotonic() + wait.total_seconds()
        backoff = Backoff(first=FIRST_PAUSE, longest=LONGEST_PAUSE, growth=1.5)
        while True:
            if self._bell is not None:
                self._bell.clear()
            if found := await self._take(queue, at_most, hold, dead=False):
                return found
            rest = until - time.monotonic()
            if rest <= 0:
                return []
            await self._pause(min(rest, backoff.next()))

    async def renew(self, delivery: Delivery, hold: timedelta) -> Delivery:
        await self._end(delivery, lambda tx: renew_message(tx, delivery.receipt, hold))
        renewed = replace(delivery, held_until=datetime.now(UTC) + hold)
        self._held[delivery.receipt.id] = renewed
        return renewed

    async def complete(self, delivery: Delivery) -> None:
        """Complete a message; calls that come while the database works share one transaction."""
        ended: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._ending.append((delivery.receipt, ended))
        if self._completing is None or self._completing.done():
            self._completing = asyncio.create_task(self._complete_all())
        if not await ended:
            self._held.pop(delivery.receipt.id, None)
            raise DeliveryLostError(NAME, delivery.queue, delivery.id)
        self._held.pop(delivery.receipt.id, None)

    async def release(self, delivery: Delivery, after: timedelta = timedelta(0)) -> None:
        await self._end(delivery, lambda tx: release_message(tx, delivery.receipt, after))

    async def dead_letter(self, delivery: Delivery, reason: str, detail: str = "") -> None:
        await self._end(delivery, lambda tx: put_aside_message(tx, delivery.receipt, reason, detail))

    async def dead_letters(self, queue: str, *, at_most: int, hold: timedelta) -> list[Delivery]:
        await self._require(queue)
        return await self._take(queue, at_most, hold, dead=True)

    async def depth(self, queue: str) -> Depth:
        await self._require(queue)
        return await self._persist(lambda tx: queue_depth(tx, queue))

    async def _take(self, queue: str, at_most: int, hold: timedelta, *, dead: bool) -> list[Delivery]:
        """Take messages. A receive that is cancelled while the database works gives back what it then finds."""
        most = self.most_deliveries
        work = asyncio.get_running_loop().run_in_executor(
            None,
            self._run,
            lambda tx: take_messages(tx, queue, at_most, hold, most, dead=dead),
            Plans.ENGINE,
        )
        try:
            found = await asyncio.shield(work)
        except asyncio.CancelledError:
            work.add_done_callback(self._give_back)
            raise
        self._held |= {it.receipt.id: it for it in found}
        return found

    def _give_back(self, work: asyncio.Future[list[Delivery]]) -> None:
        if work.cancelled() or work.exception() is not None:
            return
        if receipts := [it.receipt for it in work.result()]:
            undone = work.get_loop().run_in_executor(
                None, self._run, lambda tx: give_back_messages(tx, receipts), Plans.ENGINE
            )
            undone.add_done_callback(
                lambda done: done.exception()
            )  # if it failed, they come back by themselves

    async def _end(self, delivery: Delivery, work: Callable[[Transaction], bool]) -> None:
        matched = await self._persist(work)
        self._held.pop(delivery.receipt.id, None)
        if not matched:
            raise DeliveryLostError(NAME, delivery.queue, delivery.id)

    async def _complete_all(self) -> None:
        while self._ending:
            batch, self._ending = self._ending[:COMPLETED_AT_ONCE], self._ending[COMPLETED_AT_ONCE:]
            receipts = [receipt for receipt, _ in batch]
            try:
                answers = await self._persist(partial(complete_messages, receipts=receipts))
            except Exception as error:  # noqa: BLE001 - raised in every call that waits
                for _, ended in batch:
                    if not ended.done():
                        ended.set_exception(error)
                continue
            for (_, ended), answer in zip(batch, answers, strict=True):
                if not ended.done():  # else the call was cancelled
                    ended.set_result(answer)

    async def _require(self, queue: str) -> None:
        if queue not in self._known:
            if not await self._persist(lambda tx: queue_exists(tx, queue)):
                raise TransportRefusedError(NAME, f"there is no queue {queue!r}; create it first")
            self._known.add(queue)

    async def _prune(self) -> None:
        if time.monotonic() - self._pruned_at > PRUNED_EVERY:
            self._pruned_at = time.monotonic()
            while await self._persist(lambda tx: prune_messages(tx, PRUNED_AT_ONCE)) == PRUNED_AT_ONCE:
                continue

    async def _persist(self, work: Callable[[Transaction], T]) -> T:
        return await asyncio.to_thread(self._run, work, Plans.ENGINE)

    def _run(self, work: Callable[[Transaction], T], plans: Plans) -> T:
        try:
            return persist(self._database, work, plans)
        except DatabaseError as error:
            raise TransportUnavailableError(NAME, str(error)) from error

    async def _pause(self, seconds: float) -> None:
        if self._bell is None:
            await asyncio.sleep(seconds)
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):  # wait_for may swallow that we are cancelled
                await self._bell.wait()

    def _heard(self, _: set[str]) -> None:
        """Called by the thread that committed a message."""
        if self._loop is not None and self._bell is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._bell.set)


# Messages as rows.


def create_queue(tx: Transaction, queue: str) -> None:
    tx.run(CREATE_QUEUE, queue=queue)


def queue_exists(tx: Transaction, queue: str) -> bool:
    return tx.first(FIND_QUEUE, queue=queue) is not None


def insert_messages(tx: Transaction, queue: str, messages: Sequence[Outgoing]) -> None:
    """Insert messages; one whose id is remembered is dropped."""
    wanted = sorted({it.id for it in messages})
    tx.run(FORGET_IDS, queue=queue, ids=wanted, remembered=micros(REMEMBERED))
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
    tx.run_many(INSERT_MESSAGE, rows)
    tx.wakes.add(MESSAGES)


def take_messages(
    tx: Transaction, queue: str, limit: int, hold: timedelta, most_deliveries: int, *, dead: bool
) -> list[Delivery]:
    """Take up to so many messages under one new fence; those that were delivered too often are put aside."""
    rows = tx.rows(PICK_DEAD_MESSAGES if dead else PICK_MESSAGES, queue=queue, limit=limit)
    worn = [] if dead else [row for row in rows if row[3] >= most_deliveries]
    for row in worn:
        tx.run(PUT_ASIDE_WORN_OUT, id=row[0], reason=TOO_OFTEN, detail=f"not ended after {row[3]} deliveries")
    fresh = [row for row in rows if row not in worn]
    if not fresh:
        return []
    fence = new_fence()
    tx.run(TAKE_MESSAGES, ids=[row[0] for row in fresh], fence=fence, hold=micros(hold))
    return [_delivery(row, queue, fence, hold) for row in fresh]


def renew_message(tx: Transaction, receipt: Receipt, hold: timedelta) -> bool:
    return tx.run(RENEW_MESSAGE, id=receipt.id, fence=receipt.fence, hold=micros(hold)) == 1


def release_message(tx: Transaction, receipt: Receipt, after: timedelta) -> bool:
    tx.wakes.add(MESSAGES)
    return tx.run(RELEASE_MESSAGE, id=receipt.id, fence=receipt.fence, after=micros(after)) == 1


def give_back_messages(tx: Transaction, receipts: Sequence[Receipt]) -> None:
    """Give back messages that were taken and never handed out: this counts as no delivery."""
    tx.run_many(GIVE_BACK_MESSAGE, [{"id": it.id, "fence": it.fence} for it in receipts])
    tx.wakes.add(MESSAGES)


def complete_message(tx: Transaction, receipt: Receipt) -> bool:
    return tx.run(COMPLETE_MESSAGE, id=receipt.id, fence=receipt.fence, remembered=micros(REMEMBERED)) == 1


def complete_messages(tx: Transaction, receipts: Sequence[Receipt]) -> list[bool]:
    """Complete messages; one that was lost does not hold up the others. Returns for each whether it was ours."""
    ended = [False] * len(receipts)
    # In one order, so that no two transactions wait for each other.
    for at in sorted(range(len(receipts)), key=lambda at: receipts[at].id):
        ended[at] = complete_message(tx, receipts[at])
    return ended


def put_aside_message(tx: Transaction, receipt: Receipt, reason: str, detail: str) -> bool:
    short = reason[:LONGEST_REASON]
    return tx.run(PUT_ASIDE_MESSAGE, id=receipt.id, fence=receipt.fence, reason=short, detail=detail) == 1


def queue_depth(tx: Transaction, queue: str) -> Depth:
    ready, held, scheduled, dead = map(int, tx.rows(QUEUE_DEPTH, queue=queue)[0])
    return Depth(ready=ready, held=held, scheduled=scheduled, dead=dead)


def prune_messages(tx: Transaction, limit: int) -> int:
    """Delete messages whose ids need not be remembered any more."""
    old = [row[0] for row in tx.rows(OLD_MESSAGES, limit=limit)]
    return tx.run(PRUNE_MESSAGES, ids=old) if old else 0


def _delivery(row: Sequence[Any], queue: str, fence: int, hold: timedelta) -> Delivery:
    row_id, message_id, body, attempts, subject, properties, sent_at, reason, detail, now = row
    return Delivery(
        id=message_id,
        body=body,
        queue=queue,
        attempt=attempts + 1,
        held_until=moment(int(now)) + hold,
        properties=stored_fields(properties),
        subject=subject,
        sent_at=moment(sent_at),
        dead_reason=reason or "",
        dead_detail=detail or "",
        receipt=Receipt(row_id, fence),
    )
