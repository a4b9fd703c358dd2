"""The guardian: a small process that watches over the worker processes of one `stepfast worker` command.

It is their parent: it starts them, passes signals on to them, and starts another one where one died. A worker inside
somebody's program has a guardian too, as its child. The guardian imports nothing but the standard library, holds no
connection, and says nothing as long as a worker renews its own row. It speaks in three cases:

* A worker's interpreter does not answer, because one call keeps it (a slow regular expression, a large document): the
  guardian renews the worker's row until the interpreter answers again.
* A worker's process has ended: the guardian declares it dead at once, and reports which steps had started.
* A step has passed its deadline while the interpreter does not answer: the guardian kills the process, and names the step.
  A worker inside somebody's program is not killed; its row is not renewed any more.

It knows what a worker does from a page of memory that they share (`Board`), asks over a socket whether the interpreter
answers, and writes to the database through a process that is started when there is something to say (`deputy.py`).
The guardian may renew and may declare dead, and it never commits: the fence of a job alone decides who does.

This file is run as a program by its path, so it imports nothing of Stepfast; the worker's side is in `guardian_link.py`.
"""

from __future__ import annotations

import json
import mmap
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import time
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Callable, Iterator

    from stepfast.worker.leases import Waiting

NUMBER: Final = '"NUMBER OF THE PROCESS"'  # in a command that starts several
VARIABLE: Final = (
    "STEPFAST_GUARDIAN"  # "socket,board": descriptors for a worker that a guardian starts; "off": no guardian
)
LATE: Final = 0.6  # of a lease; a worker that has not renewed by then is asked whether it answers
ANSWER: Final = 0.5  # seconds for the answer
SENDING: Final = 0.05  # seconds between two tries to send the rest of a long report
ASK_AGAIN: Final = 1.0  # seconds after an answer
LOOK: Final = 2.0  # seconds between looks at deadlines, and at a worker that is not late
UNWIND: Final = 5.0  # seconds that a handler gets to clean up after its timeout, as in the worker
MARGIN: Final = 1.0  # seconds more before the interpreter is asked about a deadline
SILENT: Final = 2.0  # seconds without an answer after which a worker past a deadline is killed
LEAVING: Final = 20.0  # seconds after the grace period in which a worker that stops should be gone
TRIES: Final = 3  # deputies that may end while they report the same death
IDLE_DEPUTY: Final = 30.0  # seconds after which a deputy without work ends
READY_BELOW: Final = (
    4.0  # seconds; with a shorter lease the deputy is always there: starting it takes too long
)
FAILED: Final = b'{"failed": 1}'  # a deputy's answer
LAST_WORDS: Final = 10.0  # seconds that an ending guardian gives its deputy
RECYCLE: Final = 75  # exit code of a worker that wants to be started again
UNUSABLE: Final = 78  # ... and of one that cannot work on this database: another one could not either
LONG_LIFE: Final = 60.0  # seconds; a worker that lived so long did not die of its start
STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
PASSED_ON: Final = (signal.SIGUSR1, signal.SIGUSR2)  # what they mean is the application's affair

_BOOT: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def boot_time() -> float:
    """Seconds since the machine was started, also while it slept."""
    return time.clock_gettime(_BOOT)


# The page of memory.

_HEAD: Final = struct.Struct("<dQ")  # boot time at which the last renewal was sent, region in use
_REGION: Final = struct.Struct(
    "<QQQ"
)  # bytes in use, how many of the ids have started, whether some are missing
REGION: Final = 512 * 1024  # bytes
DEADLINES: Final = 1024
FIRST_REGION: Final = 64
LONGEST_ID: Final = 512  # bytes: 128 characters of any alphabet
FIRST_DEADLINE: Final = FIRST_REGION + 2 * REGION  # a number each: monotonic time, 0: none
FIRST_ID: Final = FIRST_DEADLINE + DEADLINES * 8  # ... and whose, each ended by a zero byte
SIZE: Final = FIRST_ID + DEADLINES * (LONGEST_ID + 1)
AHEAD: Final = 255  # ids that are noted before their steps start


def new_board() -> int:
    """The descriptor of an empty board."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("stepfast-board")
    else:
        import tempfile

        descriptor, path = tempfile.mkstemp(prefix="stepfast-board-")
        os.unlink(path)  # noqa: PTH108 - this program has no use for pathlib
    os.ftruncate(descriptor, SIZE)
    return descriptor


class Board:
    """What a worker notes for its guardian: when it renewed, which steps have started, and until when they may run.

    Ids are noted ahead, a few hundred at a time, in the order in which their steps will start; a start then only counts.
    Ids and deadlines are written by the worker's event loop, renewals by its heartbeat. The guardian reads when the worker
    is dead or does not answer.
    """

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._memory = mmap.mmap(descriptor, SIZE)
        whole = memoryview(self._memory)
        self._numbers = whole[:FIRST_DEADLINE].cast("Q")  # a third of the time of struct
        self._deadlines = whole[FIRST_DEADLINE:FIRST_ID].cast("d")
        self._count_at = (FIRST_REGION + 8) // 8
        self._region = 0
        self._incomplete = 0  # 1: more steps were not committed than the region has room for
        self._from = FIRST_REGION + _REGION.size  # where the ids noted last begin
        self._until = self._from
        self._before = 0  # how many had started before those
        self._ids: list[str] = []  # those noted last
        self._next = 0  # which of them starts next
        self._free = list(range(DEADLINES - 1, -1, -1))
        self.uncommitted: Callable[[], list[str]] = (
            list  # jobs whose steps have started and are not committed
        )

    # The worker's side.

    def renewed(self, sent: float) -> None:
        """The worker's row was renewed by a statement that was sent at this boot time."""
        struct.pack_into("<d", self._memory, 0, sent)

    def start(self, job_id: str, waiting: deque[Waiting]) -> None:
        """Note that the step of a job starts; `waiting` are those that start after it."""
        number, ids = self._next, self._ids
        if number < len(ids) and ids[number] is job_id:
            self._next = number + 1
            self._numbers[self._count_at] = self._before + number + 1
        else:
            self._note(job_id, waiting)

    def _note(self, job_id: str, waiting: deque[Waiting]) -> None:
        if self._next < len(self._ids):  # the others were given back
            self._until = self._from + len(_written(self._ids[: self._next]))
        self._before += self._next
        try:
            ids = [job_id, *[it.lease.job_id for it in islice(waiting, AHEAD)]]
        except RuntimeError:  # another thread took from it meanwhile
            ids = [job_id]
        text = _written(ids)
        if self._until + len(text) > FIRST_REGION + (self._region + 1) * REGION:
            self._change_regions(text)
        self._memory[self._until : self._until + len(text)] = text
        self._ids, self._next = ids, 1
        self._from, self._until = self._until, self._until + len(text)
        start = FIRST_REGION + self._region * REGION
        _REGION.pack_into(self._memory, start, self._until - start, self._before + 1, self._incomplete)

    def _change_regions(self, following: bytes) -> None:
        """Begin anew in the other region, with what is not committed yet."""
        ids = self.uncommitted()
        text = _written(ids)
        region = 1 - self._region
        start = FIRST_REGION + region * REGION
        self._incomplete = int(_REGION.size + len(text) + len(following) > REGION)
        if self._incomplete:
            ids, text = [], b""
        self._memory[start + _REGION.size : start + _REGION.size + len(text)] = text
        _REGION.pack_into(self._memory, start, _REGION.size + len(text), len(ids), self._incomplete)
        struct.pack_into("<Q", self._memory, 8, region)
        self._region, self._before = region, len(ids)
        self._count_at = (start + 8) // 8
        self._until = start + _REGION.size + len(text)

    def expect(self, job_id: str, deadline: float) -> int | None:
        """Note until when a step may run; returns the number to `release` when it has ended."""
        if not self._free:
            return None
        number, name = self._free.pop(), job_id.encode() + b"\0"
        start = FIRST_ID + number * (LONGEST_ID + 1)
        self._memory[start : start + len(name)] = name
        self._deadlines[number] = deadline
        return number

    def release(self, number: int) -> None:
        """The step has ended, or is no longer vouched for."""
        self._deadlines[number] = 0.0
        self._free.append(number)

    def forgive(self, number: int) -> None:
        """The worker itself has failed the step; its number is released when the handler returns."""
        self._deadlines[number] = 0.0

    # The guardian's side.

    def last_renewal(self) -> float:
        """The boot time at which the last renewal was sent; 0: there was none."""
        return float(_HEAD.unpack_from(self._memory, 0)[0])

    def started(self) -> list[str] | None:
        """Jobs whose steps have started, committed or not; None: there are too many to tell.

        A job whose next step waits to be started is not among them, although an earlier one has run here.
        """
        start = FIRST_REGION + int(_HEAD.unpack_from(self._memory, 0)[1]) * REGION
        used, count, incomplete = _REGION.unpack_from(self._memory, start)
        if incomplete:
            return None
        text = self._memory[start + _REGION.size : start + max(used, _REGION.size)]
        noted = text.decode(errors="replace").split("\0")
        waiting = set(noted[count:])
        return [it for it in noted[:count] if it not in waiting]

    def deadlines(self) -> Iterator[tuple[float, str]]:
        """Until when steps may run, by the monotonic clock, and their jobs."""
        for number, deadline in enumerate(self._deadlines):
            start = FIRST_ID + number * (LONGEST_ID + 1)
            if deadline:
                name = self._memory[start : start + LONGEST_ID + 1].partition(b"\0")[0]
                yield deadline, name.decode(errors="replace")
            elif not self._memory[start]:
                return  # none was ever noted from here on

    def close(self) -> None:
        """Give the descriptor back. The page itself stays until nobody uses it: a handler may still return."""
        os.close(self.descriptor)


def _written(ids: list[str]) -> bytes:
    return "\0".join([*ids, ""]).encode()


# The processes.


class Ward:
    """A worker process that is watched over."""

    def __init__(self, pid: int, link: socket.socket, board: Board, role: str, number: int) -> None:
        self.pid = pid
        self.link = link
        self.board = board
        self.role = role  # "worker", "together" or "alone": a disposable process for suspects of this kind
        self.number = number
        self.began = time.monotonic()
        self.hello: dict[str, Any] | None = None
        self.incarnation = 0
        self.worker_id = ""
        self.lease = 10.0
        self.vouched_at = 0.0  # boot time
        self.asked_at = 0.0  # boot time of a question that was not answered yet
        self.answered_at = 0.0
        self.past_deadline: str | None = None  # the job that it is killed for, or that it is not vouched for
        self.killed_by_stop = False
        self.said_goodbye = False
        self._rest = b""

    def ask(self) -> None:
        self.asked_at = boot_time()
        with suppress(OSError):
            self.link.send(b'{"ask": 1}\n')

    def tell(self, line: bytes) -> None:
        with suppress(OSError):
            self.link.send(line)

    def hear(self) -> list[dict[str, Any]] | None:
        """What it has said; None: it has closed its end."""
        try:
            data = self.link.recv(262_144)
        except BlockingIOError:
            return []
        except OSError:
            data = b""
        if not data:
            return None
        *lines, self._rest = (self._rest + data).split(b"\n")
        heard = []
        for line in lines:
            with suppress(ValueError):  # the last words of a process that was killed
                heard.append(json.loads(line))
        return heard

    def silent_for(self) -> float:
        """Seconds since it was asked and did not answer."""
        return boot_time() - self.asked_at if self.asked_at else 0.0

    def state(self) -> str:
        """R, S, D … T means stopped; empty where the system does not tell."""
        try:
            with open(f"/proc/{self.pid}/stat", "rb") as file:  # noqa: PTH123 - as above
                return file.read().rpartition(b")")[2].split()[0].decode()
        except OSError:
            return ""

    def is_stopped(self) -> bool:
        """Whether a signal has stopped it: then it cannot answer, and nothing is asked."""
        if self.state() not in {"T", "t"}:
            return False
        self.asked_at = 0.0
        return True

    def death(self) -> dict[str, Any]:
        """The report about its end."""
        return {
            "do": "bury",
            "incarnation": self.incarnation,
            "worker_id": self.worker_id,
            # A stop that took too long is nobody's fault: as if none had started.
            "started": [] if self.killed_by_stop else self.board.started(),
            "guilty": None if self.killed_by_stop else self.past_deadline,
        }


class DeputyProcess:
    """The process that speaks to the database for the guardian; it exists only while there is something to say."""

    def __init__(
        self,
        register: Callable[[int], None],
        forget: Callable[[int], None],
        failed: Callable[[dict[str, Any]], None],
    ) -> None:
        self.failed = failed  # called with what could not be said
        self._register = register
        self._forget = forget
        self._process: subprocess.Popen[bytes] | None = None
        self._queue: list[tuple[dict[str, Any], dict[str, Any]]] = []  # hello of the worker, and what to do
        self._asked: tuple[dict[str, Any], dict[str, Any]] | None = None
        self._lost = 0  # how many of them ended before they had answered, one after the other
        self._url = ""
        self._used_at = 0.0
        self._rest = b""
        self._unsent = b""  # a pipe holds 64 kB, and a deputy that is only starting reads nothing
        self.always = False  # leases are so short that starting it would take too long

    @property
    def pid(self) -> int:
        return 0 if self._process is None else self._process.pid

    @property
    def busy(self) -> bool:
        return bool(self._queue) or self._asked is not None

    @property
    def is_sending(self) -> bool:
        return bool(self._unsent)

    @property
    def descriptor(self) -> int:
        return -1 if self._process is None or self._process.stdout is None else self._process.stdout.fileno()

    def do(self, hello: dict[str, Any], what: dict[str, Any]) -> None:
        """Say this to the database, after what was given before. A renewal that waits already is not said twice."""
        if what["do"] == "renew" and any(it[1] == what for it in self._queue):
            return
        self._queue.append((hello, what))
        self.go_on()

    def ready(self, hello: dict[str, Any]) -> None:
        """Start before there is something to say."""
        self.always = True
        if self._process is None:
            self._start(hello)

    def go_on(self) -> None:
        if self._asked is not None or not self._queue:
            return
        hello, what = self._queue[0]
        if self._process is not None and hello["url"] != self._url:
            self.end()
        if self._process is None:
            try:
                self._start(hello)
            except OSError:  # no memory or no processes left: at the next look, perhaps
                self._process = None
                return
        self._asked, self._used_at = self._queue.pop(0), time.monotonic()
        self._write(what)

    def hear(self) -> None:
        """The deputy says that it has done what it was asked, or has ended."""
        data = os.read(self.descriptor, 65_536)
        if not data:
            self.end()
            return
        *lines, self._rest = (self._rest + data).split(b"\n")
        if lines:
            if lines[-1] == FAILED and self._asked is not None:
                self.failed(self._asked[1])
            self._asked, self._lost, self._used_at = None, 0, time.monotonic()

    def _write(self, line: dict[str, Any]) -> None:
        self._unsent += json.dumps(line).encode() + b"\n"
        self._send()

    def _send(self) -> None:
        """Send as much as the pipe takes now; the guardian has more to do than to wait."""
        if self._process is None or self._process.stdin is None or not self._unsent:
            return
        try:
            sent = os.write(self._process.stdin.fileno(), self._unsent)
        except BlockingIOError:
            return
        except OSError:  # its end is heard, too
            sent = len(self._unsent)
        self._unsent = self._unsent[sent:]

    def look(self) -> None:
        """Go on; end one that has had nothing to do for a while, or that has not answered for long."""
        self.go_on()
        self._send()
        if self._process is None:
            return
        rest = time.monotonic() - self._used_at
        if (rest > IDLE_DEPUTY and not self.busy and not self.always) or (
            rest > 4 * IDLE_DEPUTY and self._asked is not None
        ):
            self.end()

    def end(self) -> None:
        process, self._process = self._process, None
        asked, self._asked = self._asked, None
        if process is None:
            return
        self._lost += 1
        if asked is not None and asked[1]["do"] == "bury" and self._lost <= TRIES:
            self._queue.insert(0, asked)  # nobody else knows which steps had started
        if process.stdout is not None:
            self._forget(process.stdout.fileno())
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()
        with suppress(OSError):
            process.kill()
        process.returncode = 0  # it is reaped with all others

    def _start(self, hello: dict[str, Any]) -> None:
        program = (
            "import json, sys; first = json.loads(sys.stdin.readline()); sys.path[:] = first['path']; "
            "from stepfast.worker.deputy import serve; serve(first)"
        )
        environment = {name: value for name, value in hello["environment"].items() if name != VARIABLE}
        self._process = subprocess.Popen(  # noqa: S603 - our own interpreter and program
            [sys.executable, "-I", "-S", "-c", program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            start_new_session=True,
        )
        assert self._process.stdin is not None  # noqa: S101 - a pipe
        os.set_blocking(self._process.stdin.fileno(), False)
        self._url, self._rest, self._unsent, self._used_at = hello["url"], b"", b"", time.monotonic()
        first = {name: hello[name] for name in ("path", "url", "crash_limit", "kinds", "log")}
        assert self._process.stdout is not None  # noqa: S101 - a pipe
        self._write(first)
        self._register(self._process.stdout.fileno())


class Restart:
    """When a worker process that ended is started again: at once, and if it dies again and again after 1, 2, 4 … 30 s."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.crashes = 0
        self.at: float | None = None

    def plan(self, code: int, lived: float) -> float:
        """It ended with this code after so many seconds (0: it never worked); returns the seconds until the next one."""
        if lived > LONG_LIFE or code == RECYCLE:
            self.crashes = 0
        else:
            self.crashes = (self.crashes if lived else max(self.crashes, 1)) + 1
        wait = min(30.0, 2.0 ** (self.crashes - 2)) if self.crashes > 1 else 0.0
        self.at = time.monotonic() + wait
        return wait


def additional_processes(waiting: int, waited: int, running: int, most: int) -> int:
    """How many processes to start for suspects that run alone: one is enough while it gets through them.

    Slow steps get one each, a few at a time.
    """
    if not waiting:
        return 0
    if not running:
        return 1
    slow = waiting > waited / 2
    return max(0, min(waiting, most - running, 2)) if slow else 0


class Guardian:
    """Watches over worker processes until all of them have ended."""

    def __init__(self) -> None:
        self._wards: dict[int, Ward] = {}
        self._restarts: dict[int, Restart] = {}
        self._handlers: dict[int, Callable[[], None]] = {}
        self._poll = select.poll()
        self._deputy = DeputyProcess(
            lambda fd: self._register(fd, self._hear_deputy), self._unregister, self._not_said
        )
        self._stopping = 0  # how many times it was asked to
        self._stop_at = 0.0
        self._code = 0
        self._hello: dict[str, Any] | None = None  # of the first worker that got so far: how to start others
        self._parent = True
        self._suspects_at = {"together": 0.0, "alone": 0.0}
        self._suspects_waited = 0
        self._suspects_start = Restart(0)  # of a process for suspects that died before it worked
        self._looked_at = 0.0
        self._metrics: subprocess.Popen[bytes] | None = None
        self._failed = False  # something of the command itself does not work

    def watch_child(self, pid: int, link: int, board: int, *, ends_with_input: bool) -> int:
        """The program of a guardian that is the parent: until its workers have ended. Returns the exit code."""
        self._listen_to_signals()
        if ends_with_input:
            self._register(0, self._input_closed)
        self._restarts[1] = Restart(1)
        self._add(Ward(pid, socket.socket(fileno=link), Board(board), "worker", 1))
        return self._run()

    def watch_parent(self, pid: int, link: int, board: int) -> int:
        """The program of a guardian that is a child: until its parent has ended, or has no more use for it."""
        self._parent = False
        for number in (*STOP_SIGNALS, signal.SIGTSTP):
            signal.signal(number, signal.SIG_IGN)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        ward = Ward(pid, socket.socket(fileno=link), Board(board), "worker", 1)
        ended = exit_descriptor(pid)
        if ended is not None:
            self._register(ended, lambda: self._ended(ward, None))
        self._add(ward)
        while ward.pid in self._wards and not ward.said_goodbye:
            self._wait(LOOK)
            self._reap()
            self._look()
            if os.getppid() != pid:
                self._ended(ward, None)
        return self._leave()

    def _run(self) -> int:
        while True:
            self._wait(self._pause())
            self._reap()
            self._look()
            self._start_again()
            if not self._wards and not any(it.at is not None for it in self._restarts.values()):
                return self._leave()

    def _leave(self) -> int:
        """Let the deputy finish, then go."""
        until = time.monotonic() + LAST_WORDS
        while self._deputy.busy and time.monotonic() < until:
            self._wait(SENDING)
            self._reap()
            self._deputy.look()
        self._deputy.end()
        if self._metrics is not None and self._metrics.stdin is not None:
            with suppress(OSError):
                self._metrics.stdin.close()
        return self._code or int(self._failed)

    # Waiting for something to happen.

    def _register(self, descriptor: int, handler: Callable[[], None]) -> None:
        self._handlers[descriptor] = handler
        self._poll.register(descriptor, select.POLLIN)

    def _unregister(self, descriptor: int) -> None:
        if self._handlers.pop(descriptor, None) is not None:
            self._poll.unregister(descriptor)

    def _wait(self, seconds: float) -> None:
        for descriptor, _ in self._poll.poll(max(0.0, seconds) * 1000):
            handler = self._handlers.get(descriptor)
            if handler is not None:
                handler()

    def _pause(self) -> float:
        """Seconds until the next look."""
        now = time.monotonic()
        waits = [LOOK]
        waits += [it.at - now for it in self._restarts.values() if it.at is not None]
        if any(ward.asked_at for ward in self._wards.values()):
            waits.append(ANSWER / 2)
        if self._deputy.is_sending:
            waits.append(SENDING)
        for ward in self._wards.values():
            if ward.incarnation:
                late = max(ward.board.last_renewal(), ward.vouched_at) + LATE * ward.lease - boot_time()
                waits.append(max(late, ANSWER / 2))
        return max(0.0, min(waits))

    # Signals.

    def _listen_to_signals(self) -> None:
        receiver, sender = socket.socketpair()
        os.set_blocking(receiver.fileno(), False)
        os.set_blocking(sender.fileno(), False)
        self._wakeup = sender  # kept alive
        signal.set_wakeup_fd(
            sender.fileno(), warn_on_full_buffer=False
        )  # first: a signal before it would be lost
        heeded = [*STOP_SIGNALS, *PASSED_ON, signal.SIGCHLD, signal.SIGCONT]
        if (
            os.getpid() != 1
        ):  # the first process of a container cannot be stopped, and could not continue the others
            heeded.append(signal.SIGTSTP)
        for number in heeded:
            ignored = (
                signal.getsignal(number) is signal.SIG_IGN
            )  # by nohup, or by a shell that started us in the background
            if number == signal.SIGCHLD or not ignored:
                signal.signal(number, lambda *_: None)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)  # blocked while this program was started

        def heard() -> None:
            with suppress(BlockingIOError):
                for number in receiver.recv(64):
                    self._heard(number)

        self._register(receiver.fileno(), heard)

    def _heard(self, number: int) -> None:
        if number == signal.SIGHUP and self._stopping:
            return  # a closed terminal is said twice, by the shell and by the system: that ends no grace
        if number in STOP_SIGNALS:
            self._stopping += 1
            self._stop_at = self._stop_at or time.monotonic()
            for restart in self._restarts.values():
                restart.at = None
            self._signal_all(signal.SIGTERM)
        elif number in PASSED_ON:
            self._signal_all(number)
        elif number == signal.SIGTSTP:  # Ctrl-Z stops all of us
            self._signal_all(signal.SIGSTOP)
            os.kill(os.getpid(), signal.SIGSTOP)
        elif number == signal.SIGCONT:
            self._signal_all(signal.SIGCONT)

    def _signal_all(self, number: int) -> None:
        for ward in self._wards.values():
            if (
                number not in PASSED_ON or ward.hello is not None
            ):  # a worker that is only starting would die of those
                self._signal(ward.pid, number)

    def _input_closed(self) -> None:
        """The process that started us is gone, however it went: so are we, at once."""
        if not os.read(0, 4096):
            self._unregister(0)
            self._heard(signal.SIGTERM)
            self._heard(signal.SIGTERM)

    @staticmethod
    def _signal(pid: int, number: int) -> None:
        with suppress(OSError):
            os.kill(pid, number)

    # The ends of processes.

    def _reap(self) -> None:
        """See which children have ended. As the first process of a container we reap those of others, too."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            code = os.waitstatus_to_exitcode(status)
            if pid == self._deputy.pid:
                self._deputy.end()
                self._deputy.go_on()
            elif self._metrics is not None and pid == self._metrics.pid:
                self._metrics = None
                if code and not self._stopping:  # it has said why
                    self._heard(signal.SIGTERM)
                    self._failed = True
            elif (ward := self._wards.get(pid)) is not None:
                self._ended(ward, code)

    def _ended(self, ward: Ward, code: int | None) -> None:
        """A worker process is gone; `code` is None if it was not our child."""
        if self._wards.pop(ward.pid, None) is None:
            return
        self._hear(ward)  # its last words
        self._unregister(ward.link.fileno())
        in_order = ward.said_goodbye and not code
        if ward.incarnation and ward.hello is not None and not in_order:
            self._deputy.do(ward.hello, ward.death())
        if ward.role == "worker" and code is not None:
            self._plan_restart(ward, code)
        elif code and ward.hello is None:
            self._suspects_start.plan(code, 0.0)
        ward.link.close()
        ward.board.close()

    def _plan_restart(self, ward: Ward, code: int) -> None:
        self._code = 1 if code == UNUSABLE else 128 - code if code < 0 else code
        if self._hello is None:  # none ever worked: whatever is wrong, starting it again will not mend it
            for other in self._wards.values():
                self._signal(other.pid, signal.SIGTERM)
            return
        if not self._may_start_again(ward, code):
            return
        wait = self._restarts[ward.number].plan(code, time.monotonic() - ward.began)
        facts = {"number": ward.number, "code": code, "restart_in_s": wait}
        self._forward({"child": ward.number, "ended": code, "restart_in_s": wait})
        if code != RECYCLE:
            self._deputy.do(self._hello, {"do": "tell", "facts": facts})

    def _may_start_again(self, ward: Ward, code: int) -> bool:
        if self._stopping or code == UNUSABLE:
            return False
        if code == 0 and ward.said_goodbye:  # it had done what it was asked to do
            return False
        return code == RECYCLE or bool((ward.hello or self._hello or {}).get("restart"))

    def _start_again(self) -> None:
        now = time.monotonic()
        for restart in self._restarts.values():
            if restart.at is not None and now >= restart.at and self._hello is not None:
                restart.at = None
                self._start(self._hello["again"], "worker", restart.number)

    def _start(self, command: list[str], role: str, number: int) -> None:
        interactive = bool(self._hello and self._hello.get("interactive"))
        try:
            ours, theirs = socket.socketpair()
            board = new_board()
        except OSError:  # no descriptors left: later, perhaps
            if role == "worker":
                self._restarts[number].plan(1, 0.0)
            return
        try:
            process = subprocess.Popen(  # noqa: S603 - our own program, as the first worker was started
                [*command[:-1], command[-1].replace(NUMBER, str(number))],
                stdin=None if interactive else subprocess.DEVNULL,
                env={**self._environment(), VARIABLE: f"{theirs.fileno()},{board}"},
                pass_fds=(theirs.fileno(), board),
                start_new_session=not interactive,
            )
        except OSError:  # no memory or no processes left: later, perhaps
            ours.close()
            os.close(board)
            if role == "worker":
                self._restarts[number].plan(1, 0.0)
            return
        finally:
            theirs.close()
        process.returncode = 0  # we reap it ourselves
        self._add(Ward(process.pid, ours, Board(board), role, number))

    def _environment(self) -> dict[str, str]:
        """That of the first worker, which the options of the command may have changed."""
        return dict(os.environ) if self._hello is None else dict(self._hello["environment"])

    def _add(self, ward: Ward) -> None:
        os.set_blocking(ward.link.fileno(), False)
        self._wards[ward.pid] = ward
        self._register(ward.link.fileno(), lambda: self._hear(ward))

    # What workers say.

    def _hear(self, ward: Ward) -> None:
        said = ward.hear()
        if said is None:  # its end is seen otherwise
            self._unregister(ward.link.fileno())
            return
        for message in said:
            self._heed(ward, message)

    def _heed(self, ward: Ward, message: dict[str, Any]) -> None:
        if "answer" in message:
            ward.asked_at, ward.answered_at = 0.0, boot_time()
            if not self._parent:
                ward.past_deadline = None  # it came back
        elif "hello" in message:
            self._welcome(ward, message["hello"])
        elif "incarnation" in message:
            ward.incarnation, ward.lease = message["incarnation"], message["lease"]
            ward.worker_id = message["worker_id"]
            if ward.lease < READY_BELOW and ward.hello is not None:
                self._deputy.ready(ward.hello)
        elif "suspects" in message:
            self._start_for_suspects(*message["suspects"])
        elif "metrics" in message:
            self._forward({"child": ward.number, **message})
        elif "bye" in message:
            ward.said_goodbye = True

    def _welcome(self, ward: Ward, hello: dict[str, Any]) -> None:
        ward.hello = hello
        if ward.role != "worker":
            self._suspects_start = Restart(0)
        if self._hello is not None or not self._parent:
            return
        self._hello = hello
        if hello.get("metrics_command"):
            self._serve_metrics(hello)
        for number in range(2, hello["processes"] + 1):
            self._restarts[number] = Restart(number)
            if not self._stopping:
                self._start(hello["again"], "worker", number)

    # Metrics of several processes are added up, and served, by one more.

    def _serve_metrics(self, hello: dict[str, Any]) -> None:
        self._metrics = subprocess.Popen(  # noqa: S603 - our own program
            hello["metrics_command"], stdin=subprocess.PIPE, env=self._environment(), start_new_session=True
        )
        self._metrics.returncode = 0  # reaped with all others
        if self._metrics.stdin is not None:
            os.set_blocking(self._metrics.stdin.fileno(), False)
        self._forward({"url": hello["url"], "processes": hello["processes"]})

    def _forward(self, message: dict[str, Any]) -> None:
        line = json.dumps(message).encode() + b"\n"
        if self._metrics is not None and self._metrics.stdin is not None:
            with suppress(OSError, ValueError):  # one that hangs misses a few lines, and holds nobody up
                os.write(self._metrics.stdin.fileno(), line)
        else:
            first = next((it for it in self._wards.values() if it.role == "worker"), None)
            if first is not None and first.number != message.get("child"):
                first.tell(line)

    # Suspects.

    def _start_for_suspects(self, together: int, alone: int) -> None:
        """See to it that suspects are run: one process for all that may run together, and some for the others."""
        if self._stopping or self._hello is None or not self._hello.get("suspects"):
            return
        now = time.monotonic()
        if self._suspects_start.at is not None and now < self._suspects_start.at:
            return
        running = {
            role: sum(it.role == role for it in self._wards.values()) for role in ("together", "alone")
        }
        if together and not running["together"]:
            self._begin_suspects("together", now)
        patience = self._hello["patience"]
        if running["alone"] and now - self._suspects_at["alone"] < patience:
            return
        more = additional_processes(alone, self._suspects_waited, running["alone"], self._hello["most_alone"])
        self._suspects_waited = alone
        for _ in range(more):
            self._begin_suspects("alone", now)

    def _begin_suspects(self, role: str, now: float) -> None:
        assert self._hello is not None  # noqa: S101 - asked before
        self._suspects_at[role] = now
        self._start(self._hello["suspects"][role], role, 0)

    # The three cases.

    def _look(self) -> None:
        now = time.monotonic()
        at_deadlines = now - self._looked_at >= LOOK
        if at_deadlines:
            self._looked_at = now
        for ward in list(self._wards.values()):
            if ward.hello is None or not ward.incarnation:
                continue
            if 0 < ward.asked_at < ward.board.last_renewal():
                ward.asked_at = 0.0  # a renewal is an answer, too
            self._vouch(ward)
            if at_deadlines or ward.asked_at:
                self._enforce(ward, now)
        self._deputy.look()

    def _vouch(self, ward: Ward) -> None:
        """Renew the row of a worker whose interpreter does not answer."""
        if ward.past_deadline is not None:
            return
        now = boot_time()
        if now - max(ward.board.last_renewal(), ward.vouched_at) < LATE * ward.lease:
            return
        if ward.is_stopped():  # its lease runs out
            return
        if ward.silent_for() >= ANSWER:
            assert ward.hello is not None  # noqa: S101 - asked before
            ward.vouched_at = now  # again when this renewal is late, too
            renewal = {"do": "renew", "incarnation": ward.incarnation, "lease": ward.lease}
            self._deputy.do(ward.hello, renewal)
        elif not ward.asked_at and now - ward.answered_at >= ASK_AGAIN:
            ward.ask()

    def _enforce(self, ward: Ward, now: float) -> None:
        """Kill a worker that is past a deadline, and whose interpreter does not answer."""
        latest = now - UNWIND - MARGIN
        late = next((job for deadline, job in ward.board.deadlines() if deadline < latest), None)
        assert ward.hello is not None  # noqa: S101 - asked before
        leaving = self._stopping and (
            self._stopping > 1 or now - self._stop_at > ward.hello["grace"] + LEAVING
        )
        # Longer than any step may take. Its deadline was not noted, so none is named.
        longest = ward.hello.get("longest_timeout")
        too_long = longest is not None and ward.silent_for() > longest + UNWIND + MARGIN
        if (late is None and not leaving and not too_long) or ward.is_stopped():
            return
        if ward.silent_for() >= SILENT:
            ward.past_deadline = late
            if self._parent:  # else it is somebody's program: its lease runs out, and others take its jobs
                ward.killed_by_stop = late is None and bool(leaving)
                self._signal(ward.pid, signal.SIGKILL)
        elif not ward.asked_at and boot_time() - ward.answered_at >= ASK_AGAIN:
            ward.ask()

    def _not_said(self, what: dict[str, Any]) -> None:
        """A renewal that failed is tried again at the next look."""
        for ward in self._wards.values():
            if what["do"] == "renew" and ward.incarnation == what["incarnation"]:
                ward.vouched_at = 0.0

    def _hear_deputy(self) -> None:
        self._deputy.hear()
        self._deputy.go_on()


def exit_descriptor(pid: int) -> int | None:
    """A descriptor that is readable once this process has ended; None where the system has none."""
    with suppress(AttributeError, OSError):
        return os.pidfd_open(pid)
    if sys.platform == "darwin":
        queue = select.kqueue()
        ends = select.kevent(pid, select.KQ_FILTER_PROC, select.KQ_EV_ADD, select.KQ_NOTE_EXIT)
        with suppress(OSError):
            queue.control([ends], 0)
            return os.dup(queue.fileno())
    return None


def main() -> int:
    """Watch over a process; the one argument says which, as JSON."""
    asked = json.loads(sys.argv[1])
    guardian = Guardian()
    ward = asked["pid"], asked["link"], asked["board"]
    if asked["parent"]:
        return guardian.watch_child(*ward, ends_with_input=asked["ends_with_input"])
    return guardian.watch_parent(*ward)


if __name__ == "__main__":
    sys.exit(main())
