"""Let a process die at a chosen point, and see what it leaves.

`crash_at` does it inside this process, as far as the database can tell: while the block lasts the application works
on connections that fail from the point on, so that nothing later is written and open transactions are rolled back. Then
the worker's row says that its process is gone, and the next drain rescues its jobs. `kill_worker` does it for real:
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
from stepfast.process_identity import this_process
from stepfast.testing.draining import drain
from stepfast.testing.watcher import WatchedKinds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from stepfast.app import Stepfast
    from stepfast.database.connection import Connection
    from stepfast.jobs.step import Step


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

FAILED: Final = 97  # exit code of a child in which something else went wrong
UNHARMED: Final = 99  # ... that never came to the point
PATIENCE: Final = 60.0  # seconds that a child may live

WORKERS_OF_PROCESS = sql(
    "SELECT incarnation FROM stepfast_worker WHERE process = :process AND state = 'alive'"
)

# A machine knows which of its processes are gone. A worker of another machine is alive until its lease has run out.
MARK_WORKER_GONE = sql("""
    UPDATE stepfast_worker
       SET process = :process, alive_until = CASE WHEN :known = 1 THEN 0 ELSE alive_until END
     WHERE incarnation = :incarnation AND state = 'alive'
""")


class Crashed(BaseException):
    """Raised where the process dies. Only `crash_at` should catch it."""


@dataclass
class Crash:
    """Whether the crash happened."""

    happened: bool = False


@contextmanager
def crash_at(
    app: Stepfast, point: str, *, nth: int = 1, machine_lost: bool = False, required: bool = True
) -> Iterator[Crash]:
    """Die at `point` inside this block, which ends there: one of `POINTS`, or 'before' / 'after' words of a statement.

    `nth`: die when the point is passed for the n-th time. `machine_lost`: no other process can see that this one is gone,
    so its lease has to run out first. `required`: fail if the point is never passed.
    """
    trigger = CrashTrigger(CrashPoint.read(point), nth, lambda: None)
    crash = Crash()
    alive_before = _alive_workers(app)
    database, kinds = app.database, app.kinds
    watched = _watched_database(database, trigger)
    app.use(watched)
    app.kinds = WatchedKinds(kinds, trigger)
    try:
        yield crash
    except Crashed:
        pass
    finally:
        crash.happened, trigger.fired = (
            trigger.fired,
            True,
        )  # threads that still run write nothing any more
        app.close()
        app.use(database)
        app.kinds = kinds
        database.shift_clock(watched.shift)
        _mark_gone(app, _alive_workers(app) - alive_before, machine_lost=machine_lost)
    if required and not crash.happened:
        raise AssertionError(_not_passed(trigger))


def kill_worker(app: Stepfast, point: str, *, nth: int = 1, **options: Any) -> None:
    """Drain in a child process that is killed with SIGKILL at `point`; options are those of `drain`.

    The child is forked: it has everything that this process has, except its threads.
    """
    if not hasattr(os, "fork"):
        raise ConfigurationError("kill_worker: this system cannot fork; use crash_at")
    trigger = CrashTrigger(CrashPoint.read(point), nth, lambda: os.kill(os.getpid(), signal.SIGKILL))
    app.database.close()  # SQLite's locks belong to a process: the child must not inherit open files
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", DeprecationWarning
        )  # about threads of ours that the child does not need
        pid = os.fork()
    if not pid:
        _run_child(app, trigger, lambda: drain(app, **options))
    code = _wait_for_child(pid)
    if code != -signal.SIGKILL:
        told = {UNHARMED: "it never came there", FAILED: "its own error is printed above"}
        raise AssertionError(
            f"the child was not killed {trigger.point}: {told.get(code, f'its exit code is {code}')}"
        )


def _watched_database(database: Database, trigger: CrashTrigger) -> Database:
    """The same database, over connections of its own that the trigger watches."""

    def connect() -> Connection:
        connection = database.connect()
        trigger.on(connection)
        return connection

    watched = Database(database.url, database.dialect, connect, wakes=database.wakes)
    watched.shift_clock(database.shift)
    return watched


def _alive_workers(app: Stepfast) -> set[int]:
    with app.reading() as tx:
        return {int(row[0]) for row in tx.rows(WORKERS_OF_PROCESS, process=this_process())}


def _mark_gone(app: Stepfast, incarnations: set[int], *, machine_lost: bool) -> None:
    """Make the rows of these workers look like those of a process that is gone."""
    mine, _, _ = this_process().rpartition("/")
    process = "another machine/1/1" if machine_lost else f"{mine}/gone"
    for incarnation in incarnations:
        with app.transaction() as tx:
            tx.run(MARK_WORKER_GONE, incarnation=incarnation, process=process, known=int(not machine_lost))


def _not_passed(trigger: CrashTrigger) -> str:
    passed = ", ".join(f"{point} ({count} times)" for point, count in trigger.passed.items()) or "nothing"
    return f"nothing died: {trigger.point} was not passed {trigger.nth} times; passed were: {passed}"


def _run_child(app: Stepfast, trigger: CrashTrigger, act: Callable[[], object]) -> NoReturn:
    """Make the call in the child, and leave: nothing of the test may run after it."""
    gc.disable()  # no finaliser may close the parent's connections
    try:
        app.use(_watched_database(app.database, trigger))
        app.kinds = WatchedKinds(app.kinds, trigger)
        act()
    except BaseException:  # noqa: BLE001 - the parent's stack goes on above us
        traceback.print_exc(file=sys.__stderr__)
        os._exit(FAILED)
    os._exit(UNHARMED)


def _wait_for_child(pid: int) -> int:
    """Wait for the child's end; returns the exit code, or minus the signal, as `subprocess` does."""
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


# The point, and the trigger that recognises it in statements, handlers and effects.

_CLAIM: Final = re.compile(r"UPDATE stepfast_job\s+SET state = 'leased'")
# A user means the commit that ends a step, enqueues a job, or writes a table of his own; not a heartbeat.
_WORK: Final = re.compile(r"committed_fence = |INSERT INTO stepfast_(archive|job)\b", re.IGNORECASE)
_WRITES: Final = re.compile(r"\s*(INSERT|UPDATE|DELETE|REPLACE|MERGE)\b", re.IGNORECASE)
_BEGINS: Final = re.compile(r"\s*(BEGIN|START TRANSACTION)\b", re.IGNORECASE)
_USERS_THREADS: Final = ("stepfast-handler", "stepfast-loop")


@dataclass(frozen=True)
class CrashPoint:
    """Before or after a place: a place of `POINTS`, or words of a statement."""

    phase: str
    place: str

    @staticmethod
    def read(text: str) -> CrashPoint:
        phase, _, place = text.strip().partition(" ")
        if phase not in {"before", "after"} or not place.strip():
            raise ConfigurationError(
                f"crash point {text!r}: write 'before' or 'after' and one of {', '.join(sorted(PLACES))}, "
                "or words of a statement, such as 'after INSERT INTO invoice'"
            )
        return CrashPoint(phase, place.strip() if place.strip() in PLACES else _plain(place))

    def __str__(self) -> str:
        return f"{self.phase} {self.place}"


@dataclass
class CrashTrigger:
    """Fires when `point` is passed for the `nth` time; from then on no statement gets through.

    It is a `Watcher` of handlers and effects, and watches the statements of connections.
    """

    point: CrashPoint
    nth: int
    die: Callable[[], None]  # called once, at the point; if it returns, all statements are refused
    fired: bool = False
    passed: Counter[str] = field(default_factory=Counter)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def on(self, connection: Connection) -> None:
        """See every statement of this connection."""
        doing: set[str] = set()  # what its transaction has done so far

        def watch(phase: str, text: str) -> None:
            self._refuse(connection)
            if phase == "before":
                _note(doing, text)
            for place in _places_of(doing, text):
                self._pass(phase, place, connection)
            if self.point.place not in PLACES and self.point.place in _plain(text):
                self._pass(phase, self.point.place, connection)

        connection.watch = watch

    def before_handler(self, _: Step, /) -> bool:
        self._pass("before", "handler")
        return True

    def handler_raised(self, step: Step, error: BaseException, /) -> None:
        pass

    def handler_answered(self, _: Step, __: Any, /) -> None:
        self._pass("after", "handler")

    def before_effects(self, _: Step, /) -> None:
        self._pass("before", "effects")

    def effect_raised(self, step: Step, error: BaseException, /) -> None:
        pass

    def after_effects(self, _: Step, /) -> None:
        self._pass("after", "effects")

    def _pass(self, phase: str, place: str, connection: Connection | None = None) -> None:
        with self._lock:
            self.passed[f"{phase} {place}"] += 1
            here = self.point == CrashPoint(phase, place) and self.passed[str(self.point)] == self.nth
            self.fired = self.fired or here
        if here:
            self.die()
        self._refuse(connection)

    def _refuse(self, connection: Connection | None) -> None:
        """Refuse every statement once the trigger has fired: as an outage in engine threads, as `Crashed` in user code."""
        if not self.fired:
            return
        if connection is not None:
            connection.broken = True  # its pool closes it without a COMMIT
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


def _places_of(doing: set[str], text: str) -> list[str]:
    """The places that this statement is; a claim and a commit happen with the COMMIT of their transaction."""
    if text == "COMMIT":
        return [place for place, done in (("claim", "claim"), ("commit", "work")) if done in doing]
    return []


def _plain(text: str) -> str:
    return " ".join(text.split()).casefold()
