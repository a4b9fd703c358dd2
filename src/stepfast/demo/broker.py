"""The broker of the demo: an emulator in a process of its own, on which nothing of anybody's account depends."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from stepfast.demo.processes import end
from stepfast.errors import StepfastError

# As the catalogue's queues are set up for real: a page takes seconds, and is retried by the database.
QUEUE: Final = "lock=2m,max_deliveries=5,duplicates=10m"
SERVICE_BUS: Final = "AZURE_SERVICE_BUS_CONNECTION_STRING"
STORAGE: Final = "AZURE_STORAGE_CONNECTION_STRING"


@dataclass(frozen=True)
class Emulator:
    """A program that prints a connection string, and then serves."""

    name: str
    arguments: Sequence[str]
    variable: str  # where its connection string is looked for


EMULATORS: Final = {
    "service-bus": Emulator(
        "an emulator of Azure Service Bus",
        [
            "stepfast.testing.service_bus",
            "--queue",
            f"work-items,{QUEUE}",
            "--queue",
            f"consolidate,{QUEUE}",
        ],
        SERVICE_BUS,
    ),
    "storage-queue": Emulator(
        "Azurite, the emulator of Azure Storage,", ["stepfast.testing.azurite"], STORAGE
    ),
}
TRANSPORTS: Final = ("database", "memory", *EMULATORS)


@dataclass(frozen=True)
class DemoBroker:
    """What workers are told about it, and what people are."""

    url: str
    told: str
    environment: Mapping[str, str] = field(default_factory=dict)


@contextmanager
def broker(transport: str) -> Iterator[DemoBroker]:
    """Start what it needs, and end it in any case."""
    url = f"{transport}://"
    environment = {"STEPFAST_TRANSPORT": url}
    emulator = EMULATORS.get(transport)
    if emulator is None:
        where = "the database itself" if transport == "database" else "queues inside each worker"
        yield DemoBroker(url, f"workers are told of pages by {where}", environment)
        return
    process: subprocess.Popen[Any] = subprocess.Popen(  # noqa: S603 - our own interpreter and module
        [sys.executable, "-m", *emulator.arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        told = f"workers are told of pages by {emulator.name} (pid {process.pid})"
        environment[emulator.variable] = _connection_string(process, emulator)
        yield DemoBroker(url, told, environment)
    finally:
        end([process])


def _connection_string(process: subprocess.Popen[Any], emulator: Emulator) -> str:
    line = process.stdout.readline().strip() if process.stdout is not None else ""
    if not line:
        said = process.stderr.read().strip().splitlines()[-1:] if process.stderr is not None else []
        raise StepfastError(f"{emulator.name} did not start: {said[0] if said else 'it said nothing'}")
    return str(line)
