"""`stepfast worker`: one process or several, each a worker that ends in good order."""

from __future__ import annotations

import asyncio
import gc
import importlib
import json
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

from stepfast.config import worker_settings
from stepfast.errors import ConfigurationError, StepfastError
from stepfast.telemetry import happened
from stepfast.telemetry.logs import configure
from stepfast.telemetry.traces import export_spans
from stepfast.worker.children import OF_THE_COMMAND, SuspectProcesses, command, start_child
from stepfast.worker.metrics import Exposure
from stepfast.worker.worker import Worker

if TYPE_CHECKING:
    from stepfast.app_protocol import WholeApp
    from stepfast.telemetry.logs import Lines
    from stepfast.telemetry.metrics import Metrics
    from stepfast.worker.children import ChildProcess


# Signals for a worker process, heard even while a handler blocks the event loop.
#
# The C-level handler writes a byte to a socket; a thread reads it. So no Python code runs inside the
# signal handler, where it could meet a lock that its own thread holds.

STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


def on_stop_signal(stop: Callable[[], None]) -> None:
    """Call `stop` for each SIGTERM or SIGINT; must be called from the main thread."""
    receiver, sender = socket.socketpair()
    sender.settimeout(0)
    for number in STOP_SIGNALS:
        signal.signal(number, lambda *_: None)
    signal.set_wakeup_fd(sender.fileno(), warn_on_full_buffer=False)

    def listen() -> None:
        _ = sender  # kept alive with this thread
        while data := receiver.recv(16):
            for byte in data:
                if byte in STOP_SIGNALS:
                    stop()

    threading.Thread(target=listen, name="stepfast-signals", daemon=True).start()


def on_parent_gone(stop: Callable[[], None]) -> None:
    """Call `stop` when the process that started us ends: its end of our standard input closes."""

    def listen() -> None:
        while os.read(0, 1):  # not sys.stdin: a thread inside its lock would abort the interpreter's end
            pass
        stop()

    threading.Thread(target=listen, name="stepfast-parent", daemon=True).start()


# `stepfast worker --processes 4`: keep so many children running, and pass signals on.

RECYCLE: Final = 75  # exit code: a handler could not be stopped; start me again


@dataclass
class Child:
    number: int
    running: ChildProcess | None = None
    started: float = 0.0
    crashes: int = 0
    restart_at: float = 0.0
    codes: list[int] = field(default_factory=list)

    def problems(self) -> list[str]:
        """What is wrong with it, in words that say which one it is."""
        if self.running is None:
            wait = max(0.0, self.restart_at - time.monotonic())
            return [f"process {self.number} has ended; it starts again in {wait:.0f} s"]
        told = [] if self.running.downlink is None else self.running.downlink.problems()
        return [f"process {self.number}: {it}" for it in told]


class Supervisor:
    def __init__(
        self, target: str, options: dict[str, Any], processes: int, metrics: Metrics | None = None
    ) -> None:
        self._target = target
        self._options = options
        self._metrics = metrics  # where all that they count is added up
        self._children = [Child(number + 1) for number in range(processes)]
        self._stopping = threading.Event()

    def run(self) -> int:
        on_stop_signal(self._stop)
        while True:
            now = time.monotonic()
            for child in self._children:
                self._look_after(child, now)
            if self._stopping.is_set() and all(child.running is None for child in self._children):
                return max((code for child in self._children for code in child.codes[-1:]), default=0)
            time.sleep(0.1)

    def problems(self) -> list[str]:
        return [problem for child in self._children for problem in child.problems()]

    def _look_after(self, child: Child, now: float) -> None:
        if child.running is not None:
            code = child.running.process.poll()
            if code is None:
                return
            child.running = None
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
        child.running = start_child(self._target, options, self._metrics)

    def _stop(self) -> None:
        self._stopping.set()
        for child in self._children:
            if child.running is not None and child.running.process.poll() is None:
                child.running.process.terminate()


COLLECT_AFTER: Final = 10_000  # new objects; those of a batch of jobs are gone before anybody looks
# Seconds that a thread may keep the interpreter from others. On SQLite the one who holds the only write transaction
# waits so long after each statement when handlers compute; with Python's 5 ms it waited 10 of 24 ms of a batch.
TURN: Final = 0.0005
LEAVE: Final = 3.0  # seconds that threads and exit hooks get once the worker has stopped
STUCK: Final = 70  # exit code: the event loop hung; work was given back


def run_worker(target: str, options: dict[str, Any], processes: int = 1) -> int:
    """Run workers for the app at `target` ("module:app") until a signal; returns the exit code."""
    if processes < 1:
        raise ConfigurationError(f"processes={processes}: at least one")
    lines = _log(options)
    app = load(target)  # a wrong target should fail here, in words, not in every child
    if processes == 1:
        return _serve(target, options, lines)
    export_spans()  # what the children will do: better to fail once, here
    exposure = Exposure(options, lambda: app.database, lambda: supervisor.problems())  # noqa: PLW0108 - made below
    supervisor = Supervisor(target, options, processes, exposure.metrics)
    exposure.start()
    code = supervisor.run()
    exposure.stop()
    return code


def load(target: str) -> WholeApp:
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
        raise ConfigurationError(f"{module_name!r} has no Stepfast app named {attribute!r}")
    found: WholeApp = app
    return found


def _log(options: dict[str, Any]) -> Lines:
    return configure(str(options.get("log_format") or "console"), str(options.get("log_level") or "info"))


def _serve(target: str, options: dict[str, Any], lines: Lines, *, lone: bool = False) -> int:
    app = load(target)
    export_spans()  # after the app, which may have its own way
    given = {name: value for name, value in options.items() if name not in OF_THE_COMMAND}
    if lone:
        given |= {"concurrency": 1, "worker_id": None}
    settings = worker_settings(**given)
    lines.worker_id = settings.worker_id
    exposure = Exposure(options, lambda: app.database, lambda: worker.status().problems)
    worker = Worker(
        app.database,
        app.kinds,
        settings,
        lone=lone,
        suspects=None if lone else SuspectProcesses(target, options, settings.concurrency, exposure.metrics),
        stuck=lambda: os._exit(STUCK),
        notifications=app.notifications,
        declared=app.declared,
        feeds=app.feeds,
    )
    asked = threading.Event()

    def stop() -> None:
        asked.set()
        worker.ask_to_stop()

    _spare_the_collector()
    if app.database.dialect.name == "sqlite":
        sys.setswitchinterval(TURN)
    on_stop_signal(stop)
    if lone or options.get("supervised"):
        on_parent_gone(stop)
    exposure.start()
    asyncio.run(_until_stopped(worker, asked, exposure, lambda: _recycle(target, options, lone=lone)))
    return int(worker.failed)


def _spare_the_collector() -> None:
    """What is loaded by now stays: looking for cycles in it, again and again, took 3 µs of a job's 24.

    The process is ours; a worker in somebody else's program leaves this to it.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(COLLECT_AFTER)


async def _until_stopped(
    worker: Worker, asked: threading.Event, exposure: Exposure, recycle: Callable[[], NoReturn]
) -> None:
    await worker.serve()
    exposure.stop()
    if worker.needs_recycling and not asked.is_set():
        recycle()
    status = worker.status()
    if status.lost_slots or status.active_jobs:
        # Handlers that ignore their end would keep the interpreter, and with it the process, from ending.
        logging.shutdown()
        os._exit(int(worker.failed))
    _end_in_any_case(int(worker.failed))


def _end_in_any_case(code: int) -> None:
    """Python waits for threads at the end, also for one that somebody's to_thread() left hanging. We do not."""

    def end() -> None:
        time.sleep(LEAVE)
        logging.shutdown()
        os._exit(code)

    threading.Thread(target=end, name="stepfast-end", daemon=True).start()


def _recycle(target: str, options: dict[str, Any], *, lone: bool) -> NoReturn:
    """Begin a new life, in this process or in a new one that our parent starts."""
    happened("worker.recycled")
    logging.shutdown()
    if lone or options.get("supervised"):
        os._exit(RECYCLE)
    os.execv(sys.executable, command(target, options))  # noqa: S606 - ourselves


def main() -> int:
    """What a child process runs; its one argument is the JSON that its parent wrote."""
    job = json.loads(sys.argv[1])
    try:
        return _serve(job["target"], job["options"], _log(job["options"]), lone=job["lone"])
    except StepfastError as error:
        sys.stderr.write(f"stepfast: {error}\n")
        return 1


if __name__ == "__main__":
    sys.exit(main())
