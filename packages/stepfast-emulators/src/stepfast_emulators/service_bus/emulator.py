"""The emulator: start it, control it, stop it.

It runs on a thread of its own, so that plain and async tests use it alike. Its methods may be called from any thread:
they are done on that thread before they return.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Self, TypeVar
from uuid import UUID

from stepfast_emulators.durations import Duration, duration
from stepfast_emulators.service_bus.broker import AccessKey, Broker
from stepfast_emulators.service_bus.connection import Connection
from stepfast_emulators.service_bus.faults import Moment, cut
from stepfast_emulators.service_bus.queue import Queue, milliseconds

T = TypeVar("T")
HOST: Final = "127.0.0.1"
DEFAULT_KEY: Final = AccessKey("RootManageSharedAccessKey", "SAS_KEY_VALUE")
THREAD_PATIENCE: Final = 10.0  # seconds for its thread to do an action


@dataclass(frozen=True, kw_only=True)
class Content:
    """How many messages a queue has, by state, and what was counted in it since the start."""

    ready: int
    held: int
    scheduled: int
    deferred: int
    dead: int
    counted: Counter[str]


@dataclass(frozen=True, kw_only=True)
class QueueSettings:
    """How a queue behaves; the defaults are those of the service."""

    lock: timedelta = timedelta(minutes=1)  # for which a receiver holds a message
    max_deliveries: int = 10  # that may fail before it is a dead letter
    duplicates: timedelta | None = None  # for which ids of messages are remembered; None: not at all
    lives_for: timedelta | None = None  # a message at most; None: for ever
    expired_are_dead: bool = False  # else they vanish
    largest: int = 262_144  # bytes of one transfer
    capacity: int | None = None  # messages; None: as many as there come


# As the command line explains them: an example of each, and what it means.
QUEUE_OPTIONS: Final = {
    "lock": ("1m", "how long a receiver holds a message; the default"),
    "max_deliveries": ("10", "deliveries that may fail before a message is a dead letter; the default"),
    "duplicates": ("10m", "how long ids of messages are remembered; without it, not at all"),
    "lives_for": ("1h", "how long a message lives at most; without it, for ever"),
    "expired_are_dead": ("yes", "a message that lived too long is a dead letter; without it, it vanishes"),
    "largest": ("262144", "bytes of one message; the default"),
    "capacity": ("1000", "messages that fit; without it, as many as there come"),
}


def parse_queue(text: str) -> tuple[str, QueueSettings]:
    """`work-items,lock=2m,max_deliveries=5,duplicates=10m`: a queue as the command line names it."""
    name, *options = text.split(",")
    known = {it.name: it.type for it in fields(QueueSettings)}
    chosen: dict[str, Any] = {}
    for option in options:
        key, _, value = option.partition("=")
        if key not in known or not value:
            raise ValueError(f"{option!r} is no option of a queue; there are {', '.join(known)} (name=value)")
        if "timedelta" in str(known[key]):
            chosen[key] = duration(value, key)
        elif known[key] == "bool":
            chosen[key] = value.lower() in {"yes", "true", "1"}
        elif not value.isdigit():
            raise ValueError(f"{key}: {value!r} is no number")
        else:
            chosen[key] = int(value)
    if not name:
        raise ValueError(f"{text!r} names no queue")
    return name, replace(QueueSettings(), **chosen)


class ServiceBusEmulator:
    """Azure Service Bus on loopback, for the real SDKs.

        with ServiceBusEmulator() as broker:
            broker.add_queue("work", lock="2m", max_deliveries=5, duplicates="10m")
            client = ServiceBusClient.from_connection_string(broker.connection_string)

    Queues with peek-lock, dead letters, duplicate detection, schedules, deferral and time to live. No sessions, no
    topics, no transactions, no TLS. Time is the emulator's own: `advance` moves it.
    """

    def __init__(self, *, port: int = 0, key: AccessKey = DEFAULT_KEY) -> None:
        self.port = port  # 0 becomes a free one at the start, and stays the same until the end
        self._broker = Broker(key)
        self._connections: set[Connection] = set()
        self._loop = asyncio.new_event_loop()
        self._thread: threading.Thread | None = None
        self._server: asyncio.Server | None = None

    # -- its life

    def start(self) -> Self:
        self._thread = threading.Thread(target=self._loop.run_forever, name="service-bus", daemon=True)
        self._thread.start()
        self._wait_for(self._listen())
        self._tell(lambda: self._broker.timeline.start(self._loop))
        return self

    def stop(self) -> None:
        if self._thread is None:
            return
        self._wait_for(self._hang_up())
        self._tell(self._broker.timeline.stop)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(THREAD_PATIENCE)
        self._thread = None
        self._loop.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def connection_string(self) -> str:
        key = self._broker.key
        return (
            f"Endpoint=sb://{HOST}:{self.port};SharedAccessKeyName={key.name};SharedAccessKey={key.value};"
            "UseDevelopmentEmulator=true;"
        )

    # -- queues

    def add_queue(
        self,
        name: str,
        *,
        lock: Duration = "1m",
        max_deliveries: int = 10,
        duplicates: Duration | None = None,
        lives_for: Duration | None = None,
        expired_are_dead: bool = False,
        capacity: int | None = None,
    ) -> None:
        """Make a queue, or an empty one of the same name."""
        settings = QueueSettings(
            lock=duration(lock, "lock"),
            max_deliveries=max_deliveries,
            duplicates=None if duplicates is None else duration(duplicates, "duplicates"),
            lives_for=None if lives_for is None else duration(lives_for, "lives_for"),
            expired_are_dead=expired_are_dead,
            capacity=capacity,
        )
        self.add_queue_with(name, settings)

    def add_queue_with(self, name: str, settings: QueueSettings) -> None:
        self._tell(lambda: self._broker.add_queue(name, settings))

    def content(self, queue: str) -> Content:
        """How full a queue is, and what was counted in it: stored, duplicate, completed, lock-expired, buried, …"""
        return self._tell(lambda: _content(self._broker.queue(queue)))

    # -- time

    def now(self) -> datetime:
        return datetime.fromtimestamp(self._broker.timeline.now() / 1_000, UTC)

    def advance(self, span: Duration) -> datetime:
        """Let time pass at once: locks expire, ids of duplicates are forgotten, scheduled messages come."""
        passed = milliseconds(duration(span, "advance"))
        self._tell(lambda: self._broker.timeline.advance(passed))
        return self.now()

    def expire_locks(self, queue: str, token: UUID | None = None) -> int:
        """End one lock or all of them as if their time had passed; the clients do not know. Returns how many."""

        def expire() -> int:
            found = self._broker.queue(queue)
            tokens = [it for it in found.locks if token in {None, it}]
            for it in tokens:
                found.expire(it)
            return len(tokens)

        return self._tell(expire)

    # -- faults

    def fail(
        self, moment: Moment, action: Callable[[], Exception] = cut, *, times: int = 1, queue: str = ""
    ) -> None:
        """Let the next exchanges go wrong at that moment: `cut` (the default), `silence`, `busy`, or a `refuse(…)`."""
        self._tell(lambda: self._broker.faults.add(moment, action, times=times, queue=queue))

    def faults_left(self) -> int:
        """How many faults have not struck yet."""
        return self._tell(self._broker.faults.left)

    def slow_links(self, delay: Duration) -> None:
        """Answer only after a while when a client opens a link; 0 is at once."""
        span: timedelta = duration(delay, "slow_links")
        self._tell(lambda: setattr(self._broker, "link_delay", span))

    def cut_connections(self) -> int:
        """End every connection as a broken network does; locks stay. Returns how many."""

        def cut_all() -> int:
            found = list(self._connections)
            for it in found:
                it.cut()
            return len(found)

        return self._tell(cut_all)

    def go_away(self) -> None:
        """Hang up and refuse connections until `come_back`; what is stored stays stored."""
        self._wait_for(self._hang_up())

    def come_back(self) -> None:
        self._wait_for(self._listen())

    # -- on its own thread

    async def _listen(self) -> None:
        make = lambda: Connection(self._broker, self._connections)  # noqa: E731 - a factory for asyncio
        self._server = await self._loop.create_server(make, HOST, self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _hang_up(self) -> None:
        if self._server is not None:
            self._server.close()
            for connection in list(self._connections):
                connection.cut()
            await self._server.wait_closed()
            self._server = None
            await asyncio.sleep(0)  # the connections hear that they are lost

    def _wait_for(self, work: Any) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(THREAD_PATIENCE)

    def _tell(self, action: Callable[[], T]) -> T:
        """Do `action` on the thread of the emulator, and wait for its result."""
        if self._thread is None or threading.current_thread() is self._thread:
            return action()
        done: Future[T] = Future()

        def act() -> None:
            try:
                done.set_result(action())
            except Exception as error:  # noqa: BLE001 - raised again where it was asked for
                done.set_exception(error)

        self._loop.call_soon_threadsafe(act)
        return done.result(THREAD_PATIENCE)


def _content(queue: Queue) -> Content:
    return Content(
        ready=len(queue.waiting),
        held=len(queue.locks),
        scheduled=len(queue.scheduled),
        deferred=len(queue.deferred),
        dead=len(queue.dead.waiting) + len(queue.dead.locks),
        counted=queue.counted.copy(),
    )
