"""The simulator as a thing to start and stop: inside a test, or as a process of its own."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Self

from stepfast.applications import instant, moment
from stepfast.errors import ConfigurationError
from stepfast_diamonds.simulator import control, oracle
from stepfast_diamonds.simulator.faults import Knobs, change_knobs, parse_knobs
from stepfast_diamonds.simulator.http import Connection
from stepfast_diamonds.simulator.service import ENDPOINT, Service
from stepfast_diamonds.simulator.session import PASSWORD, USERNAME
from stepfast_diamonds.simulator.virtual_clock import VirtualClock
from stepfast_diamonds.simulator.world import make_world

if TYPE_CHECKING:
    from stepfast.applications import Duration
    from stepfast_diamonds.simulator.oracle import At, Happened, Truth


HOST: Final = "127.0.0.1"
BACKLOG: Final = 512


class Simulator:
    """A source like Nivoda on loopback, with an oracle.

        with Simulator(profile="1k", seed=7, faults="none") as sim:
            sim.url, sim.oracle(), sim.advance("1h"), sim.mutate("price", count=3)

    `speed` is how many seconds of its clock pass in one of ours; at 0 it stands still until it is advanced. `start`
    is what its clock shows in the beginning: ours, if nothing is given, and `clock_skew_s` more.
    """

    def __init__(
        self,
        profile: str = "1k",
        *,
        seed: int = 1,
        faults: Knobs | str | None = None,
        speed: float = 1.0,
        port: int = 0,
        start: datetime | None = None,
    ) -> None:
        if speed < 0:
            raise ConfigurationError(f"speed: {speed} is negative; time does not run backwards")
        knobs = parse_knobs(faults)
        begin = time.time_ns() // 1_000 if start is None else instant(start, "start")
        clock = VirtualClock(begin + int(knobs.clock_skew_s * 1_000_000), speed)
        self._service = Service(make_world(profile, seed, knobs, clock))
        self._port = port
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._connections: set[Connection] = set()
        self.username, self.password = USERNAME, PASSWORD

    @property
    def base_url(self) -> str:
        return f"http://{HOST}:{self._port}"

    @property
    def url(self) -> str:
        """Where to POST."""
        return self.base_url + ENDPOINT

    @property
    def now(self) -> datetime:
        return moment(self._service.world.clock.now())

    @property
    def knobs(self) -> Knobs:
        return self._service.world.knobs

    def turn(self, **knobs: Any) -> None:
        """Other values for some knobs, from the next request on."""
        with self._service.lock:
            self._service.world.knobs = change_knobs(self._service.world.knobs, knobs)

    def advance(self, by: Duration) -> datetime:
        """Let time pass at once, with all that happens in it."""
        with self._service.lock:
            self._service.world.clock.advance(by)
            return moment(self._service.world.look())

    def mutate(self, kind: str, *, count: int = 1, ids: Sequence[str] | None = None) -> list[Happened]:
        """Change stones now: insert, price, availability, hold, delete, relist, recertificate, or a burst of prices."""
        with self._service.lock:
            return control.mutate(self._service.world, kind, count=count, ids=ids)

    def oracle(self, at: At = None, query: Mapping[str, Any] | None = None) -> dict[str, Truth]:
        """The truth at a time, by the id of the diamond; with a `DiamondQuery`, what it should find."""
        with self._service.lock:
            return {it.id: it for it in oracle.snapshot(self._service.world, at, query)}

    def changes(self, since: At = None, until: At = None) -> list[Happened]:
        """What happened in (since, until]."""
        with self._service.lock:
            return oracle.changes(self._service.world, since, until)

    def revoke_tokens(self) -> None:
        with self._service.lock:
            self._service.world.sessions.revoke_all()

    def statistics(self) -> dict[str, int]:
        """What has been asked and answered so far."""
        with self._service.lock:
            return control.statistics(self._service.world)

    def start(self) -> Self:
        """Serve from a thread of its own."""
        ready = threading.Event()
        failed: list[BaseException] = []

        def run() -> None:
            try:
                asyncio.run(self.serve(lambda _: ready.set()))
            except BaseException as error:  # noqa: BLE001 - told to who waits
                failed.append(error)
                ready.set()

        self._thread = threading.Thread(target=run, name="nivoda-simulator", daemon=True)
        self._thread.start()
        ready.wait()
        if failed:
            raise failed[0]
        return self

    def stop(self) -> None:
        if self._loop is not None and self._thread is not None:
            with suppress(RuntimeError):  # it has ended by itself
                self._loop.call_soon_threadsafe(self._stopping.set)
            self._thread.join()
            self._thread = None

    async def serve(self, ready: Callable[[Simulator], None], *, signals: bool = False) -> None:
        """Serve until told to stop."""
        self._loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        if signals:
            for it in (signal.SIGINT, signal.SIGTERM):
                self._loop.add_signal_handler(it, self._stopping.set)
        try:
            server = await self._loop.create_server(
                lambda: Connection(self._service, self._connections), HOST, self._port, backlog=BACKLOG
            )
        except OSError as error:
            raise ConfigurationError(
                f"port {self._port} cannot be used ({error.strerror}); choose another with --port, or 0 for any"
            ) from None
        self._port = server.sockets[0].getsockname()[1]
        ready(self)
        await self._stopping.wait()
        server.close()
        for connection in list(self._connections):
            connection.close()
        await server.wait_closed()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()
