"""From a thread to a transport: an event loop on a thread of its own, and calls that wait with a deadline.

Database code is synchronous and so are couriers, commands and checks; brokers are asynchronous and keep links open.

    with Link(transport) as link:
        link.wait_for(transport.send("work-items", messages))
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import CancelledError
from concurrent.futures import TimeoutError as DeadlineError
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

from stepfast.clock import spoken
from stepfast.transports.failures import TransportUnavailableError

if TYPE_CHECKING:
    from stepfast.transports.contract import Transport

T = TypeVar("T")

PATIENCE: Final = timedelta(seconds=30)


class Link:
    """One opened transport for any number of threads. A call that takes too long is cancelled, and nothing is known."""

    def __init__(self, transport: Transport, patience: timedelta = PATIENCE) -> None:
        self.transport = transport
        self.patience = patience
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name=f"link-{transport.name}", daemon=True
        )

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def open(self) -> None:
        self._thread.start()
        try:
            self.wait_for(self.transport.open())
        except BaseException:
            self._end()
            raise

    def close(self) -> None:
        """Give back what is held, and hang up. A broker that does not answer is left alone after the deadline."""
        if not self._thread.is_alive():
            return
        try:
            self.wait_for(self.transport.close())
        except TransportUnavailableError:
            pass  # what we held comes back by itself
        finally:
            self._end()

    def wait_for(self, call: Coroutine[Any, Any, T], within: timedelta | None = None) -> T:
        """Run it over there and wait here, at most so long."""
        limit = self.patience if within is None else within
        if not self._thread.is_alive() or threading.current_thread() is self._thread:
            call.close()
            raise TransportUnavailableError(
                self.transport.name, "the link is closed, or called from its own thread"
            )
        waiting = asyncio.run_coroutine_threadsafe(call, self._loop)
        try:
            return waiting.result(limit.total_seconds())
        except DeadlineError as late:
            if waiting.done():
                raise  # its own
            waiting.cancel()
            raise TransportUnavailableError(
                self.transport.name, f"no answer within {spoken(limit)}"
            ) from late
        except CancelledError as ended:
            raise TransportUnavailableError(self.transport.name, "the link was closed meanwhile") from ended
        except BaseException:
            waiting.cancel()  # an interrupt of this thread
            raise

    def _end(self) -> None:
        """Let what runs there unwind, then let the thread go."""
        asyncio.run_coroutine_threadsafe(_unwind(), self._loop).result(self.patience.total_seconds())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _unwind() -> None:
    mine = asyncio.current_task()
    others = [it for it in asyncio.all_tasks() if it is not mine]
    for it in others:
        it.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    await asyncio.get_running_loop().shutdown_asyncgens()
    await asyncio.get_running_loop().shutdown_default_executor()
