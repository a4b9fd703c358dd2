"""Enqueue on a connection of the caller's own: one transaction, and a refusal where there is none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy
from sqlalchemy.orm import Session

from holdfast.errors import ConfigurationError
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
    connection.begin(app.database.dialect.begin)

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
