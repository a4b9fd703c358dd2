from __future__ import annotations

import threading
from contextlib import closing
from pathlib import Path

import pytest

from holdfast import Holdfast
from holdfast.database import turn as module
from holdfast.database.connection import Connection, Transaction
from holdfast.database.database import persist
from holdfast.database.turn import WriterTurn
from holdfast.errors import ContentionError
from tests import rows


@pytest.fixture
def file(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/work.db"


def test_the_turn_goes_to_the_urgent_first_and_then_in_the_order_of_asking() -> None:
    turn = WriterTurn()
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
    turn = WriterTurn()
    elsewhere(lambda: turn.take(urgent=False))

    with pytest.raises(ContentionError, match="too long"):
        turn.take(urgent=False)

    turn.give()
    turn.take(urgent=True)


def test_contention_runs_the_whole_transaction_again(file: str) -> None:
    with closing(Holdfast(file)) as app:
        tries: list[int] = []

        def work(tx: Transaction) -> str:
            tx.execute("INSERT INTO holdfast_queue (id) VALUES (:id)", {"id": f"try {len(tries)}"})
            tries.append(1)
            if len(tries) < 3:
                raise ContentionError("not now")
            return "done"

        answer = persist(app.database, work)

        assert (answer, len(tries)) == ("done", 3)
        assert rows.query(app, "SELECT id FROM holdfast_queue") == [{"id": "try 2"}]


def test_contention_without_end_is_raised(file: str) -> None:
    def work(_: Transaction) -> None:
        raise ContentionError("never")

    with closing(Holdfast(file)) as app, pytest.raises(ContentionError, match="never"):
        persist(app.database, work, tries=2)


def test_a_connection_that_was_left_in_the_middle_is_not_lent_again(
    file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(when: str, text: str) -> None:
        if (when, text) == ("before", "ROLLBACK"):
            raise KeyboardInterrupt

    def interrupted(app: Holdfast) -> None:
        with app.transaction() as tx:
            tx.execute("INSERT INTO holdfast_queue (id) VALUES ('lost')")
            raise KeyboardInterrupt

    with closing(Holdfast(file)) as app:
        app.migrate()
        monkeypatch.setattr(Connection, "watch", staticmethod(interrupt))
        with pytest.raises(KeyboardInterrupt):
            interrupted(app)
        monkeypatch.undo()

        rows.change(app, "INSERT INTO holdfast_queue (id) VALUES ('kept')")

        assert rows.query(app, "SELECT id FROM holdfast_queue") == [{"id": "kept"}]


def test_connections_are_kept_for_the_next(file: str) -> None:
    with closing(Holdfast(file)) as app:
        with app.database.reading() as tx:
            first = tx._connection
        with app.database.reading() as tx:
            second = tx._connection

    assert first is second


def test_readers_do_not_wait_for_a_writer(file: str) -> None:
    with closing(Holdfast(file)) as app, app.transaction() as tx:
        tx.execute("INSERT INTO holdfast_queue (id) VALUES ('a')")

        assert rows.count(app, "holdfast_queue") == 0
