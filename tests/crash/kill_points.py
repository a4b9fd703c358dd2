"""Where a process can die: before and after every statement that it really executes.

An operation is run once to record its points. Then it is run in a forked child that kills itself, or stops,
at one of them. Forking a loaded parent takes milliseconds, where a new interpreter would take half a second.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NoReturn

from stepfast.database import wakeup
from stepfast.database.connection import Connection, Watch
from tests.support import rows

if TYPE_CHECKING:
    from stepfast import Stepfast

Act = Callable[[], object]

# The sessions of a server. One is gone when what it had begun is rolled back.
SESSIONS = {
    "postgresql": "SELECT pid AS id FROM pg_stat_activity WHERE datname = current_database()"
    " AND backend_type = 'client backend' AND pid <> pg_backend_pid()",
    "mariadb": "SELECT id FROM information_schema.processlist WHERE id <> connection_id()",
}

FAILED = 97  # exit code of a child whose operation raised
ASTRAY = 98  # ... that executed something else than was recorded
UNHARMED = 99  # ... that came to its end


@dataclass(frozen=True)
class Point:
    """One place where a process can die."""

    number: int
    phase: str  # "before" or "after" the statement
    text: str
    commits: int  # how many COMMITs have returned by then

    def __str__(self) -> str:
        return f"point {self.number}, {self.phase} {' '.join(self.text.split())[:60]!r}"


@dataclass
class Recorder:
    """Notes each point that is passed; `committed` is called whenever a COMMIT has returned."""

    committed: Act
    points: list[Point] = field(default_factory=list)
    _commits: int = 0
    _looking: bool = False

    def __call__(self, phase: str, text: str) -> None:
        if self._looking:
            return  # a statement of `committed` itself
        done = phase == "after" and text == "COMMIT"
        self._commits += done
        self.points.append(Point(len(self.points), phase, text, self._commits))
        if done:
            self._looking = True
            self.committed()
            self._looking = False


@dataclass
class Ambush:
    """Sends this process a signal at one point."""

    point: Point
    signal: signal.Signals
    passed: int = 0

    def __call__(self, phase: str, text: str) -> None:
        if self.passed == self.point.number:
            if (phase, text) != (self.point.phase, self.point.text):
                os.write(2, f"{phase} {text!r} instead of {self.point}\n".encode())
                os._exit(ASTRAY)
            os.kill(os.getpid(), self.signal)
        self.passed += 1


@contextmanager
def watched(watch: Watch) -> Iterator[None]:
    """Let `watch` see every statement of this process."""
    pause = wakeup.PAUSE
    vars(wakeup)["PAUSE"] = (
        0.0  # a NOTIFY is left out if the last one was sent a moment ago: the points would differ
    )
    Connection.watch = watch
    try:
        yield
    finally:
        Connection.watch = None
        vars(wakeup)["PAUSE"] = pause


def recorded(act: Act, committed: Act) -> list[Point]:
    """The points that `act` passes."""
    recorder = Recorder(committed)
    with watched(recorder):
        act()
    return recorder.points


def deadly(points: Sequence[Point]) -> list[Point]:
    """Between two statements only one death is to be died; after a COMMIT it is another one than before it."""
    last = points[-1].number
    return [it for it in points if it.phase == "before" or it.text == "COMMIT" or it.number == last]


class Child:
    """A forked copy of this process that does one thing, under watch."""

    def __init__(self, act: Act, watch: Watch) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore", DeprecationWarning
            )  # threads of ours that the child does not need
            self.pid = os.fork()
        if not self.pid:
            _live(act, watch)
        self._status: int | None = None

    def signal(self, what: signal.Signals) -> None:
        os.kill(self.pid, what)

    def stopped(self, patience: float = 20.0) -> None:
        """Return when it has been stopped by a signal."""
        status = self._wait(os.WUNTRACED, patience)
        assert os.WIFSTOPPED(status), f"it did not stop: {_told(os.waitstatus_to_exitcode(status))}"

    def ended(self, patience: float = 20.0) -> int:
        """How it ended, as `subprocess` says it: the exit code, or minus the signal."""
        if self._status is None:
            self._status = self._wait(0, patience)
        return os.waitstatus_to_exitcode(self._status)

    def _wait(self, options: int, patience: float) -> int:
        deadline = time.monotonic() + patience
        while True:
            pid, status = os.waitpid(self.pid, os.WNOHANG | options)
            if pid:
                return status
            if time.monotonic() > deadline:
                os.kill(self.pid, signal.SIGKILL)
                os.waitpid(self.pid, 0)
                raise AssertionError(f"the child did not come to its point within {patience} s")
            time.sleep(0.001)


def die_at(point: Point, act: Act, app: Stepfast | None = None) -> None:
    """Let a child begin `act` and be killed at `point`.

    A server notices a moment later, and until then the living pass over what the dead had locked: with `app` that is
    waited for.
    """
    before = set() if app is None else sessions(app)
    code = Child(act, Ambush(point, signal.SIGKILL)).ended()
    assert code == -signal.SIGKILL, f"{point}: {_told(code)}"
    if app is not None:
        rows.eventually(lambda: sessions(app) <= before)


def sessions(app: Stepfast) -> set[int]:
    """Everybody else's; SQLite has none, its locks end with their process."""
    text = SESSIONS.get(app.database.dialect.name)
    return {it["id"] for it in rows.query(app, text)} if text else set()


def _live(act: Act, watch: Watch) -> NoReturn:
    """The child's whole life; nothing of the test's own may run after it."""
    gc.disable()  # no finaliser may say goodbye on the parent's connections
    try:
        with watched(watch):
            act()
    except BaseException:  # noqa: BLE001 - the parent's stack goes on above us
        traceback.print_exc(file=sys.__stderr__)
        os._exit(FAILED)
    os._exit(UNHARMED)


def _told(code: int) -> str:
    known = {FAILED: "its operation raised", ASTRAY: "it went astray", UNHARMED: "it passed no such point"}
    return known.get(code, f"exit code {code}")
