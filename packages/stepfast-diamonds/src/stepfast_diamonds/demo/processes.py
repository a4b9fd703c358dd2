"""Processes that the demo starts: workers, each with a log of its own, and the emulator of a broker.

They are ended in any case: asked first, then killed.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from stepfast.applications import worker_command
from stepfast.errors import StepfastError

APPLICATION: Final = "stepfast_diamonds.demo.application:app"
CONCURRENCY: Final = 4  # pages of one worker at a time
WORKER_GRACE: Final = "5s"


@dataclass(frozen=True)
class WorkerProcess:
    name: str
    process: subprocess.Popen[Any]
    log: Path

    @property
    def pid(self) -> int:
        return self.process.pid


class Workers:
    """The workers, each with its guardian, which starts another process where one was killed."""

    def __init__(self, started: list[WorkerProcess]) -> None:
        self.all = started

    def of(self, name: str) -> WorkerProcess:
        return next(it for it in self.all if it.name == name)

    def require_one(self) -> None:
        """Raise an error if no worker is left: the demo would wait forever."""
        if all(it.process.poll() is not None for it in self.all):
            last = self.all[-1]
            said = last.log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1:]
            raise StepfastError(
                f"all workers have ended; the last words of {last.name} are: {said[0] if said else 'none'} (see {last.log})"
            )


@contextmanager
def running_workers(count: int, folder: Path, environment: Mapping[str, str]) -> Iterator[Workers]:
    """Start workers, and end them in any case."""
    started: list[WorkerProcess] = []
    try:
        for number in range(1, count + 1):
            name = f"worker-{number}"
            started.append(_start(name, folder / f"{name}.log", environment))
        yield Workers(started)
    finally:
        end_processes([it.process for it in started])


def _start(name: str, log: Path, environment: Mapping[str, str]) -> WorkerProcess:
    # "supervised": it ends when its standard input closes, that is when we do, however we do.
    options = {"worker_id": name, "concurrency": CONCURRENCY, "grace": WORKER_GRACE, "supervised": True}
    with log.open("w", encoding="utf-8") as file:
        process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
            worker_command(APPLICATION, options),
            stdin=subprocess.PIPE,
            stdout=file,
            stderr=subprocess.STDOUT,
            env=dict(environment),
            start_new_session=True,
        )
    return WorkerProcess(name, process, log)


# As the catalogue's queues are set up for real: a page takes seconds, and is retried by the database.
QUEUE_OPTIONS: Final = "lock=2m,max_deliveries=5,duplicates=10m"
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
            "stepfast_emulators.service_bus",
            "--queue",
            f"work-items,{QUEUE_OPTIONS}",
            "--queue",
            f"consolidate,{QUEUE_OPTIONS}",
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
    """A broker: the environment of the workers, and the sentence for people."""

    url: str
    told: str
    environment: Mapping[str, str] = field(default_factory=dict)


@contextmanager
def running_broker(transport: str) -> Iterator[DemoBroker]:
    """Start the emulator of a broker if it needs one, and end it in any case."""
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
        end_processes([process])


def _connection_string(process: subprocess.Popen[Any], emulator: Emulator) -> str:
    line = process.stdout.readline().strip() if process.stdout is not None else ""
    if not line:
        said = process.stderr.read().strip().splitlines()[-1:] if process.stderr is not None else []
        raise StepfastError(f"{emulator.name} did not start: {said[0] if said else 'it said nothing'}")
    return str(line)


END_SECONDS: Final = 15.0  # seconds


def end_processes(processes: Sequence[subprocess.Popen[Any]]) -> None:
    """End processes: none of them is left afterwards, even after a second Ctrl-C."""
    try:
        for it in processes:
            if it.poll() is None:
                it.terminate()
        for it in processes:
            with suppress(subprocess.TimeoutExpired):
                it.wait(END_SECONDS)
    finally:
        for it in processes:
            it.kill()  # which does nothing to one that has ended
            it.wait()
            for pipe in (it.stdin, it.stdout, it.stderr):
                if pipe is not None:
                    pipe.close()
