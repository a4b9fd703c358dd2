"""Take tasks from a queue: store each as a job, then let go of its message.

When a message is let go depends on whose the database is. If others see it too, the message has done its part when the
job is committed. If it is this process's own, and may vanish with it, the message is all that others have: it is held
until the task has ended and whoever asked has been told. Nothing is let go while the database does not answer.
"""

from __future__ import annotations

import asyncio
import math
import random
import threading
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Final, Literal

from stepfast.clock import micros
from stepfast.database.database import persist
from stepfast.database.statement import sql
from stepfast.errors import DatabaseError, StepfastError
from stepfast.tasks.envelope import TaskRefusedError, queue_of
from stepfast.tasks.held_messages import Held, Holding
from stepfast.tasks.settings import missing_secret
from stepfast.tasks.store import End, Storage, Stored, adopt, ends, forget_old
from stepfast.telemetry import happened
from stepfast.threads import in_own_thread
from stepfast.transports.contract import (
    MOST_AT_ONCE,
    TOO_OFTEN,
    Delivery,
    Transport,
    TransportError,
    TransportRefusedError,
)

if TYPE_CHECKING:
    from stepfast.database.database import Database
    from stepfast.tasks.command import App


# How many more messages are wanted: a few more than can be worked on at once, so that nobody waits.
#
# What is held until its end is better off with a worker that is free. A task that has ended takes no slot, but its
# message is held until whoever asked has been told. If webhooks cannot leave, such messages become many; so their number
# has a bound, and whoever comes to it says so: nothing is taken any more, although nobody is at work.

AHEAD: Final = 2  # times the concurrency: so many jobs may wait before no more messages are taken
MOST_HELD: Final = 256

WAITING = sql("""
    SELECT count(*) FROM (
        SELECT 1 AS one FROM stepfast_job WHERE queue = :queue AND state = 'ready' LIMIT :limit
    ) waiting
""")


@dataclass(kw_only=True)
class Room:
    """That of one intake."""

    database: Database
    queue: str
    concurrency: int
    until_end: bool  # whether messages are held until their tasks have ended
    holding: Holding
    following: Following
    full: bool = False

    def left(self) -> int:
        """For how many; for none, if that is not positive."""
        most = MOST_HELD - len(self.holding)
        self._tell(most)
        return min(self._wanted(), most)

    def _wanted(self) -> int:
        if self.until_end:
            return self.concurrency - self.following.at_work
        most = AHEAD * self.concurrency
        with self.database.looking() as tx:
            return most - int(tx.first(WAITING, queue=self.queue, limit=most))

    def _tell(self, left: int) -> None:
        """Once, until half of them are gone."""
        if left <= 0 and not self.full:
            self.full = True
            held, at_work = len(self.holding), self.following.at_work
            happened("intake.filled", queue=self.queue, held=held, at_work=at_work)
        elif left > MOST_HELD // 2:
            self.full = False


# While the broker or the database is away: said once, tried again after growing pauses, and said when all is well.

LONGEST: Final = 60.0  # seconds that whoever wants one message waits: somebody looks at the exit code


class Outages:
    """Those of one intake."""

    def __init__(
        self, transport: str, queue: str, stopping: asyncio.Event, *, longest: float = math.inf
    ) -> None:
        self._transport = transport
        self._queue = queue
        self._stopping = stopping
        self._longest = longest
        self._since: float | None = None

    def trouble(self, error: StepfastError) -> None:
        """Raises it if the outage lasts for longer than anybody waits."""
        if self._since is not None:
            if time.monotonic() > self._since + self._longest:
                raise error
            return
        self._since = time.monotonic()
        if isinstance(error, DatabaseError):
            happened("database.lost", error=error, note="no tasks are taken")
        else:
            happened("broker.lost", transport=self._transport, queue=self._queue, error=error)

    def well(self) -> None:
        if self._since is not None:
            self._since = None
            happened("broker.recovered", transport=self._transport, queue=self._queue)

    async def pause(self, seconds: float, longest: float) -> float:
        """Wait, unless we are asked to stop; returns how long to wait the next time."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), min(seconds, longest) * random.uniform(0.8, 1.0))
        return min(2 * seconds, longest)


# Messages whose tasks are at work, until their ends are committed and whoever asked has been told.

LOOK: Final = 0.1  # seconds
AWAY: Final = 1.0  # while the database does not answer
GONE_AFTER: Final = 3  # looks; a job on its way from one table to the other is seen by the next one

LIVE = sql("SELECT id, state FROM stepfast_job WHERE id {any_of:ids}")
AT_WORK: Final = frozenset({"ready", "suspect", "leased"})  # others wait for a later moment


@dataclass(eq=False)
class Followed:
    stored: Stored
    held: Held
    missing: int = 0
    let_go: bool = False  # by us, because the task has ended
    at_work: bool = True  # it has a slot, or wants one

    @property
    def lost(self) -> bool:
        """Its message is another's: nobody here can say that the task ended well."""
        return self.held.over and not self.let_go


class Following:
    """Looks at all of them together. Runs on the intake's event loop."""

    def __init__(self, database: Database, holding: Holding, queue: str) -> None:
        self._database = database
        self._holding = holding
        self._queue = queue
        self._followed: list[Followed] = []
        self.patience = timedelta(0)  # for webhooks under way when the worker has stopped
        self._failed = 0

    @property
    def failed(self) -> int:
        """Tasks that did not end well, as far as we know."""
        return self._failed + sum(it.lost for it in self._followed)

    @property
    def at_work(self) -> int:
        """How many were being worked on when we last looked."""
        return sum(it.at_work and not it.held.over for it in self._followed)

    def add(self, stored: Stored, held: Held) -> None:
        self._followed.append(Followed(stored, held))

    async def until_left(self, left: asyncio.Event) -> None:
        """End what can be ended; when we leave, once more, and what only waits for its webhook gets a moment."""
        while not left.is_set():
            await self._look()
            await _wait(left, LOOK)
        until = asyncio.get_running_loop().time() + self.patience.total_seconds()
        while await self._look() and asyncio.get_running_loop().time() < until:
            await _wait(asyncio.Event(), LOOK)

    async def until_empty(self, left: asyncio.Event) -> None:
        """Wait until all that was taken is over."""
        while self._followed and not left.is_set():
            self._drop()
            await _wait(left, LOOK)

    async def _look(self) -> bool:
        """End what has ended; whether there are others that only wait to be told of."""
        self._drop()
        if not self._followed:
            return False
        try:
            ended, live = await in_own_thread(self._states)
        except DatabaseError:
            await asyncio.sleep(AWAY)  # nothing is known, nothing is let go
            return True
        over: list[tuple[Followed, End | None]] = []
        for it in self._followed:
            end = ended.get(it.stored.job_id)
            it.at_work = live.get(it.stored.job_id) in AT_WORK
            it.missing = 0 if end is not None or it.stored.job_id in live else it.missing + 1
            if (end is not None and end.settled) or it.missing >= GONE_AFTER:
                over.append((it, end))
        await asyncio.gather(*(self._let_go(it, end) for it, end in over))
        return any(not it.held.over and it.stored.job_id in ended for it in self._followed)

    def _drop(self) -> None:
        """Forget what is over."""
        self._failed = self.failed
        self._followed = [it for it in self._followed if not it.held.over]

    def _states(self) -> tuple[dict[str, End], dict[str, str]]:
        ids = [it.stored.job_id for it in self._followed]
        with self._database.reading() as tx:
            ended = ends(tx, ids)
            rows = tx.rows(LIVE, ids=[it for it in ids if it not in ended])
        live = {str(row[0]): str(row[1]) for row in rows}
        return ended, live

    async def _let_go(self, it: Followed, end: End | None) -> None:
        """A dead task's message goes where the broker keeps such; one that an operator ended just goes."""
        it.let_go = True
        self._failed += end is None or end.state != "done"
        if end is not None and end.state == "dead":
            refused = it.stored.refused
            reason = "refused" if refused is not None else end.error.partition(":")[0] or "failed"
            ended = await self._holding.put_aside(it.held, reason, refused.reason if refused else end.error)
        else:
            ended = await self._holding.complete(it.held)
        if ended:
            state = "gone" if end is None else end.state
            happened(
                "task.ended",
                queue=self._queue,
                task_id=it.stored.task_id,
                job_id=it.stored.job_id,
                state=state,
            )


async def _wait(event: asyncio.Event, seconds: float) -> None:
    try:
        await asyncio.wait_for(event.wait(), seconds)
    except TimeoutError:
        return


# Messages that the broker put aside because they were delivered too often, and that the database never heard of.
#
# Whoever received them died before the job was stored, which says nothing about the task. So each becomes a job after all,
# and the database decides about it. What we put aside ourselves stays where it is.
#
# All of them are looked at, which takes a while: the intake waits for none of it.

MOST: Final = 1_000  # looked at in one pass: what we refused lies in front of what is worn out
EVERY: Final = 300.0  # seconds from the end of a pass to the next one

Store = Callable[[Sequence[Held]], Awaitable[Mapping[Held, "Stored"] | None]]


@dataclass(frozen=True, kw_only=True)
class SecondChance:
    """For what was put aside of one queue. It holds its messages apart: they take no room from others."""

    transport: Transport
    queue: str
    hold: timedelta
    store: Store
    stopping: asyncio.Event

    async def until_stopped(self, outages: Outages) -> None:
        """One pass after the other, with long pauses."""
        while not self.stopping.is_set():
            try:
                await self.give()
            except (TransportError, DatabaseError) as error:
                outages.trouble(error)
            except Exception as error:  # noqa: BLE001 - the letters stay where they are, and tasks are taken all the same
                happened(
                    "worker.failed", error=error, note=f"dead letters of {self.queue} were not looked at"
                )
            await outages.pause(EVERY, EVERY)

    async def give(self) -> int:
        """One pass: store what was worn out and can be read; returns how many."""
        holding = Holding(self.transport, self.hold)
        over = asyncio.Event()
        renewing = asyncio.create_task(holding.renew_until(over))
        try:
            return await self._give(holding)
        finally:
            over.set()
            await renewing

    async def _give(self, holding: Holding) -> int:
        passed: list[Held] = []  # held until the end: they would come again and again
        count = 0
        try:
            while len(passed) < MOST and not self.stopping.is_set():
                found = await self.transport.dead_letters(self.queue, at_most=MOST_AT_ONCE, hold=holding.hold)
                if not found:
                    return count
                aside = [holding.take(it) for it in found]
                passed += aside
                done = await self._stored([it for it in aside if it.delivery.dead_reason == TOO_OFTEN])
                await asyncio.gather(*(holding.complete(it) for it in done))
                passed = [it for it in passed if it not in done]
                count += len(done)
            if not self.stopping.is_set():
                happened("letters.skipped", queue=self.queue, looked_at=len(passed))
        finally:
            await asyncio.gather(*(holding.release(it) for it in passed))
        return count

    async def _stored(self, worn_out: Sequence[Held]) -> set[Held]:
        """Those that are jobs now."""
        stored = await self.store(worn_out) if worn_out else None  # None: asked to stop
        return {it for it in worn_out if stored and it in stored and stored[it].refused is None}


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
