"""Enqueue on a connection of the caller's own: one transaction, and a refusal where there is none."""

from __future__ import annotations

import sqlite3
import sys
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy
from psycopg.rows import dict_row
from pymysql.cursors import DictCursor
from sqlalchemy.orm import Session

from holdfast.database.dialects import Whose
from holdfast.errors import ConfigurationError, ContentionError
from tests import rows
from tests.contract.engine import work_on

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast import Holdfast

DRIVERS = {"postgresql://": "postgresql+psycopg://", "mysql://": "mysql+pymysql://"}


@pytest.fixture
def engine(database_url: str) -> Iterator[sqlalchemy.Engine]:
    for ours, theirs in DRIVERS.items():
        database_url = database_url.replace(ours, theirs)
    engine = sqlalchemy.create_engine(database_url)
    yield engine
    engine.dispose()


def jobs(app: Holdfast) -> int:
    return int(rows.query(app, "SELECT count(*) AS n FROM holdfast_job")[0]["n"])


def test_a_job_enqueued_on_a_lent_connection_exists_when_its_owner_commits(
    app: Holdfast, engine: sqlalchemy.Engine
) -> None:
    work = work_on(app)

    with engine.begin() as connection:
        work.enqueue(n=1, tx=connection)
        assert jobs(app) == 0

    assert jobs(app) == 1


def test_a_job_enqueued_on_a_lent_connection_is_gone_when_its_owner_rolls_back(
    app: Holdfast, engine: sqlalchemy.Engine
) -> None:
    work = work_on(app)

    with engine.connect() as connection:
        work.enqueue(n=1, tx=connection, key="once")
        work.enqueue_many([{"n": 2}, {"n": 3}], tx=connection)
        connection.rollback()

    assert jobs(app) == 0
    assert work.enqueue(n=1, key="once").created


def test_an_orm_session_is_lent_like_its_connection(app: Holdfast, engine: sqlalchemy.Engine) -> None:
    work = work_on(app)

    with Session(engine) as session:
        work.enqueue(n=1, tx=session)
        session.commit()

    assert jobs(app) == 1


def test_a_driver_connection_inside_a_transaction_is_taken(app: Holdfast) -> None:
    work = work_on(app)
    connection = app.database.connect()
    connection.begin(app.database.dialect.begin[Whose.THEIRS])

    work.enqueue(n=1, tx=connection.raw)
    connection.commit()

    assert jobs(app) == 1
    connection.close()


def test_a_connection_that_commits_by_itself_is_refused_in_words(app: Holdfast) -> None:
    work = work_on(app)
    connection = app.database.connect()

    with pytest.raises(ConfigurationError, match="autocommit mode and outside a transaction"):
        work.enqueue(n=1, tx=connection.raw)

    assert jobs(app) == 0
    connection.close()


@pytest.mark.parametrize("lent", ["a text", 7, object()])
def test_anything_that_is_no_connection_is_refused_in_words(app: Holdfast, lent: Any) -> None:
    with pytest.raises(ConfigurationError, match="lend a connection of sqlite3, psycopg or PyMySQL"):
        work_on(app).enqueue(n=1, tx=lent)


@pytest.mark.only_on("postgresql", "mariadb")
def test_a_connection_to_another_kind_of_database_is_refused_in_words(app: Holdfast) -> None:
    sqlite = sqlalchemy.create_engine("sqlite://")

    with (
        sqlite.begin() as connection,
        pytest.raises(ConfigurationError, match="both must be the same database"),
    ):
        work_on(app).enqueue(n=1, tx=connection)

    sqlite.dispose()


def dict_rows(cursor: sqlite3.Cursor, row: tuple[Any, ...]) -> dict[str, Any]:
    return {column[0]: value for column, value in zip(cursor.description, row, strict=True)}


def test_rows_may_be_of_any_shape_on_the_lent_connection(app: Holdfast) -> None:
    work = work_on(app)
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
    connection.begin(app.database.dialect.begin[Whose.THEIRS])

    again = work.enqueue(n=2, key="k", on_duplicate="skip", tx=raw)
    other = work.enqueue(n=3, id="task-1", tx=raw)
    connection.commit()

    assert ((again.id, again.created), other.created, jobs(app)) == ((first.id, False), True, 2)
    connection.close()


@pytest.mark.only_on("sqlite")
def test_a_connection_that_answers_with_bytes_is_refused_in_words(app: Holdfast) -> None:
    connection = app.database.connect()
    connection.raw.text_factory = bytes
    connection.begin("BEGIN IMMEDIATE")

    with pytest.raises(ConfigurationError, match="text_factory"):
        work_on(app).enqueue(n=1, tx=connection.raw)

    connection.close()


if sys.version_info >= (3, 12):  # where `autocommit=` came with

    @pytest.mark.only_on("sqlite")
    def test_a_connection_with_autocommit_of_the_new_kind_is_refused_in_words(app: Holdfast) -> None:
        path = app.database.url.removeprefix("sqlite:///")
        raw = sqlite3.connect(path, autocommit=True)

        with closing(raw), pytest.raises(ConfigurationError, match="autocommit mode and outside"):
            work_on(app).enqueue(n=1, tx=raw)

        assert jobs(app) == 0


@pytest.mark.only_on("sqlite")
def test_a_transaction_that_can_no_longer_write_is_told_so(app: Holdfast) -> None:
    """It began by reading, and somebody else has written since: only its owner can begin again."""
    work = work_on(app)
    connection = app.database.connect()
    connection.begin("BEGIN")
    connection.raw.execute("SELECT count(*) FROM holdfast_job").fetchall()
    work.enqueue(n=1)

    with pytest.raises(ContentionError):
        work.enqueue(n=2, tx=connection.raw)

    connection.close()
    assert jobs(app) == 1
