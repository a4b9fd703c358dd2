"""The workers of the demo: processes like those that `stepfast worker` starts, each with a log of its own."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from stepfast.demo.processes import end
from stepfast.errors import StepfastError
from stepfast.worker.children import command

TARGET: Final = "stepfast.demo.application:app"
CONCURRENCY: Final = 4  # pages of one worker at a time
GRACE: Final = "5s"


@dataclass(frozen=True)
class WorkerProcess:
    name: str
    process: subprocess.Popen[Any]
    log: Path

    @property
    def pid(self) -> int:
        return self.process.pid


class Workers:
    """All that were started. One that was killed is not replaced: the others must do."""

    def __init__(self, started: list[WorkerProcess]) -> None:
        self.all = started

    def of(self, name: str) -> WorkerProcess:
        return next(it for it in self.all if it.name == name)

    def require_one(self) -> None:
        """Without a worker nothing will ever happen: better to say so."""
        if all(it.process.poll() is not None for it in self.all):
            last = self.all[-1]
            said = last.log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1:]
            raise StepfastError(
                f"all workers have ended; the last words of {last.name} are: {said[0] if said else 'none'} (see {last.log})"
            )


@contextmanager
def running(count: int, folder: Path, environment: Mapping[str, str]) -> Iterator[Workers]:
    """Start them, and end them in any case."""
    started: list[WorkerProcess] = []
    try:
        for number in range(1, count + 1):
            name = f"worker-{number}"
            started.append(_start(name, folder / f"{name}.log", environment))
        yield Workers(started)
    finally:
        end([it.process for it in started])


def _start(name: str, log: Path, environment: Mapping[str, str]) -> WorkerProcess:
    # "supervised": it ends when its standard input closes, that is when we do, however we do.
    options = {"worker_id": name, "concurrency": CONCURRENCY, "grace": GRACE, "supervised": True}
    with log.open("w", encoding="utf-8") as file:
        process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
            command(TARGET, options),
            stdin=subprocess.PIPE,
            stdout=file,
            stderr=subprocess.STDOUT,
            env=dict(environment),
            start_new_session=True,
        )
    return WorkerProcess(name, process, log)
