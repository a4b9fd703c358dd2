"""Processes for isolated handlers: started when one is needed, kept warm, used again, and ended when they are worn.

Each is a program of its own rather than a fork: a worker has threads and connections that no fork survives in good
order. That takes a few tenths of a second, so a process that has to go is replaced before the next step asks.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from contextlib import suppress
from multiprocessing import connection
from typing import TYPE_CHECKING, Any, Final

from stepfast.errors import StepCancelled
from stepfast.telemetry import masking
from stepfast.worker.isolation import guard
from stepfast.worker.isolation.protocol import Setup, receive_message, refuse_worker_inside, send_order

if TYPE_CHECKING:
    from stepfast.jobs.kinds import Kinds
    from stepfast.worker.isolation.protocol import Message

    Env = tuple[str, ...] | None  # names of variables; None: all


STALLED: Final = 10  # seconds after which the rest of a half message is not waited for
LEAVE: Final = 1.0  # seconds for a process to end by itself
MOST_STEPS: Final = 1_000  # of one process; then it is replaced, whatever it holds
GROWTH: Final = 2.0  # times the memory after its first step; with more a process is replaced
DATABASE_URL: Final = "STEPFAST_DATABASE_URL"
# Variables without which Python, its libraries and texts do not work; no secrets.
EVERYDAY: Final = frozenset(
    {"PATH", "HOME", "USER", "LOGNAME", "LANG", "LANGUAGE", "TZ", "TMPDIR", "LD_LIBRARY_PATH", "VIRTUAL_ENV"}
)
EVERYDAY_PREFIXES: Final = ("LC_", "PYTHON")
IDLE: Final = 60.0  # seconds after which all idle processes but one end


class HandlerProcess:
    """One process for isolated handlers, as the worker sees it.

    One thread at a time talks to it; any thread may nudge that one.
    """

    def __init__(self, setup: Setup, env: Env = None) -> None:
        self.env = env
        ours, theirs = socket.socketpair()
        for option in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):
            ours.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", STALLED, 0))
        command = [
            sys.executable,
            "-m",
            "stepfast.worker.isolation.child",
            str(theirs.fileno()),
            str(os.getpid()),
        ]
        with theirs:
            # A session of its own: its group can be killed with all that a handler has started, and a Ctrl-C is ours.
            self._process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
                command,
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
                env=environment_of(env),
            )
        self.group = self._process.pid
        self._connection = connection.Connection(ours.detach())
        self._pidfd = _pidfd(self._process.pid)
        self._nudges, self._nudged = socket.socketpair()
        self._watched = [end for end in (self._connection, self._nudged, self._pidfd) if end is not None]
        self.ready = False
        self.steps = 0
        self.first = 0  # bytes held after its first step
        self.held = 0  # and after its last
        self.idle_since = 0.0
        self.send(setup)

    @property
    def worn(self) -> bool:
        """Whether it has run many steps, or holds much more memory than after its first one."""
        return self.steps >= MOST_STEPS or (self.steps > 1 and self.held > GROWTH * self.first)

    @property
    def gone(self) -> bool:
        """Whether it has ended, by itself or not."""
        return self._process.poll() is not None

    def send(self, order: tuple[Any, ...]) -> None:
        """Send it. A process that is gone, or stopped in the middle of a message, is found out by `receive`."""
        with suppress(OSError):
            send_order(self._connection, order)

    def receive(self, until: float | None) -> Message | None:
        """Its next message; None when we were nudged, or `until` (monotonic) has passed. Raises when it is gone."""
        left = None if until is None else max(0.0, until - time.monotonic())
        found = connection.wait(self._watched, left)
        if self._connection in found:
            return receive_message(self._connection)
        if self._pidfd in found:
            raise EOFError  # although a process that it has started keeps its socket open
        if found:
            self._nudged.recv(64)
        return None

    def nudge(self) -> None:
        """End the wait of the thread that is in `receive`; callable from any thread."""
        with suppress(OSError):
            self._nudges.send(b"!")

    def kill(self) -> None:
        """Kill it with everything that its handler has started."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.group, signal.SIGKILL)

    def end(self) -> int | None:
        """End it, and what its handler has left behind; returns its exit code, None if it had to be killed."""
        if self._connection.closed:
            return self._process.returncode
        self._connection.close()
        self._nudges.close()
        self._nudged.close()
        code = self._gone_within(LEAVE)
        self.kill()
        if code is None:
            self._gone_within(LEAVE)
        if self._pidfd is not None:
            os.close(self._pidfd)
        return code

    def _gone_within(self, seconds: float) -> int | None:
        try:
            return self._process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            return None


class Guard:
    """The process that ends what handlers have started when this process cannot: see `guard`."""

    def __init__(self) -> None:
        command = [sys.executable, "-I", "-S", str(guard.__file__), str(os.getpid())]
        # A session of its own: a signal that kills our group leaves it to do its work.
        self._process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
            command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True, bufsize=0
        )

    def add(self, group: int) -> None:
        self._send(f"+{group}\n")

    def forget(self, group: int) -> None:
        self._send(f"-{group}\n")

    def end(self) -> None:
        """End it; it kills the groups that it still knows."""
        assert self._process.stdin is not None  # noqa: S101 - it is a pipe
        self._process.stdin.close()
        try:
            self._process.wait(timeout=LEAVE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _send(self, line: str) -> None:
        assert self._process.stdin is not None  # noqa: S101 - it is a pipe
        with suppress(OSError, ValueError):  # it was killed, or we are leaving
            self._process.stdin.write(line.encode())


class HandlerProcesses:
    """The processes for isolated handlers of one worker: as many as it runs isolated steps at once."""

    def __init__(self, kinds: Kinds, database_url: str) -> None:
        refuse_worker_inside()
        self._kinds = kinds
        self._database_url = database_url
        self._lock = threading.Lock()
        self._idle: list[HandlerProcess] = []  # the last one was used last
        self._busy: set[HandlerProcess] = set()
        self._guard: Guard | None = None
        self._closed = False

    def take(self, env: Env = None) -> HandlerProcess:
        """A process with this environment for the next step; it may still be starting.

        Called from a thread that lives as long as the worker: on Linux the process ends with the thread that started it.
        """
        process = self._rested(env)
        if process is None:
            process = self._start(env)
            with self._lock:
                self._busy.add(process)
        return process

    def give(self, process: HandlerProcess, *, usable: bool) -> None:
        """Take a process back after its step. One that is of no more use is replaced at once."""
        with self._lock:
            self._busy.discard(process)
        if usable and not process.worn:
            self._rest(process)
            return
        self._end(process)
        if not self._closed and not any(it.env == process.env for it in self._idle):
            self._rest(self._start(process.env))

    def end_idle(self) -> None:
        """End processes that have been idle for long, all but one. Called now and then."""
        latest = time.monotonic() - IDLE
        with self._lock:
            spare = [process for process in self._idle[:-1] if process.idle_since < latest]
            self._idle = [process for process in self._idle if process not in spare]
        for process in spare:  # the caller must not wait for it
            threading.Thread(target=self._end, args=(process,), name="stepfast-idle", daemon=True).start()

    def close(self) -> None:
        """The worker leaves: end all processes. Steps that still run have had their time."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
            busy = list(self._busy)
        for process in busy:
            process.kill()  # the thread that talks to it will see
        for process in idle:
            self._end(process)
        with self._lock:
            guardian, self._guard = self._guard, None
        if guardian is not None:
            guardian.end()

    def _rested(self, env: Env) -> HandlerProcess | None:
        """The idle process of this environment that was used last. The death of an idle process is no crash of the step that comes next."""
        while True:
            with self._lock:
                if self._closed:
                    raise StepCancelled("the worker is stopping")
                fitting = [it for it in self._idle if it.env == env]
                if not fitting:
                    return None
                process = fitting[-1]
                self._idle.remove(process)
                if not process.gone:
                    self._busy.add(process)
                    return process
            self._end(process)

    def _rest(self, process: HandlerProcess) -> None:
        process.idle_since = time.monotonic()
        with self._lock:
            if not self._closed:
                self._idle.append(process)
                return
        self._end(process)

    def _end(self, process: HandlerProcess) -> None:
        process.end()
        with self._lock:
            if self._guard is not None:
                self._guard.forget(process.group)

    def _start(self, env: Env) -> HandlerProcess:
        modules = self._kinds.isolated_modules(env)
        process = HandlerProcess(
            Setup(
                path=list(sys.path),
                main=_main() if "__main__" in modules else {},
                modules=[name for name in modules if name != "__main__"],
                database_url=self._database_url if env is None or DATABASE_URL in env else None,
                levels=_levels(),
                rules=masking.rules(),
            ),
            env,
        )
        with self._lock:
            if not self._closed:
                self._guard = self._guard or Guard()
                self._guard.add(process.group)
        return process


def environment_of(env: Env) -> dict[str, str] | None:
    """The environment of such a process; None: ours. Variables that every program needs are always in it."""
    if env is None:
        return None
    return {
        name: value
        for name, value in os.environ.items()
        if name in env or name in EVERYDAY or name.startswith(EVERYDAY_PREFIXES)
    }


def _levels() -> dict[str, int]:
    """The levels of all loggers, the root's under ""."""
    known = logging.root.manager.loggerDict.items()
    return {"": logging.root.level} | {
        name: logger.level
        for name, logger in list(known)
        if isinstance(logger, logging.Logger) and logger.level
    }


def _pidfd(pid: int) -> int | None:
    """A file descriptor to wait for the end of a process, where the system has it."""
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        return None


def _main() -> dict[str, Any]:
    """How another process finds the module that this program began with, as multiprocessing does it."""
    module = sys.modules["__main__"]
    if (spec := getattr(module, "__spec__", None)) is not None:
        return {"init_main_from_name": spec.name}
    path = getattr(module, "__file__", None)
    return {} if path is None else {"init_main_from_path": os.path.abspath(path)}  # noqa: PTH100 - as it was written
