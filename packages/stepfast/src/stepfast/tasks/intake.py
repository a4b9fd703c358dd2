"""Take tasks from a queue: receive messages, store each as a job, then let go of the message.

When a message is let go depends on the database. If other workers see it too, the message has done its part when the job
is committed. If it belongs to this process alone and may vanish with it, the message is all that others have: it is held
until the task has ended and the webhook about its end was sent. Nothing is let go while the database does not answer.
"""

from __future__ import annotations

import asyncio
import math
import random
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Final, Literal

from stepfast.backoff import Backoff
from stepfast.clock import micros
from stepfast.database.database import persist
from stepfast.database.statement import sql
from stepfast.errors import DatabaseError, StepfastError
from stepfast.notifications.webhook import UNSIGNED
from stepfast.tasks.envelope import queue_of
from stepfast.tasks.held_messages import HeldMessage, HeldMessages
from stepfast.tasks.store import (
    Origin,
    StoredMessage,
    TaskEnd,
    adopt_tasks,
    forget_old_tasks,
    store_messages,
    task_ends,
)
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
from stepfast.transports.queue_depth import report_depth

if TYPE_CHECKING:
    from stepfast.app_protocol import WholeApp
    from stepfast.notifications.settings import NotificationSettings


Acknowledge = Literal["stored", "ended"]  # when a message is let go

AHEAD: Final = 2  # times the concurrency: so many jobs may wait before no more messages are taken
# A task that has ended takes no slot, but its message is held until its webhook was sent. If webhooks cannot leave, such
# messages become many, so their number has a bound.
MOST_HELD: Final = 256
LONG_WAIT: Final = timedelta(seconds=20)  # at a broker that lets us wait
SOON: Final = 0.1  # seconds; the first pause of an idle intake
FULL: Final = 0.1  # seconds between looks while there is no capacity
OUTAGE: Final = 1.0  # seconds; the first pause while the broker or the database is away
LONGEST_OUTAGE: Final = 30.0
MOST_PATIENT: Final = (
    60.0  # seconds of an outage that an intake for one message waits: its exit code is looked at
)
LOOK: Final = 0.1  # seconds between looks at tasks whose messages are held
AWAY: Final = 1.0  # ... while the database does not answer
GONE_AFTER: Final = 3  # looks; a job on its way from one table to the other is seen by the next one
AT_WORK: Final = frozenset({"ready", "suspect", "leased"})  # jobs in other states wait for a later moment
TIDYING: Final = 300.0  # seconds
TIDIED_AT_ONCE: Final = 500
ABANDONED: Final = timedelta(minutes=1)  # several leases
MOST_LETTERS: Final = 1_000  # looked at in one pass: refused messages lie in front of worn-out ones
RECOVERED_EVERY: Final = 300.0  # seconds from the end of a pass to the next one

COUNT_WAITING = sql("""
    SELECT count(*) FROM (
        SELECT 1 AS one FROM stepfast_job WHERE queue = :queue AND state = 'ready' LIMIT :limit
    ) waiting
""")
UNFINISHED_JOBS = sql("SELECT id, state FROM stepfast_job WHERE id {any_of:ids}")


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
        self, app: WholeApp, transport: Transport, settings: IntakeSettings, ended: Callable[[], None]
    ) -> None:
        self._app = app
        self._transport = transport
        self._settings = settings
        self._queue = queue_of(settings.client)
        self._until_end = settings.acknowledge == "ended"
        self._messages = HeldMessages(transport, settings.hold, deaths_count=self._until_end)
        self._failed_tasks = 0
        self._full = False
        self._ended = ended  # called when no more is taken, for whatever reason
        self._loop = asyncio.new_event_loop()
        self._stopping = asyncio.Event()  # take no more
        self._left = asyncio.Event()  # let go of everything
        self._patience = timedelta(0)  # for webhooks under way when the worker has stopped
        longest = MOST_PATIENT if settings.once else math.inf
        self._outages = Outages(transport.name, self._queue, longest=longest)
        self._opened = threading.Event()
        self._refused: StepfastError | None = None
        self._thread = threading.Thread(target=self._live, name="stepfast-intake", daemon=True)
        self.last_task: StoredMessage | None = None  # that became a job, or was one
        self.failed = False  # something broke, or the one task that was wanted did not end well

    def start(self) -> None:
        """Begin; raises if the broker refuses us."""
        self._thread.start()
        self._opened.wait()
        if self._refused is not None:
            raise self._refused

    def stop_taking(self) -> None:
        """Take no more; what is held stays held."""
        self._set(self._stopping)

    def leave(self, patience: timedelta) -> None:
        """When no handler runs any more: end what has ended, give back the rest, and hang up."""
        self._patience = patience
        self.stop_taking()
        self._set(self._left)
        self._thread.join(patience.total_seconds() + 30)

    def _set(self, event: asyncio.Event) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(event.set)

    # Everything below runs on the intake's own loop.

    def _live(self) -> None:
        try:
            self._loop.run_until_complete(self._work())
        except Exception as error:  # noqa: BLE001 - whatever it is, the worker must hear that no more is taken
            self.failed = True
            happened("worker.failed", error=error, note="intake")
        finally:
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.close()
            self._opened.set()
            self._ended()

    async def _work(self) -> None:
        """open → take until stopped → end what has ended → give back the rest → close."""
        if not await self._open():
            return
        renewing = asyncio.create_task(self._until_left(partial(self._messages.renew_until, self._left)))
        following = asyncio.create_task(self._until_left(self._follow_tasks))
        recovering = asyncio.create_task(self._recover_until_stopped())
        measuring = asyncio.create_task(report_depth(self._transport, [self._queue]))
        try:
            await self._take_until_stopped()
            if self._settings.once:
                await self._until_all_ended()
        finally:
            self._ended()
            await self._left.wait()
            recovering.cancel()  # of a broker that does not answer: it looks at `_stopping` by itself
            measuring.cancel()
            await asyncio.gather(recovering, measuring, return_exceptions=True)
            await following
            if self._settings.once:  # held to the end means stopped before it
                self.failed = bool(self._failed_tasks or self._messages.lost_tasks or len(self._messages))
            given_back = await self._messages.give_back_all()
            await renewing
            happened("intake.stopped", queue=self._queue, given_back=given_back)
            await self._transport.close()

    async def _until_left(self, work: Callable[[], Awaitable[None]]) -> None:
        """Do it until the intake leaves, whatever breaks it: nothing else renews messages, or lets go of them."""
        while True:
            try:
                return await work()
            except Exception as error:  # noqa: BLE001 - see above
                happened("worker.failed", error=error, note="intake")
                if self._left.is_set():
                    return None
                await asyncio.sleep(OUTAGE)

    async def _open(self) -> bool:
        """Open the broker and its queue, however long that takes; `start` raises a refusal."""
        backoff = Backoff(first=OUTAGE, longest=LONGEST_OUTAGE)
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
                self._outages.report(error)
                self._opened.set()  # it may come back: no reason to fail
                await self._pause(backoff.next())
            else:
                self._outages.broker_answers()
                self._opened.set()
                self._report_started()
                return True
        return False

    def _report_started(self) -> None:
        happened(
            "intake.started",
            transport=self._transport.name,
            queue=self._queue,
            acknowledge=self._settings.acknowledge,
        )
        if (why := missing_secret(self._app.notifications)) is not None:
            happened("intake.warned", queue=self._queue, note=why)

    # Receive and store.

    async def _take_until_stopped(self) -> None:
        idle = Backoff(first=SOON, longest=self._settings.poll.total_seconds())
        outage = Backoff(first=OUTAGE, longest=LONGEST_OUTAGE)
        tidied = 0.0
        while not self._stopping.is_set():
            if not self._settings.once and (now := self._loop.time()) > tidied + TIDYING:
                tidied = now
                await self._tidy()
            try:
                wanted = await self.capacity()
                if wanted <= 0:
                    await self._pause(FULL)
                    continue
                deliveries = await self._receive(wanted)
                self._outages.broker_answers()
                outage.reset()
            except (TransportError, DatabaseError) as error:
                self._outages.report(error)
                await self._pause(outage.next())
                continue
            if deliveries:
                idle.reset()
                await self._take(deliveries)
            if self._settings.once:
                return  # with nothing, if there was no message or another worker was faster
            if not deliveries and not self._transport.abilities.longest_wait:
                await self._pause(idle.next())

    async def capacity(self) -> int:
        """How many more messages are wanted: a few more than can be worked on at once. Not positive: none.

        A message that is held until the end of its task is better off with a worker that is free: of such, none is taken
        ahead.
        """
        bound = MOST_HELD - len(self._messages)
        self._report_full(bound)
        if self._until_end:
            return min(self._settings.concurrency - self._messages.at_work, bound)
        most = AHEAD * self._settings.concurrency
        waiting = await in_own_thread(self._count_waiting, most)
        self._outages.database_answers()
        return min(most - waiting, bound)

    def _count_waiting(self, most: int) -> int:
        with self._app.database.looking() as tx:
            return int(tx.first(COUNT_WAITING, queue=self._queue, limit=most))

    def _report_full(self, bound: int) -> None:
        """Report `intake.filled` once; again only after fewer than half are held."""
        if bound <= 0 and not self._full:
            self._full = True
            held, at_work = len(self._messages), self._messages.at_work
            happened("intake.filled", queue=self._queue, held=held, at_work=at_work)
        elif bound > MOST_HELD // 2:
            self._full = False

    async def _receive(self, wanted: int) -> list[Delivery]:
        """Wait for messages until there are some or the intake is asked to stop. A receive that is cancelled loses none."""
        wait = min(LONG_WAIT, self._transport.abilities.longest_wait)
        at_most = 1 if self._settings.once else min(wanted, MOST_AT_ONCE)
        asking = asyncio.ensure_future(
            self._transport.receive(self._queue, at_most=at_most, wait=wait, hold=self._messages.hold)
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
        deliveries = asking.result()
        if self._stopping.is_set():
            for delivery in deliveries:
                await self._messages.give_back(self._messages.take(delivery))
            return []
        return deliveries

    async def _take(self, deliveries: Sequence[Delivery]) -> None:
        """Store messages as jobs; then let go of them, or hold them until their tasks have ended."""
        messages = [self._messages.take(delivery) for delivery in deliveries]
        stored = await self._store(messages)  # those that are missing here are given back when we leave
        await asyncio.gather(*(self._acknowledge(message, became) for message, became in stored))

    async def _store(self, messages: Sequence[HeldMessage]) -> list[tuple[HeldMessage, StoredMessage]]:
        """Make jobs of messages, however long the database takes; of fewer, if the intake is asked to stop."""
        origin = Origin(self._settings.client, self._transport.name)
        last = self._transport.abilities.most_deliveries if self._until_end else None
        deliveries = [message.delivery for message in messages]
        backoff = Backoff(first=OUTAGE, longest=LONGEST_OUTAGE)
        while not self._stopping.is_set():
            try:
                stored = await in_own_thread(
                    store_messages, self._app.database, self._app.kinds, origin, deliveries, last
                )
            except DatabaseError as error:  # it takes nothing from anybody
                self._outages.report(error)
                await self._pause(backoff.next())
                continue
            self._outages.database_answers()
            if stored is not None:
                return list(zip(messages, stored, strict=True))
            return [pair for message in messages for pair in await self._store([message])]
        return []

    async def _acknowledge(self, message: HeldMessage, stored: StoredMessage) -> None:
        stored.report(self._queue, message.delivery.id)
        self.last_task = stored
        if self._until_end and stored.job_id:
            self._messages.hold_for(message, stored)
        elif stored.refused is not None:
            await self._messages.put_aside(message, "refused", stored.refused.reason)
        else:
            await self._messages.complete(message)

    # Follow tasks to their ends, where their messages are held until then.

    async def _follow_tasks(self) -> None:
        """End messages whose tasks have ended; when the intake leaves, give webhooks under way a moment."""
        while not self._left.is_set():
            await self._end_settled()
            await _wait(self._left, LOOK)
        until = self._loop.time() + self._patience.total_seconds()
        while await self._end_settled():
            if self._loop.time() >= until:
                return
            await asyncio.sleep(LOOK)

    async def _until_all_ended(self) -> None:
        while any(message.task is not None for message in self._messages) and not self._left.is_set():
            await _wait(self._left, LOOK)

    async def _end_settled(self) -> bool:
        """End messages whose tasks have ended; whether others have ended whose webhook is still on its way."""
        followed = {message: message.task.job_id for message in self._messages if message.task is not None}
        if not followed:
            return False
        try:
            ends, states = await in_own_thread(self._look_at_jobs, list(followed.values()))
        except DatabaseError:
            await asyncio.sleep(AWAY)  # nothing is known, nothing is let go
            return True
        self._outages.database_answers()
        over: list[HeldMessage] = []
        for message, job_id in followed.items():
            end = ends.get(job_id)
            message.at_work = states.get(job_id) in AT_WORK
            message.missing = 0 if end is not None or job_id in states else message.missing + 1
            if (end is not None and end.settled) or message.missing >= GONE_AFTER:
                over.append(message)
        await asyncio.gather(*(self._end_message(it, followed[it], ends.get(followed[it])) for it in over))
        return any(not message.over and job_id in ends for message, job_id in followed.items())

    def _look_at_jobs(self, ids: list[str]) -> tuple[dict[str, TaskEnd], dict[str, str]]:
        """The ends of jobs that have ended, and the states of the others."""
        with self._app.database.reading() as tx:
            ends = task_ends(tx, ids)
            rows = tx.rows(UNFINISHED_JOBS, ids=[job_id for job_id in ids if job_id not in ends])
        return ends, {str(row[0]): str(row[1]) for row in rows}

    async def _end_message(self, message: HeldMessage, job_id: str, end: TaskEnd | None) -> None:
        """Put the message of a dead task aside; complete those of tasks that are done, cancelled or deleted."""
        message.task_ended = True
        self._failed_tasks += end is None or end.state != "done"
        refused = None if message.task is None else message.task.refused
        if end is not None and end.state == "dead":
            reason = "refused" if refused is not None else end.error.partition(":")[0] or "failed"
            detail = end.error if refused is None else refused.reason
            ended = await self._messages.put_aside(message, reason, detail)
        else:
            ended = await self._messages.complete(message)
        if ended:
            task_id = "" if message.task is None else message.task.task_id
            state = "gone" if end is None else end.state
            happened("task.ended", queue=self._queue, task_id=task_id, job_id=job_id, state=state)

    # Beside all that: recover dead letters, tidy up.

    async def _recover_until_stopped(self) -> None:
        if self._until_end or self._settings.once:
            return
        while not self._stopping.is_set():
            try:
                await self.recover_dead_letters()
            except (TransportError, DatabaseError) as error:
                self._outages.report(error)
            except Exception as error:  # noqa: BLE001 - the letters stay where they are, and tasks are taken all the same
                happened(
                    "worker.failed", error=error, note=f"dead letters of {self._queue} were not looked at"
                )
            await self._pause(RECOVERED_EVERY)

    async def recover_dead_letters(self) -> int:
        """Store messages that the broker put aside because they were delivered too often; returns how many.

        Their receivers died before a job was stored, which says nothing about the task. So each becomes a job after all,
        and the database decides about it. Messages that we put aside ourselves stay where they are. The messages of a
        pass are held apart: they take no capacity from others.
        """
        letters = HeldMessages(self._transport, self._settings.hold)
        over = asyncio.Event()
        renewing = asyncio.create_task(letters.renew_until(over))
        try:
            return await self._recover(letters)
        finally:
            await asyncio.gather(*(letters.release(letter) for letter in letters))
            over.set()
            await renewing

    async def _recover(self, letters: HeldMessages) -> int:
        """One pass; letters that are looked at stay held until its end, since they would come again and again."""
        recovered = 0
        looked_at = 0
        while looked_at - recovered < MOST_LETTERS and not self._stopping.is_set():
            found = await self._transport.dead_letters(self._queue, at_most=MOST_AT_ONCE, hold=letters.hold)
            if not found:
                return recovered
            looked_at += len(found)
            held = [letters.take(delivery) for delivery in found]
            worn_out = [letter for letter in held if letter.delivery.dead_reason == TOO_OFTEN]
            stored = await self._store(worn_out) if worn_out else []
            jobs = [letter for letter, became in stored if became.refused is None]
            await asyncio.gather(*(letters.complete(letter) for letter in jobs))
            recovered += len(jobs)
        if not self._stopping.is_set():
            happened("letters.skipped", queue=self._queue, looked_at=looked_at - recovered)
        return recovered

    async def _tidy(self) -> None:
        """Forget old tasks, and adopt tasks that killed containers left."""
        database = self._app.database
        forget = partial(forget_old_tasks, limit=TIDIED_AT_ONCE)
        adopt = partial(adopt_tasks, queue=self._queue, after=micros(ABANDONED))
        try:
            while await in_own_thread(persist, database, forget) == TIDIED_AT_ONCE:
                continue
            await in_own_thread(persist, database, adopt)
        except DatabaseError as error:
            self._outages.report(error)
        else:
            self._outages.database_answers()

    async def _pause(self, seconds: float) -> None:
        """Wait, unless the intake is asked to stop; a little shorter at random, so that not all come at once."""
        await _wait(self._stopping, seconds * random.uniform(0.8, 1.0))


class Outages:
    """Outages of the broker and of the database, as one intake sees them: each is reported once, and so is its end."""

    def __init__(self, transport: str, queue: str, *, longest: float = math.inf) -> None:
        self._transport = transport
        self._queue = queue
        self._longest = longest
        self._broker_since: float | None = None  # monotonic
        self._database_since: float | None = None

    def report(self, error: StepfastError) -> None:
        """Report `broker.lost` or `database.lost`; raise the error when that has lasted for longer than we wait."""
        now = time.monotonic()
        if isinstance(error, DatabaseError):
            since = self._database_since
            if since is None:
                self._database_since = now
                happened("database.lost", error=error, note="no tasks are taken")
        else:
            since = self._broker_since
            if since is None:
                self._broker_since = now
                happened("broker.lost", transport=self._transport, queue=self._queue, error=error)
        if since is not None and now > since + self._longest:
            raise error

    def broker_answers(self) -> None:
        """Report `broker.recovered` if the broker was away."""
        if self._broker_since is not None:
            self._broker_since = None
            happened("broker.recovered", transport=self._transport, queue=self._queue)

    def database_answers(self) -> None:
        """Report `database.recovered` if the database was away."""
        if self._database_since is not None:
            self._database_since = None
            happened("database.recovered", note="tasks are taken")


async def _wait(event: asyncio.Event, seconds: float) -> None:
    with suppress(TimeoutError):
        await asyncio.wait_for(event.wait(), seconds)


def missing_secret(settings: NotificationSettings) -> str | None:
    """Why no webhook of a task can be sent. No reason to stop: perhaps no task has a `webhook_url`."""
    secrets = settings.secrets
    if secrets.of_host or secrets.unsigned or not settings.outbox_relay:
        return None
    return (
        f"STEPFAST_WEBHOOK_SECRETS is not set: whoever gave a task its webhook_url is not told of the end, and where messages are held "
        f"until then (WORKER_ACKNOWLEDGE) no more are taken after a while; make a secret with `stepfast outbox secret`, "
        f"or write {UNSIGNED} to send unsigned"
    )
