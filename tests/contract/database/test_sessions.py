"""Settings of every session: locks of a vanished host are released, and a commit is on disk."""

from __future__ import annotations

import threading
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from stepfast.database.drivers import open_database
from stepfast.errors import ContentionError, UnreachableError
from tests.support import rows
from tests.support.engine import register_work, take

if TYPE_CHECKING:
    from collections.abc import Callable

    from stepfast import Stepfast


@pytest.mark.only_on("postgresql")
def test_a_transaction_begins_with_its_limits(app: Stepfast) -> None:
    names = (
        "lock_timeout",
        "statement_timeout",
        "idle_in_transaction_session_timeout",
        "transaction_isolation",
    )

    with app.transaction() as tx:
        limits = [tx.query(f"SHOW {name}")[0][name] for name in names]

    assert limits == ["2s", "30s", "10s", "read committed"]


@pytest.mark.only_on("mariadb")
def test_a_session_begins_with_its_limits(app: Stepfast) -> None:
    with app.transaction() as tx:
        (limits,) = tx.query(
            "SELECT @@innodb_lock_wait_timeout AS locks, @@idle_write_transaction_timeout AS idle,"
            " @@idle_transaction_timeout AS idle_with_locks,"
            " @@tx_isolation AS isolation, @@sql_mode LIKE '%STRICT_TRANS_TABLES%' AS strict"
        )

    assert limits == {
        "locks": 2,
        "idle": 10,
        "idle_with_locks": 30,
        "isolation": "READ-COMMITTED",
        "strict": 1,
    }


@pytest.mark.only_on("sqlite")
def test_a_file_is_durable_and_never_waits_in_sqlites_own_handler(app: Stepfast) -> None:
    names = ("journal_mode", "synchronous", "busy_timeout", "foreign_keys")
    connection = app.database.connect()

    settings = [connection.execute(f"PRAGMA {name}").fetchall()[0][0] for name in names]

    connection.close()
    assert settings == ["wal", 2, 0, 1]


@pytest.mark.only_on("mariadb")
def test_nothing_is_cut_silently(app: Stepfast) -> None:
    from stepfast.errors import DatabaseError

    with pytest.raises(DatabaseError, match="too long"):
        rows.change(app, "INSERT INTO stepfast_queue (id) VALUES (:id)", id="q" * 200)


@pytest.mark.only_on("postgresql", "mariadb")
def test_who_waits_for_a_row_too_long_is_told_that_it_is_contention(
    app: Stepfast, another_app: Callable[[], Stepfast]
) -> None:
    register_work(app).enqueue()
    held = take(app)
    other = another_app()

    with app.transaction() as tx:
        tx.execute("UPDATE stepfast_job SET progress = 1")
        with pytest.raises(ContentionError):
            rows.change(other, "UPDATE stepfast_job SET progress = 2 WHERE id = :id", id=held.job_id)


@pytest.mark.only_on("sqlite")
def test_writers_of_one_file_take_turns(another_app: Callable[[], Stepfast]) -> None:
    apps = [another_app() for _ in range(4)]
    errors: list[Any] = []

    def write(app: Stepfast, name: int) -> None:
        try:
            for n in range(25):
                rows.change(app, "INSERT INTO stepfast_queue (id) VALUES (:id)", id=f"{name}-{n}")
        except Exception as error:  # noqa: BLE001 - the test looks at it
            errors.append(error)

    threads = [threading.Thread(target=write, args=(app, name)) for name, app in enumerate(apps)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert errors == []
    assert rows.count(apps[0], "stepfast_queue") == 100


@pytest.mark.only_on("postgresql")
def test_of_several_hosts_the_one_that_takes_writes_is_meant(app: Stepfast) -> None:
    url = app.database.url
    server, name = url.rpartition("@")[2].split("/")
    several = url.replace(server, f"127.0.0.1:1,{server}")
    with closing(open_database(several)) as database, database.transaction() as tx:
        assert tx.query("SELECT 1 AS one") == [{"one": 1}]

    with closing(app.database.connect()) as connection:
        connection.execute(f'ALTER DATABASE "{name}" SET default_transaction_read_only = on')
    with closing(open_database(several)) as database, pytest.raises(UnreachableError, match="read-only"):
        database.connect()
    with closing(open_database(f"{several}?target_session_attrs=any")) as database:
        database.connect().close()  # to look
