"""`stepfast worker`: one process or several, each a worker that ends in good order.

    run_worker ─┬─ one process:  WorkerProcess
                └─ several:      Supervisor ── child processes (`main`), each a WorkerProcess

A lone process, which a worker starts for suspects, is a child of the same kind.
"""

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
from stepfast.worker.children import OF_THE_COMMAND, SuspectProcesses, start_child, worker_command
from stepfast.worker.worker import Worker

if TYPE_CHECKING:
    from stepfast.app_protocol import AppLike, WholeApp
    from stepfast.telemetry.logs import Lines
    from stepfast.telemetry.metrics import Metrics
    from stepfast.worker.children import ChildProcess, Uplink
    from stepfast.worker.metrics import Health, MetricsServer


STUCK: Final = 70  # exit code: the event loop hung; work was given back
RECYCLE: Final = 75  # exit code: a handler could not be stopped, or the process is worn; start me again


def run_worker(target: str, options: dict[str, Any], processes: int = 1) -> int:
    """Run workers for the app at `target` ("module:app") until a signal; returns the exit code."""
    if processes < 1:
        raise ConfigurationError(f"processes={processes}: at least one")
    lines = _configure_logs(options)
    app = load(target)  # a wrong target should fail here, in words, not in every child
    if processes == 1:
        return WorkerProcess(target, options, lines).run()
    export_spans()  # what the children will do: better to fail once, here
    exposure = Exposure(options, app)
    supervisor = Supervisor(target, options, processes, exposure.metrics)
    exposure.start(supervisor)
    code = supervisor.run()
    exposure.stop()
    return code


def main() -> int:
    """Run a worker as a child process; its one argument is the JSON that its parent wrote."""
    job = json.loads(sys.argv[1])
    target, options = job["target"], job["options"]
    try:
        return WorkerProcess(target, options, _configure_logs(options), lone=job["lone"]).run()
    except StepfastError as error:
        sys.stderr.write(f"stepfast: {error}\n")
        return 1


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


def _configure_logs(options: dict[str, Any]) -> Lines:
    return configure(str(options.get("log_format") or "console"), str(options.get("log_level") or "info"))


# One process.

COLLECT_AFTER: Final = 10_000  # new objects; those of a batch of jobs are gone before the collector looks
# Seconds that a thread may keep the interpreter from others. On SQLite the thread that holds the only write transaction
# waits so long after each statement when handlers compute; with Python's 5 ms it waited 10 of 24 ms of a batch.
SWITCH_INTERVAL: Final = 0.0005
LEAVE: Final = 3.0  # seconds that threads and exit hooks get once the worker has stopped


class WorkerProcess:
    """A process that is a worker and nothing else: it stops by a signal, and ends or starts its own program again."""

    def __init__(self, target: str, options: dict[str, Any], lines: Lines, *, lone: bool = False) -> None:
        self._target = target
        self._options = options
        self._lone = lone
        self._is_child = lone or bool(options.get("supervised"))
        self._asked = threading.Event()  # to stop
        app = load(target)
        export_spans()  # after the app, which may have its own way
        given = {name: value for name, value in options.items() if name not in OF_THE_COMMAND}
        if lone:
            given |= {"concurrency": 1, "worker_id": None}
        settings = worker_settings(**given)
        lines.worker_id = settings.worker_id
        self._exposure = Exposure(options, app)
        self._worker = Worker(
            app.database,
            app.kinds,
            settings,
            lone=lone,
            suspects=None
            if lone
            else SuspectProcesses(target, options, settings.concurrency, self._exposure.metrics),
            stuck=exit_stuck,
            notifications=app.notifications,
            declared=app.declared,
            feeds=app.feeds,
        )
        self._on_sqlite = app.database.dialect.name == "sqlite"

    def run(self) -> int:
        """Work until asked to stop; returns the exit code. May not return: see `_leave`."""
        _spare_the_collector()
        if self._on_sqlite:
            sys.setswitchinterval(SWITCH_INTERVAL)
        on_stop_signal(self.stop)
        if self._is_child:
            on_parent_gone(self.stop)
        self._exposure.start(self._worker)
        asyncio.run(self._serve())
        return int(self._worker.failed)

    def stop(self) -> None:
        """Ask the worker to stop; the second time, at once."""
        self._asked.set()
        self._worker.ask_to_stop()

    async def _serve(self) -> None:
        await self._worker.serve()
        self._exposure.stop()
        if self._worker.needs_recycling and not self._asked.is_set():
            self._recycle()
        self._leave()

    def _recycle(self) -> NoReturn:
        """Begin a new life: in this process, or in a new one that our parent starts."""
        happened("worker.recycled")
        logging.shutdown()
        if self._is_child:
            os._exit(RECYCLE)
        os.execv(sys.executable, worker_command(self._target, self._options))  # noqa: S606 - ourselves

    def _leave(self) -> None:
        """See to it that the process ends, whatever its threads do."""
        status, code = self._worker.status(), int(self._worker.failed)
        if status.lost_slots or status.active_jobs:
            # Handlers that ignore their end would keep the interpreter, and with it the process, from ending.
            logging.shutdown()
            os._exit(code)
        _end_in_any_case(code)


def exit_stuck() -> NoReturn:
    """End the process at once: its event loop hangs, and its work was given back."""
    os._exit(STUCK)


def _end_in_any_case(code: int) -> None:
    """End the process a moment later. Python would wait for threads, also for one that a to_thread() left hanging."""

    def end() -> None:
        time.sleep(LEAVE)
        logging.shutdown()
        os._exit(code)

    threading.Thread(target=end, name="stepfast-end", daemon=True).start()


def _spare_the_collector() -> None:
    """Keep the garbage collector from what is loaded by now: looking for cycles in it took 3 µs of a job's 24.

    The process is ours; a worker inside another program leaves this to that program.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(COLLECT_AFTER)


# Several processes.


@dataclass
class SupervisedWorker:
    """One child of a supervisor: the process that runs now, and how its processes before ended."""

    number: int
    running: ChildProcess | None = None
    started: float = 0.0
    crashes: int = 0
    restart_at: float = 0.0
    codes: list[int] = field(default_factory=list)

    def problems(self) -> list[str]:
        """What is wrong with it, in sentences that begin with its number."""
        if self.running is None:
            wait = max(0.0, self.restart_at - time.monotonic())
            return [f"process {self.number} has ended; it starts again in {wait:.0f} s"]
        found = [] if self.running.downlink is None else self.running.downlink.problems()
        return [f"process {self.number}: {problem}" for problem in found]


class Supervisor:
    """Keeps so many child processes running, and passes stop signals on to them."""

    def __init__(
        self, target: str, options: dict[str, Any], processes: int, metrics: Metrics | None = None
    ) -> None:
        self._target = target
        self._options = options
        self._metrics = metrics  # the sum of what the children count
        self._children = [SupervisedWorker(number + 1) for number in range(processes)]
        self._stopping = threading.Event()

    def run(self) -> int:
        """Look after the children until all have stopped; returns the worst of their exit codes."""
        on_stop_signal(self._stop)
        while True:
            now = time.monotonic()
            for child in self._children:
                self._look_after(child, now)
            if self._stopping.is_set() and all(child.running is None for child in self._children):
                return max((code for child in self._children for code in child.codes[-1:]), default=0)
            time.sleep(0.1)

    def problems(self) -> list[str]:
        """What is wrong with the children."""
        return [problem for child in self._children for problem in child.problems()]

    def _look_after(self, child: SupervisedWorker, now: float) -> None:
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

    def _start(self, child: SupervisedWorker, now: float) -> None:
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


# Signals, heard even while a handler blocks the event loop.
#
# The C-level handler writes a byte to a socket; a thread reads it. So no Python code runs inside the signal handler,
# where it could meet a lock that its own thread holds.

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


# Metrics.


class Exposure:
    """Metrics of this process: served on its own port, sent to its parent, or off. The options decide.

    Most processes show nothing, and need none of what is imported inside: 1.5 MB.
    """

    def __init__(self, options: dict[str, Any], app: AppLike) -> None:
        self.metrics: Metrics | None = None  # children of this process add what they count
        self._service: Uplink | MetricsServer | None = None
        if (pipe := options.get("uplink")) is not None:
            from stepfast.worker.children import Uplink

            self._service = Uplink(pipe)
            self.metrics = self._service.metrics
        elif (port := options.get("metrics_port")) is not None:
            from stepfast.telemetry.metrics import process_metrics
            from stepfast.worker.metrics import DEFAULT_HOST, Collector, MetricsServer

            self.metrics = process_metrics()
            host = options.get("metrics_host") or DEFAULT_HOST
            self._service = MetricsServer(host, port, Collector(self.metrics, app))

    def start(self, health: Health) -> None:
        """Begin to show metrics; `health` says what is wrong with this process."""
        if self._service is not None:
            self._service.start(health)

    def stop(self) -> None:
        if self._service is not None:
            self._service.stop()
            self._service = None


if __name__ == "__main__":
    sys.exit(main())
