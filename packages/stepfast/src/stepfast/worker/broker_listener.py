"""The part of a worker that listens to brokers: it hears which jobs are ready, and takes over the brokers' dead letters.

Each broker of the worker's feeds has a thread with an event loop of its own. The lease in the database is the truth: a
message is acknowledged as soon as the database has answered, whatever it answered, and never before. While a broker is
away nothing is lost: the worker takes jobs from the database, as soon as their head start is over.
"""

from __future__ import annotations

import asyncio
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
from stepfast.backoff import Backoff
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
    read_hint,
)
from stepfast.runs.partition import partition_id
from stepfast.telemetry import happened
from stepfast.transports.contract import MOST_AT_ONCE, Delivery, DeliveryLostError, Transport, TransportError
from stepfast.transports.dead_messages import keep_dead_message
from stepfast.transports.queue_depth import report_depth
from stepfast.worker.periodic import Outage, around

if TYPE_CHECKING:
    from stepfast.config import WorkerSettings
    from stepfast.database.connection import Transaction
    from stepfast.database.database import Database
    from stepfast.runs.feeds import Feeds
    from stepfast.worker.claimer import Claimer
    from stepfast.worker.vital import VitalParts


FIRST_PAUSE: Final = (
    0.5  # seconds before a broker that is away is tried again; twice as long each time, up to ...
)
LONGEST_PAUSE: Final = 30.0
LETTERS_EVERY: Final = 30.0  # seconds between looks at the dead letters
LEAVING: Final = 10.0  # seconds to close the connection


def broker_listeners(
    database: Database, feeds: Feeds, settings: WorkerSettings, claimer: Claimer, vital: VitalParts
) -> list[BrokerListener]:
    """One listener for each broker that announces jobs which this worker may run."""
    queues: dict[str, set[str]] = defaultdict(set)
    for feed in feeds.all():
        if feed.broker is not None and (not settings.queues or feed.queue in settings.queues):
            queues[feed.broker.url] |= {feed.broker.work_items, feed.broker.consolidate}
    return [
        BrokerListener(database, url, sorted(names), feeds, claimer, vital) for url, names in queues.items()
    ]


class BrokerListener:
    """A thread that listens to some queues of one broker until it is stopped."""

    def __init__(  # noqa: PLR0917 - what it takes to listen
        self,
        database: Database,
        url: str,
        queues: Sequence[str],
        feeds: Feeds,
        claimer: Claimer,
        vital: VitalParts,
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
        self._away = False  # the broker
        self._outage = Outage("taking over dead letters")
        self._stuck: set[str] = set()  # queues whose dead letters cannot be taken over
        self._thread = vital.thread("hints", self._run)

    def start(self) -> None:
        self._thread.start()
        self._ready.wait()

    def stop(self) -> None:
        """Take nothing more, let answers under way arrive, close the connection."""
        self._stop.set()
        if self._loop is not None and self._task is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._task.cancel)
        if self._thread.ident is not None:
            self._thread.join(timeout=LEAVING)

    def _run(self) -> None:
        asyncio.run(self._listen_until_stopped())

    async def _listen_until_stopped(self) -> None:
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        self._ready.set()
        backoff = Backoff(first=FIRST_PAUSE, longest=LONGEST_PAUSE, jitter=0.5)
        try:
            while not self._stop.is_set():
                try:
                    async with opened(self._url, self._database) as transport:
                        await self._listen(transport)
                except TransportError as error:
                    self._lost(error)
                except Exception as error:  # noqa: BLE001 - whatever it is, the worker goes on without the broker
                    happened("worker.failed", error=error, note="hints")
                if not self._away:
                    backoff.reset()
                await asyncio.sleep(backoff.next())
        except asyncio.CancelledError:
            if not self._stop.is_set():
                raise

    async def _listen(self, transport: Transport) -> None:
        await asyncio.gather(*(transport.ensure(queue) for queue in self._queues))  # links are slow to make
        if self._away:
            self._away = False
            happened("broker.recovered", transport=transport.name)
        listeners = [
            HintListener(transport, queue, self._database, self._feeds, self._claimer)
            for queue in self._queues
        ]
        work = [
            self._take_over_letters(transport),
            report_depth(transport, self._queues),
            *(listener.listen() for listener in listeners),
        ]
        tasks = [asyncio.create_task(coroutine) for coroutine in work]
        try:
            ended, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in ended:
                task.result()  # none of them ends by itself: this raises
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _lost(self, error: TransportError) -> None:
        if not self._away:
            self._away = True
            happened("broker.lost", transport=error.transport, error=error)

    async def _take_over_letters(self, transport: Transport) -> None:
        feeds = [feed.name for feed in self._feeds.all()]

        def known(tx: Transaction, letters: Sequence[Delivery]) -> list[bool]:
            return about_known_work(tx, letters, feeds)

        while True:
            for queue in self._queues:
                try:
                    await reconcile(transport, self._database, self._url, queue, known)
                except DatabaseError as error:  # the letters stay where they are
                    self._outage.begin(error)
                except TransportError:
                    raise
                except Exception as error:  # noqa: BLE001 - whatever a letter says, living messages are heard
                    self._report_stuck(queue, error)
                else:
                    self._outage.end()
                    self._stuck.discard(queue)
            await asyncio.sleep(around(LETTERS_EVERY))

    def _report_stuck(self, queue: str, error: Exception) -> None:
        if queue not in self._stuck:
            self._stuck.add(queue)
            happened("worker.failed", error=error, note=f"dead letters of {queue} stay at the broker")


# Hints: messages that name jobs which are ready. The worker claims exactly these jobs.
#
# What is not understood is put aside with the reason. A hint that names a run which the database does not know may be
# ahead of its time: it is held for a while before it is put aside.

WAIT: Final = timedelta(seconds=5)  # for a message, in one call
HOLD: Final = timedelta(minutes=2)  # a message, until the database has answered
GRACE: Final = timedelta(seconds=60)  # for a hint about an unknown run, from its sending on
FULL: Final = 0.02  # seconds between looks for a free slot
AWAY: Final = 1.0  # seconds between questions to a database that does not answer
ELSEWHERE: Final = timedelta(seconds=2)  # before a message for another worker is delivered again
MOST_PARKED: Final = 500


class Heard(NamedTuple):
    """A message, and the hint that it carries."""

    delivery: Delivery
    hint: Hint


class HintListener:
    """Listens to one queue of an open transport, and claims the jobs that its messages name."""

    def __init__(
        self, transport: Transport, queue: str, database: Database, feeds: Feeds, claimer: Claimer
    ) -> None:
        self._transport = transport
        self._queue = queue
        self._database = database
        self._feeds = feeds
        self._claimer = claimer
        self._outage = Outage("listening to the broker")
        self._parked: list[Heard] = []  # held, because they may be ahead of their time
        self._ending: set[asyncio.Task[None]] = set()  # answers to the broker that are under way

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

    async def _look_at_parked(self) -> None:
        if self._parked:
            parked, self._parked = self._parked, []
            await self._ask(parked)

    async def _ask(self, heard: Sequence[Heard]) -> None:
        """Let the database decide; while it does not answer, the messages stay unanswered as well."""
        deadline = time.monotonic() + HOLD.total_seconds()
        while heard:
            try:
                verdicts = await asyncio.to_thread(self._claim_named, [message.hint for message in heard])
            except DatabaseError as error:
                if time.monotonic() > deadline:
                    return  # we do not hold the messages any longer: they come again
                self._outage.begin(error)
                await asyncio.sleep(AWAY)
            else:
                self._outage.end()
                for message, verdict in zip(heard, verdicts, strict=True):
                    self._answer(message, verdict)
                return

    def _claim_named(self, hints: list[Hint]) -> list[HintVerdict]:
        """Claim the jobs that the hints name. Runs in a thread: the database is synchronous."""
        feeds = [feed.name for feed in self._feeds.all()]

        def choose(tx: Transaction) -> tuple[list[HintVerdict], list[str]]:
            verdicts = judge_hints(tx, hints, feeds)
            return verdicts, sorted({named.job_id for named in verdicts if isinstance(named, NamedJob)})

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
                self._report_skipped(heard, why)
                self._end(delivery, self._transport.complete(delivery))
            case NamedJob():
                self._end(delivery, self._transport.complete(delivery))
            case _:
                assert_never(verdict)

    def _wait_or_refuse(self, heard: Heard, why: str) -> None:
        delivery = heard.delivery
        sent = delivery.sent_at
        if sent is None or datetime.now(UTC) - sent >= GRACE:
            refused = UnreadableHint("UnknownRun", why, delivery.subject)
            self._end(delivery, self._put_aside(delivery, refused))
        elif len(self._parked) >= MOST_PARKED:
            self._end(delivery, self._transport.release(delivery, GRACE))
        else:
            self._parked.append(heard)

    def _report_skipped(self, heard: Heard, why: str) -> None:
        """A duplicate, or a late message: nothing has to be done, but it can be found in the log."""
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
        """A CONSOLIDATE message with force: as if an operator had asked for it here."""
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
        """Answer the broker in the background. If the answer is lost, the message comes again, which is harmless."""

        async def end() -> None:
            try:
                await how
            except TransportError as error:
                happened("hint.repeated", queue=self._queue, message_id=delivery.id, error=error)

        task = asyncio.create_task(end())
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)


# Dead letters of a broker become ours: one list, one way to retry.
#
# A letter about work that the database knows is only removed: the job decides about itself, and can be retried here.
# Every other letter is written down first, and removed at the broker afterwards.

LETTERS_HOLD: Final = timedelta(minutes=1)
MOST_LOTS: Final = 50  # in one pass: a flood of letters must not keep us from living messages

# For each letter, whether it is about work that the database knows.
Known = Callable[["Transaction", Sequence[Delivery]], Sequence[bool]]


@dataclass(frozen=True)
class Reconciled:
    """How many dead letters were written down, and how many were only removed."""

    kept: int = 0
    removed: int = 0


async def reconcile(
    transport: Transport, database: Database, url: str, queue: str, known: Known
) -> Reconciled:
    """Move the dead letters of one queue into our list."""
    total = Reconciled()
    for _ in range(MOST_LOTS):
        letters = await transport.dead_letters(queue, at_most=MOST_AT_ONCE, hold=LETTERS_HOLD)
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
    unknown = _unknown(tx, letters, known)
    for letter in unknown:
        keep_dead_message(tx, letter, transport=transport, address=url)
    if unknown:
        queue = unknown[0].queue
        raise_alert(
            tx,
            alert(
                f"broker dead letters: {transport}:{queue}",
                "Messages In The Dead Letter Queue",
                f"{len(unknown)} messages of the queue {queue} ({transport}) were put aside: {unknown[0].dead_reason}\n\n"
                "Look at them:   stepfast dead-letters list\n"
                "Send them again:   stepfast dead-letters retry ID",
            ),
        )
    return len(unknown)


def _unknown(tx: Transaction, letters: Sequence[Delivery], known: Known) -> Sequence[Delivery]:
    return [letter for letter, is_known in zip(letters, known(tx, letters), strict=True) if not is_known]


def about_known_work(tx: Transaction, letters: Sequence[Delivery], feeds: Sequence[str]) -> list[bool]:
    """For each letter, whether it is about work that the database knows; then the job decides, not the broker."""
    hints = [read_hint(letter.body) for letter in letters]
    answers = iter(is_known_work(tx, [hint for hint in hints if not isinstance(hint, UnreadableHint)], feeds))
    return [not isinstance(hint, UnreadableHint) and next(answers) for hint in hints]
