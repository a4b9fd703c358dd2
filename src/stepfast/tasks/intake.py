"""Take tasks from a queue: store each as a job, then let go of its message.

When a message is let go depends on whose the database is. If others see it too, the message has done its part when the
job is committed. If it is this process's own, and may vanish with it, the message is all that others have: it is held
until the task has ended and whoever asked has been told. Nothing is let go while the database does not answer.
"""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Final, Literal

from stepfast.clock import micros
from stepfast.database.database import persist
from stepfast.errors import DatabaseError, StepfastError
from stepfast.steps.threads import in_own_thread
from stepfast.tasks.acceptance import forget_old
from stepfast.tasks.ends import adopt
from stepfast.tasks.failures import TaskRefusedError
from stepfast.tasks.following import Following
from stepfast.tasks.holding import Held, Holding
from stepfast.tasks.names import queue_of
from stepfast.tasks.outages import LONGEST, Outages
from stepfast.tasks.problems import missing_secret
from stepfast.tasks.room import Room
from stepfast.tasks.second_chance import SecondChance
from stepfast.tasks.storing import Storage, Stored
from stepfast.telemetry import happened
from stepfast.transports.contract import MOST_AT_ONCE, Delivery, Transport
from stepfast.transports.failures import TransportError, TransportRefusedError

if TYPE_CHECKING:
    from stepfast.database.database import Database
    from stepfast.tasks.app import App

Acknowledge = Literal["stored", "ended"]  # when a message is let go

LONG_WAIT: Final = timedelta(seconds=20)  # at a broker that lets us wait
SOON: Final = 0.1  # seconds; the first pause of an idle intake, doubled from there
FULL: Final = 0.1  # seconds between looks while there is no room
OUTAGE: Final = 1.0
LONGEST_OUTAGE: Final = 30.0
TIDYING: Final = 300.0
BATCH: Final = 500
ABANDONED: Final = timedelta(minutes=1)  # several leases


@dataclass(frozen=True, kw_only=True)
class IntakeSettings:
    client: str
    acknowledge: Acknowledge
    concurrency: int = 10
    hold: timedelta = timedelta(minutes=1)  # how long a message is kept from others by one renewal
    poll: timedelta = timedelta(seconds=5)  # the longest pause of an idle intake
    once: bool = False  # take one message, and no more


class Intake:
    """A thread with an event loop of its own: no handler can hold it up, however it behaves."""

    def __init__(
        self, app: App, transport: Transport, settings: IntakeSettings, ended: Callable[[], None]
    ) -> None:
        self._app = app
        self._database: Database = app.database
        self._transport = transport
        self._settings = settings
        self._queue = queue_of(settings.client)
        last = transport.abilities.most_deliveries if settings.acknowledge == "ended" else None
        self._holding = Holding(transport, settings.hold, deaths_count=settings.acknowledge == "ended")
        self._storage = Storage(app, settings.client, transport.name, last)
        self._following = Following(self._database, self._holding, self._queue)
        self._room = Room(
            database=self._database,
            queue=self._queue,
            concurrency=settings.concurrency,
            until_end=settings.acknowledge == "ended",
            holding=self._holding,
            following=self._following,
        )
        self._ended = ended  # called when no more is taken, for whatever reason
        self._loop = asyncio.new_event_loop()
        self._stopping = asyncio.Event()  # take no more
        self._left = asyncio.Event()  # let go of everything
        longest = LONGEST if settings.once else math.inf
        self._outages = Outages(transport.name, self._queue, self._stopping, longest=longest)
        self._opened = threading.Event()
        self._refused: StepfastError | None = None
        self._thread = threading.Thread(target=self._live, name="stepfast-intake", daemon=True)
        self.failed = False  # something broke, or the one task that was wanted did not end well

    def start(self) -> None:
        """Begin; raises if the broker does not want us."""
        self._thread.start()
        self._opened.wait()
        if self._refused is not None:
            raise self._refused

    def stop_taking(self) -> None:
        """Take no more; what is held stays held."""
        self._call(self._stopping)

    def leave(self, patience: timedelta) -> None:
        """When nothing runs any more: end what has ended, give back the rest, and hang up."""
        self._following.patience = patience
        self.stop_taking()
        self._call(self._left)
        self._thread.join(patience.total_seconds() + 30)

    def _call(self, event: asyncio.Event) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(event.set)

    # Everything below runs on the intake's own loop.

    def _live(self) -> None:
        try:
            self._loop.run_until_complete(self._work())
        except Exception as error:  # noqa: BLE001 - whatever it is, the worker must hear that nobody takes any more
            self.failed = True
            happened("worker.failed", error=error, note="intake")
        finally:
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.close()
            self._opened.set()
            self._ended()

    async def _work(self) -> None:
        if not await self._reach():
            return
        renewing = asyncio.create_task(self._until_left(self._holding.renew_until))
        following = asyncio.create_task(self._until_left(self._following.until_left))
        beside = asyncio.create_task(self._give_second_chances())
        try:
            await self._take_until_stopped()
            if self._settings.once:
                await self._following.until_empty(self._left)
        finally:
            self._ended()
            await self._left.wait()
            beside.cancel()  # of a broker that does not answer: it looks at `_stopping` by itself
            await asyncio.gather(beside, return_exceptions=True)
            await following
            if self._settings.once:
                self.failed = bool(self._following.failed or len(self._holding))  # or stopped before its end
            given_back = await self._holding.give_back_all()
            await renewing
            happened("intake.stopped", queue=self._queue, given_back=given_back)
            await self._transport.close()

    async def _until_left(self, work: Callable[[asyncio.Event], Awaitable[None]]) -> None:
        """Whatever breaks it, it goes on: nobody else renews messages, or lets go of them."""
        while True:
            try:
                return await work(self._left)
            except Exception as error:  # noqa: BLE001 - see above
                happened("worker.failed", error=error, note="intake")
                if self._left.is_set():
                    return None
                await asyncio.sleep(OUTAGE)

    async def _reach(self) -> bool:
        """Open the broker and its queue, however long that takes; a refusal is for the caller."""
        pause = OUTAGE
        while not self._stopping.is_set():
            try:
                await self._transport.open()
                await self._transport.ensure(self._queue)
            except TransportRefusedError as error:
                await self._transport.close()
                self._refused = error
                self._opened.set()
                return False
            except TransportError as error:
                await self._transport.close()  # the next try begins anew
                self._outages.trouble(error)
                self._opened.set()  # it may come back: no reason to fail
                pause = await self._outages.pause(pause, LONGEST_OUTAGE)
            else:
                self._outages.well()
                self._opened.set()
                happened(
                    "intake.started",
                    transport=self._transport.name,
                    queue=self._queue,
                    acknowledge=self._settings.acknowledge,
                )
                if (why := missing_secret(self._app.notifications)) is not None:
                    happened("intake.warned", queue=self._queue, note=why)
                return True
        return False

    async def _take_until_stopped(self) -> None:
        idle = trouble = tidied = 0.0
        while not self._stopping.is_set():
            if not self._settings.once and (now := self._loop.time()) > tidied + TIDYING:
                tidied = now
                await self._tidy()
            try:
                room = await in_own_thread(self._room.left)
                if room <= 0:
                    await self._outages.pause(FULL, FULL)
                    continue
                found = await self._receive(room)
                self._outages.well()
                trouble = 0.0
            except (TransportError, DatabaseError) as error:
                self._outages.trouble(error)
                trouble = await self._outages.pause(trouble or OUTAGE, LONGEST_OUTAGE)
                continue
            if found:
                idle = 0.0
                await self._take(found)
                if self._settings.once:
                    return
            elif self._settings.once:
                return  # whoever started us was mistaken, or another was faster
            elif not self._transport.abilities.longest_wait:
                idle = await self._outages.pause(idle or SOON, self._settings.poll.total_seconds())

    async def _receive(self, room: int) -> list[Delivery]:
        """Wait for messages, but not longer than we are wanted. Who stops waiting loses none."""
        wait = min(LONG_WAIT, self._transport.abilities.longest_wait)
        at_most = 1 if self._settings.once else min(room, MOST_AT_ONCE)
        asking = asyncio.ensure_future(
            self._transport.receive(self._queue, at_most=at_most, wait=wait, hold=self._holding.hold)
        )
        stopped = asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait({asking, stopped}, return_when=asyncio.FIRST_COMPLETED)
            if not asking.done():
                asking.cancel()
            await asyncio.wait({asking})
        finally:
            stopped.cancel()
        if asking.cancelled():
            return []
        found = asking.result()
        if self._stopping.is_set():
            for it in found:
                await self._holding.give_back(self._holding.take(it))
            return []
        return found

    async def _take(self, deliveries: Sequence[Delivery]) -> None:
        """Store what they say, however long the database takes; then let go, or follow."""
        held = [self._holding.take(it) for it in deliveries]
        stored = await self._store(held)
        if stored is None:
            return  # asked to stop: they are given back
        await asyncio.gather(*(self._stored(it, stored[it]) for it in held if it in stored))

    async def _store(self, held: Sequence[Held]) -> dict[Held, Stored] | None:
        pause = OUTAGE
        while not self._stopping.is_set():
            try:
                found = await in_own_thread(self._storage.store, held)
            except DatabaseError as error:  # it takes nothing from anybody
                self._outages.trouble(error)
                pause = await self._outages.pause(pause, LONGEST_OUTAGE)
                continue
            self._outages.well()
            if found is not None:
                return found
            alone = [await self._store([it]) for it in held]
            return {key: it for found in alone if found is not None for key, it in found.items()}
        return None

    async def _stored(self, held: Held, stored: Stored) -> None:
        stored.report(self._queue, held.delivery.id)
        if self._settings.acknowledge == "ended" and stored.job_id:
            self._following.add(stored, held)
        elif isinstance(stored.refused, TaskRefusedError):
            await self._holding.put_aside(held, "refused", stored.refused.reason)
        else:
            await self._holding.complete(held)

    async def _give_second_chances(self) -> None:
        if self._settings.acknowledge == "stored" and not self._settings.once:
            chance = SecondChance(
                transport=self._transport,
                queue=self._queue,
                hold=self._settings.hold,
                store=self._store,
                stopping=self._stopping,
            )
            await chance.until_stopped(self._outages)

    async def _tidy(self) -> None:
        try:
            while await in_own_thread(persist, self._database, lambda tx: forget_old(tx, BATCH)) == BATCH:
                continue
            await in_own_thread(persist, self._database, lambda tx: adopt(tx, self._queue, micros(ABANDONED)))
        except (TransportError, DatabaseError) as error:
            self._outages.trouble(error)
