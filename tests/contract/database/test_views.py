"""`migrate` makes its views beside the tables and views of the user, and never touches those."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from urllib.parse import urlsplit, urlunsplit

import pytest

from stepfast import Stepfast
from stepfast.database.drivers import open_database
from stepfast.database.migrate import CORE, Component, migrate
from stepfast.database.tables import table_names
from stepfast.errors import ConfigurationError, DatabaseError, SchemaError
from tests.support import rows
from tests.support.command_line import Cli
from tests.support.library_component import LIBRARY

VIEWS = {"partition_progress", "processing_jobs", "run_metadata", "worker_runs"}
OWN_VIEW = "CREATE VIEW {} AS SELECT 1 AS my_column"


@pytest.fixture
def empty(empty_database_url: str) -> Iterator[Stepfast]:
    """An application on a database without any table."""
    with closing(Stepfast(empty_database_url)) as app:
        yield app


def execute(app: Stepfast, *statements: str) -> None:
    with closing(app._database.connect()) as connection:
        for statement in statements:
            connection.execute(statement)


def names(app: Stepfast) -> set[str]:
    with app._database.reading() as tx:
        return {name for name in table_names(tx) if not name.startswith(("stepfast_", "sqlite_"))}


def columns(app: Stepfast, table: str) -> list[str]:
    with app._database.reading() as tx:
        found = tx.query(f"SELECT * FROM {table}")
    return list(found[0]) if found else []


def notes_of(app: Stepfast, component: Component = CORE, views: str | None = None) -> list[str]:
    """Migrate, and return what it told."""
    told: list[str] = []
    migrate(app._database, component, views=views, tell=told.append)
    return told


def test_a_view_of_the_user_is_left_alone_and_named(empty: Stepfast) -> None:
    execute(empty, OWN_VIEW.format("processing_jobs"))

    told = notes_of(empty)

    assert columns(empty, "processing_jobs") == ["my_column"]
    assert names(empty) == VIEWS  # the other three are made
    assert len(told) == 1
    assert told[0].startswith("there is a view processing_jobs that Stepfast did not make: it is left alone")
    assert "--views PREFIX" in told[0]
    assert notes_of(empty) == told  # and the next migration says it again
    assert columns(empty, "processing_jobs") == ["my_column"]


def test_a_table_of_the_user_is_left_alone_and_named(empty: Stepfast) -> None:
    execute(empty, "CREATE TABLE run_metadata (my_column INTEGER)", "INSERT INTO run_metadata VALUES (7)")

    told = notes_of(empty)

    assert rows.query(empty, "SELECT my_column FROM run_metadata") == [{"my_column": 7}]
    assert len(told) == 1
    assert told[0].startswith("there is a table run_metadata that Stepfast did not make")
    assert names(empty) == VIEWS


@pytest.mark.only_on("sqlite", "postgresql")
def test_an_index_with_the_name_of_a_view_is_in_its_way(empty: Stepfast) -> None:
    execute(empty, "CREATE TABLE mine (x INTEGER)", "CREATE INDEX worker_runs ON mine (x)")

    assert notes_of(empty)[0].startswith("there is an index worker_runs that Stepfast did not make")


@pytest.mark.only_on("postgresql")
def test_a_type_with_the_name_of_a_view_is_in_its_way(empty: Stepfast) -> None:
    execute(empty, "CREATE DOMAIN processing_jobs AS INTEGER")

    assert notes_of(empty)[0].startswith("there is a type processing_jobs that Stepfast did not make")


def test_a_view_that_the_user_put_in_the_place_of_ours_is_left_alone(app: Stepfast) -> None:
    execute(app, "DROP VIEW processing_jobs", OWN_VIEW.format("processing_jobs"))

    told = notes_of(app)

    assert columns(app, "processing_jobs") == ["my_column"]
    assert "processing_jobs" in told[0]


def test_a_view_that_was_dropped_is_made_again(app: Stepfast) -> None:
    execute(app, "DROP VIEW processing_jobs")

    assert notes_of(app) == []

    assert rows.query(app, "SELECT * FROM processing_jobs") == []


def test_views_get_a_prefix_and_later_migrations_keep_to_it(empty: Stepfast) -> None:
    execute(empty, OWN_VIEW.format("processing_jobs"))

    assert notes_of(empty, views="work_") == []
    assert notes_of(empty) == []

    assert names(empty) == {"processing_jobs", *(f"work_{view}" for view in VIEWS)}
    assert columns(empty, "processing_jobs") == ["my_column"]
    assert rows.query(empty, "SELECT * FROM work_processing_jobs") == []


def test_no_views_are_made_if_none_are_wanted(empty: Stepfast) -> None:
    execute(empty, OWN_VIEW.format("processing_jobs"))

    empty.migrate(views="none")
    assert notes_of(empty) == []

    assert names(empty) == {"processing_jobs"}


def test_other_names_move_our_views_and_nothing_else(app: Stepfast) -> None:
    execute(app, "DROP VIEW run_metadata", OWN_VIEW.format("run_metadata"))

    assert notes_of(app, views="work_") == []

    assert names(app) == {"run_metadata", *(f"work_{view}" for view in VIEWS)}
    assert columns(app, "run_metadata") == ["my_column"]

    assert notes_of(app, views="none") == []
    assert names(app) == {"run_metadata"}

    told = notes_of(app, views="default")
    assert names(app) == VIEWS
    assert [note for note in told if "run_metadata" not in note] == []


@pytest.mark.parametrize("prefix", ["Work_", "work-", "1", "", "w" * 31, "work_; DROP TABLE x", 'a"'])
def test_a_prefix_that_cannot_begin_a_name_is_refused(app: Stepfast, prefix: str) -> None:
    with pytest.raises(ConfigurationError, match="write none, default, or a prefix of small letters"):
        app.migrate(views=prefix)

    assert names(app) == VIEWS


def test_the_views_of_an_application_follow_the_choice_for_stepfast(empty: Stepfast) -> None:
    empty.migrate(views="work_")

    migrate(empty._database, LIBRARY)

    assert "work_library_stock" in names(empty)
    assert rows.query(empty, "SELECT * FROM work_library_stock") == []


def test_the_views_of_an_application_can_be_moved_later(app: Stepfast) -> None:
    migrate(app.database, LIBRARY)
    app.migrate(views="none")
    assert notes_of(app, LIBRARY) == []
    assert "library_stock" in names(app)

    notes_of(app, LIBRARY, "shop_")

    assert "library_stock" not in names(app)
    assert "shop_library_stock" in names(app)


def test_names_for_an_application_alone_are_refused_before_the_first_migration(empty: Stepfast) -> None:
    with pytest.raises(SchemaError, match="run `stepfast migrate` once"):
        migrate(empty._database, LIBRARY, views="shop_")

    assert "library_shelf" not in names(empty)


def test_an_older_version_of_a_view_is_replaced(app: Stepfast) -> None:
    """Also one with other columns."""
    older = "CREATE VIEW processing_jobs AS SELECT 1 AS old_column WHERE 'made by stepfast migrate: 00000000' <> ''"
    execute(app, "DROP VIEW processing_jobs", older)

    assert notes_of(app) == []

    assert rows.query(app, "SELECT * FROM processing_jobs") == []


@pytest.mark.only_on("postgresql")
def test_a_view_that_another_view_needs_stays_and_is_named(app: Stepfast) -> None:
    execute(app, "CREATE VIEW mine AS SELECT count(*) AS jobs FROM processing_jobs")

    told = notes_of(app, views="work_")

    assert len(told) == 1
    assert told[0].startswith("the view processing_jobs could not be dropped (")
    assert rows.query(app, "SELECT jobs FROM mine") == [{"jobs": 0}]
    assert names(app) == {"mine", "processing_jobs", *(f"work_{view}" for view in VIEWS)}


def test_the_command_names_what_it_left_alone(empty_database_url: str, empty: Stepfast) -> None:
    execute(empty, OWN_VIEW.format("processing_jobs"))
    cli = Cli(empty_database_url)

    found = cli.json("migrate", "--only", "stepfast")
    assert len(found[0]["notes"]) == 1
    assert "processing_jobs" in found[0]["notes"][0]
    assert "write none, default, or a prefix" in cli("migrate", "--views", "A", code=2)
    assert cli.json("migrate", "--only", "stepfast", "--views", "work_")[0]["notes"] == []
    assert "work_processing_jobs" in cli("migrate", "--print", "--views", "work_")
    assert "VIEW" not in cli("migrate", "--print", "--views", "none")


# A table of the user's with the name of one of ours


@pytest.mark.parametrize("table", ["stepfast_job", "stepfast_schema", "stepfast_installation"])
def test_a_table_of_the_user_with_our_name_is_not_touched(empty: Stepfast, table: str) -> None:
    execute(empty, f"CREATE TABLE {table} (id INTEGER, mine INTEGER)", f"INSERT INTO {table} VALUES (1, 2)")
    before = names_of_all(empty)

    with pytest.raises(SchemaError, match=f"there is a table {table} that Stepfast did not make") as refused:
        empty.migrate()

    assert "a schema or a database of its own" in str(refused.value)
    assert names_of_all(empty) == before
    assert columns(empty, table) == ["id", "mine"]
    with pytest.raises(SchemaError):
        empty.worker().start()


def test_a_table_with_all_our_columns_is_not_ours_for_that(empty: Stepfast) -> None:
    execute(
        empty,
        "CREATE TABLE stepfast_queue (id VARCHAR(128) PRIMARY KEY, paused_at BIGINT, note VARCHAR(500))",
    )

    with pytest.raises(SchemaError, match="stepfast_queue"):
        empty.migrate()


@pytest.mark.only_on("sqlite", "postgresql")
def test_an_index_of_the_user_with_our_name_is_not_taken_for_ours(empty: Stepfast) -> None:
    execute(empty, "CREATE TABLE mine (x INTEGER)", "CREATE INDEX stepfast_job_ready ON mine (x)")

    with pytest.raises(SchemaError, match="there is an index stepfast_job_ready that Stepfast did not make"):
        empty.migrate()


def names_of_all(app: Stepfast) -> list[str]:
    with app._database.reading() as tx:
        return table_names(tx)


# Rights


@pytest.fixture
def writer_url(app: Stepfast, database_url: str) -> Iterator[str]:
    """The URL of a user who may read and write rows, and create nothing."""
    parts = urlsplit(database_url)
    database = parts.path.strip("/")
    rights = "SELECT, INSERT, UPDATE, DELETE"
    if app.database.dialect.name == "postgresql":
        make = [
            "REVOKE CREATE ON SCHEMA public FROM PUBLIC",
            f"CREATE ROLE writer_{database} LOGIN PASSWORD 'writer'",
            f"GRANT {rights} ON ALL TABLES IN SCHEMA public TO writer_{database}",
        ]
        remove = [f"DROP OWNED BY writer_{database}", f"DROP ROLE writer_{database}"]
    else:
        make = [
            f"CREATE USER writer_{database} IDENTIFIED BY 'writer'",
            f"GRANT {rights} ON {database}.* TO writer_{database}",
        ]
        remove = [f"DROP USER writer_{database}"]
    execute(app, *make)
    yield urlunsplit(parts._replace(netloc=f"writer_{database}:writer@127.0.0.1:{parts.port}"))
    execute(app, *remove)


@pytest.mark.only_on("postgresql", "mariadb")
def test_a_migration_with_nothing_to_do_needs_no_right_to_create(writer_url: str) -> None:
    with closing(open_database(writer_url)) as database:
        told: list[str] = []

        assert migrate(database, tell=told.append) == []

        assert told == []
        with closing(database.connect()) as connection, pytest.raises(DatabaseError, match="denied"):
            connection.execute("CREATE TABLE mine (x INTEGER)")  # or it would be no test


@pytest.mark.only_on("postgresql", "mariadb")
def test_a_migration_that_may_not_create_says_so(app: Stepfast, writer_url: str) -> None:
    assert app.migrate() == []
    with closing(open_database(writer_url)) as database, pytest.raises(DatabaseError, match="denied"):
        migrate(database, LIBRARY)
