"""Crash points: how they are written, and which statements, handlers and effects they are."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from stepfast.database.connection import Connection
from stepfast.database.dialects import SQLITE
from stepfast.errors import ConfigurationError, UnreachableError
from stepfast.testing.crash import POINTS, Crashed, CrashPoint, CrashTrigger

if TYPE_CHECKING:
    from collections.abc import Callable

CLAIM = "UPDATE stepfast_job\n   SET state = 'leased', owner = :owner"
BEAT = "UPDATE stepfast_worker SET alive_until = 1"
FINISH = "INSERT INTO stepfast_archive (id) SELECT id FROM stepfast_job"
GO_ON = "UPDATE stepfast_job SET step = step + 1, committed_fence = :fence"
HOLD = "UPDATE stepfast_job SET state = 'held', committed_fence = :fence"
ENQUEUE = "INSERT INTO stepfast_job (id) VALUES (1)"
USERS = "INSERT INTO ledger VALUES (1)"


@dataclass
class Silent:
    """A driver's connection that says yes to everything."""

    said: list[str] = field(default_factory=list)

    def cursor(self) -> Silent:
        return self

    def execute(self, text: str, _: Any = None) -> None:
        self.said.append(text)

    def close(self) -> None: ...


def nothing() -> None:
    pass


def watched_connection(
    point: str, nth: int = 1, die: Callable[[], None] = nothing
) -> tuple[CrashTrigger, Connection, list[str]]:
    trigger = CrashTrigger(CrashPoint.read(point), nth, die)
    raw = Silent()
    connection = Connection(raw, SQLITE)
    trigger.on(connection)
    return trigger, connection, raw.said


def commit(connection: Connection, *statements: str) -> None:
    for text in ("BEGIN IMMEDIATE", *statements, "COMMIT"):
        connection.execute(text)


@pytest.mark.parametrize("text", POINTS)
def test_the_points_are_read_as_they_are_written(text: str) -> None:
    assert str(CrashPoint.read(f"  {text} ")) == text


def test_other_words_are_those_of_a_statement() -> None:
    assert CrashPoint.read("after INSERT  INTO\n Ledger") == CrashPoint("after", "insert into ledger")


@pytest.mark.parametrize("text", ["", "claim", "at commit", "before", "after ", "beforecommit"])
def test_what_is_neither_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="crash point"):
        CrashPoint.read(text)


@pytest.mark.parametrize(
    "work", [FINISH, GO_ON, ENQUEUE, USERS], ids=["finish", "go on", "enqueue", "the user's"]
)
def test_a_commit_is_one_of_work(work: str) -> None:
    trigger, connection, said = watched_connection("before commit")
    commit(connection, BEAT)
    commit(connection, CLAIM)
    commit(connection, HOLD)
    commit(connection, "SELECT 1")
    assert not trigger.fired

    with pytest.raises(Crashed, match="before commit"):
        commit(connection, work)

    assert said[-1] == work


def test_a_claim_is_done_when_it_is_committed() -> None:
    trigger, connection, said = watched_connection("after claim")
    commit(connection, FINISH)
    assert not trigger.fired

    with pytest.raises(Crashed):
        commit(connection, CLAIM)

    assert said[-1] == "COMMIT"


def test_a_transaction_knows_nothing_of_the_one_before() -> None:
    trigger, connection, _ = watched_connection("before commit")
    connection.execute("BEGIN IMMEDIATE")
    connection.execute(USERS)
    connection.execute("ROLLBACK")

    commit(connection, "SELECT 1")

    assert not trigger.fired


def test_the_nth_time_is_the_nth() -> None:
    trigger, connection, _ = watched_connection("before commit", nth=3)
    commit(connection, USERS)
    commit(connection, USERS)
    assert not trigger.fired

    with pytest.raises(Crashed):
        commit(connection, USERS)


def test_once_sprung_nothing_gets_through() -> None:
    trigger, connection, said = watched_connection("before insert into ledger")
    other = Connection(Silent(), SQLITE)
    trigger.on(other)
    with pytest.raises(Crashed):
        connection.execute(USERS)
    before = list(said)

    for each in (connection, other):
        with pytest.raises(Crashed):
            each.execute("ROLLBACK")
        assert each.broken, "it would be lent to the next"

    assert said == before


def test_the_engines_own_threads_are_told_what_they_can_handle() -> None:
    trigger, connection, _ = watched_connection("before insert into ledger")
    met: list[BaseException] = []

    def act() -> None:
        try:
            connection.execute(USERS)
        except BaseException as error:  # noqa: BLE001 - the test looks at it
            met.append(error)

    for name in ("stepfast-settle", "stepfast-commit_0", "stepfast-handler_0", "stepfast-loop", "MainThread"):
        thread = threading.Thread(target=act, name=name)
        thread.start()
        thread.join()

    assert trigger.fired
    assert [type(it) for it in met] == [UnreachableError, UnreachableError, Crashed, Crashed, Crashed]


def test_it_springs_once() -> None:
    calls: list[int] = []
    _, connection, _ = watched_connection("before commit", die=lambda: calls.append(1))

    for _ in range(3):
        with pytest.raises(Crashed):
            commit(connection, USERS)

    assert calls == [1]
