"""Enqueue on the caller's connection: one transaction, and an error where that is impossible."""

from __future__ import annotations

import sqlite3
import sys
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, closing, suppress
from typing import TYPE_CHECKING, Any

import psycopg
import pymysql
import pytest
import sqlalchemy
from psycopg.rows import dict_row
from pymysql.cursors import DictCursor
from sqlalchemy.orm import Session

from stepfast.database.dialects import Plans
from stepfast.database.drivers import open_database
from stepfast.database.migrate import migrate
from stepfast.errors import ConfigurationError, ContentionError, DatabaseError, DuplicateKeyError
from tests.support import rows
from tests.support.engine import register_work

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stepfast import Stepfast
    from stepfast.database.connection import Connection

DRIVERS = {"postgresql://": "postgresql+psycopg://", "mysql://": "mysql+pymysql://"}


@pytest.fixture
def engine(database_url: str) -> Iterator[sqlalchemy.Engine]:
    for ours, theirs in DRIVERS.items():
        database_url = database_url.replace(ours, theirs)
    engine = sqlalchemy.create_engine(database_url)
    yield engine
    engine.dispose()


def jobs(app: Stepfast) -> int:
    return int(rows.query(app, "SELECT count(*) AS n FROM stepfast_job")[0]["n"])


def test_a_job_enqueued_on_a_lent_connection_exists_when_its_owner_commits(
    app: Stepfast, engine: sqlalchemy.Engine
) -> None:
    work = register_work(app)

    with engine.begin() as connection:
        work.enqueue(n=1, tx=connection)
        assert jobs(app) == 0

    assert jobs(app) == 1


def test_a_job_enqueued_on_a_lent_connection_is_gone_when_its_owner_rolls_back(
    app: Stepfast, engine: sqlalchemy.Engine
) -> None:
    work = register_work(app)

    with engine.connect() as connection:
        work.enqueue(n=1, tx=connection, key="once")
        work.enqueue_many([{"n": 2}, {"n": 3}], tx=connection)
        connection.rollback()

    assert jobs(app) == 0
    assert work.enqueue(n=1, key="once").created


def test_an_orm_session_is_lent_like_its_connection(app: Stepfast, engine: sqlalchemy.Engine) -> None:
    work = register_work(app)

    with Session(engine) as session:
        work.enqueue(n=1, tx=session)
        session.commit()

    assert jobs(app) == 1


def test_a_driver_connection_inside_a_transaction_is_taken(app: Stepfast) -> None:
    work = register_work(app)
    connection = app.database.connect()
    connection.begin(app.database.dialect.begin[Plans.FREE])

    work.enqueue(n=1, tx=connection.raw)
    connection.commit()

    assert jobs(app) == 1
    connection.close()


def test_a_connection_that_commits_by_itself_is_refused_in_words(app: Stepfast) -> None:
    work = register_work(app)
    connection = app.database.connect()

    with pytest.raises(ConfigurationError, match="autocommit mode and outside a transaction"):
        work.enqueue(n=1, tx=connection.raw)

    assert jobs(app) == 0
    connection.close()


@pytest.mark.parametrize("lent", ["a text", 7, object()])
def test_anything_that_is_no_connection_is_refused_in_words(app: Stepfast, lent: Any) -> None:
    with pytest.raises(ConfigurationError, match="lend a connection of sqlite3, psycopg or PyMySQL"):
        register_work(app).enqueue(n=1, tx=lent)


@pytest.mark.only_on("postgresql", "mariadb")
def test_a_connection_to_another_kind_of_database_is_refused_in_words(app: Stepfast) -> None:
    sqlite = sqlalchemy.create_engine("sqlite://")

    with (
        sqlite.begin() as connection,
        pytest.raises(ConfigurationError, match="both must be the same database"),
    ):
        register_work(app).enqueue(n=1, tx=connection)

    sqlite.dispose()


def dict_rows(cursor: sqlite3.Cursor, row: tuple[Any, ...]) -> dict[str, Any]:
    return {column[0]: value for column, value in zip(cursor.description, row, strict=True)}


def test_rows_may_be_of_any_shape_on_the_lent_connection(app: Stepfast) -> None:
    work = register_work(app)
    first = work.enqueue(n=1, key="k")
    connection = app.database.connect()
    raw = connection.raw
    match app.database.dialect.name:
        case "sqlite":
            raw.row_factory = dict_rows
        case "postgresql":
            raw.row_factory = dict_row
        case _:
            raw.cursorclass = DictCursor
    connection.begin(app.database.dialect.begin[Plans.FREE])

    again = work.enqueue(n=2, key="k", on_duplicate="skip", tx=raw)
    other = work.enqueue(n=3, id="task-1", tx=raw)
    connection.commit()

    assert ((again.id, again.created), other.created, jobs(app)) == ((first.id, False), True, 2)
    connection.close()


@pytest.mark.only_on("sqlite")
def test_a_connection_that_answers_with_bytes_is_refused_in_words(app: Stepfast) -> None:
    connection = app.database.connect()
    connection.raw.text_factory = bytes
    connection.begin("BEGIN IMMEDIATE")

    with pytest.raises(ConfigurationError, match="text_factory"):
        register_work(app).enqueue(n=1, tx=connection.raw)

    connection.close()


if sys.version_info >= (3, 12):  # where `autocommit=` came with

    @pytest.mark.only_on("sqlite")
    def test_a_connection_with_autocommit_of_the_new_kind_is_refused_in_words(app: Stepfast) -> None:
        path = app.database.url.removeprefix("sqlite:///")
        raw = sqlite3.connect(path, autocommit=True)

        with closing(raw), pytest.raises(ConfigurationError, match="autocommit mode and outside"):
            register_work(app).enqueue(n=1, tx=raw)

        assert jobs(app) == 0


@pytest.mark.only_on("sqlite")
def test_a_transaction_that_can_no_longer_write_is_told_so(app: Stepfast) -> None:
    """It began by reading, and another session has written since: only its owner can begin again."""
    work = register_work(app)
    connection = app.database.connect()
    connection.begin("BEGIN")
    connection.raw.execute("SELECT count(*) FROM stepfast_job").fetchall()
    work.enqueue(n=1)

    with pytest.raises(ContentionError):
        work.enqueue(n=2, tx=connection.raw)

    connection.close()
    assert jobs(app) == 1


# What a lent transaction keeps


def begun(app: Stepfast) -> Connection:
    """A driver's connection of the caller's own, in a transaction."""
    connection = app.database.connect()
    connection.begin(app.database.dialect.begin[Plans.FREE])
    return connection


def test_a_savepoint_of_the_caller_takes_the_job_with_it(app: Stepfast) -> None:
    work = register_work(app)
    connection = begun(app)
    kept = work.enqueue(n=1, tx=connection.raw)
    connection.execute("SAVEPOINT theirs")
    work.enqueue(n=2, tx=connection.raw, key="k", unique_for="1h")

    connection.execute("ROLLBACK TO SAVEPOINT theirs")
    connection.commit()

    assert [row["id"] for row in rows.query(app, "SELECT id FROM stepfast_job")] == [kept.id]
    assert rows.count(app, "stepfast_key") == 0
    connection.close()


def test_an_enqueue_that_is_refused_leaves_a_lent_transaction_as_it_was(app: Stepfast) -> None:
    work = register_work(app)
    holder = work.enqueue(n=1, key="k")
    connection = begun(app)
    other = work.enqueue(n=2, tx=connection.raw)

    with pytest.raises(DuplicateKeyError):
        work.enqueue(n=3, id="task-1", key="k", tx=connection.raw)
    connection.commit()

    assert rows.count(app, "stepfast_key") == 0
    assert {row["id"] for row in rows.query(app, "SELECT id FROM stepfast_job")} == {holder.id, other.id}
    connection.close()


@pytest.mark.only_on("mariadb")
def test_an_enqueue_that_fails_half_way_leaves_a_lent_transaction_as_it_was(app: Stepfast) -> None:
    """MariaDB takes back only the statement that failed: the id would be remembered for a job that never was."""
    work = register_work(app)
    blocker, connection = begun(app), begun(app)
    work.enqueue(n=1, key="k", tx=blocker.raw)
    connection.execute("SET SESSION innodb_lock_wait_timeout = 1")
    other = work.enqueue(n=2, tx=connection.raw)

    with pytest.raises(ContentionError):
        work.enqueue(n=3, id="task-1", key="k", tx=connection.raw)
    connection.commit()
    blocker.rollback()

    assert rows.count(app, "stepfast_key") == 0
    assert [row["id"] for row in rows.query(app, "SELECT id FROM stepfast_job")] == [other.id]
    assert work.enqueue(n=3, id="task-1", key="k").created
    connection.close()
    blocker.close()


@pytest.mark.only_on("mariadb")
@pytest.mark.parametrize(
    "options", [{"key": "k"}, {"id": "task-1"}, {"key": "k", "unique_for": "1h"}], ids=repr
)
def test_a_lent_transaction_that_looks_at_the_past_finds_who_holds_its_key(
    app: Stepfast, options: dict[str, Any]
) -> None:
    work = register_work(app)
    connection = app.database.connect()
    connection.execute("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    connection.begin("START TRANSACTION WITH CONSISTENT SNAPSHOT")
    holder = work.enqueue(n=1, **options)

    again = work.enqueue(n=2, **options, on_duplicate="skip", tx=connection.raw)
    connection.commit()

    assert (again.id, again.created, jobs(app)) == (holder.id, False, 1)
    connection.close()


def test_a_lent_transaction_sees_what_became_of_its_job(app: Stepfast) -> None:
    work = register_work(app)
    connection = begun(app)
    job = work.enqueue(n=1, tx=connection.raw)

    found = app.result_of(job.id, tx=connection.raw)

    assert (found.id, str(found.state)) == (job.id, "ready")
    connection.rollback()
    connection.close()


@pytest.mark.usefixtures("ledger")
@pytest.mark.parametrize("commits", [True, False])
def test_a_lease_ends_together_with_the_rows_of_a_lent_transaction(app: Stepfast, commits: bool) -> None:  # noqa: FBT001
    job = register_work(app).enqueue(n=1)
    held = app.acquire("alice")
    assert held is not None
    connection = begun(app)

    with app.transaction(connection.raw) as tx:
        tx.execute("INSERT INTO ledger VALUES (:id, 1)", {"id": held.job_id})
        app.release(held, "done", tx=tx)
    assert rows.state(app, job.id) == "leased"
    connection.commit() if commits else connection.rollback()

    assert rows.state(app, job.id) == ("done" if commits else "leased")
    assert rows.count(app, "ledger") == int(commits)
    connection.close()


@pytest.mark.usefixtures("ledger")
def test_work_on_a_lent_connection_that_raises_is_undone_and_leaves_what_was_before(app: Stepfast) -> None:
    connection = begun(app)
    connection.execute("INSERT INTO ledger VALUES ('before', 1)")

    with suppress(ZeroDivisionError), app.transaction(connection.raw) as tx:
        tx.execute("INSERT INTO ledger VALUES ('inside', 1)")
        raise ZeroDivisionError

    if app.database.dialect.name != "postgresql":  # there the caller decides about the whole of it
        connection.commit()
        assert [row["id"] for row in rows.query(app, "SELECT id FROM ledger")] == ["before"]
    connection.rollback()
    connection.close()


@pytest.mark.only_on("sqlite")
def test_a_transaction_that_the_enqueue_opened_is_closed_when_it_raises_or_only_looked(app: Stepfast) -> None:
    work = register_work(app)
    work.enqueue(n=1, key="k")
    raw = sqlite3.connect(app.database.url.removeprefix("sqlite:///"))

    with closing(raw):
        with pytest.raises(DuplicateKeyError):
            work.enqueue(n=2, key="k", tx=raw)
        open_then = [raw.in_transaction]
        third = work.enqueue(n=3, tx=raw)
        open_then.append(raw.in_transaction)
        raw.commit()
        app.result_of(third.id, tx=raw)
        open_then.append(raw.in_transaction)

    assert (open_then, jobs(app)) == ([False, True, False], 2)


@pytest.mark.only_on("postgresql")
def test_a_worker_hears_of_the_job_when_its_lender_commits(app: Stepfast) -> None:
    """Also if another transaction with an enqueue was rolled back a moment before."""
    done = threading.Event()
    job = app.job()(setting(done))
    first, second = begun(app), begun(app)

    with app.worker(poll_interval="60s") as worker:
        rows.eventually(lambda: worker._wakeups.heard)
        job.enqueue(tx=first.raw)
        job.enqueue(tx=second.raw)
        first.rollback()
        second.commit()
        assert done.wait(10)

    first.close()
    second.close()


def setting(done: threading.Event) -> Callable[[], None]:
    def heard() -> None:
        done.set()

    return heard


# Refusals


def refused(app: Stepfast, lent: Any, sentence: str) -> None:
    with pytest.raises(ConfigurationError, match=sentence):
        register_work(app).enqueue(n=1, tx=lent)


def test_a_closed_connection_is_refused_in_words(app: Stepfast) -> None:
    connection = begun(app)
    connection.close()

    refused(app, connection.raw, "is closed; lend an open one")


def test_a_connection_to_another_database_is_refused_in_words(
    app: Stepfast, new_database: Callable[[], AbstractContextManager[str]]
) -> None:
    with new_database() as url, closing(open_database(url)) as elsewhere:
        connection = elsewhere.connect()
        connection.begin(elsewhere.dialect.begin[Plans.FREE])

        refused(app, connection.raw, "another database")

        connection.close()
    assert jobs(app) == 0


TURN_TO = {
    "postgresql": ("CREATE SCHEMA other", "SET search_path TO other", "{}?options=-csearch_path%3Dother"),
    "mariadb": ("SELECT 1", "USE `{}`", "{}"),
}


@pytest.mark.only_on("postgresql", "mariadb")
def test_a_connection_that_was_lent_before_and_leads_elsewhere_now_is_refused_in_words(
    app: Stepfast, new_database: Callable[[], AbstractContextManager[str]]
) -> None:
    work = register_work(app)
    make, turn, inside = TURN_TO[app.database.dialect.name]
    connection = app.database.connect()
    connection.execute(make)
    with new_database() as another:
        url = app.database.url if app.database.dialect.name == "postgresql" else another
        with closing(open_database(inside.format(url))) as elsewhere:
            migrate(elsewhere)
        connection.begin(app.database.dialect.begin[Plans.FREE])
        work.enqueue(n=1, tx=connection.raw)
        connection.execute(turn.format(another.rpartition("/")[2]))

        refused(app, connection.raw, "another database")

        connection.commit()
        connection.close()
    assert jobs(app) == 1


@pytest.mark.only_on("postgresql", "mariadb")
def test_a_database_of_the_same_name_on_another_server_is_refused_in_words(app: Stepfast) -> None:
    with closing(begun(app)) as connection:
        # As that one would be seen; nobody else sees it.
        connection.execute("UPDATE stepfast_installation SET name = 'of another server'")

        refused(app, connection.raw, "another one of this name")

        connection.rollback()
        connection.begin(app.database.dialect.begin[Plans.FREE])
        assert register_work(app).enqueue(n=1, tx=connection.raw).created


@pytest.mark.only_on("mariadb")
def test_an_enqueue_does_not_fix_the_moment_that_a_lent_transaction_sees(app: Stepfast) -> None:
    work = register_work(app)
    with closing(app.database.connect()) as connection:
        connection.execute("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        connection.begin("START TRANSACTION")
        work.enqueue(n=1, tx=connection.raw)
        work.enqueue(n=2)

        seen = connection.execute("SELECT count(*) FROM stepfast_job").fetchall()[0][0]

    assert seen == 2


READ_ONLY = {
    "sqlite": ("PRAGMA query_only = 1", "BEGIN"),
    "postgresql": ("SELECT 1", "BEGIN READ ONLY"),
    "mariadb": ("SELECT 1", "START TRANSACTION READ ONLY"),
}


def test_a_connection_that_may_only_read_is_refused_in_words(app: Stepfast) -> None:
    connection = app.database.connect()
    for statement in READ_ONLY[app.database.dialect.name]:
        connection.execute(statement)

    refused(app, connection.raw, "nothing can be written")

    connection.close()


@pytest.mark.only_on("postgresql")
def test_connections_of_psycopg_that_cannot_keep_the_promise_are_refused_in_words(app: Stepfast) -> None:
    with psycopg.connect(app.database.url) as raw:
        with pytest.raises(psycopg.errors.DivisionByZero):
            raw.execute("SELECT 1 / 0")
        refused(app, raw, "has failed; roll it back first")
        raw.rollback()
        with raw.cursor() as cursor, cursor.copy("COPY (SELECT 1) TO STDOUT") as copy:
            refused(app, raw, "busy with another command")
            assert list(copy)
        raw.rollback()
        raw.read_only = True
        refused(app, raw, "may only read")


@pytest.mark.only_on("postgresql")
def test_a_pipeline_of_psycopg_is_refused_in_words(app: Stepfast) -> None:
    with psycopg.connect(app.database.url) as raw, raw.pipeline():
        refused(app, raw, "pipeline mode")


@pytest.mark.only_on("mariadb")
def test_a_connection_that_cannot_say_everything_is_refused_in_words(app: Stepfast) -> None:
    own = app.database.connect().raw
    raw = pymysql.connect(
        host=own.host, port=own.port, user=own.user, password=own.password, database=own.db, charset="latin1"
    )

    with closing(own), closing(raw):
        refused(app, raw, "speaks latin1")


@pytest.mark.only_on("sqlite")
def test_a_connection_of_another_thread_is_refused_in_words(app: Stepfast) -> None:
    opened: list[sqlite3.Connection] = []
    path = app.database.url.removeprefix("sqlite:///")

    def open_and_close(close: threading.Event, ready: threading.Event) -> None:
        raw = sqlite3.connect(path)
        opened.append(raw)
        ready.set()
        close.wait(10)
        raw.close()

    close, ready = threading.Event(), threading.Event()
    thread = threading.Thread(target=open_and_close, args=(close, ready))
    thread.start()
    assert ready.wait(10)

    refused(app, opened[0], "belongs to another thread")

    close.set()
    thread.join()


def test_a_class_of_the_callers_own_on_a_drivers_connection_is_taken(app: Stepfast) -> None:
    connection = begun(app)
    raw = connection.raw
    if app.database.dialect.name == "sqlite":
        own = type("Own", (sqlite3.Connection,), {})
        raw = sqlite3.connect(app.database.url.removeprefix("sqlite:///"), factory=own)
        connection.close()
    else:
        raw.__class__ = type("Own", (type(raw),), {})

    register_work(app).enqueue(n=1, tx=raw)
    raw.commit()

    assert jobs(app) == 1
    raw.close()


def test_a_statement_that_fails_on_a_lent_connection_is_the_callers_to_know(app: Stepfast) -> None:
    connection = begun(app)

    with pytest.raises(DatabaseError, match=r"nowhere|doesn't exist"), app.transaction(connection.raw) as tx:
        tx.execute("INSERT INTO nowhere VALUES (1)")

    connection.rollback()
    connection.close()
