"""Statements without an answer: those of the engine are given up, others only if their server has forgotten them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from devtools.proxy import Proxy, through
from devtools.server import USER, Server
from stepfast.config import WorkerSettings
from stepfast.database.database import persist
from stepfast.database.dialects import Plans
from stepfast.database.drivers import open_database
from stepfast.errors import UnknownCommitError, UnreachableError
from stepfast.worker import statement_watchdog
from stepfast.worker.statement_watchdog import StatementWatchdog
from tests.support import rows
from tests.support.databases import ENGINES, memory

if TYPE_CHECKING:
    from stepfast import Stepfast
    from stepfast.database.connection import Transaction
    from stepfast.database.database import Database

pytestmark = pytest.mark.only_on("postgresql", "mariadb")

LIMIT = 0.2  # seconds
SLEEP = {"postgresql": "SELECT pg_sleep(30)", "mariadb": "SELECT sleep(30)"}
NAP = {"postgresql": "SELECT pg_sleep(1)", "mariadb": "SELECT sleep(1)"}


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statement_watchdog, "SHORTEST", LIMIT)


class Working:
    """Work on a thread of its own, and its error."""

    def __init__(self, work: Callable[[], object]) -> None:
        self.error: Exception | None = None
        self._work = work
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def join(self) -> Exception | None:
        self._thread.join(rows.PATIENCE)
        assert not self._thread.is_alive()
        return self.error

    def _run(self) -> None:
        try:
            self._work()
        except Exception as error:  # noqa: BLE001 - the test looks at it
            self.error = error


def watchdog(database: Database) -> StatementWatchdog:
    found = StatementWatchdog(database, WorkerSettings())
    found._limit = LIMIT
    return found


def wait_until_unanswered(database: Database, text: str) -> None:
    rows.eventually(lambda: any(it.asked == text for it in database.unanswered(LIMIT)))


def test_a_statement_of_the_engine_is_given_up(app: Stepfast) -> None:
    text = SLEEP[app.database.dialect.name]
    working = Working(lambda: persist(app.database, lambda tx: tx.execute(text)))
    wait_until_unanswered(app.database, text)

    watchdog(app.database).look()

    assert isinstance(working.join(), UnreachableError)


def test_a_statement_of_the_user_is_waited_for_while_its_server_works_on_it(app: Stepfast) -> None:
    text = NAP[app.database.dialect.name]

    def work() -> None:
        with app.transaction() as tx:
            tx.execute(text)

    working = Working(work)
    wait_until_unanswered(app.database, text)

    watchdog(app.database).look()

    assert working.join() is None


def test_a_connection_outside_the_engine_is_left_alone(app: Stepfast) -> None:
    text = NAP[app.database.dialect.name]
    with closing(app.database.connect()) as connection:
        working = Working(lambda: connection.execute(text))
        wait_until_unanswered(app.database, text)

        watchdog(app.database).look()

        assert working.join() is None


@pytest.fixture
def two_servers(database_kind: str) -> Iterator[tuple[Server, Server]]:
    """A primary, and the one that follows it; both have an empty database called work."""
    engine = ENGINES[database_kind]
    with Server(engine, memory()) as old, Server(engine, memory()) as new:
        for server in (old, new):
            server.create_database("work")
        yield old, new


@pytest.mark.only_on("postgresql")
@pytest.mark.parametrize("plans", Plans)
def test_a_commit_is_given_up_when_another_server_answers_in_its_place(
    two_servers: tuple[Server, Server], plans: Plans
) -> None:
    old, new = two_servers
    began, frozen = threading.Event(), threading.Event()

    def hold(tx: Transaction) -> None:
        tx.execute("SELECT 1")
        began.set()
        frozen.wait(rows.PATIENCE)

    def work(database: Database) -> None:
        with database.transaction(plans) as tx:
            hold(tx)

    with closing(open_database(new.url("work")).connect()) as connection:
        connection.execute(f"ALTER USER {USER} PASSWORD '{old.site.password}'")
    with (
        Proxy(old.site.port) as proxy,
        closing(open_database(through(old.url("work"), proxy.port))) as database,
    ):
        working = Working(lambda: work(database))
        assert began.wait(rows.PATIENCE)
        old.pause()
        try:
            frozen.set()
            wait_until_unanswered(database, "COMMIT")
            guard = watchdog(database)
            proxy.lead_to(new.site.port)
            guard.look()
            error = working.join()
        finally:
            old.cont()

    assert isinstance(error, UnknownCommitError)


@pytest.mark.only_on("postgresql")
def test_a_commit_whose_server_answers_nobody_is_reported_and_waited_for(
    two_servers: tuple[Server, Server],
) -> None:
    old, _ = two_servers
    began, frozen = threading.Event(), threading.Event()
    with closing(open_database(old.url("work"))) as database:

        def work() -> None:
            with database.transaction(Plans.ENGINE) as tx:
                tx.execute("SELECT 1")
                began.set()
                frozen.wait(rows.PATIENCE)

        working = Working(work)
        assert began.wait(rows.PATIENCE)
        old.pause()
        try:
            frozen.set()
            wait_until_unanswered(database, "COMMIT")
            guard = watchdog(database)
            guard.look()
            reported = str(guard.hanging)
        finally:
            old.cont()
        error = working.join()
        guard.look()

    assert "a COMMIT has had no answer for" in reported
    assert error is None
    assert guard.hanging is None


def test_the_time_of_a_statement_begins_with_the_statement(app: Stepfast) -> None:
    with app.database.transaction(Plans.ENGINE) as tx:
        tx.execute("SELECT 1")
        time.sleep(2 * LIMIT)

        assert app.database.unanswered(LIMIT) == []
