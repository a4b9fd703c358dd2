"""Outages as the handlers and the commits of a worker meet them: those of its own database cost no attempt, others do."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pymysql
import pytest

from stepfast import Retry, Step, Stepfast
from stepfast.errors import UnreachableError
from stepfast.worker.committer import IN_VAIN
from tests.support import rows
from tests.support.engine import drain

if TYPE_CHECKING:
    from stepfast.database.connection import Connection

ONCE = Retry(attempts=1)
NOWHERE = "postgresql://nobody@127.0.0.1:1/nowhere"


def outcome(app: Stepfast, job_id: str) -> tuple[str, int]:
    row = rows.ended(app, job_id)
    assert row is not None
    return row["state"], row["failures"]


def test_an_outage_of_our_database_in_a_handler_costs_no_attempt(
    app: Stepfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    met: list[int] = []
    checkout = app.database._checkout

    def refuse_a_handler_once() -> Connection:
        if threading.current_thread().name.startswith("stepfast-handler") and not met:
            met.append(1)
            raise UnreachableError("no route to host")
        return checkout()

    monkeypatch.setattr(app.database, "_checkout", refuse_a_handler_once)

    @app.job(retry=ONCE)
    def look() -> None:
        with app.transaction() as tx:
            tx.execute("SELECT 1")

    job = look.enqueue()
    drain(app)

    assert met
    assert outcome(app, job.id) == ("done", 0)


def test_an_outage_of_a_handlers_own_other_database_costs_an_attempt(app: Stepfast) -> None:
    other = Stepfast(NOWHERE)

    @app.job(retry=ONCE)
    def forward() -> None:
        with other.unchecked_database.transaction() as tx:
            tx.execute("SELECT 1")

    job = forward.enqueue()
    drain(app)

    assert outcome(app, job.id) == ("dead", 1)
    assert "cannot reach PostgreSQL" in str(rows.ended(app, job.id))


def test_an_outage_of_another_database_in_an_effect_costs_an_attempt(app: Stepfast) -> None:
    other = Stepfast(NOWHERE)

    def forward(_: Any) -> None:
        with other.unchecked_database.transaction() as tx:
            tx.execute("SELECT 1")

    @app.job(retry=ONCE)
    def finish(step: Step) -> None:
        step.effect(forward)

    job = finish.enqueue()
    drain(app)

    assert outcome(app, job.id) == ("dead", 1)


class NodeOutsideCluster:
    """A cursor of a Galera node that refuses some statements."""

    def __init__(self, cursor: Any, refuses: Any) -> None:
        self._cursor = cursor
        self._refuses = refuses

    def execute(self, text: str, *parameters: Any) -> object:
        if self._refuses(text):
            raise pymysql.err.OperationalError(1047, "WSREP has not yet prepared node for application use")
        return self._cursor.execute(text, *parameters)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cursor, name)


@pytest.mark.only_on("mariadb")
@pytest.mark.usefixtures("ledger")
@pytest.mark.parametrize("statement", ["INSERT INTO ledger", "COMMIT"])
def test_a_finished_step_waits_for_a_node_outside_its_cluster(
    app: Stepfast, monkeypatch: pytest.MonkeyPatch, statement: str
) -> None:
    """More often than a write is tried that the server itself refuses; the heartbeat gets through all the time."""
    left = 3 * IN_VAIN
    finished = threading.Event()
    connect = app.database._connect

    def refuses(text: str) -> bool:
        nonlocal left
        thread = threading.current_thread().name
        if not thread.startswith("stepfast-commit") or statement not in text or not finished.is_set():
            return False
        left -= 1
        return left > 0

    def connected() -> Connection:
        connection = connect()
        connection._cursor = NodeOutsideCluster(connection._cursor, refuses)
        return connection

    runs: list[int] = []

    @app.job(retry=ONCE)
    def finish(step: Step) -> None:
        runs.append(step.attempt)
        step.effect(lambda tx: tx.execute("INSERT INTO ledger (id, amount) VALUES ('a', 1)"))
        finished.set()

    job = finish.enqueue()
    monkeypatch.setattr(app.database, "_connect", connected)
    app.database.close()
    drain(app)

    assert outcome(app, job.id) == ("done", 0)
    assert len(runs) == 1
    assert left <= 0
    assert rows.count(app, "ledger") == 1
