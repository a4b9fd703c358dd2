"""Let a process die at a chosen point, and see what is left.

`crash_at` does it inside this process, as far as the database can tell: while the block lasts the application works
on connections that go dead at the point, so nothing after it is written, and what was open is rolled back. Then the
worker's row says that its process is gone, and the next drain takes its work back. `kill_worker` does it for real:
a child of this process is killed with SIGKILL at the point.
"""

from __future__ import annotations

import gc
import os
import re
import signal
import sys
import threading
import time
import traceback
import warnings
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NoReturn

from stepfast.database.database import Database
from stepfast.database.statement import sql
from stepfast.errors import ConfigurationError, UnreachableError
from stepfast.jobs.rescue import this_process
from stepfast.testing.draining import drain
from stepfast.testing.watching import WatchedKinds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from stepfast.app import Stepfast
    from stepfast.database.connection import Connection
    from stepfast.jobs.step import Step


# Where a process can die, as words, and the trap that is set there.
#
# A trap sees every statement of one database, and every handler and effect of one application. When the point comes, it
# springs: from then on no statement gets through, so that for the database this process is dead.

POINTS: Final = (
    "before claim",
    "after claim",
    "before handler",
    "after handler",
    "before effects",
    "after effects",
    "before commit",
    "after commit",
)
PLACES: Final = frozenset(point.partition(" ")[2] for point in POINTS)

_CLAIM: Final = re.compile(r"UPDATE stepfast_job\s+SET state = 'leased'")
# What ends a step, enqueues a job, or is none of our tables: whose commit a user means. Heartbeats are not.
_WORK: Final = re.compile(r"committed_fence = |INSERT INTO stepfast_(archive|job)\b", re.IGNORECASE)
_WRITES: Final = re.compile(r"\s*(INSERT|UPDATE|DELETE|REPLACE|MERGE)\b", re.IGNORECASE)
_BEGINS: Final = re.compile(r"\s*(BEGIN|START TRANSACTION)\b", re.IGNORECASE)
_USERS_THREADS: Final = ("stepfast-handler", "stepfast-loop")


class Crashed(BaseException):
    """This process has died here. No error to be handled: `crash_at` catches it, and nobody else should."""


@dataclass(frozen=True)
class Point:
    """A place, before or after it: one of `POINTS`, or words of a statement."""

    phase: str
    place: str

    @staticmethod
    def read(text: str) -> Point:
        phase, _, place = text.strip().partition(" ")
        if phase not in {"before", "after"} or not place.strip():
            raise ConfigurationError(
                f"crash point {text!r}: write 'before' or 'after' and one of {', '.join(sorted(PLACES))}, "
                "or words of a statement, such as 'after INSERT INTO invoice'"
            )
        return Point(phase, place.strip() if place.strip() in PLACES else _plain(place))

    def __str__(self) -> str:
        return f"{self.phase} {self.place}"


@dataclass
class Trap:
    """Springs at the `nth` time that `point` is passed. It is a `Watcher`, and makes watches for connections."""

    point: Point
    nth: int
    spring: Callable[[], None]  # called once, there; what it does not do, a dead database does
    sprung: bool = False
    passed: Counter[str] = field(default_factory=Counter)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def on(self, connection: Connection) -> None:
        """See every statement of this connection."""
        doing: set[str] = set()  # what its transaction has done so far

        def watch(phase: str, text: str) -> None:
            self._refuse(connection)
            if phase == "before":
                _note(doing, text)
            for place in _places(doing, text):
                self._pass(phase, place, connection)
            if self.point.place not in PLACES and self.point.place in _plain(text):
                self._pass(phase, self.point.place, connection)

        connection.watch = watch

    def begins(self, _: Step, /) -> bool:
        self._pass("before", "handler")
        return True

    def raises(self, step: Step, error: BaseException, /) -> None:
        pass

    def answers(self, _: Step, __: Any, /) -> None:
        self._pass("after", "handler")

    def applies(self, _: Step, /) -> None:
        self._pass("before", "effects")

    def refuses(self, step: Step, error: BaseException, /) -> None:
        pass

    def applied(self, _: Step, /) -> None:
        self._pass("after", "effects")

    def _pass(self, phase: str, place: str, connection: Connection | None = None) -> None:
        with self._lock:
            self.passed[f"{phase} {place}"] += 1
            here = self.point == Point(phase, place) and self.passed[str(self.point)] == self.nth
            self.sprung = self.sprung or here
        if here:
            self.spring()
        self._refuse(connection)

    def _refuse(self, connection: Connection | None) -> None:
        """Let nothing through any more. Engine threads are told what they can handle; users' code just ends."""
        if not self.sprung:
            return
        if connection is not None:
            connection.broken = True  # closed without a COMMIT by whoever has it
        name = threading.current_thread().name
        if name.startswith("stepfast-") and not name.startswith(_USERS_THREADS):
            raise UnreachableError(f"this process has died {self.point}, says a test")
        raise Crashed(f"this process has died {self.point}")


def _note(doing: set[str], text: str) -> None:
    if _BEGINS.match(text):
        doing.clear()
    if _CLAIM.search(text):
        doing.add("claim")
    users = _WRITES.match(text) and "stepfast_" not in text
    if users or (_WORK.search(text) and "'held'" not in text):  # a job that a limit holds has done nothing
        doing.add("work")


def _places(doing: set[str], text: str) -> list[str]:
    """Which places this statement is. A claim is done when it is committed."""
    if text == "COMMIT":
        return [place for place, done in (("claim", "claim"), ("commit", "work")) if done in doing]
    return []


def _plain(text: str) -> str:
    return " ".join(text.split()).casefold()


FAILED: Final = 97  # exit code of a child in which something else went wrong
UNHARMED: Final = 99  # ... that never came to the point
PATIENCE: Final = 60.0  # seconds that a child may live

ALIVE = sql("SELECT incarnation FROM stepfast_worker WHERE process = :process AND state = 'alive'")

# A machine knows which of its processes are gone. What runs elsewhere is believed until its lease has run out.
GONE = sql("""
    UPDATE stepfast_worker
       SET process = :process, alive_until = CASE WHEN :known = 1 THEN 0 ELSE alive_until END
     WHERE incarnation = :incarnation AND state = 'alive'
""")


@dataclass
class Crash:
    """What became of it."""

    happened: bool = False


@contextmanager
def crash_at(
    app: Stepfast, point: str, *, nth: int = 1, machine_lost: bool = False, required: bool = True
) -> Iterator[Crash]:
    """Die at `point` inside this block, which then ends there: one of `POINTS`, or 'before' / 'after' words of a statement.

    `nth`: not the first time it is passed, but the second, … `machine_lost`: nobody can see that the process is
    gone, so its lease has to run out first. `required`: fail if the point is never passed.
    """
    trap = Trap(Point.read(point), nth, lambda: None)
    crash = Crash()
    living = _living(app)
    database, kinds = app.database, app.kinds
    doomed = _doomed(database, trap)
    app.use(doomed)
    app.kinds = WatchedKinds(kinds, trap)
    try:
        yield crash
    except Crashed:
        pass
    finally:
        crash.happened, trap.sprung = trap.sprung, True  # whatever still runs of it writes nothing any more
        app.close()
        app.use(database)
        app.kinds = kinds
        database.shift_clock(doomed.shift)
        _bury(app, _living(app) - living, machine_lost=machine_lost)
    if required and not crash.happened:
        raise AssertionError(_never(trap))


def kill_worker(app: Stepfast, point: str, *, nth: int = 1, **options: Any) -> None:
    """Drain in a child process that is killed with SIGKILL at `point`; options are those of `drain`.

    The child is forked: it has everything that this process has, except its threads.
    """
    if not hasattr(os, "fork"):
        raise ConfigurationError("kill_worker: this system cannot fork; use crash_at")
    trap = Trap(Point.read(point), nth, lambda: os.kill(os.getpid(), signal.SIGKILL))
    app.database.close()  # SQLite's locks belong to a process: the child must not inherit open files
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", DeprecationWarning
        )  # about threads of ours that the child does not need
        pid = os.fork()
    if not pid:
        _live(app, trap, lambda: drain(app, **options))
    code = _ended(pid)
    if code != -signal.SIGKILL:
        told = {UNHARMED: "it never came there", FAILED: "its own error is printed above"}
        raise AssertionError(
            f"the child was not killed {trap.point}: {told.get(code, f'its exit code is {code}')}"
        )


def _doomed(database: Database, trap: Trap) -> Database:
    """The same database, over connections of its own that the trap watches."""

    def connect() -> Connection:
        connection = database.connect()
        trap.on(connection)
        return connection

    doomed = Database(database.url, database.dialect, connect, wakes=database.wakes)
    doomed.shift_clock(database.shift)
    return doomed


def _living(app: Stepfast) -> set[int]:
    with app.reading() as tx:
        return {int(row[0]) for row in tx.rows(ALIVE, process=this_process())}


def _bury(app: Stepfast, incarnations: set[int], *, machine_lost: bool) -> None:
    """Let the rows of these workers be those of a process that is gone."""
    mine, _, _ = this_process().rpartition("/")
    process = "another machine/1/1" if machine_lost else f"{mine}/gone"
    for incarnation in incarnations:
        with app.transaction() as tx:
            tx.run(GONE, incarnation=incarnation, process=process, known=int(not machine_lost))


def _never(trap: Trap) -> str:
    passed = ", ".join(f"{point} ({count} times)" for point, count in trap.passed.items()) or "nothing"
    return f"nothing died: {trap.point} was not passed {trap.nth} times; passed were: {passed}"


def _live(app: Stepfast, trap: Trap, act: Callable[[], object]) -> NoReturn:
    """The child's whole life; nothing of the test's own may run after it."""
    gc.disable()  # no finaliser may say goodbye on the parent's connections
    try:
        app.use(_doomed(app.database, trap))
        app.kinds = WatchedKinds(app.kinds, trap)
        act()
    except BaseException:  # noqa: BLE001 - the parent's stack goes on above us
        traceback.print_exc(file=sys.__stderr__)
        os._exit(FAILED)
    os._exit(UNHARMED)


def _ended(pid: int) -> int:
    """How the child ended, as `subprocess` says it: the exit code, or minus the signal."""
    deadline = time.monotonic() + PATIENCE
    while True:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > deadline:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            raise AssertionError(f"the child did not come to the point within {PATIENCE:g} s")
        time.sleep(0.002)
