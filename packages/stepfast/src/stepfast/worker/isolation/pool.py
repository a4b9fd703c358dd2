"""Processes for isolated handlers: started when one is needed, kept warm, used again, and ended when they are worn.

Each is a program of its own rather than a fork: a worker has threads and connections that no fork survives in good
order. That takes a few tenths of a second, so whoever has to go is replaced before the next step asks.
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
from stepfast.worker.isolation import guard as isolated_watch
from stepfast.worker.isolation.protocol import Surroundings, hear, refuse_inside, say

if TYPE_CHECKING:
    from stepfast.jobs.kinds import Kinds


STALLED: Final = 10  # seconds after which half a message is the last word
LEAVE: Final = 1.0  # seconds for a process to end by itself
MOST_STEPS: Final = 1_000  # then a process is replaced, whatever it holds
GROWTH: Final = 2.0  # as it is when it holds so many times what it held after its first step
IDLE: Final = 60.0  # seconds after which all idle processes but one end


class HandlerProcess:
    """One of them, as the worker sees it. One thread at a time talks to it; anybody may nudge that thread."""

    def __init__(self, surroundings: Surroundings) -> None:
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
                command, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()], start_new_session=True
            )
        self.group = self._process.pid
        self._connection = connection.Connection(ours.detach())
        self._pidfd = _pidfd(self._process.pid)
        self._nudges, self._nudged = socket.socketpair()
        self._watched = [it for it in (self._connection, self._nudged, self._pidfd) if it is not None]
        self.ready = False
        self.steps = 0
        self.first = 0  # bytes held after its first step
        self.held = 0  # and after its last
        self.idle_since = 0.0
        self.say(surroundings)

    @property
    def worn(self) -> bool:
        return self.steps >= MOST_STEPS or (self.steps > 1 and self.held > GROWTH * self.first)

    @property
    def gone(self) -> bool:
        """Whether it has ended by itself, or was ended by somebody else."""
        return self._process.poll() is not None

    def say(self, message: tuple[Any, ...]) -> None:
        """A process that is gone, or stopped in the middle of a word, is found out by who listens to it."""
        with suppress(OSError):
            say(self._connection, message)

    def hear(self, until: float | None) -> Any:
        """Its next word; None when we were nudged, or `until` (monotonic) has passed. Raises when it is gone."""
        left = None if until is None else max(0.0, until - time.monotonic())
        found = connection.wait(self._watched, left)
        if self._connection in found:
            return hear(self._connection)
        if self._pidfd in found:
            raise EOFError  # although somebody whom it has started keeps its socket open
        if found:
            self._nudged.recv(64)
        return None

    def nudge(self) -> None:
        """Let whoever listens look up; callable from any thread."""
        with suppress(OSError):
            self._nudges.send(b"!")

    def kill(self) -> None:
        """With everything that its handler has started."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.group, signal.SIGKILL)

    def end(self) -> int | None:
        """Let it go, and what its handler has left behind; returns its exit code, None if it had to be killed."""
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


class Watcher:
    """Ends what handlers have started when this process cannot: see `isolated_watch`."""

    def __init__(self) -> None:
        command = [sys.executable, "-I", "-S", str(isolated_watch.__file__), str(os.getpid())]
        # A session of its own: whoever kills our group leaves it to do its work.
        self._process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
            command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True, bufsize=0
        )

    def add(self, group: int) -> None:
        self._say(f"+{group}\n")

    def forget(self, group: int) -> None:
        self._say(f"-{group}\n")

    def end(self) -> None:
        """With all that it still knows."""
        assert self._process.stdin is not None  # noqa: S101 - it is a pipe
        self._process.stdin.close()
        try:
            self._process.wait(timeout=LEAVE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _say(self, line: str) -> None:
        assert self._process.stdin is not None  # noqa: S101 - it is a pipe
        with suppress(OSError, ValueError):  # somebody has killed it, or we are leaving
            self._process.stdin.write(line.encode())


class HandlerProcesses:
    """The processes of one worker, as many as it runs isolated steps at once."""

    def __init__(self, kinds: Kinds, database_url: str) -> None:
        refuse_inside()
        self._kinds = kinds
        self._database_url = database_url
        self._lock = threading.Lock()
        self._idle: list[HandlerProcess] = []  # the last one was used last
        self._busy: set[HandlerProcess] = set()
        self._watcher: Watcher | None = None
        self._closed = False

    def take(self) -> HandlerProcess:
        """One for the next step; it may still be starting.

        Called from a thread that lives as long as the worker: on Linux the process ends with the thread that started it.
        """
        process = self._rested()
        if process is None:
            process = self._start()
            with self._lock:
                self._busy.add(process)
        return process

    def give(self, process: HandlerProcess, *, usable: bool) -> None:
        """A step has ended. One that is of no more use is replaced at once."""
        with self._lock:
            self._busy.discard(process)
        if usable and not process.worn:
            self._rest(process)
            return
        self._end(process)
        if not self._closed and not self._idle:
            self._rest(self._start())

    def end_idle(self) -> None:
        """Called now and then."""
        latest = time.monotonic() - IDLE
        with self._lock:
            spare = [it for it in self._idle[:-1] if it.idle_since < latest]
            self._idle = [it for it in self._idle if it not in spare]
        for process in spare:  # whoever asks must not wait for it
            threading.Thread(target=self._end, args=(process,), name="stepfast-idle", daemon=True).start()

    def close(self) -> None:
        """The worker leaves: whoever is still at work has had its time."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
            busy = list(self._busy)
        for process in busy:
            process.kill()  # who talks to it will see
        for process in idle:
            self._end(process)
        with self._lock:
            watcher, self._watcher = self._watcher, None
        if watcher is not None:
            watcher.end()

    def _rested(self) -> HandlerProcess | None:
        """The one that was used last. Who died while nothing ran there is no crash of the step that comes next."""
        while True:
            with self._lock:
                if self._closed:
                    raise StepCancelled("the worker is stopping")
                if not self._idle:
                    return None
                process = self._idle.pop()
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
            if self._watcher is not None:
                self._watcher.forget(process.group)

    def _start(self) -> HandlerProcess:
        modules = self._kinds.isolated_modules()
        process = HandlerProcess(
            Surroundings(
                path=list(sys.path),
                main=_main() if "__main__" in modules else {},
                modules=[it for it in modules if it != "__main__"],
                database_url=self._database_url,
                levels=_levels(),
                rules=masking.rules(),
            )
        )
        with self._lock:
            if not self._closed:
                self._watcher = self._watcher or Watcher()
                self._watcher.add(process.group)
        return process


def _levels() -> dict[str, int]:
    known = logging.root.manager.loggerDict.items()
    return {"": logging.root.level} | {
        name: it.level for name, it in list(known) if isinstance(it, logging.Logger) and it.level
    }


def _pidfd(pid: int) -> int | None:
    """Something to wait for its end with, where the system has it."""
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        return None


def _main() -> dict[str, Any]:
    """How another process makes the module that this program began with: the way of multiprocessing."""
    module = sys.modules["__main__"]
    if (spec := getattr(module, "__spec__", None)) is not None:
        return {"init_main_from_name": spec.name}
    path = getattr(module, "__file__", None)
    return {} if path is None else {"init_main_from_path": os.path.abspath(path)}  # noqa: PTH100 - as it was written
