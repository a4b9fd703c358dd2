"""Open the transport that a URL names, and use one from a thread. Secrets never stand in the URL: they come from the
environment, or from a managed identity.

    memory://name                          queues inside this process
    database://                            queues in the application's own database
    storage-queue:// , storage-queue://account     Azure Storage Queue: by connection string, or by identity
    service-bus:// , service-bus://namespace       Azure Service Bus: by connection string, or by identity
"""

from __future__ import annotations

import asyncio
import os
import re
import threading
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import CancelledError
from concurrent.futures import TimeoutError as DeadlineError
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar
from urllib.parse import SplitResult, urlsplit

from stepfast.clock import spoken
from stepfast.errors import ConfigurationError
from stepfast.transports.azure import HOSTS, checked_namespace, storage_url
from stepfast.transports.contract import MOST_DELIVERIES, TransportUnavailableError

if TYPE_CHECKING:
    from stepfast.database.database import Database
    from stepfast.transports.contract import Transport


STORAGE: Final = "AZURE_STORAGE_CONNECTION_STRING"
STORAGE_ACCOUNT: Final = "AZURE_STORAGE_ACCOUNT"
SERVICE_BUS: Final = ("AZURE_SERVICE_BUS_CONNECTION_STRING", "SERVICEBUS_CONNECTION_STRING")
SERVICE_BUS_NAMESPACE: Final = "AZURE_SERVICE_BUS_NAMESPACE"
TRANSPORT: Final = "STEPFAST_TRANSPORT"
_KEYS: Final = re.compile(r"[@?#;=&]")  # what stands around a key, and in no name


@dataclass(frozen=True, kw_only=True)
class TransportSettings:
    """What a transport may need to sign in. A connection string wins over an account with an identity."""

    database: Database | None = None  # for database://
    storage_connection_string: str = field(default="", repr=False)
    storage_account: str = ""  # a name, or https://name.queue.core.windows.net
    service_bus_connection_string: str = field(default="", repr=False)
    service_bus_namespace: str = ""  # a name, or name.servicebus.windows.net
    azure_hosts: tuple[str, ...] = ()  # outside of Azure, and given this machine's token: emulators, proxies
    most_deliveries: int = MOST_DELIVERIES  # where we count, and not the broker


def transport_settings(
    environ: Mapping[str, str] | None = None, *, database: Database | None = None
) -> TransportSettings:
    """The settings in the environment."""
    found = os.environ if environ is None else environ
    return TransportSettings(
        database=database,
        storage_connection_string=found.get(STORAGE, "").strip(),
        storage_account=found.get(STORAGE_ACCOUNT, "").strip(),
        service_bus_connection_string=next(
            (text for name in SERVICE_BUS if (text := found.get(name, "").strip())), ""
        ),
        service_bus_namespace=found.get(SERVICE_BUS_NAMESPACE, "").strip(),
        azure_hosts=_azure_hosts(found),
    )


def _azure_hosts(environ: Mapping[str, str]) -> tuple[str, ...]:
    """The hosts that the environment names: in a list of its own, or in the URL of the transport."""
    listed = re.split(r"[\s,]+", environ.get(HOSTS, "").strip())
    try:
        named = _split(environ.get(TRANSPORT, "")).netloc
    except ValueError:
        named = ""  # the URL is refused where it is opened
    return tuple(it for it in (*listed, named) if it)


def open_transport(url: str, settings: TransportSettings | None = None) -> Transport:
    """The transport that a URL, or just its scheme, names. It connects with `async with` or `open()`, not before."""
    if (problem := problem_of_transport(url)) is not None:
        raise ConfigurationError(f"transport {shown_transport(url)!r}: {problem}")
    parts = _split(url)
    return OPENERS[parts.scheme](parts.netloc, transport_settings() if settings is None else settings)


def problem_of_transport(url: str) -> str | None:
    """Why this names no transport; None if it does."""
    known = f"write one of {', '.join(f'{it}://' for it in OPENERS)}"
    try:
        parts = _split(url)
    except ValueError:  # its text may quote what is a key
        return known
    if parts.scheme not in OPENERS:
        return known
    if _KEYS.search(url):
        return (
            f"no keys or options in it; keys come from the environment ({STORAGE}, {SERVICE_BUS[0]}), "
            "or from a managed identity"
        )
    if parts.scheme == "database" and parts.netloc:
        return "it uses the application's own database; name no other here"
    return None


def same_transport(url: str) -> str:
    """The URL in one spelling: `service-bus` and `SERVICE-BUS://` name the same transport. Raises ValueError if it is none."""
    parts = _split(url)
    return f"{parts.scheme}://{parts.netloc.lower()}"


def shown_transport(url: str) -> str:
    """The URL as it may be shown, also a wrong one that is full of keys."""
    from stepfast.telemetry.masking import without_secrets

    return re.sub(r"://[^/]*@", "://***@", without_secrets(url.strip().partition("?")[0]))[:200]


def _split(url: str) -> SplitResult:
    given = url.strip()
    return urlsplit(given if "://" in given else f"{given}://")


def _memory(name: str, settings: TransportSettings) -> Transport:
    from stepfast.transports.memory import MemoryTransport, named_broker

    return MemoryTransport(named_broker(name or "default"), most_deliveries=settings.most_deliveries)


def _database(name: str, settings: TransportSettings) -> Transport:
    from stepfast.transports.database import DatabaseTransport

    del name
    if settings.database is None:
        raise ConfigurationError(
            "transport 'database://': it uses the application's own database, and there is none here"
        )
    return DatabaseTransport(settings.database, most_deliveries=settings.most_deliveries)


def _storage_queue(account: str, settings: TransportSettings) -> Transport:
    from stepfast.transports.storage_queue import StorageQueueTransport

    account = account or ("" if settings.storage_connection_string else settings.storage_account)
    if account:
        storage_url(account, "queue")  # refuses a wrong name here: later it would look like an outage
        return StorageQueueTransport(account=account, most_deliveries=settings.most_deliveries)
    if not settings.storage_connection_string:
        raise ConfigurationError(
            f"transport 'storage-queue://': set {STORAGE}, or {STORAGE_ACCOUNT} where a managed identity may use it"
        )
    return StorageQueueTransport(
        connection_string=settings.storage_connection_string, most_deliveries=settings.most_deliveries
    )


def _service_bus(namespace: str, settings: TransportSettings) -> Transport:
    from stepfast.transports.service_bus import ServiceBusTransport

    of_settings = "" if settings.service_bus_connection_string else settings.service_bus_namespace
    if chosen := namespace or of_settings:
        # What the settings name was chosen by whoever runs this process; a URL may come from elsewhere.
        known = (*settings.azure_hosts, settings.service_bus_namespace)
        return ServiceBusTransport(namespace=checked_namespace(chosen, known))
    if not settings.service_bus_connection_string:
        raise ConfigurationError(
            f"transport 'service-bus://': set {SERVICE_BUS[0]}, or {SERVICE_BUS_NAMESPACE} where a managed identity "
            "may use it"
        )
    return ServiceBusTransport(connection_string=settings.service_bus_connection_string)


OPENERS: Final[dict[str, Callable[[str, TransportSettings], Transport]]] = {
    "memory": _memory,
    "database": _database,
    "storage-queue": _storage_queue,
    "service-bus": _service_bus,
}

T = TypeVar("T")

PATIENCE: Final = timedelta(seconds=30)


class Link:
    """An opened transport for any number of threads: an event loop on a thread of its own, and calls with a deadline.

        with Link(transport) as link:
            link.wait_for(transport.send("work-items", messages))

    Couriers, commands and checks are synchronous; transports are asynchronous and keep their links open. A call that takes
    too long is cancelled, and nothing is known of what became of it.
    """

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
        """Close the transport. A broker that does not answer is not waited for after the deadline."""
        if not self._thread.is_alive():
            return
        try:
            self.wait_for(self.transport.close())
        except TransportUnavailableError:
            pass  # messages that were held come back by themselves
        finally:
            self._end()

    def wait_for(self, call: Coroutine[Any, Any, T], within: timedelta | None = None) -> T:
        """Run a call on the loop of the link, and wait for it on this thread, at most so long."""
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
                raise  # the call's own
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
        """Cancel what still runs on the loop, then end the thread."""
        asyncio.run_coroutine_threadsafe(_unwind(), self._loop).result(self.patience.total_seconds())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _unwind() -> None:
    mine = asyncio.current_task()
    others = [task for task in asyncio.all_tasks() if task is not mine]
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    await asyncio.get_running_loop().shutdown_asyncgens()
    await asyncio.get_running_loop().shutdown_default_executor()
