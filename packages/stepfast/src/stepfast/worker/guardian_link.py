"""The worker's side of its guardian: the board that they share, and the thread that answers it.

A worker of `stepfast worker` is a child of its guardian (`start_under_guardian`): if the guardian ends, the worker gives
everything back at once and ends too, so that no worker lives on without the process that its user sees. A worker inside
somebody's program hires a guardian as a child (`hire`), and another one if that ends. Where no process can be started it
goes on without one, as if its guardian had died: then only its own heartbeat renews its lease.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from stepfast.errors import ConfigurationError
from stepfast.process_identity import identity_of
from stepfast.telemetry import happened
from stepfast.telemetry.logs import open_missing_streams
from stepfast.worker import guardian as program
from stepfast.worker.guardian import VARIABLE, Board, new_board

if TYPE_CHECKING:
    from collections.abc import Callable

    from stepfast.config import WorkerSettings
    from stepfast.jobs.kinds import Kinds
    from stepfast.jobs.lease import WaitingSuspects

HIRE_AFTER: Final = 1.0  # seconds; a worker that lives shorter has no use for a guardian
HIRE_AGAIN: Final = 1.0  # seconds after the last one ended
HIRE_LATER: Final = 60.0  # seconds after none could be started
PATIENCE: Final = 1.0  # seconds that a guardian gets to read the rest of a line
GOODBYE: Final = 5.0  # seconds that a guardian gets to end


class GuardianLink:
    """What a worker tells its guardian, and what it hears from it."""

    def __init__(self, link: socket.socket | None, board: Board) -> None:
        self.board = board
        self.is_child = link is not None  # the guardian is our parent
        self.pid: int | None = os.getppid() if self.is_child else None  # of the guardian
        self.identity: str | None = None if self.pid is None else identity_of(self.pid)
        self.on_metrics: Callable[[dict[str, Any]], None] | None = None  # counts of other processes
        self._on_lost: Callable[[], None] | None = None  # our parent is gone
        self._is_lost = False  # ... and was so before anybody wanted to know
        self._link = link
        self._process: subprocess.Popen[bytes] | None = None
        self._hello: dict[str, Any] = {}
        self.introduced = False
        self._incarnation: dict[str, Any] | None = None
        self._began = time.monotonic()
        self._hire_at = self._began + HIRE_AFTER
        self._closed = False
        self._may_hire = not self.is_child and can_hire()
        self._lock = threading.Lock()
        self._process_id = os.getpid()

    # What the worker says.

    def introduce(self, hello: dict[str, Any]) -> None:
        """Say who we are, and begin to answer."""
        self._hello = hello
        self.introduced = True
        if self._link is not None:
            self._tell({"hello": hello})
            self._listen(self._link)

    def when_lost(self, call: Callable[[], None]) -> None:
        """Call this when our parent is gone, or now if it is."""
        self._on_lost = call
        if self._is_lost:
            call()

    def register(self, incarnation: int, lease: float, worker_id: str) -> None:
        """The row of this incarnation is there, or another one of this process."""
        self._incarnation = {"incarnation": incarnation, "lease": lease, "worker_id": worker_id}
        self._tell(self._incarnation)

    def run_suspects(self, waiting: WaitingSuspects) -> None:
        """Ask for processes in which so many suspects run."""
        if any(waiting):
            self._tell({"suspects": list(waiting)})

    def send_metrics(self, line: dict[str, Any]) -> bool:
        """What this process counted, and what is wrong with it. False: there is nobody to hear it."""
        return self._tell(line)

    def leave(self) -> None:
        """This process ends in good order."""
        self._closed = True
        self._tell({"bye": 1})
        with self._lock:
            link, self._link = self._link, None
        if link is not None:
            with suppress(OSError):
                link.shutdown(socket.SHUT_RDWR)
        if self._process is not None:
            with suppress(OSError):
                self._process.kill()  # it has nothing to say about us any more
            self._process.wait(GOODBYE)
        self.board.close()

    def _tell(self, message: dict[str, Any]) -> bool:
        with self._lock:
            link = self._link
            if link is None or os.getpid() != self._process_id:
                return False
            data = json.dumps(message).encode() + b"\n"
            try:
                sent = link.send(data, socket.MSG_DONTWAIT)
                while sent < len(data):  # a guardian that is stopped must not stop us
                    if not select.select([], [link], [], PATIENCE)[1]:
                        self._link = None
                        return False
                    sent += link.send(data[sent:], socket.MSG_DONTWAIT)
            except OSError:
                return False
            return True

    # What it hears.

    def _listen(self, link: socket.socket) -> None:
        threading.Thread(target=self._hear, args=(link,), name="stepfast-guardian", daemon=True).start()

    def _hear(self, link: socket.socket) -> None:
        rest = b""
        while True:
            try:
                data = link.recv(65_536)
            except OSError:
                data = b""
            if not data:
                break
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                with suppress(ValueError, KeyError, TypeError):  # half of a line
                    self._heed(json.loads(line))
        self._lost(link)

    def _heed(self, message: dict[str, Any]) -> None:
        if "ask" in message:
            self._tell({"answer": 1})
        elif "metrics" in message and self.on_metrics is not None:
            self.on_metrics(message["metrics"])

    def _lost(self, link: socket.socket) -> None:
        with self._lock:
            if self._link is link:
                self._link = None
        link.close()
        self._hire_at = time.monotonic() + HIRE_AGAIN
        if self._closed or os.getpid() != self._process_id:
            return
        happened("guardian.lost", note="this worker ends" if self.is_child else "another one is started")
        if self.is_child:
            self._is_lost = True
            if self._on_lost is not None:
                self._on_lost()

    # A guardian as a child.

    def look(self) -> None:
        """Hire a guardian where there should be one and is none; called about every two seconds."""
        if self._link is None and self._may_hire and not self._closed and time.monotonic() >= self._hire_at:
            self._hire()

    def _hire(self) -> None:
        if self._process is not None:
            with suppress(OSError):
                self._process.kill()
            self._process.wait(GOODBYE)
        try:
            ours, theirs = socket.socketpair()
        except OSError as error:
            self._could_not_hire(error)
            return
        try:
            self._process = subprocess.Popen(  # noqa: S603 - our own interpreter and program
                _command(os.getpid(), theirs.fileno(), self.board.descriptor, parent=False),
                pass_fds=(theirs.fileno(), self.board.descriptor),
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError as error:
            ours.close()
            self._could_not_hire(error)
            return
        finally:
            theirs.close()
        self.pid = self._process.pid
        self.identity = identity_of(self.pid)
        with self._lock:
            self._link = ours
        self._tell({"hello": self._hello})
        if self._incarnation is not None:
            self._tell(self._incarnation)
        self._listen(ours)

    def _could_not_hire(self, error: Exception) -> None:
        self._process = None
        self._hire_at = time.monotonic() + HIRE_LATER
        happened("guardian.failed", error=error)


def can_hire() -> bool:
    """Whether this program can start a guardian: it has an interpreter, and Stepfast lies in files."""
    return (
        hasattr(os, "fork")
        and Path(sys.executable or "").name.startswith(("python", "pypy"))  # not a server that embeds Python
        and not getattr(sys, "frozen", False)
        and Path(program.__file__).is_file()
        and not is_switched_off()
    )


def is_switched_off() -> bool:
    """Whether the environment says that there is to be no guardian."""
    return _given() == "off"


def _given() -> str:
    """ "off", the descriptors "socket,board" that a guardian has left for us, or nothing."""
    given = os.environ.get(VARIABLE, "").strip().lower()
    if given in {"", "on", "1", "true", "yes"}:
        return ""
    if given in {"off", "0", "false", "no"}:
        return "off"
    socket_number, _, board_number = given.partition(",")
    if not (socket_number.isdecimal() and board_number.isdecimal()):
        raise ConfigurationError(
            f"{VARIABLE}={given}: write off for a worker without a guardian, or leave it out"
        )
    return given


def _command(pid: int, link: int, board: int, *, parent: bool, ends_with_input: bool = False) -> list[str]:
    asked = json.dumps(
        {"pid": pid, "link": link, "board": board, "parent": parent, "ends_with_input": ends_with_input}
    )
    return [sys.executable, "-I", "-S", str(Path(program.__file__).resolve()), asked]


# A guardian as the parent.

_inherited: list[GuardianLink] = []  # at most one


def is_under_guardian() -> bool:
    """Whether a guardian is the parent of this process, and no worker has taken its link yet."""
    return bool(_inherited) or _given() not in {"", "off"}


def start_under_guardian(*, ends_with_input: bool = False) -> None:
    """Go on in a child of this process, which becomes a guardian. Called before there are threads, and only once.

    With `ends_with_input` the guardian stops everything when its standard input closes, that is when its parent ends.
    """
    open_missing_streams()  # first: what is opened below must not get their numbers
    if _given() or not can_hire() or threading.active_count() > 1:
        return
    ours, theirs = socket.socketpair()
    board = new_board()
    interactive = is_interactive()
    # They wait until the guardian listens: a stop in the first moments is a polite one, too.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, program.STOP_SIGNALS)
    child = os.fork()
    if child:
        ours.close()
        for descriptor in (theirs.fileno(), board):
            os.set_inheritable(descriptor, True)  # noqa: FBT003 - its only form
        try:
            command = _command(child, theirs.fileno(), board, parent=True, ends_with_input=ends_with_input)
            os.execv(command[0], command)  # noqa: S606 - our own interpreter and program
        except OSError:
            os.kill(child, signal.SIGKILL)
            raise
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    theirs.close()
    if ends_with_input:
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)
    if interactive:
        _leave_terminal_to_guardian()
    else:
        os.setsid()
    _inherited.append(GuardianLink(ours, Board(board)))


def _leave_terminal_to_guardian() -> None:
    """Ctrl-C and a closed terminal are heard by all processes of a terminal; the guardian passes them on, once."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)


def is_interactive() -> bool:
    """Whether a person is at the keyboard: then handlers may ask questions, and Ctrl-Z stops everything."""
    try:
        return os.isatty(0)
    except OSError:
        return False


def link_of_this_process() -> GuardianLink:
    """The link to the guardian that started this process, or one over which a guardian can be hired."""
    if _inherited:
        return _inherited.pop()
    given = _given()
    if given in {"", "off"}:
        return GuardianLink(None, Board(new_board()))
    del os.environ[VARIABLE]  # it is not for what we start
    link, board = (int(it) for it in given.split(","))
    try:
        os.set_inheritable(link, False)  # noqa: FBT003 - as above
        os.set_inheritable(board, False)  # noqa: FBT003 - as above
        inherited = GuardianLink(socket.socket(fileno=link), Board(board))
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            f"{VARIABLE}={given} names no descriptors of a guardian; leave it out, or write off"
        ) from error
    if is_interactive() and threading.current_thread() is threading.main_thread():
        _leave_terminal_to_guardian()
    return inherited


def introduction(
    settings: WorkerSettings, url: str, kinds: Kinds, log: dict[str, str] | None = None, **more: Any
) -> dict[str, Any]:
    """What a guardian has to know about a worker process."""
    timed = {
        name: {
            "timeout": kind.timeout.total_seconds(),
            "retry": None
            if kind.time_limit is not None
            else {
                "attempts": kind.retry.attempts,
                "first": _seconds(kind.retry.first),
                "factor": kind.retry.factor,
                "longest": _seconds(kind.retry.longest),
            },
        }
        for name in kinds.names()
        if (kind := kinds.get(name)).timeout is not None
    }
    limits = [
        kind.timeout.total_seconds()
        for name in kinds.names()
        if (kind := kinds.get(name)).timeout is not None
    ]
    endless = any(kinds.get(name).timeout is None for name in kinds.names())
    return {
        "pid": os.getpid(),
        "path": [it or os.getcwd() for it in sys.path],  # noqa: PTH109 - texts, as sys.path has them
        "url": url,
        "environment": dict(os.environ),  # for other processes of this command; options may have changed it
        "crash_limit": settings.crash_limit,
        "grace": settings.grace.total_seconds(),
        "kinds": timed,
        "longest_timeout": None if endless else max(limits, default=None),
        "log": log,  # None: a worker inside a program prints nothing
        "processes": 1,
        **more,
    }


def _seconds(span: Any) -> float:
    from stepfast.clock import duration

    return duration(span).total_seconds()
