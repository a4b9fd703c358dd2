"""The part of a worker that listens to brokers: a thread with an event loop of its own, for each broker of its feeds.

While a broker is away nothing is lost: the worker takes from the database whatever nobody was told of in time.
"""

from __future__ import annotations

import asyncio
import random
import threading
from collections import defaultdict
from typing import TYPE_CHECKING, Final

from stepfast.errors import DatabaseError
from stepfast.outbox.broker import opened
from stepfast.telemetry import happened
from stepfast.transports.failures import TransportError
from stepfast.worker.broker_letters import reconcile
from stepfast.worker.hints import Hints, about_known_work

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepfast.config import WorkerSettings
    from stepfast.database.connection import Transaction
    from stepfast.database.database import Database
    from stepfast.runs.feeds import Feeds
    from stepfast.transports.contract import Delivery, Transport
    from stepfast.worker.claimer import Claimer

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
