"""A worker opens no more connections than the documentation says."""

from __future__ import annotations

import threading
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from stepfast import Continue, Step, Stepfast
from stepfast.config import MAX_CONNECTIONS
from stepfast.database.database import ConnectionSlots
from stepfast.errors import UnreachableError
from tests.support import rows
from tests.support.engine import drain, together

if TYPE_CHECKING:
    from stepfast.database.connection import Connection
    from stepfast.database.database import Database

ASIDE = {"postgresql": 2, "mariadb": 1}  # the heartbeat's, and that of LISTEN: docs/reference/settings.md

pytestmark = pytest.mark.only_on("postgresql", "mariadb")


class Tally:
    """Counts the connections that are open, and remembers the most."""

    def __init__(self, database: Database) -> None:
        self._lock = threading.Lock()
        self._connect = database._connect
        self.now = self.most = 0
        database._connect = self.connect

    def connect(self) -> Connection:
        connection = self._connect()
        close = connection.close
        with self._lock:
            self.now += 1
            self.most = max(self.most, self.now)

        def closed() -> None:
            with self._lock:
                self.now -= 1
            connection.close = close  # type: ignore[method-assign]
            close()

        connection.close = closed  # type: ignore[method-assign]
        return connection


@pytest.mark.parametrize("concurrency", [1, 100])
@pytest.mark.usefixtures("ledger")
def test_a_worker_opens_no_more_connections_than_the_documentation_says(
    app: Stepfast, concurrency: int
) -> None:
    """Plain handlers that ask the database themselves, each in a thread, with effects, logs and continuations."""

    @app.job()
    def note(n: int) -> None:
        with app.transaction() as tx:
            tx.execute("UPDATE ledger SET amount = amount + 1 WHERE id = :id", {"id": str(n)})

    @app.job()
    def book(step: Step, n: int) -> Continue | None:
        step.log("a line of its own")
        step.upsert("ledger", [{"id": str(n), "amount": n}], key="id")
        note.enqueue(n=n)
        return None if step.number else Continue(1)

    book.enqueue_many([{"n": n} for n in range(200)])
    app.database.close()  # what this thread has used so far
    tally = Tally(app.database)

    drain(app, concurrency=concurrency)

    assert 3 < tally.most <= MAX_CONNECTIONS + ASIDE[app.database.dialect.name]
    app.database.close()
    assert tally.now == 0


def test_the_number_is_a_setting(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPFAST_MAX_CONNECTIONS", "2")
    with closing(Stepfast(database_url)) as app:
        tally = Tally(app.database)

        @app.job()
        def look(n: int) -> int:
            return rows.count(app, "stepfast_queue") + n

        look.enqueue_many([{"n": n} for n in range(100)])
        drain(app, concurrency=50)

    assert tally.most <= 2 + ASIDE[app.database.dialect.name]


def test_who_waits_for_a_connection_for_too_long_is_told(app: Stepfast) -> None:
    app.database._slots = ConnectionSlots(1, patience=0.1)

    with app.transaction():
        (answer,) = together([lambda: rows.count(app, "stepfast_job")])

    assert isinstance(answer, UnreachableError)
    assert "STEPFAST_MAX_CONNECTIONS" in str(answer)


def test_a_thread_that_holds_one_gets_another(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPFAST_MAX_CONNECTIONS", "1")
    with closing(Stepfast(database_url)) as app, app.transaction() as tx:
        inner = rows.count(app, "stepfast_job")

        assert tx.query("SELECT 1 AS one") == [{"one": 1}]
    assert inner == 0
