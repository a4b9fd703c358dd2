"""The brokers that the conformance suite runs on, with what a test may do to them from outside.

To add one: a class here (or in a file of its own), and a line in BROKERS.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, ClassVar, Self
from uuid import UUID

from azure.servicebus.aio.management import ServiceBusAdministrationClient

from devtools.proxy import Proxy, through
from stepfast import Stepfast
from stepfast.clock import new_id
from stepfast.transports.contract import MOST_DELIVERIES
from stepfast.transports.database import DatabaseTransport
from stepfast.transports.memory import MemoryBroker, MemoryTransport
from stepfast.transports.service_bus import ServiceBusTransport
from stepfast.transports.storage_queue import POISON, StorageQueueTransport
from stepfast_emulators.service_bus import ServiceBusEmulator
from tests.support.rows import change

if TYPE_CHECKING:
    from stepfast.testing.azurite import Azurite
    from stepfast.transports.contract import Delivery, Transport
    from tests.support.databases import Databases

REAL_STORAGE = "STEPFAST_AZURE_STORAGE_CONNECTION_STRING"
REAL_ACCOUNT = "STEPFAST_AZURE_STORAGE_ACCOUNT"
REAL_BUS = "STEPFAST_AZURE_SERVICE_BUS_CONNECTION_STRING"
HOLD = timedelta(seconds=30)  # of tests that are over long before
SHORT = timedelta(seconds=1)  # of tests that wait for its end; no broker holds for less


@dataclass(frozen=True)
class Servers:
    """What runs anyway in this test process."""

    databases: Databases
    azurite: Callable[[], Azurite]


class Broker(ABC):
    """One broker, with a transport to it that stays open while a module runs."""

    database: ClassVar[str | None] = None  # which one it needs, where it needs one
    can_vanish: ClassVar[bool] = True  # whether a test can take it away

    transport: Transport

    def __init__(self, servers: Servers) -> None:
        self.servers = servers
        self._stack = AsyncExitStack()
        self._numbers = itertools.count(1)

    @classmethod
    def offered(cls) -> bool:
        """Whether it is part of this run; brokers that cost money have to be asked for."""
        return True

    async def __aenter__(self) -> Self:
        try:
            await self.start()
            self.transport = await self._stack.enter_async_context(self.connect())
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    @abstractmethod
    async def start(self) -> None:
        """Start it, and have its end on the stack."""

    @abstractmethod
    def connect(self) -> Transport:
        """One more user of it, as another process would be; not opened yet."""

    async def another(self) -> Transport:
        """One more user, opened, and closed with the module."""
        return await self._stack.enter_async_context(self.connect())

    async def new_queue(self, hold: timedelta = HOLD) -> str:
        """`hold` is for brokers whose queue says how long a message is held."""
        del hold  # elsewhere each receive says it
        name = f"q{next(self._numbers)}-{new_id()[-12:]}"
        await self.transport.ensure(name)
        return name

    async def expire(self, delivery: Delivery) -> None:
        """Let the time be over for which it is held."""
        left = (delivery.held_until - datetime.now(UTC)).total_seconds()
        await asyncio.sleep(max(0.0, left) + 0.05)

    async def vanish(self) -> None:
        """Make the broker unreachable; it loses nothing."""
        raise NotImplementedError

    async def come_back(self) -> None:
        raise NotImplementedError


class Memory(Broker):
    async def start(self) -> None:
        self.inside = MemoryBroker()

    def connect(self) -> Transport:
        return MemoryTransport(self.inside)

    async def expire(self, delivery: Delivery) -> None:
        self.inside.expire(delivery)

    async def vanish(self) -> None:
        self.inside.away = True

    async def come_back(self) -> None:
        self.inside.away = False


class OnSQLite(Broker):
    """The database itself."""

    database = "sqlite"
    can_vanish = False

    async def start(self) -> None:
        url = self._stack.enter_context(self.servers.databases.migrated(self.kind()))
        self._app = Stepfast(self.reachable(url))
        self._stack.callback(self._app.close)

    def kind(self) -> str:
        return str(self.database)

    def reachable(self, url: str) -> str:
        return url

    def connect(self) -> Transport:
        return DatabaseTransport(self._app.database)

    async def expire(self, delivery: Delivery) -> None:
        await asyncio.to_thread(
            change,
            self._app,
            "UPDATE stepfast_message SET visible_at = 1 WHERE id = :id",
            id=delivery.receipt.id,
        )


class OnPostgreSQL(OnSQLite):
    """By way of a cable that a test can pull."""

    database = "postgresql"
    can_vanish = True

    def reachable(self, url: str) -> str:
        server = self.servers.databases.server(self.kind())
        self.cable = self._stack.enter_context(Proxy(server.site.port))
        return through(url, self.cable.port)

    async def vanish(self) -> None:
        self.cable.pull()

    async def come_back(self) -> None:
        self.cable.plug()


class OnMariaDB(OnPostgreSQL):
    database = "mariadb"


class StorageQueue(Broker):
    """Azurite, by way of a cable that a test can pull."""

    async def start(self) -> None:
        azurite = self.servers.azurite()
        self.cable = self._stack.enter_context(Proxy(azurite.ports["queue"]))
        self.connection_string = azurite.connection_string_through(queue_port=self.cable.port)

    def connect(self) -> Transport:
        return StorageQueueTransport(connection_string=self.connection_string)

    async def vanish(self) -> None:
        self.cable.pull()

    async def come_back(self) -> None:
        self.cable.plug()


class AzureStorageQueue(Broker):
    """A real account, if STEPFAST_AZURE_STORAGE_CONNECTION_STRING is set, or …_ACCOUNT and an identity."""

    can_vanish = False

    @classmethod
    def offered(cls) -> bool:
        return bool(os.environ.get(REAL_STORAGE) or os.environ.get(REAL_ACCOUNT))

    async def start(self) -> None:
        self._made: list[str] = []
        self._stack.push_async_callback(self._remove)

    def connect(self) -> Transport:
        if text := os.environ.get(REAL_STORAGE):
            return StorageQueueTransport(connection_string=text)
        return StorageQueueTransport(account=os.environ[REAL_ACCOUNT])

    async def new_queue(self, hold: timedelta = HOLD) -> str:
        name = await super().new_queue(hold)
        self._made += [name, name + POISON]
        return name

    async def _remove(self) -> None:
        transport = self.connect()
        assert isinstance(transport, StorageQueueTransport)
        async with transport:
            for name in self._made:
                async with transport._asking(name) as client:
                    await client.delete_queue()


class ServiceBus(Broker):
    """Our emulator, for the SDK of Azure."""

    async def start(self) -> None:
        self.emulator = self._stack.enter_context(ServiceBusEmulator())

    def connect(self) -> Transport:
        return ServiceBusTransport(connection_string=self.emulator.connection_string)

    async def new_queue(self, hold: timedelta = HOLD) -> str:
        name = f"q{next(self._numbers)}-{new_id()[-12:]}"
        self.emulator.add_queue(name, lock=hold, max_deliveries=MOST_DELIVERIES, duplicates="10m")
        await self.transport.ensure(name)
        return name

    async def expire(self, delivery: Delivery) -> None:
        self.emulator.expire_locks(delivery.queue, UUID(delivery.receipt.token))

    async def vanish(self) -> None:
        self.emulator.go_away()

    async def come_back(self) -> None:
        self.emulator.come_back()


class AzureServiceBus(Broker):
    """A real namespace, if STEPFAST_AZURE_SERVICE_BUS_CONNECTION_STRING is set; with the Manage right."""

    can_vanish = False

    @classmethod
    def offered(cls) -> bool:
        return bool(os.environ.get(REAL_BUS))

    async def start(self) -> None:
        self._administrator = await self._stack.enter_async_context(
            ServiceBusAdministrationClient.from_connection_string(os.environ[REAL_BUS])
        )

    def connect(self) -> Transport:
        return ServiceBusTransport(connection_string=os.environ[REAL_BUS])

    async def new_queue(self, hold: timedelta = HOLD) -> str:
        name = f"q{next(self._numbers)}-{new_id()[-12:]}"
        await self._administrator.create_queue(
            name,
            lock_duration=hold,
            max_delivery_count=MOST_DELIVERIES,
            requires_duplicate_detection=True,
            duplicate_detection_history_time_window=timedelta(minutes=10),
        )
        self._stack.push_async_callback(self._administrator.delete_queue, name)
        await self.transport.ensure(name)
        return name


BROKERS: dict[str, type[Broker]] = {
    "memory": Memory,
    "sqlite": OnSQLite,
    "postgresql": OnPostgreSQL,
    "mariadb": OnMariaDB,
    "storage-queue": StorageQueue,
    "azure-storage-queue": AzureStorageQueue,
    "service-bus": ServiceBus,
    "azure-service-bus": AzureServiceBus,
}
