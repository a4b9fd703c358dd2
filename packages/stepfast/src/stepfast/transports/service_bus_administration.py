"""Create and count queues, where we may: it takes the Manage right, and Azure itself (no emulator has it).

Elsewhere a queue is looked through with peeks, which take nothing: enough for a person, slow for a full queue.
"""

from __future__ import annotations

import ipaddress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from azure.core.exceptions import (
    AzureError,
    ClientAuthenticationError,
    HttpResponseError,
    ResourceExistsError,
)
from azure.servicebus import ServiceBusMessageState
from azure.servicebus.aio import ServiceBusClient
from azure.servicebus.aio.management import ServiceBusAdministrationClient

from stepfast.errors import ConfigurationError
from stepfast.transports.contract import Depth, TransportRefusedError, TransportUnavailableError
from stepfast.transports.service_bus_links import NAME

if TYPE_CHECKING:
    from azure.core.credentials_async import AsyncTokenCredential
    from azure.servicebus.aio import ServiceBusReceiver


# The settings of a new queue: see docs/howto/azure-service-bus.md.
LOCK: Final = timedelta(minutes=2)
MAX_DELIVERIES: Final = 5
REMEMBERED: Final = timedelta(minutes=10)

ZONE: Final = ".servicebus.windows.net"
PAGE: Final = 250  # messages of one peek
MOST_LOOKED_AT: Final = 10_000
FORBIDDEN: Final = {401, 403}


class Administration:
    """Sign in to a namespace, create its queues and count their messages."""

    def __init__(
        self, connection_string: str, namespace: str, credential: AsyncTokenCredential | None
    ) -> None:
        if bool(connection_string) == bool(namespace):
            raise ConfigurationError("Service Bus: give a connection string, or a namespace with an identity")
        self._connection_string = connection_string
        whole = "." in namespace or _is_emulator("", namespace)
        self._namespace = namespace if whole else namespace + ZONE
        self._credential = credential
        self._own_credential: AsyncTokenCredential | None = None
        self._administrator: ServiceBusAdministrationClient | None = None
        self._may = not _is_emulator(connection_string, self._namespace)

    def client(self, **options: Any) -> ServiceBusClient:
        if self._connection_string:
            try:
                return ServiceBusClient.from_connection_string(self._connection_string, **options)
            except ValueError as error:
                raise ConfigurationError(
                    f"the connection string of Service Bus cannot be read: {error}"
                ) from error
        if _is_emulator("", self._namespace):
            options["use_tls"] = False
        return ServiceBusClient(self._namespace, self._identity(), **options)

    async def create(self, queue: str) -> bool:
        """Create the queue as we need it; False where we may not: then it has to be there."""
        if not self._may:
            return False
        try:
            await self._administrate().create_queue(
                queue,
                lock_duration=LOCK,
                max_delivery_count=MAX_DELIVERIES,
                requires_duplicate_detection=True,
                duplicate_detection_history_time_window=REMEMBERED,
            )
        except ResourceExistsError:
            return True
        except AzureError as error:
            return self._may_not(queue, error)
        return True

    async def count(self, queue: str) -> Depth | None:
        """The size of a queue as the service counts it; None where we may not ask."""
        if not self._may:
            return None
        try:
            found = await self._administrate().get_queue_runtime_properties(queue)
        except AzureError as error:
            self._may_not(queue, error)
            return None
        return Depth(
            ready=found.active_message_count or 0,
            scheduled=found.scheduled_message_count or 0,
            dead=found.dead_letter_message_count or 0,
        )

    async def close(self) -> None:
        if self._administrator is not None:
            await self._administrator.close()
        if self._own_credential is not None:
            await self._own_credential.close()
        self._administrator = self._own_credential = None

    def _administrate(self) -> ServiceBusAdministrationClient:
        if self._administrator is None:
            self._administrator = (
                ServiceBusAdministrationClient.from_connection_string(self._connection_string)
                if self._connection_string
                else ServiceBusAdministrationClient(self._namespace, self._identity())
            )
        return self._administrator

    def _may_not(self, queue: str, error: AzureError) -> bool:
        """Remember that administration is forbidden; raises any other error."""
        status = error.status_code if isinstance(error, HttpResponseError) else None
        if isinstance(error, ClientAuthenticationError) or status in FORBIDDEN:
            self._may = False
            return False
        if status is not None and 400 <= status < 500:  # noqa: PLR2004 - our fault, says HTTP
            raise TransportRefusedError(NAME, f"queue {queue}: {error}") from error
        raise TransportUnavailableError(NAME, f"queue {queue}: {error}") from error

    def _identity(self) -> AsyncTokenCredential:
        if self._credential is not None:
            return self._credential
        if self._own_credential is None:
            from stepfast.transports.azure import async_credential

            self._own_credential = async_credential()
        return self._own_credential


async def counted_by_looking(receiver: ServiceBusReceiver) -> Depth:
    """The size of a queue by peeking at its messages, at most `MOST_LOOKED_AT`."""
    ready = scheduled = looked_at = 0
    first = 1
    while looked_at < MOST_LOOKED_AT:
        page = await receiver.peek_messages(PAGE, sequence_number=first)
        if not page:
            break
        waits = sum(it.state is ServiceBusMessageState.SCHEDULED for it in page)
        scheduled += waits
        ready += len(page) - waits
        looked_at += len(page)
        first = (page[-1].sequence_number or 0) + 1
    return Depth(ready=ready, scheduled=scheduled)


def _is_emulator(connection_string: str, namespace: str) -> bool:
    if "usedevelopmentemulator=true" in connection_string.lower().replace(" ", ""):
        return True
    host = namespace.partition(":")[0]
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
