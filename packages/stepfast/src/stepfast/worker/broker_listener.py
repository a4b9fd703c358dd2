"""The part of a worker that listens to brokers: a thread with an event loop of its own, for each broker of its feeds.

While a broker is away nothing is lost: the worker takes from the database whatever nobody was told of in time.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, assert_never

from stepfast.admin.audit import Actor
from stepfast.admin.runs import Runs
from stepfast.database.database import persist
from stepfast.errors import DatabaseError, StepfastError
from stepfast.outbox.alerts import alert, raise_alert
from stepfast.outbox.broker import opened
from stepfast.runs.messages import (
    ForceRequest,
    ForeignFeed,
    Hint,
    HintVerdict,
    NamedJob,
    StaleHint,
    UnknownWork,
    UnreadableHint,
    WorkItemHint,
    is_known_work,
    judge_hints,
    partition_id,
    read_hint,
)
from stepfast.telemetry import happened
from stepfast.transports.contract import MOST_AT_ONCE, Delivery, DeliveryLostError, Transport, TransportError
from stepfast.transports.dead_messages import keep

if TYPE_CHECKING:
    from stepfast.config import WorkerSettings
    from stepfast.database.connection import Transaction
    from stepfast.database.database import Database
    from stepfast.runs.feeds import Feeds
    from stepfast.worker.claimer import Claimer


# Hear from a broker which jobs are ready, and take exactly these.
#
# The lease in the database is the truth: a message is acknowledged as soon as the database has answered, whatever it
# said, and never while it does not answer. What is not understood is put aside with the reason. A message that names a
# run we do not know may be ahead of its time: it is held for a while before it is put aside.

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
                want = min(MOST_AT_ONCE, self._claimer.wanted())
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
            match read_hint(delivery.body):
                case UnreadableHint() as why:
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

    def _take(self, hints: list[Hint]) -> list[HintVerdict]:
        """Claim what they name. In a thread: the database is synchronous."""
        here = [it.name for it in self._feeds.all()]

        def choose(tx: Transaction) -> tuple[list[HintVerdict], list[str]]:
            verdicts = judge_hints(tx, hints, here)
            return verdicts, sorted({it.job_id for it in verdicts if isinstance(it, NamedJob)})

        return self._claimer.take_named(choose)

    def _answer(self, heard: Heard, verdict: HintVerdict) -> None:
        delivery = heard.delivery
        match verdict:
            case UnknownWork(why):
                self._wait_or_refuse(heard, why)
            case ForeignFeed():
                self._end(delivery, self._transport.release(delivery, ELSEWHERE))
            case ForceRequest(run_id):
                self._end(delivery, self._consolidate(delivery, run_id))
            case StaleHint(why):
                self._skipped(heard, why)
                self._end(delivery, self._transport.complete(delivery))
            case NamedJob():
                self._end(delivery, self._transport.complete(delivery))
            case _:
                assert_never(verdict)

    def _skipped(self, heard: Heard, why: str) -> None:
        """A duplicate, or one that is late: nobody has to do anything, but who looks for it finds it."""
        hint = heard.hint
        number = hint.number if isinstance(hint, WorkItemHint) else None
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
            self._end(
                delivery, self._put_aside(delivery, UnreadableHint("UnknownRun", why, delivery.subject))
            )
        elif len(self._parked) >= MOST_PARKED:
            self._end(delivery, self._transport.release(delivery, GRACE))
        else:
            self._parked.append(heard)

    async def _look_at_parked(self) -> None:
        if self._parked:
            parked, self._parked = self._parked, []
            await self._ask(parked)

    async def _put_aside(self, delivery: Delivery, why: UnreadableHint) -> None:
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
    read_ones = [read_hint(it.body) for it in letters]
    answers = iter(is_known_work(tx, [it for it in read_ones if not isinstance(it, UnreadableHint)], feeds))
    return [not isinstance(it, UnreadableHint) and next(answers) for it in read_ones]


# A broker's dead letters become ours: one list, one way to retry.
#
# A message about work that the database knows is only removed: the job decides about itself, and whoever retries it does
# that here. Everything else is written down first, and removed at the broker afterwards.

HOLD_BROKER_LETTERS: Final = timedelta(minutes=1)
MOST: Final = 50  # lots in one pass: a flood of them must not keep us from the living

# Which of them are about work that the database knows.
Known = Callable[["Transaction", Sequence[Delivery]], Sequence[bool]]


@dataclass(frozen=True)
class Reconciled:
    """What became of the letters that were found."""

    kept: int = 0
    removed: int = 0


async def reconcile(
    transport: Transport, database: Database, url: str, queue: str, known: Known
) -> Reconciled:
    """Empty the dead letters of one queue into our list."""
    total = Reconciled()
    for _ in range(MOST):
        letters = await transport.dead_letters(queue, at_most=MOST_AT_ONCE, hold=HOLD_BROKER_LETTERS)
        if not letters:
            break
        write = partial(_write_down, letters=letters, transport=transport.name, url=url, known=known)
        kept = await asyncio.to_thread(persist, database, write)
        for letter in letters:
            try:
                await transport.complete(letter)
            except DeliveryLostError:
                continue  # it comes again, and is known by then
        total = Reconciled(total.kept + kept, total.removed + len(letters) - kept)
    if total != Reconciled():
        happened(
            "dead-letters.reconciled",
            transport=transport.name,
            queue=queue,
            kept=total.kept,
            removed=total.removed,
        )
    return total


def _write_down(tx: Transaction, letters: Sequence[Delivery], transport: str, url: str, known: Known) -> int:
    strangers = _strangers(tx, letters, known)
    for it in strangers:
        keep(tx, it, transport=transport, address=url)
    if strangers:
        queue = strangers[0].queue
        raise_alert(
            tx,
            alert(
                f"broker dead letters: {transport}:{queue}",
                "Messages In The Dead Letter Queue",
                f"{len(strangers)} messages of the queue {queue} ({transport}) were put aside: {strangers[0].dead_reason}\n\n"
                "Look at them:   stepfast dead-letters list\n"
                "Send them again:   stepfast dead-letters retry ID",
            ),
        )
    return len(strangers)


def _strangers(tx: Transaction, letters: Sequence[Delivery], known: Known) -> Sequence[Delivery]:
    return [it for it, ours in zip(letters, known(tx, letters), strict=True) if not ours]


FIRST_PAUSE: Final = (
    0.5  # seconds before a broker that is away is tried again; twice as long each time, up to ...
)
LONGEST_PAUSE: Final = 30.0
LETTERS_EVERY: Final = 30.0  # seconds between looks at the dead letters
LEAVING: Final = 10.0  # seconds to hang up


def broker_listeners(
    database: Database, feeds: Feeds, settings: WorkerSettings, claimer: Claimer
) -> list[BrokerListener]:
    """One for each broker that tells of jobs which this worker may run."""
    queues: dict[str, set[str]] = defaultdict(set)
    for it in feeds.all():
        if it.broker is not None and (not settings.queues or it.queue in settings.queues):
            queues[it.broker.url] |= {it.broker.work_items, it.broker.consolidate}
    return [BrokerListener(database, url, sorted(names), feeds, claimer) for url, names in queues.items()]


class BrokerListener:
    """Listens until it is stopped."""

    def __init__(
        self, database: Database, url: str, queues: Sequence[str], feeds: Feeds, claimer: Claimer
    ) -> None:
        self._database = database
        self._url = url
        self._queues = queues
        self._feeds = feeds
        self._claimer = claimer
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._stop = threading.Event()
        self._ready = threading.Event()
        self._away = False
        self._stuck: set[str] = set()  # queues whose dead letters we cannot take over
        self._thread = threading.Thread(target=self._run, name="stepfast-hints", daemon=True)

    def start(self) -> None:
        self._thread.start()
        self._ready.wait()

    def stop(self) -> None:
        """Take nothing more, let answers under way arrive, hang up."""
        self._stop.set()
        if self._loop is not None and self._task is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._task.cancel)
        self._thread.join(timeout=LEAVING)

    def _run(self) -> None:
        asyncio.run(self._listen_until_stopped())

    async def _listen_until_stopped(self) -> None:
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        self._ready.set()
        pause = FIRST_PAUSE
        try:
            while not self._stop.is_set():
                try:
                    async with opened(self._url, self._database) as transport:
                        await self._listen(transport)
                except TransportError as error:
                    self._lost(error)
                except Exception as error:  # noqa: BLE001 - whatever it is, the worker goes on without the broker
                    happened("worker.failed", error=error, note="hints")
                pause = FIRST_PAUSE if not self._away else min(LONGEST_PAUSE, pause * 2)
                await asyncio.sleep(pause * random.uniform(0.5, 1.0))
        except asyncio.CancelledError:
            if not self._stop.is_set():
                raise

    async def _listen(self, transport: Transport) -> None:
        await asyncio.gather(*(transport.ensure(queue) for queue in self._queues))  # links are slow to make
        if self._away:
            self._away = False
            happened("broker.recovered", transport=transport.name)
        heard = [
            Hints(transport, queue, self._database, self._feeds, self._claimer) for queue in self._queues
        ]
        work = [self._take_over_letters(transport), *(it.listen() for it in heard)]
        tasks = [asyncio.create_task(it) for it in work]
        try:
            ended, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in ended:
                task.result()  # none of them ends by itself: this raises
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _take_over_letters(self, transport: Transport) -> None:
        here = [it.name for it in self._feeds.all()]

        def known(tx: Transaction, letters: Sequence[Delivery]) -> list[bool]:
            return about_known_work(tx, letters, here)

        while True:
            for queue in self._queues:
                try:
                    await reconcile(transport, self._database, self._url, queue, known)
                except DatabaseError as error:  # they stay where they are
                    happened("database.lost", error=error, note="dead letters of the broker wait")
                except TransportError:
                    raise
                except Exception as error:  # noqa: BLE001 - whatever a letter says, the living are heard
                    self._left_there(queue, error)
                else:
                    self._stuck.discard(queue)
            await asyncio.sleep(LETTERS_EVERY * random.uniform(0.8, 1.0))

    def _left_there(self, queue: str, error: Exception) -> None:
        if queue not in self._stuck:
            self._stuck.add(queue)
            happened("worker.failed", error=error, note=f"dead letters of {queue} stay at the broker")

    def _lost(self, error: TransportError) -> None:
        if not self._away:
            self._away = True
            happened("broker.lost", transport=error.transport, error=error)
