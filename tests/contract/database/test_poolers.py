"""PostgreSQL behind PgBouncer in transaction mode: no session state outlives its transaction, and none is relied on."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest

from devtools.pgbouncer import PgBouncer, PoolMode
from devtools.server import Server
from stepfast import Continue, Step, Stepfast
from stepfast.admin.doctor import postgresql as pooler_check
from stepfast.admin.doctor.examination import examine
from stepfast.admin.doctor.finding import Finding, Level
from stepfast.database import database as listening
from stepfast.database.drivers import open_database
from stepfast.database.migrate import migrate, schema_version
from stepfast.errors import ConfigurationError
from tests.support import rows
from tests.support.databases import memory
from tests.support.engine import drain, together
from tests.support.events import hearing, named

if TYPE_CHECKING:
    from stepfast.database.connection import Connection

pytestmark = pytest.mark.only_on("pgbouncer")

PATIENCE = rows.PATIENCE

SESSION = (
    "SELECT pg_backend_pid() AS pid, current_setting('plan_cache_mode') AS plans, current_setting('lock_timeout') AS locks,"
    " current_setting('enable_sort') AS sort, (SELECT count(*) FROM pg_prepared_statements) AS prepared,"
    " (SELECT count(*) FROM pg_listening_channels()) AS channels,"
    " (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory') AS advisory,"
    " (SELECT count(*) FROM pg_class WHERE relpersistence = 't') AS temporary"
)


def direct(server: Server, url: str) -> str:
    """The URL of the database without the pooler."""
    return server.url(urlsplit(url).path.removeprefix("/"))


def booking(app: Stepfast) -> Any:
    """A job with all that a session is used for: effects, a continuation, a log, a result."""

    @app.job()
    def book(step: Step, n: int) -> int | Continue:
        step.log("a line")
        step.upsert("ledger", [{"id": f"{n}/{step.number}", "amount": n}], key="id")
        return Continue(step.number + 1) if step.number < 2 else n

    return book


@pytest.mark.usefixtures("ledger")
def test_a_worker_needs_not_be_told_of_the_pooler(app: Stepfast) -> None:
    book = booking(app)
    jobs = book.enqueue_many([{"n": n} for n in range(60)])

    drain(app)

    assert rows.count(app, "ledger") == 180
    assert {app.result_of(job.id).result for job in jobs} == set(range(60))


@pytest.mark.usefixtures("ledger")
def test_nothing_is_left_behind_in_the_sessions_of_the_server(app: Stepfast, server: Server) -> None:
    """Another client gets these sessions next."""
    booking(app).enqueue_many([{"n": n} for n in range(30)])
    drain(app)
    app.runs.list()
    examine(app.database)

    seen = sessions(app, server)

    assert len(seen) >= 3
    for it in seen:
        it.pop("pid")
        assert it == {
            "plans": "auto",
            "locks": "0",
            "sort": "on",
            "prepared": 0,
            "channels": 0,
            "advisory": 0,
            "temporary": 0,
        }


def sessions(app: Stepfast, server: Server) -> list[dict[str, Any]]:
    """What each session that the pooler has open says of itself."""
    count = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND backend_type = 'client backend'"
    with closing(open_database(direct(server, app.database.url)).connect()) as outside:
        open_ones = outside.execute(count).fetchall()[0][0] - 1
    with ExitStack() as stack:
        held = [stack.enter_context(closing(app.database.connect())) for _ in range(open_ones)]
        for connection in held:
            connection.execute("BEGIN")
        found = [look(connection) for connection in held]
        for connection in held:
            connection.rollback()
    return list({it["pid"]: it for it in found}.values())


def look(connection: Connection) -> dict[str, Any]:
    cursor = connection.execute(SESSION)
    return dict(zip([it[0] for it in cursor.description], cursor.fetchall()[0], strict=True))


def test_a_connection_knows_that_its_session_is_not_its_own(app: Stepfast) -> None:
    with closing(app.database.connect()) as connection:
        assert connection.pooled
        assert connection.raw.prepare_threshold is None


def test_limits_travel_with_each_transaction(app: Stepfast) -> None:
    names = ("lock_timeout", "statement_timeout", "idle_in_transaction_session_timeout")

    for _ in range(4):
        with app.transaction() as tx:
            assert [tx.query(f"SHOW {name}")[0][name] for name in names] == ["2s", "30s", "10s"]


def test_many_migrate_at_once_through_it(empty_database_url: str) -> None:
    databases = [open_database(empty_database_url) for _ in range(3)]

    applied = together([lambda it=it: migrate(it) for it in databases])  # type: ignore[misc]

    assert sorted(bool(it) for it in applied) == [False, False, True]
    assert schema_version(databases[0]) is not None
    for database in databases:
        database.close()


# Waking up


def wait_until_heard(worker: Any, *, heard: bool = True) -> None:
    rows.eventually(lambda: worker._wakeups.heard is heard)


def test_a_worker_that_cannot_listen_says_so_and_polls(app: Stepfast) -> None:
    done = threading.Event()
    ring = app.job(name="ring")(done.set)

    with hearing() as told, app.worker() as worker:
        rows.eventually(lambda: named(told, "wakeups.unheard"))
        ring.enqueue()

        assert done.wait(rows.PATIENCE)
        assert not worker._wakeups.heard


def test_a_worker_is_woken_past_the_pooler(
    database_url: str, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would not look for a minute, and what it hears comes through the pooler, from another application."""
    monkeypatch.setenv("STEPFAST_LISTEN_URL", direct(server, database_url))
    done = threading.Event()
    with closing(Stepfast(database_url)) as here, closing(Stepfast(database_url)) as elsewhere:
        here.job(name="ring")(done.set)
        ring = elsewhere.job(name="ring")(done.set)
        with here.worker(poll_interval="60s") as worker:
            wait_until_heard(worker)
            ring.enqueue()

            assert done.wait(10)


def test_listening_to_another_database_is_not_believed(
    database_url: str, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stepfast.worker.wakeups.GREETING_SECONDS", 0.2)
    monkeypatch.setenv("STEPFAST_LISTEN_URL", server.url("postgres"))
    done = threading.Event()
    with closing(Stepfast(database_url)) as app, hearing() as told, app.worker() as worker:
        ring = app.job(name="ring")(done.set)
        rows.eventually(lambda: named(told, "wakeups.unheard"), PATIENCE)
        ring.enqueue()

        assert done.wait(10)
        assert not worker._wakeups.heard


def test_a_listen_url_that_leads_to_the_pooler_again_is_of_no_use(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STEPFAST_LISTEN_URL", database_url)
    with closing(Stepfast(database_url)) as app, hearing() as told, app.worker() as worker:
        rows.eventually(lambda: named(told, "wakeups.unheard"))

        assert not worker._wakeups.heard


# Other modes


def test_a_pooler_that_works_by_statement_is_refused(in_mode: Callable[[PoolMode], str]) -> None:
    url = in_mode("statement")

    with pytest.raises(ConfigurationError, match=r"works by statement.*pool_mode = transaction"):
        open_database(url).connect().close()


def test_a_pooler_that_keeps_sessions_may_be_relied_on(in_mode: Callable[[PoolMode], str]) -> None:
    with closing(Stepfast(in_mode("session") + "?pooler=session")) as app:
        done = threading.Event()
        ring = app.job(name="ring")(done.set)
        with closing(app.database.connect()) as connection:
            for _ in range(7):
                connection.execute("SELECT %(n)s::int", {"n": 1})
            prepared = connection.execute("SELECT count(*) FROM pg_prepared_statements").fetchall()[0][0]

        with app.worker(poll_interval="60s") as worker:
            wait_until_heard(worker)
            ring.enqueue()
            assert done.wait(10)

    assert prepared == 1


def test_an_option_that_the_pooler_does_not_take_is_named(database_url: str) -> None:
    with pytest.raises(ConfigurationError, match="does not take 'options'"):
        open_database(database_url + "?options=-csearch_path%3Dshop").connect()


# The doctor


def finding(url: str, name: str = "pooler") -> Finding | None:
    with closing(open_database(url)) as database:
        return next((it for it in examine(database) if it.name == name), None)


@pytest.mark.parametrize(
    ("mode", "said", "level", "words"),
    [
        ("transaction", "", Level.WARN, "LISTEN is lost"),
        ("transaction", "?pooler=transaction", Level.OK, "statements are not prepared"),
        ("transaction", "?pooler=session", Level.FAIL, "lost on the way"),
        ("transaction", "?pooler=none", Level.FAIL, "lost on the way"),
        ("session", "", Level.WARN, "nobody relies on that"),
        ("session", "?pooler=session", Level.OK, "nothing is lost"),
        ("statement", "", Level.FAIL, "works by statement"),
    ],
)
def test_the_doctor_sees_the_pooler_and_says_what_is_lost(  # noqa: PLR0917 - fixtures
    mode: PoolMode,
    said: str,
    level: Level,
    words: str,
    database_url: str,
    in_mode: Callable[[PoolMode], str],
) -> None:
    url = database_url if mode == "transaction" else in_mode(mode)

    found = finding(url + said, "database" if mode == "statement" else "pooler")

    assert found is not None
    assert (found.level, words in found.found) == (level, True), found


def test_the_doctor_has_nothing_to_say_of_a_pooler_that_is_not_there(
    database_url: str, server: Server
) -> None:
    url = direct(server, database_url)

    assert finding(url) is None
    needless = finding(url + "?pooler=transaction")
    assert needless is not None
    assert "for nothing" in needless.found


@pytest.mark.parametrize("elsewhere", [False, True])
def test_the_doctor_tries_whether_workers_are_woken(
    elsewhere: bool,  # noqa: FBT001 - a parameter
    database_url: str,
    server: Server,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pooler_check, "hears_itself", lambda it: listening.hears_itself(it, seconds=0.5))
    url = server.url("postgres") if elsewhere else direct(server, database_url)
    monkeypatch.setenv("STEPFAST_LISTEN_URL", url)

    found = finding(database_url, "wake-up")

    assert found is not None
    assert found.level is (Level.WARN if elsewhere else Level.OK)


# Trouble


@pytest.mark.usefixtures("ledger")
def test_a_pooler_that_dies_and_comes_back_loses_and_doubles_nothing(app: Stepfast, pooler: Server) -> None:
    book = booking(app)
    book.enqueue_many([{"n": n} for n in range(200)])

    with app.worker(lease="5s"):
        rows.eventually(lambda: rows.count(app, "ledger") > 50)
        pooler.kill()
        pooler.start()
        rows.eventually(lambda: rows.count(app, "stepfast_job") == 0)

    assert rows.count(app, "ledger") == 600
    assert rows.count(app, "stepfast_archive", "state = 'done'") == 200


@pytest.mark.usefixtures("ledger")
def test_a_pool_of_two_sessions_is_enough_for_a_worker(server: Server, database_url: str) -> None:
    with Server(PgBouncer(server, pool_size=2), memory()) as pooler:
        url = pooler.url(urlsplit(database_url).path.removeprefix("/"))
        with closing(Stepfast(url)) as app:
            booking(app).enqueue_many([{"n": n} for n in range(40)])

            drain(app, concurrency=20)

            assert rows.count(app, "ledger") == 120
