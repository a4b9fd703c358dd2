"""A receiver is killed while it works: another one gets the message, counted as the second delivery."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from stepfast import Stepfast
from stepfast.clock import new_id
from stepfast.database.drivers import open_database
from stepfast.transports.contract import Outgoing
from stepfast.transports.open import Link, TransportSettings, open_transport, transport_settings
from stepfast_emulators.service_bus import ServiceBusEmulator

if TYPE_CHECKING:
    from stepfast.testing.azurite import Azurite

HOLD = timedelta(seconds=2)
# Receives one message, says so, and works on it for ever.
RECEIVER = """
import asyncio, sys, time
from datetime import timedelta
from stepfast.database.drivers import open_database
from stepfast.transports import open_transport, transport_settings

async def main(url, queue, database):
    settings = transport_settings(database=open_database(database) if database else None)
    async with open_transport(url, settings) as transport:
        (held,) = await transport.receive(queue, at_most=1, wait=timedelta(seconds=20), hold=timedelta(seconds=2))
        print(held.id, held.attempt, flush=True)
        time.sleep(600)

asyncio.run(main(*sys.argv[1:]))
"""


@dataclass
class Place:
    """A broker as another process reaches it."""

    url: str
    queue: str
    settings: TransportSettings
    environment: dict[str, str] = field(default_factory=dict)
    database: str = ""


@pytest.fixture(params=["database", "storage-queue", "service-bus"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    queue = f"q{new_id()[-12:]}"
    with ExitStack() as stack:
        match request.param:
            case "database":
                url = f"sqlite:///{tmp_path}/work.db"
                stack.enter_context(closing(app := Stepfast(url)))
                app.migrate()
                yield Place("database", queue, TransportSettings(database=open_database(url)), database=url)
            case "storage-queue":
                azurite: Azurite = request.getfixturevalue("azurite")
                known = {"AZURE_STORAGE_CONNECTION_STRING": azurite.connection_string}
                yield Place("storage-queue", queue, transport_settings(known), known)
            case _:
                emulator = stack.enter_context(ServiceBusEmulator())
                emulator.add_queue(queue, lock=HOLD, max_deliveries=5, duplicates="10m")
                known = {"AZURE_SERVICE_BUS_CONNECTION_STRING": emulator.connection_string}
                yield Place("service-bus", queue, transport_settings(known), known)


def test_what_a_killed_receiver_held_comes_to_another(place: Place) -> None:
    transport = open_transport(place.url, place.settings)
    with Link(transport) as link:
        link.wait_for(transport.ensure(place.queue))
        link.wait_for(transport.send(place.queue, [Outgoing(id="m-1", body="{}")]))
        receiver = subprocess.Popen(
            [sys.executable, "-c", RECEIVER, place.url, place.queue, place.database],
            env={**os.environ, **place.environment},
            stdout=subprocess.PIPE,
            text=True,
        )
        assert receiver.stdout is not None
        assert receiver.stdout.readline() == "m-1 1\n"

        receiver.kill()
        receiver.wait()
        receiver.stdout.close()

        (found,) = link.wait_for(
            transport.receive(place.queue, at_most=1, wait=timedelta(seconds=20), hold=HOLD)
        )
        assert (found.id, found.attempt) == ("m-1", 2)
        link.wait_for(transport.complete(found))
        assert link.wait_for(transport.depth(place.queue)).ready == 0
