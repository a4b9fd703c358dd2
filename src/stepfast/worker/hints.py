"""Hear from a broker which jobs are ready, and take exactly these.

The lease in the database is the truth: a message is acknowledged as soon as the database has answered, whatever it
said, and never while it does not answer. What is not understood is put aside with the reason. A message that names a
run we do not know may be ahead of its time: it is held for a while before it is put aside.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, NamedTuple, assert_never

from stepfast.admin.audit import Actor
from stepfast.admin.runs import Runs
from stepfast.errors import DatabaseError, StepfastError
from stepfast.runs.announcing import partition_id
from stepfast.runs.hints import (
    Foreign,
    Hint,
    Named,
    Stale,
    Unknown,
    Unreadable,
    Verdict,
    Wish,
    WorkItem,
    judge,
    read,
)
from stepfast.runs.known_work import known
from stepfast.telemetry import happened
from stepfast.transports.contract import MOST_AT_ONCE, Delivery, Transport
from stepfast.transports.failures import TransportError

if TYPE_CHECKING:
    from stepfast.database.connection import Transaction
    from stepfast.database.database import Database
    from stepfast.runs.feeds import Feeds
    from stepfast.worker.claimer import Claimer

WAIT: Final = timedelta(seconds=5)  # for a message, in one call
HOLD: Final = timedelta(minutes=2)  # a message, until the database has answered
GRACE: Final = timedelta(seconds=60)  # for what we do not know, from its sending on
FULL: Final = 0.02  # seconds between looks for a free slot
AWAY: Final = 1.0  # seconds between questions to a database that does not answer
ELSEWHERE: Final = timedelta(seconds=2)  # before a message for another worker is delivered again
MOST_PARKED: Final = 500


class Heard(NamedTuple):
    """A message, and what it says."""

    delivery: Delivery
    hint: Hint


class Hints:
    """Listens to one queue of an open transport."""

    def __init__(
        self, transport: Transport, queue: str, database: Database, feeds: Feeds, claimer: Claimer
    ) -> None:
        self._transport = transport
        self._queue = queue
        self._database = database
        self._feeds = feeds
        self._claimer = claimer
        self._parked: list[Heard] = []  # held, because they may be ahead of their time
        self._ending: set[asyncio.Task[None]] = set()

    async def listen(self) -> None:
        """Take messages as long as there are free slots, until cancelled."""
        try:
            while True:
                want = min(MOST_AT_ONCE, self._claimer.wants())
                if want <= 0:
                    await asyncio.sleep(FULL)
                    continue
                found = await self._transport.receive(self._queue, at_most=want, wait=WAIT, hold=HOLD)
                if found:
                    await self._hear(found)
                await self._look_at_parked()
        finally:
            await asyncio.gather(*self._ending, return_exceptions=True)

    async def _hear(self, deliveries: Sequence[Delivery]) -> None:
        heard: list[Heard] = []
        for delivery in deliveries:
            match read(delivery.body):
                case Unreadable() as why:
                    self._end(delivery, self._put_aside(delivery, why))
                case hint:
                    heard.append(Heard(delivery, hint))
        await self._ask(heard)

    async def _ask(self, heard: Sequence[Heard]) -> None:
        """Let the database decide; while it does not answer, the messages stay unanswered as well."""
        deadline = time.monotonic() + HOLD.total_seconds()
        while heard:
            try:
                verdicts = await asyncio.to_thread(self._take, [it.hint for it in heard])
            except DatabaseError as error:
                if time.monotonic() > deadline:
                    return  # we do not hold them any longer: they come again
                happened("database.lost", error=error, note="messages wait")
                await asyncio.sleep(AWAY)
            else:
                for it, verdict in zip(heard, verdicts, strict=True):
                    self._answer(it, verdict)
                return

    def _take(self, hints: list[Hint]) -> list[Verdict]:
        """Claim what they name. In a thread: the database is synchronous."""
        here = [it.name for it in self._feeds.all()]

        def choose(tx: Transaction) -> tuple[list[Verdict], list[str]]:
            verdicts = judge(tx, hints, here)
            return verdicts, sorted({it.job_id for it in verdicts if isinstance(it, Named)})

        return self._claimer.take_named(choose)

    def _answer(self, heard: Heard, verdict: Verdict) -> None:
        delivery = heard.delivery
        match verdict:
            case Unknown(why):
                self._wait_or_refuse(heard, why)
            case Foreign():
                self._end(delivery, self._transport.release(delivery, ELSEWHERE))
            case Wish(run_id):
                self._end(delivery, self._consolidate(delivery, run_id))
            case Stale(why):
                self._skipped(heard, why)
                self._end(delivery, self._transport.complete(delivery))
            case Named():
                self._end(delivery, self._transport.complete(delivery))
            case _:
                assert_never(verdict)

    def _skipped(self, heard: Heard, why: str) -> None:
        """A duplicate, or one that is late: nobody has to do anything, but who looks for it finds it."""
        hint = heard.hint
        number = hint.number if isinstance(hint, WorkItem) else None
        happened(
            "hint.skipped",
            queue=self._queue,
            message_id=heard.delivery.id,
            run_id=hint.run_id,
            partition_id=None if number is None else partition_id(number),
            reason=why,
        )

    def _wait_or_refuse(self, heard: Heard, why: str) -> None:
        delivery = heard.delivery
        sent = delivery.sent_at
        if sent is None or datetime.now(UTC) - sent >= GRACE:
            self._end(delivery, self._put_aside(delivery, Unreadable("UnknownRun", why, delivery.subject)))
        elif len(self._parked) >= MOST_PARKED:
            self._end(delivery, self._transport.release(delivery, GRACE))
        else:
            self._parked.append(heard)

    async def _look_at_parked(self) -> None:
        if self._parked:
            parked, self._parked = self._parked, []
            await self._ask(parked)

    async def _put_aside(self, delivery: Delivery, why: Unreadable) -> None:
        await self._transport.dead_letter(delivery, why.reason, why.detail)
        happened(
            "hint.refused",
            transport=self._transport.name,
            queue=self._queue,
            message_id=delivery.id,
            reason=why.reason,
            error=why.detail,
        )

    async def _consolidate(self, delivery: Delivery, run_id: str) -> None:
        """Somebody sent CONSOLIDATE with force: as if an operator had asked for it here."""
        runs = Runs(self._database, self._feeds, Actor("broker", f"message {delivery.id}"))
        try:
            await asyncio.to_thread(runs.consolidate, run_id, force=True)
        except DatabaseError:
            await self._transport.release(delivery, ELSEWHERE)
            return
        except StepfastError as error:  # it is on its way already, or another run has its place
            happened(
                "hint.refused", queue=self._queue, message_id=delivery.id, reason="StateError", error=error
            )
        await self._transport.complete(delivery)

    def _end(self, delivery: Delivery, how: Coroutine[Any, Any, None]) -> None:
        """Answer the broker while we go on. An answer that is lost brings the message again, and that is harmless."""

        async def end() -> None:
            try:
                await how
            except TransportError as error:
                happened("hint.repeated", queue=self._queue, message_id=delivery.id, error=error)

        task = asyncio.create_task(end())
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)


def about_known_work(tx: Transaction, letters: Sequence[Delivery], feeds: Sequence[str]) -> list[bool]:
    """Which of these messages are about work that the database knows: the job decides, whatever the broker thinks."""
    read_ones = [read(it.body) for it in letters]
    answers = iter(known(tx, [it for it in read_ones if not isinstance(it, Unreadable)], feeds))
    return [not isinstance(it, Unreadable) and next(answers) for it in read_ones]
