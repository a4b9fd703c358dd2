"""From a URL to a transport. Secrets never stand in the URL: they come from the environment, or from an identity.

memory://name                          queues inside this process
database://                            queues in the application's own database
storage-queue:// , storage-queue://account     Azure Storage Queue: by connection string, or by the identity of this machine
service-bus:// , service-bus://namespace       Azure Service Bus: the same
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final
from urllib.parse import SplitResult, urlsplit

from stepfast.errors import ConfigurationError
from stepfast.transports.checking import MOST_DELIVERIES
from stepfast.transports.identity import checked_namespace, storage_url

if TYPE_CHECKING:
    from stepfast.database.database import Database
    from stepfast.transports.contract import Transport

STORAGE: Final = "AZURE_STORAGE_CONNECTION_STRING"
STORAGE_ACCOUNT: Final = "AZURE_STORAGE_ACCOUNT"
SERVICE_BUS: Final = ("AZURE_SERVICE_BUS_CONNECTION_STRING", "SERVICEBUS_CONNECTION_STRING")
SERVICE_BUS_NAMESPACE: Final = "AZURE_SERVICE_BUS_NAMESPACE"
_KEYS: Final = re.compile(r"[@?#;=&]")  # what stands around a key, and in no name


@dataclass(frozen=True, kw_only=True)
class TransportSettings:
    """What a transport may need to be let in. A connection string wins over an account with an identity."""

    database: Database | None = None  # for database://
    storage_connection_string: str = field(default="", repr=False)
    storage_account: str = ""  # a name, or https://name.queue.core.windows.net
    service_bus_connection_string: str = field(default="", repr=False)
    service_bus_namespace: str = ""  # a name, or name.servicebus.windows.net
    most_deliveries: int = MOST_DELIVERIES  # where we count and the broker does not


def transport_settings(
    environ: Mapping[str, str] | None = None, *, database: Database | None = None
) -> TransportSettings:
    """As the environment says."""
    found = os.environ if environ is None else environ
    return TransportSettings(
        database=database,
        storage_connection_string=found.get(STORAGE, "").strip(),
        storage_account=found.get(STORAGE_ACCOUNT, "").strip(),
        service_bus_connection_string=next(
            (text for name in SERVICE_BUS if (text := found.get(name, "").strip())), ""
        ),
        service_bus_namespace=found.get(SERVICE_BUS_NAMESPACE, "").strip(),
    )


def open_transport(url: str, settings: TransportSettings | None = None) -> Transport:
    """The transport that a URL, or just its scheme, names. It reaches nobody before `async with` or `open()`."""
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


def shown_transport(url: str) -> str:
    """The URL as it may be shown, also one that is none, and full of keys."""
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
        storage_url(
            account, "queue"
        )  # a wrong name is refused here: asked for, it is nobody's, as in an outage
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

    namespace = namespace or (
        "" if settings.service_bus_connection_string else settings.service_bus_namespace
    )
    if namespace:
        return ServiceBusTransport(namespace=checked_namespace(namespace))
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
