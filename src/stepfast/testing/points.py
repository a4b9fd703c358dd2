"""Where a process can die, as words, and the trap that is set there.

A trap sees every statement of one database, and every handler and effect of one application. When the point comes, it
springs: from then on no statement gets through, so that for the database this process is dead.
"""

from __future__ import annotations

import re
import threading
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from stepfast.errors import ConfigurationError, UnreachableError

if TYPE_CHECKING:
    from collections.abc import Callable

    from stepfast.database.connection import Connection
    from stepfast.steps.step import Step

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
