"""`holdfast worker`: one process or several, each a worker that ends in good order.

Children are started with a pipe as their standard input; when the parent dies, however it dies, the
pipe closes and they stop.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn, Protocol

from holdfast.config import worker_settings
from holdfast.errors import ConfigurationError, HoldfastError
from holdfast.telemetry import happened
from holdfast.worker.lone import LoneProcesses
from holdfast.worker.loop import Worker
from holdfast.worker.signals import on_parent_gone, on_stop_signal

if TYPE_CHECKING:
    from holdfast.database.database import Database
    from holdfast.steps.kinds import Kinds

STUCK: Final = 70  # exit code: the event loop hung; work was given back
RECYCLE: Final = 75  # exit code: a handler could not be stopped; start me again


class App(Protocol):
    """What a worker needs of an application."""

    @property
    def database(self) -> Database: ...
    @property
    def kinds(self) -> Kinds: ...


def run_worker(target: str, options: dict[str, Any], processes: int = 1) -> int:
    """Run workers for the app at `target` ("module:app") until a signal; returns the exit code."""
    if processes < 1:
        raise ConfigurationError(f"processes={processes}: at least one")
    log_level(str(options.get("log_level") or "info"))
    load(target)  # a wrong target should fail here, in words, not in every child
    if processes == 1:
        return _serve(target, options)
    return Supervisor(target, options, processes).run()


def load(target: str) -> App:
    """Import "module:app"; the working folder counts, as it does for `python -m`."""
    module_name, _, attribute = target.partition(":")
    if not module_name or not attribute:
        raise ConfigurationError(f"{target!r} is not an app; write module:app, for example shop.jobs:app")
    here = str(Path.cwd())
    if "" not in sys.path and here not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and module_name.startswith(error.name):
            raise ConfigurationError(
                f"no module {module_name!r} here (in {here}) or on the Python path"
            ) from error
        raise
    app = getattr(module, attribute, None)
    if app is None or not hasattr(app, "kinds"):
        raise ConfigurationError(f"{module_name!r} has no Holdfast app named {attribute!r}")
    found: App = app
    return found


def log_level(level: str) -> None:
    known = logging.getLevelNamesMapping()
    if level.upper() not in known:
        raise ConfigurationError(f"log level {level!r}: use debug, info, warning or error")
    logging.basicConfig(
        level=known[level.upper()], format="%(asctime)s %(levelname)-7s %(message)s", stream=sys.stderr
    )


def _serve(target: str, options: dict[str, Any], *, lone: bool = False) -> int:
    app = load(target)
    given = {name: value for name, value in options.items() if name not in {"log_level", "supervised"}}
    if lone:
        given |= {"concurrency": 1, "worker_id": None}
    settings = worker_settings(**given)
    worker = Worker(
        app.database,
        app.kinds,
        settings,
        lone=lone,
        suspects=None if lone else LoneProcesses(target, options, settings.concurrency),
        stuck=lambda: os._exit(STUCK),
    )
    asked = threading.Event()

    def stop() -> None:
        asked.set()
        worker.ask_to_stop()

    on_stop_signal(stop)
    if lone or options.get("supervised"):
        on_parent_gone(stop)
    asyncio.run(_until_stopped(worker, asked, lambda: _recycle(target, options, lone=lone)))
    return int(worker.failed)


async def _until_stopped(worker: Worker, asked: threading.Event, recycle: Callable[[], NoReturn]) -> None:
    await worker.serve()
    if worker.needs_recycling and not asked.is_set():
        recycle()
    status = worker.status()
    if status.lost_slots or status.active_jobs:
        # Handlers that ignore their end would keep the interpreter, and with it the process, from ending.
        logging.shutdown()
        os._exit(int(worker.failed))


def _recycle(target: str, options: dict[str, Any], *, lone: bool) -> NoReturn:
    """Begin a new life, in this process or in a new one that our parent starts."""
    happened("worker.recycled")
    logging.shutdown()
    if lone or options.get("supervised"):
        os._exit(RECYCLE)
    os.execv(sys.executable, [sys.executable, "-m", "holdfast.worker.command", _job(target, options)])  # noqa: S606 - ourselves


@dataclass
class Child:
    number: int
    process: subprocess.Popen[bytes] | None = None
    started: float = 0.0
    crashes: int = 0
    restart_at: float = 0.0
    codes: list[int] = field(default_factory=list)


class Supervisor:
    """Keeps `processes` children running, and passes signals on."""

    def __init__(self, target: str, options: dict[str, Any], processes: int) -> None:
        self._target = target
        self._options = options
        self._children = [Child(number + 1) for number in range(processes)]
        self._stopping = threading.Event()

    def run(self) -> int:
        on_stop_signal(self._stop)
        while True:
            now = time.monotonic()
            for child in self._children:
                self._look_after(child, now)
            if self._stopping.is_set() and all(child.process is None for child in self._children):
                return max((code for child in self._children for code in child.codes[-1:]), default=0)
            time.sleep(0.1)

    def _look_after(self, child: Child, now: float) -> None:
        if child.process is not None:
            code = child.process.poll()
            if code is None:
                return
            child.process = None
            child.codes.append(code)
            if not self._stopping.is_set():
                # A child that keeps dying must not keep the machine busy: 1, 2, 4 … 30 s.
                child.crashes = 0 if now - child.started > 60 or code == RECYCLE else child.crashes + 1  # noqa: PLR2004 - a minute
                child.restart_at = now + min(30, 2**child.crashes / 2 if child.crashes else 0)
                happened("worker.ended", number=child.number, code=code, restart_in_s=child.restart_at - now)
        if not self._stopping.is_set() and now >= child.restart_at:
            self._start(child, now)

    def _start(self, child: Child, now: float) -> None:
        options = {**self._options, "supervised": True}
        if options.get("worker_id"):
            options["worker_id"] = f"{options['worker_id']}-{child.number}"
        child.started = now
        # A session of its own: a Ctrl-C at the terminal is for us, and we pass it on once.
        child.process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
            [sys.executable, "-m", "holdfast.worker.command", _job(self._target, options)],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )

    def _stop(self) -> None:
        self._stopping.set()
        for child in self._children:
            if child.process is not None and child.process.poll() is None:
                child.process.terminate()


def _job(target: str, options: dict[str, Any], *, lone: bool = False) -> str:
    return json.dumps({"target": target, "options": options, "lone": lone})


def main() -> int:
    """What a child process runs; its one argument is the JSON that its parent wrote."""
    job = json.loads(sys.argv[1])
    log_level(str(job["options"].get("log_level") or "info"))
    try:
        return _serve(job["target"], job["options"], lone=job["lone"])
    except HoldfastError as error:
        sys.stderr.write(f"holdfast: {error}\n")
        return 1


if __name__ == "__main__":
    sys.exit(main())
