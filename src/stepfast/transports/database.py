"""Queues in the application's own database: the same programs as with a broker, and nothing more to run.

Database code is synchronous: each call is one short transaction on a thread of the loop's.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from stepfast.database.database import persist
from stepfast.database.dialects import Whose
from stepfast.database.wakeup import MESSAGES
from stepfast.errors import DatabaseError
from stepfast.transports import message_rows as rows
from stepfast.transports.checking import MOST_DELIVERIES, check_messages, check_queue
from stepfast.transports.contract import Abilities, Delivery, Depth, Outgoing, Transport
from stepfast.transports.failures import (
    DeliveryLostError,
    TransportError,
    TransportRefusedError,
    TransportUnavailableError,
)

if TYPE_CHECKING:
    from stepfast.database.connection import Transaction
    from stepfast.database.database import Database

T = TypeVar("T")

NAME: Final = "database"
LARGEST: Final = 1024 * 1024
FIRST_PAUSE, LONGEST_PAUSE = 0.01, 0.25  # seconds between two looks at an empty queue, where nobody wakes us
COMPLETED_AT_ONCE: Final = 200
PRUNED_EVERY: Final = 30.0  # seconds
PRUNED_AT_ONCE: Final = 1_000


class DatabaseTransport(Transport):
    """Queues that are rows."""

    name = NAME

    def __init__(self, database: Database, *, most_deliveries: int = MOST_DELIVERIES) -> None:
        self._database = database
        self._known: set[str] = set()
        self._held: dict[str, Delivery] = {}
        self._pruned_at = time.monotonic()
        self._ending: list[tuple[rows.Receipt, asyncio.Future[bool]]] = []
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
        await self._persist(lambda tx: rows.is_known(tx, ""))
        self._loop, self._bell = asyncio.get_running_loop(), asyncio.Event()
        self._database.listen(self._heard)

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
                continue  # it comes back by itself
        self._held.clear()

    async def ensure(self, queue: str) -> None:
        check_queue(NAME, queue)
        await self._persist(lambda tx: rows.make(tx, queue))
        self._known.add(queue)

    async def send(self, queue: str, messages: Sequence[Outgoing]) -> None:
        check_messages(NAME, self.abilities, messages)
        await self._require(queue)
        if messages:
            await self._persist(lambda tx: rows.send(tx, queue, messages))

    async def receive(self, queue: str, *, at_most: int, wait: timedelta, hold: timedelta) -> list[Delivery]:
        await self._require(queue)
        await self._prune()
        until, pause = time.monotonic() + wait.total_seconds(), FIRST_PAUSE
        while True:
            if self._bell is not None:
                self._bell.clear()
            if found := await self._take(queue, at_most, hold, dead=False):
                return found
            rest = until - time.monotonic()
            if rest <= 0:
                return []
            await self._pause(min(rest, pause))
            pause = min(LONGEST_PAUSE, pause * 1.5)

    async def renew(self, delivery: Delivery, hold: timedelta) -> Delivery:
        await self._end(delivery, lambda tx: rows.renew(tx, delivery.receipt, hold))
        renewed = replace(delivery, held_until=datetime.now(UTC) + hold)
        self._held[delivery.receipt.id] = renewed
        return renewed

    async def complete(self, delivery: Delivery) -> None:
        """Those that come while the database works are ended together, in one transaction."""
        ended: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._ending.append((delivery.receipt, ended))
        if self._completing is None or self._completing.done():
            self._completing = asyncio.create_task(self._complete_all())
        if not await ended:
            self._held.pop(delivery.receipt.id, None)
            raise DeliveryLostError(NAME, delivery.queue, delivery.id)
        self._held.pop(delivery.receipt.id, None)

    async def release(self, delivery: Delivery, after: timedelta = timedelta(0)) -> None:
        await self._end(delivery, lambda tx: rows.release(tx, delivery.receipt, after))

    async def dead_letter(self, delivery: Delivery, reason: str, detail: str = "") -> None:
        await self._end(delivery, lambda tx: rows.put_aside(tx, delivery.receipt, reason, detail))

    async def dead_letters(self, queue: str, *, at_most: int, hold: timedelta) -> list[Delivery]:
        await self._require(queue)
        return await self._take(queue, at_most, hold, dead=True)

    async def depth(self, queue: str) -> Depth:
        await self._require(queue)
        return await self._persist(lambda tx: rows.depth(tx, queue))

    async def _take(self, queue: str, at_most: int, hold: timedelta, *, dead: bool) -> list[Delivery]:
        """What there is. A receive that is cancelled while the database works gives back what it then finds."""
        most = self.most_deliveries
        work = asyncio.get_running_loop().run_in_executor(
            None,
            self._run,
            lambda tx: rows.take(tx, queue, at_most, hold, most, dead=dead),
            Whose.OURS,
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
                None, self._run, lambda tx: rows.give_back(tx, receipts), Whose.OURS
            )
            undone.add_done_callback(lambda done: done.exception())  # else it comes back by itself

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
                answers = await self._persist(partial(rows.complete_all, receipts=receipts))
            except Exception as error:  # noqa: BLE001 - told to each who asked
                for _, ended in batch:
                    if not ended.done():
                        ended.set_exception(error)
                continue
            for (_, ended), answer in zip(batch, answers, strict=True):
                if not ended.done():  # else whoever asked was cancelled
                    ended.set_result(answer)

    async def _require(self, queue: str) -> None:
        if queue not in self._known:
            if not await self._persist(lambda tx: rows.is_known(tx, queue)):
                raise TransportRefusedError(NAME, f"there is no queue {queue!r}; create it first")
            self._known.add(queue)

    async def _prune(self) -> None:
        if time.monotonic() - self._pruned_at > PRUNED_EVERY:
            self._pruned_at = time.monotonic()
            while await self._persist(lambda tx: rows.prune(tx, PRUNED_AT_ONCE)) == PRUNED_AT_ONCE:
                continue

    async def _persist(self, work: Callable[[Transaction], T]) -> T:
        return await asyncio.to_thread(self._run, work, Whose.OURS)

    def _run(self, work: Callable[[Transaction], T], whose: Whose) -> T:
        try:
            return persist(self._database, work, whose)
        except DatabaseError as error:
            raise TransportUnavailableError(NAME, str(error)) from error

    async def _pause(self, seconds: float) -> None:
        if self._bell is None:
            await asyncio.sleep(seconds)
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):  # wait_for may swallow that we are cancelled
                await self._bell.wait()

    def _heard(self, names: set[str]) -> None:
        """Called by whichever thread committed something."""
        if (
            MESSAGES in names
            and self._loop is not None
            and self._bell is not None
            and not self._loop.is_closed()
        ):
            self._loop.call_soon_threadsafe(self._bell.set)
