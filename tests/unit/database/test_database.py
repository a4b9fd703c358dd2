"""Transactions of a database: the writer queue, retries after contention, the pool of connections."""

from __future__ import annotations

import os
import signal
import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from stepfast import Stepfast
from stepfast.database import database as module
from stepfast.database.connection import Connection, Transaction
from stepfast.database.database import WriterQueue, persist
from stepfast.database.dialects import SQLITE
from stepfast.errors import ConfigurationError, ContentionError, UnknownCommitError, UnreachableError
from tests.support import rows


@pytest.fixture
def file(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/work.db"


def elsewhere(act: Callable[[], object]) -> None:
    """In a thread of its own, to the end."""
    thread = threading.Thread(target=act)
    thread.start()
    thread.join()


def test_the_turn_goes_to_the_urgent_first_and_then_in_the_order_of_asking() -> None:
    turn = WriterQueue()
    order: list[str] = []
    threads = []

    def ask(name: str, *, urgent: bool) -> None:
        turn.take(urgent=urgent)
        order.append(name)
        turn.give()

    turn.take(urgent=False)
    for n, name in enumerate(("first", "second", "heartbeat"), start=1):
        thread = threading.Thread(target=ask, args=(name,), kwargs={"urgent": name == "heartbeat"})
        thread.start()
        threads.append(thread)
        rows.eventually(lambda n=n: len(turn._urgent) + len(turn._others) == n)  # type: ignore[misc]
    turn.give()
    for thread in threads:
        thread.join()

    assert order == ["heartbeat", "first", "second"]


def test_who_waits_too_long_for_the_turn_is_told_and_leaves_the_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WRITER_DEADLINE", 0.01)
    turn = WriterQueue()
    elsewhere(lambda: turn.take(urgent=False))

    with pytest.raises(ContentionError, match="too long"):
        turn.take(urgent=False)

    turn.give()
    turn.take(urgent=True)


def test_contention_runs_the_whole_transaction_again(file: str) -> None:
    with closing(Stepfast(file)) as app:
        tries: list[int] = []

        def work(tx: Transaction) -> str:
            tx.execute("INSERT INTO stepfast_queue (id) VALUES (:id)", {"id": f"try {len(tries)}"})
            tries.append(1)
            if len(tries) < 3:
                raise ContentionError("not now")
            return "done"

        answer = persist(app.database, work)

        assert (answer, len(tries)) == ("done", 3)
        assert rows.query(app, "SELECT id FROM stepfast_queue") == [{"id": "try 2"}]


def test_contention_without_end_is_raised(file: str) -> None:
    def work(_: Transaction) -> None:
        raise ContentionError("never")

    with closing(Stepfast(file)) as app, pytest.raises(ContentionError, match="never"):
        persist(app.database, work, tries=2)


def test_a_connection_that_was_left_in_the_middle_is_not_lent_again(
    file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(when: str, text: str) -> None:
        if (when, text) == ("before", "ROLLBACK"):
            raise KeyboardInterrupt

    def interrupted(app: Stepfast) -> None:
        with app.transaction() as tx:
            tx.execute("INSERT INTO stepfast_queue (id) VALUES ('lost')")
            raise KeyboardInterrupt

    with closing(Stepfast(file)) as app:
        app.migrate()
        monkeypatch.setattr(Connection, "watch", staticmethod(interrupt))
        with pytest.raises(KeyboardInterrupt):
            interrupted(app)
        monkeypatch.undo()

        rows.change(app, "INSERT INTO stepfast_queue (id) VALUES ('kept')")

        assert rows.query(app, "SELECT id FROM stepfast_queue") == [{"id": "kept"}]


def test_connections_are_kept_for_the_next(file: str) -> None:
    with closing(Stepfast(file)) as app:
        with app.database.reading() as tx:
            first = tx._connection
        with app.database.reading() as tx:
            second = tx._connection

    assert first is second


def test_readers_do_not_wait_for_a_writer(file: str) -> None:
    with closing(Stepfast(file)) as app, app.transaction() as tx:
        tx.execute("INSERT INTO stepfast_queue (id) VALUES ('a')")

        assert rows.count(app, "stepfast_queue") == 0


class AlarmError(Exception):
    """Raised by a signal."""


def ring(*_: object) -> None:
    raise AlarmError


def test_who_is_interrupted_while_waiting_leaves_the_line() -> None:
    turn = WriterQueue()
    elsewhere(lambda: turn.take(urgent=False))
    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    try:
        with pytest.raises(AlarmError):
            turn.take(urgent=False)
    finally:
        signal.signal(signal.SIGALRM, before)

    turn.give()

    turn.take(urgent=False)


def test_who_is_interrupted_with_the_turn_in_hand_passes_it_on(monkeypatch: pytest.MonkeyPatch) -> None:
    turn = WriterQueue()
    elsewhere(lambda: turn.take(urgent=False))

    def handed_over_and_interrupted(*_: object) -> bool:
        turn.give()
        raise AlarmError

    monkeypatch.setattr(threading.Event, "wait", handed_over_and_interrupted)
    with pytest.raises(AlarmError):
        turn.take(urgent=False)

    turn.take(urgent=False)


def test_who_forgets_tx_inside_a_transaction_is_told_at_once(file: str) -> None:
    with closing(Stepfast(file)) as app:
        work = app.job(name="work")(lambda: None)
        work.enqueue()

        with (
            app.transaction() as tx,
            pytest.raises(ConfigurationError, match="inside a transaction of this thread; pass tx=tx"),
        ):
            work.enqueue()
        with app.transaction() as tx:
            with app.reading() as look:
                assert look.query("SELECT count(*) AS n FROM stepfast_job") == [{"n": 1}]
            work.enqueue(tx=tx)
        with app.transaction(), pytest.raises(ConfigurationError), app.transaction():
            pass

        assert rows.count(app, "stepfast_job") == 2


def test_a_child_is_not_born_in_the_middle_of_a_write(file: str) -> None:
    """It would inherit the lock of a transaction that never ends."""
    with closing(Stepfast(file)) as app:
        work = app.job(name="work")(lambda: None)
        work.enqueue()
        app.database.listen(lambda _: None)
        writing, forking = threading.Event(), threading.Event()

        def write() -> None:
            with app.transaction() as tx:
                tx.execute("INSERT INTO stepfast_queue (id) VALUES ('a')")
                writing.set()
                forking.wait(0.3)

        thread = threading.Thread(target=write)
        thread.start()
        assert writing.wait(10)
        child = os.fork()
        if not child:
            signal.alarm(15)
            work.enqueue()
            os._exit(7 if app.database._listeners else 0)
        _, status = os.waitpid(child, 0)
        thread.join()
        work.enqueue()

        assert os.waitstatus_to_exitcode(status) == 0
        assert rows.count(app, "stepfast_job") == 3
        assert len(app.database._listeners) == 1


def test_a_fork_inside_a_transaction_does_not_wait_for_itself(file: str) -> None:
    with closing(Stepfast(file)) as app:
        with app.transaction():
            child = os.fork()
            if not child:
                os._exit(0)
            os.waitpid(child, 0)

        rows.change(app, "INSERT INTO stepfast_queue (id) VALUES ('a')")


class Refusing:
    """A sqlite3 connection whose COMMIT fails."""

    def __init__(self, problem: str, *, in_transaction: bool) -> None:
        self.problem = problem
        self.in_transaction = True
        self.left = in_transaction

    def cursor(self) -> Any:
        return self

    def execute(self, *_: Any) -> None:
        self.in_transaction = self.left
        raise sqlite3.OperationalError(self.problem)


@pytest.mark.parametrize(
    ("problem", "in_transaction"), [("database or disk is full", False), ("disk I/O error", True)]
)
def test_a_full_disk_commits_nothing_and_says_so(problem: str, in_transaction: bool) -> None:  # noqa: FBT001
    connection = Connection(Refusing(problem, in_transaction=in_transaction), SQLITE)

    with pytest.raises(UnreachableError, match="nothing was committed"):
        connection.commit()


def test_a_disk_that_failed_during_commit_leaves_it_open() -> None:
    with pytest.raises(UnknownCommitError):
        Connection(Refusing("disk I/O error", in_transaction=False), SQLITE).commit()
