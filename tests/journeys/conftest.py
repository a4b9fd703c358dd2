"""`stepfast tasks …` as a container runs it: the real program, configured by its environment alone."""

from __future__ import annotations

import faulthandler
import gc
import json
import logging
import os
import signal
import sqlite3
import subprocess
import sys
import time
import traceback
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import pydantic_settings  # noqa: F401 - here rather than in every fork
import pytest
import uvicorn  # noqa: F401 - likewise

import stepfast.tasks.single_task  # noqa: F401 - likewise
from stepfast.cli.command import app as commands
from tests.support import rows
from tests.support.http_receiver import SECRET

if TYPE_CHECKING:
    from tests.support.http_receiver import HttpReceiver

ROOT = Path(__file__).parents[2]
PROGRAM = str(Path(sys.executable).with_name("stepfast"))
TARGET = "tests.journeys.documents:app"
PATIENCE = 60.0


class Running:
    """A process of the real program, or a fork of this one that does the same and saves a second of imports."""

    def __init__(
        self, words: list[str], folder: Path, environment: dict[str, str], place: Path, *, real: bool
    ) -> None:
        self.code: int | None = None
        self.log = folder / f"{len(list(folder.glob('*.log')))}.log"
        self._child: subprocess.Popen[bytes] | None = None
        if real:
            with self.log.open("wb") as said:
                self._child = subprocess.Popen(
                    [PROGRAM, *words],
                    cwd=place,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=said,
                    stderr=said,
                )
            self.pid = self._child.pid
        else:
            self.log.touch()
            with warnings.catch_warnings():
                warnings.simplefilter(
                    "ignore", DeprecationWarning
                )  # about threads that the child does not need
                self.pid = os.fork()
            if not self.pid:
                _live(words, self.log, environment, place)

    def said(self) -> str:
        return self.log.read_text()

    def ended(self) -> int:
        """The exit code, once it has ended by itself."""
        deadline = time.monotonic() + PATIENCE
        while self.code is None and self._look() is None:
            assert time.monotonic() < deadline, f"it did not end:\n{self.said()}"
            time.sleep(0.005)
        assert self.code is not None
        return self.code

    def terminate(self, number: signal.Signals = signal.SIGTERM) -> None:
        os.kill(self.pid, number)

    def stop(self) -> int:
        self.terminate()
        return self.ended()

    def kill(self) -> None:
        if self._look() is None:
            os.kill(self.pid, signal.SIGKILL)
            self.ended()

    def _look(self) -> int | None:
        if self.code is None and self._child is not None:
            self.code = self._child.poll()
        elif self.code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.code = os.waitstatus_to_exitcode(status) if pid else None
        return self.code


def _live(words: list[str], log: Path, environment: dict[str, str], place: Path) -> NoReturn:
    """The whole life of a fork; nothing of the test's own may run after it."""
    gc.disable()  # no finaliser may say goodbye on the parent's behalf
    faulthandler.disable()
    code = 99
    try:
        said = os.open(log, os.O_WRONLY | os.O_APPEND)
        for stream in (1, 2):
            os.dup2(said, stream)
        sys.stdout = sys.stderr = os.fdopen(said, "w", buffering=1)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        os.environ.clear()
        os.environ.update(environment)
        os.chdir(place)
        sys.modules.pop(TARGET.partition(":")[0], None)
        logging.getLogger().handlers.clear()
        sys.argv = ["stepfast", *words]
        commands(words)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # noqa: BLE001 - the parent's stack goes on above us
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(code)


class Container:
    """One machine with a database file, on which the program is started again and again."""

    def __init__(self, folder: Path, receiver: HttpReceiver, stack: ExitStack) -> None:
        self.folder = folder
        self.receiver = receiver
        self._stack = stack
        self.place = ROOT  # the working folder of what is started
        self.database = folder / "work.db"
        self.notes_file = folder / "notes"
        self.notes_file.touch()
        self.environment = {
            "PATH": os.environ["PATH"],
            "HOME": "/nonexistent",
            "STEPFAST_DATABASE_URL": f"sqlite:///{self.database}",
            "STEPFAST_WEBHOOK_SECRETS": SECRET,
            "STEPFAST_WEBHOOK_ALLOW": "127.0.0.1",
            "JOURNEY_NOTES": str(self.notes_file),
        }
        with closing(sqlite3.connect(self.database)) as connection:
            connection.execute("CREATE TABLE chunks (id TEXT)")
            connection.commit()

    def start(self, *words: str, real: bool = False, **environment: str) -> Running:
        given = {name: value for name, value in (self.environment | environment).items() if value}
        running = Running(list(words), self.folder, given, self.place, real=real)
        self._stack.callback(running.kill)
        return running

    def run(self, task: dict[str, Any] | str, *, real: bool = False, **environment: str) -> Running:
        """`stepfast tasks work` with TASK_DATA, to its end."""
        running = self.begin(task, real=real, **environment)
        running.ended()
        return running

    def begin(self, task: dict[str, Any] | str, *, real: bool = False, **environment: str) -> Running:
        text = task if isinstance(task, str) else json.dumps(task)
        return self.start("tasks", "work", TARGET, real=real, TASK_DATA=text, **environment)

    def task(self, task_type: str, task_id: str = "t-1", /, **payload: Any) -> dict[str, Any]:
        return {
            "task_id": task_id,
            "task_type": task_type,
            "payload": payload,
            "webhook_url": self.receiver.url(),
        }

    def notes(self) -> list[str]:
        return self.notes_file.read_text().splitlines()

    def noted(self, text: str) -> None:
        """Wait until a handler has written this line."""
        rows.eventually(lambda: any(it.startswith(text) for it in self.notes()), PATIENCE)

    def query(self, text: str) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(self.database)) as connection:
            return connection.execute(text).fetchall()

    def told(self) -> list[Any]:
        return self.receiver.bodies


@pytest.fixture
def container(tmp_path: Path, receiver: HttpReceiver) -> Iterator[Container]:
    with ExitStack() as stack:
        yield Container(tmp_path, receiver, stack)
