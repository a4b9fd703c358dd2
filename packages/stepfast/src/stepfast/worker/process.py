"""`stepfast worker`: one process or several, each a worker that ends in good order, under one guardian.

    stepfast worker ── guardian (worker/guardian.py) ─┬─ WorkerProcess, as many as --processes says
                                                      └─ WorkerProcess for suspects, while there are any

The process that the user starts becomes the guardian; the program goes on in a child of it (`start_under_guardian`). The
guardian starts the others by `main`, and starts again what died. Signals are for the guardian, which passes them on.
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
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

from stepfast.config import worker_settings
from stepfast.database.drivers import masked
from stepfast.errors import ConfigurationError, StepfastError, WorkerFailedError
from stepfast.process_identity import process_age
from stepfast.telemetry import happened
from stepfast.telemetry.logs import chosen_format, configure, known_level
from stepfast.telemetry.masking import visible, without_secrets
from stepfast.telemetry.terminal import say_banner
from stepfast.telemetry.traces import export_spans, flush_spans
from stepfast.worker.guardian import NUMBER, UNUSABLE, VARIABLE
from stepfast.worker.guardian_link import (
    introduction,
    is_interactive,
    is_switched_off,
    is_under_guardian,
    link_of_this_process,
    start_under_guardian,
)
from stepfast.worker.worker import Worker

if TYPE_CHECKING:
    from stepfast.app_protocol import AppLike, WholeApp
    from stepfast.config import WorkerSettings
    from stepfast.telemetry.logs import Lines
    from stepfast.worker.guardian_link import GuardianLink
    from stepfast.worker.metrics import Health, MetricsServer
    from stepfast.worker.metrics_process import Uplink


STUCK: Final = (
    70  # exit code: the event loop hung, or a part that the worker needs broke; work was given back
)
RECYCLE: Final = 75  # exit code: a handler could not be stopped, or the process is worn; start me again

# Options that are the command's alone, and not settings of the worker ...
OF_THE_COMMAND: Final = frozenset(
    {
        "log_level",
        "log_format",
        "metrics_port",
        "metrics_host",
        "supervised",
        "processes",
        "number",
        "counts",
        "greeted",  # the banner was shown
    }
)
# ... and those that other processes do not get: one process has the port.
_NOT_INHERITED: Final = frozenset({"metrics_port", "metrics_host", "supervised"})


def run_worker(target: str, options: dict[str, Any], processes: int = 1) -> int:
    """Run workers for the app at `target` ("module:app") until a signal; returns the exit code."""
    if processes < 1:
        raise ConfigurationError(f"processes={processes}: at least one")
    given = options | {"processes": processes}
    if is_under_guardian() or is_switched_off():
        if processes > 1 and not is_under_guardian():
            raise ConfigurationError(f"processes={processes} needs a guardian, and {VARIABLE} says off")
        return WorkerProcess(target, given, _configure_logs(given)).run()
    return _run_elsewhere(worker_command(target, given | {"supervised": True}))


def _run_elsewhere(command: list[str]) -> int:
    """Run the workers in a process of their own, for a program that does more than that; pass signals on to it."""
    process = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)  # noqa: S603 - our own program

    def stop() -> None:
        with suppress(OSError):
            process.terminate()

    if threading.current_thread() is threading.main_thread():
        on_stop_signal(stop)
    code = process.wait()
    return 128 - code if code < 0 else code


def main() -> int:
    """Run a worker as a program of its own; the one argument is the JSON of `worker_command`."""
    job = json.loads(sys.argv[1])
    target, options = job["target"], job["options"]
    start_under_guardian(ends_with_input=bool(options.get("supervised")))
    try:
        return WorkerProcess(target, options, _configure_logs(options), suspects=job["suspects"]).run()
    except StepfastError as error:
        say(str(error))
        return 1


def worker_command(target: str, options: dict[str, Any], *, suspects: str | None = None) -> list[str]:
    """The command line of a worker for the app at `target`; its one argument is read by `main`.

    `suspects` makes it a disposable process: for those that run "alone", or for those that run "together".
    """
    job = json.dumps({"target": target, "options": options, "suspects": suspects})
    return [sys.executable, "-m", "stepfast.worker.process", job]


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
    return configure(str(options.get("log_format") or "auto"), str(options.get("log_level") or "info"))


# One process.

COLLECT_AFTER: Final = 10_000  # new objects; those of a batch of jobs are gone before the collector looks
# Seconds that a thread may keep the interpreter from others. On SQLite the thread that holds the only write transaction
# waits so long after each statement when handlers compute; with Python's 5 ms it waited 10 of 24 ms of a batch.
SWITCH_INTERVAL: Final = 0.0005
LEAVE: Final = 3.0  # seconds that threads and exit hooks get once the worker has stopped
LONGEST_END: Final = 30.0  # seconds that a worker that broke gets to give its jobs back


class WorkerProcess:
    """A process that is a worker and nothing else: it stops by a signal, and ends or starts its own program again."""

    def __init__(
        self, target: str, options: dict[str, Any], lines: Lines, *, suspects: str | None = None
    ) -> None:
        self._target = target
        self._options = options
        self._suspects = suspects
        self._asked = threading.Event()  # to stop
        self._guardian = link_of_this_process()
        app = load(target)
        export_spans()  # after the app, which may have its own way
        settings = self._settings()
        lines.worker_id = settings.worker_id
        lines.kind_width = max(map(len, app.kinds.names()), default=lines.kind_width)
        self._exposure = Exposure(options, app, self._guardian)
        self._worker = Worker(
            app.unchecked_database,
            app.kinds,
            settings,
            lone=suspects is not None,
            alone=suspects == "alone",
            guardian=self._guardian,
            stuck=exit_stuck,
            notifications=app.notifications,
            declared=app.declared,
            feeds=app.feeds,
        )
        self._app = app
        self._on_sqlite = app.unchecked_database.dialect.name == "sqlite"

    def _settings(self) -> WorkerSettings:
        given = {name: value for name, value in self._options.items() if name not in OF_THE_COMMAND}
        if self._suspects is not None:
            given["worker_id"] = None
        elif given.get("worker_id") and self._options.get("processes", 1) > 1:
            given["worker_id"] = f"{given['worker_id']}-{self._options.get('number', 1)}"
        return worker_settings(**given)

    def run(self) -> int:
        """Work until asked to stop; returns the exit code. May not return: see `_leave`."""
        _spare_the_collector()
        if self._on_sqlite:
            sys.setswitchinterval(SWITCH_INTERVAL)
        on_stop_signal(self.stop)
        if self._options.get("supervised") and not self._guardian.is_child:
            on_parent_gone(self.stop)
        self._introduce()
        self._greet()
        if not self._app.kinds.names():
            note = "declare some with @app.job() in the module that the worker imports"
            happened("kinds.missing", worker_id=self._worker.settings.worker_id, note=note)
        self._exposure.start(self._worker)
        try:
            return serve(self._worker, self._leave)
        except StepfastError as error:  # it cannot work on this database
            if not self._guardian.is_child:
                raise
            say(str(error))
            return UNUSABLE

    def _introduce(self) -> None:
        """Tell the guardian who we are, and how it starts other processes of this command."""
        options, settings = self._options, self._worker.settings
        others = {name: value for name, value in options.items() if name not in _NOT_INHERITED}
        others["counts"] = options.get("counts", options.get("metrics_port") is not None)
        others["greeted"] = True
        log = {"format": options.get("log_format") or "auto", "level": options.get("log_level") or "info"}
        several = options.get("processes", 1) > 1
        again = others | {"number": json.loads(NUMBER)} if several else options | {"greeted": True}
        self._guardian.introduce(
            introduction(
                settings,
                self._app.unchecked_database.url,
                self._app.kinds,
                log,
                processes=options.get("processes", 1),
                interactive=is_interactive(),
                restart=True,
                again=worker_command(self._target, again),
                suspects={
                    kind: worker_command(self._target, others | {"processes": 1}, suspects=kind)
                    for kind in ("together", "alone")
                },
                most_alone=max(FEWEST_ALONE, min(settings.concurrency, MOST_ALONE)),
                patience=patience(process_age()),
                metrics_command=self._exposure.command if several else None,
            )
        )

    def _greet(self) -> None:
        """Show a person what this worker is, once for a command."""
        options = self._options
        style, level = str(options.get("log_format") or "auto"), str(options.get("log_level") or "info")
        shown = chosen_format(style) == "terminal" and known_level(level) <= logging.INFO
        if options.get("greeted") or self._suspects is not None or not shown:
            return
        settings, app = self._worker.settings, self._app
        kinds, schedules = sorted(app.kinds.names()), sorted(app.declared)
        metrics = options.get("metrics_port")
        facts = {
            "application": self._target,
            "database": masked(app.unchecked_database.url),
            "queues": ", ".join(settings.queues) if settings.queues else "all",
            "jobs": _listed(kinds) if kinds else "none: this application declares no jobs",
            "schedules": _listed(schedules) if schedules else None,
            "at once": f"{settings.concurrency} jobs"
            + (f" in each of {options['processes']} processes" if options.get("processes", 1) > 1 else ""),
            "metrics": None
            if metrics is None
            else f"http://{options.get('metrics_host') or '127.0.0.1'}:{metrics}/metrics",
        }
        say_banner(f"Stepfast {version('stepfast')}", facts, "Ctrl-C stops it when running jobs have ended")

    def stop(self) -> None:
        """Ask the worker to stop; the second time, at once."""
        self._asked.set()
        self._worker.ask_to_stop()

    def _leave(self) -> int:
        """After the worker has stopped: the exit code, unless the program starts again."""
        self._exposure.stop()
        flush_spans()  # where the process ends without its exit hooks
        self._guardian.leave()
        if self._worker.needs_recycling and not self._asked.is_set():
            self._recycle()
        return exit_code(self._worker)

    def _recycle(self) -> NoReturn:
        """Begin a new life: in this process, or in a new one that our parent starts."""
        happened("worker.recycled")
        logging.shutdown()
        if self._guardian.is_child:
            os._exit(RECYCLE)
        os.execv(sys.executable, worker_command(self._target, self._options))  # noqa: S606 - ourselves


def serve(worker: Worker, leave: Callable[[], int]) -> int:
    """Work on this thread until the worker has stopped, then `leave`; returns the exit code that it answers.

    The end is not left to this thread: a handler that computes may keep it for ever, and Python itself would wait for
    the threads of handlers.
    """
    codes: list[int] = []
    left = threading.Event()

    def end() -> None:
        if not worker.wait_until_stopped(LONGEST_END):
            os._exit(STUCK)
        try:
            codes.append(leave())
        except BaseException as error:  # noqa: BLE001 - whatever it is, the process ends
            say(f"the end of the worker met {type(error).__name__}: {without_secrets(str(error))}")
            codes.append(STUCK)
        left.set()
        status = worker.status()
        if not status.lost_slots and not status.active_jobs:
            time.sleep(LEAVE)
        logging.shutdown()
        os._exit(codes[0])

    threading.Thread(target=end, name="stepfast-end", daemon=True).start()
    with suppress(WorkerFailedError), asyncio.Runner() as runner:  # the exit code says so
        loop = runner.get_loop()
        serving = loop.create_task(worker.serve())
        while not serving.done():
            try:
                loop.run_until_complete(serving)
            except RuntimeError:
                if serving.done():
                    raise
                # Otherwise a handler stopped the loop: it goes on.
    left.wait()
    return codes[0]


def exit_code(worker: Worker) -> int:
    """0 if all is well; a worker that broke says why, on stderr, and ends with 70."""
    if isinstance(worker.failure, WorkerFailedError):
        say(str(worker.failure))
        return STUCK
    return int(worker.failed)


def say(sentence: str) -> None:
    """Write to stderr, if there is one."""
    with suppress(AttributeError, OSError, ValueError):  # none, closed, or nobody reads it
        sys.stderr.write(f"stepfast: {visible(sentence)}\n")


def exit_stuck() -> NoReturn:
    """End the process at once: its event loop hangs, and its work was given back."""
    os._exit(STUCK)


def _listed(names: list[str], most: int = 12) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def _spare_the_collector() -> None:
    """Keep the garbage collector from what is loaded by now: looking for cycles in it took 3 µs of a job's 24.

    The process is ours; a worker inside another program leaves this to that program.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(COLLECT_AFTER)


# How many processes suspects get that run alone.

MOST_ALONE: Final = 32  # processes at once, whatever the concurrency
FEWEST_ALONE: Final = 10
SHORTEST_PATIENCE: Final = 0.8  # seconds to see how fast the processes get on that were started last
LONGEST_PATIENCE: Final = 5.0


def patience(own_start: float) -> float:
    """Seconds to wait before more processes are started: a process that is starting needs as long as this one did.

    On a busy machine a few more at once would make it slower still.
    """
    return min(LONGEST_PATIENCE, max(SHORTEST_PATIENCE, 2 * own_start))


# Signals, heard even while a handler blocks the event loop.
#
# The C-level handler writes a byte to a socket; a thread reads it. So no Python code runs inside the signal handler,
# where it could meet a lock that its own thread holds.

STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
HANGUP: Final = getattr(
    signal, "SIGHUP", None
)  # the terminal is closed: a shell and the system may both say so


def on_stop_signal(stop: Callable[[], None]) -> None:
    """Call `stop` for each SIGTERM or SIGINT, and for a SIGHUP that is the first of them.

    Must be called from the main thread. A SIGINT or SIGHUP that is ignored stays so, as after `nohup`.
    """
    receiver, sender = socket.socketpair()
    sender.settimeout(0)
    heeded = [signal.SIGTERM]
    heeded += [it for it in (signal.SIGINT, HANGUP) if it and signal.getsignal(it) is not signal.SIG_IGN]
    signal.set_wakeup_fd(
        sender.fileno(), warn_on_full_buffer=False
    )  # first: a signal before it would be lost
    for number in heeded:
        signal.signal(number, lambda *_: None)
    _stay_out_of_forks(heeded)

    def listen() -> None:
        _ = sender  # kept alive with this thread
        heard = False
        while data := receiver.recv(16):
            for byte in data:
                if byte in STOP_SIGNALS or (byte == HANGUP and not heard):
                    heard = True
                    stop()

    threading.Thread(target=listen, name="stepfast-signals", daemon=True).start()


def _stay_out_of_forks(heeded: list[signal.Signals]) -> None:
    """In a process that a handler forks, let signals mean what they mean in any other Python program.

    It inherits the socket: a SIGTERM for the child, as multiprocessing.Pool sends it, would be read by this process as
    its own. Signals that come between the fork and that moment wait.
    """
    if not hasattr(os, "register_at_fork"):
        return
    masks = threading.local()

    def hold() -> None:
        masks.before = signal.pthread_sigmask(signal.SIG_BLOCK, heeded)

    def release() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, masks.before)

    def begin_anew() -> None:
        signal.set_wakeup_fd(-1)
        for number in heeded:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
        release()

    os.register_at_fork(before=hold, after_in_parent=release, after_in_child=begin_anew)


def on_parent_gone(stop: Callable[[], None]) -> None:
    """Call `stop` when the process that started us ends: its end of our standard input closes."""

    def listen() -> None:
        while os.read(0, 1):  # not sys.stdin: a thread inside its lock would abort the interpreter's end
            pass
        stop()

    threading.Thread(target=listen, name="stepfast-parent", daemon=True).start()


# Metrics.


class Exposure:
    """Metrics of this process: served on its own port, sent to the process that adds them up, or off.

    Most processes show nothing, and need none of what is imported inside: 1.5 MB.
    """

    def __init__(self, options: dict[str, Any], app: AppLike, guardian: GuardianLink) -> None:
        self.command: list[str] | None = None  # of a process that adds up and serves what several count
        self._service: Uplink | MetricsServer | None = None
        port, several = options.get("metrics_port"), options.get("processes", 1) > 1
        if port is not None:
            from stepfast.telemetry.metrics import process_metrics
            from stepfast.worker.metrics import DEFAULT_HOST, Collector, MetricsServer
            from stepfast.worker.metrics_process import metrics_command

            host = options.get("metrics_host") or DEFAULT_HOST
            if several:
                self.command = metrics_command(host, port, options)
            else:
                metrics = process_metrics()
                self._service = MetricsServer(host, port, Collector(metrics, app))
                guardian.on_metrics = metrics.add
        if self._service is None and guardian.is_child and options.get("counts", port is not None):
            from stepfast.worker.metrics_process import Uplink

            self._service = Uplink(guardian)

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
