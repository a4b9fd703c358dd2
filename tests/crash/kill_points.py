"""Where a process can die: before and after every statement that it really executes.

A call is made once to record its points. Then it is made in a forked child that kills itself, or stops, at one of them.
Forking a loaded parent takes milliseconds, where a new interpreter would take half a second.
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

Action = Callable[[], object]

# The sessions of a server. One is gone when what it had begun is rolled back.
SESSIONS = {
    "postgresql": "SELECT pid AS id FROM pg_stat_activity WHERE datname = current_database()"
    " AND backend_type = 'client backend' AND pid <> pg_backend_pid()",
    "mariadb": "SELECT id FROM information_schema.processlist WHERE id <> connection_id()",
}

FAILED = 97  # exit code of a child whose call raised
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
    """Note each point that is passed; call `committed` whenever a COMMIT has returned."""

    committed: Action
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
class KillAt:
    """Send this process a signal at one point."""

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


def recorded(act: Action, committed: Action) -> list[Point]:
    """The points that `act` passes."""
    recorder = Recorder(committed)
    with watched(recorder):
        act()
    return recorder.points


def kill_points(points: Sequence[Point]) -> list[Point]:
    """The points at which dying makes a difference: before each statement, after each COMMIT, and at the end."""
    last = points[-1].number
    return [it for it in points if it.phase == "before" or it.text == "COMMIT" or it.number == last]


class Child:
    """A forked copy of this process that makes one call; `watch` sees its statements."""

    def __init__(self, act: Action, watch: Watch) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore", DeprecationWarning
            )  # threads of ours that the child does not need
            self.pid = os.fork()
        if not self.pid:
            _run_child(act, watch)
        self._status: int | None = None

    def signal(self, what: signal.Signals) -> None:
        os.kill(self.pid, what)

    def stopped(self, patience: float = 20.0) -> None:
        """Wait until a signal has stopped the child."""
        status = self._wait(os.WUNTRACED, patience)
        assert os.WIFSTOPPED(status), f"it did not stop: {_describe(os.waitstatus_to_exitcode(status))}"

    def ended(self, patience: float = 20.0) -> int:
        """Wait for the child's end; returns the exit code, or minus the signal, as `subprocess` does."""
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


def die_at(point: Point, act: Action, app: Stepfast | None = None) -> None:
    """Let a child begin `act` and be killed at `point`.

    A server notices a moment later, and until then others skip the rows that the dead session had locked: with `app` this
    waits until its session is gone.
    """
    before = set() if app is None else sessions(app)
    code = Child(act, KillAt(point, signal.SIGKILL)).ended()
    assert code == -signal.SIGKILL, f"{point}: {_describe(code)}"
    if app is not None:
        rows.eventually(lambda: sessions(app) <= before)


def sessions(app: Stepfast) -> set[int]:
    """Ids of the other sessions of this database; SQLite has none, its locks end with their process."""
    text = SESSIONS.get(app.database.dialect.name)
    return {it["id"] for it in rows.query(app, text)} if text else set()


def _run_child(act: Action, watch: Watch) -> NoReturn:
    """Make the call in the child, and leave: nothing of the test may run after it."""
    gc.disable()  # no finaliser may close the parent's connections
    try:
        with watched(watch):
            act()
    except BaseException:  # noqa: BLE001 - the parent's stack goes on above us
        traceback.print_exc(file=sys.__stderr__)
        os._exit(FAILED)
    os._exit(UNHARMED)


def _describe(code: int) -> str:
    known = {
        FAILED: "its call raised",
        ASTRAY: "it executed another statement than was recorded",
        UNHARMED: "it passed no such point",
    }
    return known.get(code, f"exit code {code}")
