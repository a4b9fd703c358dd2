"""Each migration is applied once, also by many processes at once; an interrupted one is repeated; newer tables are refused."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Collection, Iterator
from contextlib import closing

import pytest

from stepfast import Stepfast
from stepfast.database import migrate as migrate_module
from stepfast.database.connection import Connection, Transaction
from stepfast.database.dialects import DIALECTS
from stepfast.database.migrate import CORE, Component, installed_components, migrate, printed, schema_version
from stepfast.database.relations import Relation, find_relations
from stepfast.errors import ConfigurationError, SchemaError
from tests.support import rows
from tests.support.engine import together
from tests.support.library_component import LIBRARY, LIBRARY_BEFORE

FIRST = [str(migration) for migration in CORE.migrations]


class CutError(Exception):
    """The process stopped here."""


@pytest.fixture
def empty(empty_database_url: str) -> Iterator[Stepfast]:
    """An application on a database without any table."""
    with closing(Stepfast(empty_database_url)) as app:
        yield app


def enqueue_one(app: Stepfast) -> None:
    @app.job()
    def work() -> None: ...

    job = work.enqueue()
    assert rows.state(app, job.id) == "ready"
    assert rows.query(app, "SELECT status FROM processing_jobs") == [{"status": "queued"}]


def test_migrating_twice_applies_once(empty: Stepfast) -> None:
    first, second = empty.migrate(), empty.migrate()

    assert (first, second) == (FIRST, [])
    enqueue_one(empty)


@pytest.mark.only_on("mariadb")
def test_nodes_of_galera_that_migrate_at_once_apply_once(
    empty_database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lock by name holds on one node only: there is none between them."""
    monkeypatch.setattr("stepfast.database.migrate.TAKE_LOCK", "SELECT 1")
    for _ in range(3):
        apps = [Stepfast(empty_database_url) for _ in range(3)]
        answers = together([app.migrate for app in apps])

        assert sorted(answers, key=len) == [[], [], FIRST]
        enqueue_one(apps[0])
        with closing(apps[0].database.connect()) as connection:
            name = apps[0].database.url.rpartition("/")[2]
            connection.execute(f"DROP DATABASE `{name}`")
            connection.execute(f"CREATE DATABASE `{name}`")
        for app in apps:
            app.close()


CHILD = """
import sys
from stepfast import Stepfast
app = Stepfast(sys.argv[1])
print("ready", flush=True)
sys.stdin.read(1)
print(app.migrate())
"""


def test_four_processes_that_migrate_at_once_apply_once(empty_database_url: str, empty: Stepfast) -> None:
    children = [
        subprocess.Popen(
            [sys.executable, "-W", "error", "-c", CHILD, empty_database_url],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(4)
    ]
    for child in children:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"

    for child in children:
        assert child.stdin is not None
        child.stdin.write("!")
        child.stdin.flush()
    answers = [child.communicate(timeout=60)[0].strip() for child in children]

    assert [child.returncode for child in children] == [0] * 4
    assert sorted(answers) == sorted([str(FIRST), "[]", "[]", "[]"])
    enqueue_one(empty)


def test_a_process_that_migrates_between_two_looks_of_another_is_no_stranger(
    empty_database_url: str, empty: Stepfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    look, looks = find_relations, []

    def meanwhile(tx: Transaction, names: Collection[str]) -> dict[str, Relation]:
        found = look(tx, names)
        looks.append(names)
        if len(looks) == 1:
            with closing(Stepfast(empty_database_url)) as faster:
                assert faster.migrate() == FIRST
        return found

    monkeypatch.setattr(migrate_module, "find_relations", meanwhile)

    assert empty.migrate() == []
    enqueue_one(empty)


@pytest.mark.only_on("postgresql", "mariadb")
def test_a_server_without_tables_is_refused_with_the_command_that_makes_them(empty: Stepfast) -> None:
    with pytest.raises(SchemaError, match="run `stepfast migrate`"):
        enqueue_one(empty)
    with pytest.raises(SchemaError, match="run `stepfast migrate`"):
        empty.worker().start()

    assert schema_version(empty._database) is None


@pytest.mark.only_on("sqlite")
def test_a_sqlite_file_gets_its_tables_by_itself(empty: Stepfast) -> None:
    enqueue_one(empty)

    assert schema_version(empty.database) == CORE.version


def test_tables_of_a_newer_version_are_refused_by_everyone(database_url: str) -> None:
    with closing(Stepfast(database_url)) as app:
        rows.set_schema_version(app, 9999)

    with closing(Stepfast(database_url)) as old:
        for attempt in (old.migrate, lambda: old.worker().start(), lambda: enqueue_one(old)):
            with pytest.raises(
                SchemaError,
                match=r"tables of stepfast are at version 9999, newer than this code knows .* upgrade stepfast",
            ):
                attempt()


def test_a_worker_that_was_made_before_the_upgrade_does_not_start_after_it(database_url: str) -> None:
    with closing(Stepfast(database_url)) as app:
        worker = app.worker()
        rows.set_schema_version(app, 9999)

        with pytest.raises(SchemaError, match="newer"):
            worker.start()


def test_tables_of_an_older_version_are_refused_with_the_command_that_upgrades_them(
    database_url: str,
) -> None:
    with closing(Stepfast(database_url)) as app:
        rows.set_schema_version(app, 0)

    refusal = r"the tables of stepfast are at version 0, this code needs \d+; run `stepfast migrate`"
    with closing(Stepfast(database_url)) as app, pytest.raises(SchemaError, match=refusal):
        enqueue_one(app)


def test_a_migration_cut_off_at_any_statement_can_be_run_again(
    empty: Stepfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where DDL commits by itself each cut leaves a longer beginning behind; elsewhere it leaves nothing."""
    cuts, applied = _migrated_in_spite_of_cuts(empty, CORE, monkeypatch)

    assert cuts > len(list(CORE.migrations[0].texts(empty._database.dialect)))
    # Where DDL commits by itself, the last cuts leave only views to be made.
    assert applied == ([] if empty._database.dialect.name == "mariadb" else FIRST)
    assert empty.migrate() == []
    enqueue_one(empty)


def test_a_component_cut_off_at_any_statement_of_its_migrations_can_be_migrated_again(
    empty: Stepfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    empty.migrate()
    cuts, applied = _migrated_in_spite_of_cuts(empty, LIBRARY, monkeypatch)

    assert cuts > sum(len(list(it.texts(empty._database.dialect))) for it in LIBRARY.migrations)
    # Where DDL commits by itself, the last cut leaves whole migrations done.
    assert applied == [str(it) for it in LIBRARY.migrations][len(LIBRARY.migrations) - len(applied) :]
    assert migrate(empty._database, LIBRARY) == []
    _fill_the_library(empty)


def _migrated_in_spite_of_cuts(
    app: Stepfast, component: Component, monkeypatch: pytest.MonkeyPatch
) -> tuple[int, list[str]]:
    """Cut every migration off one statement later than the one before; how often, and what the last one applied."""
    cuts = 0
    while True:
        left = iter(range(cuts))

        def cut(when: str, _: str, left: Iterator[int] = left) -> None:
            if when == "before" and next(left, None) is None:
                monkeypatch.undo()
                raise CutError

        monkeypatch.setattr(Connection, "watch", staticmethod(cut))
        try:
            applied = migrate(app._database, component)
        except CutError:
            cuts += 1
        else:
            monkeypatch.undo()
            return cuts, applied


@pytest.mark.only_on("sqlite", "postgresql")
def test_a_migration_that_was_cut_off_leaves_nothing_where_ddl_is_transactional(
    empty: Stepfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut(_: str, text: str) -> None:
        if "VIEW" in text:
            raise CutError

    monkeypatch.setattr(Connection, "watch", staticmethod(cut))
    with pytest.raises(CutError):
        empty.migrate()

    monkeypatch.undo()
    assert schema_version(empty._database) is None


def test_the_printed_schema_applied_by_hand_is_a_migrated_database(empty: Stepfast) -> None:
    connection = empty._database.connect()
    for text in printed(empty._database.dialect).split(";\n"):
        if text.strip():
            connection.execute(text)
    connection.close()

    assert empty.migrate() == []
    enqueue_one(empty)


@pytest.mark.parametrize("dialect", DIALECTS.values(), ids=DIALECTS.keys())
def test_the_printed_schema_has_nothing_left_to_fill_in(dialect: object) -> None:
    from stepfast.database.dialects import Dialect

    assert isinstance(dialect, Dialect)
    text = printed(dialect)

    assert "{" not in text
    assert "%%" not in text
    assert "-- only" not in text


def _fill_the_library(app: Stepfast) -> None:
    """Use the tables of version 2; the first migration wrote its row once."""
    rows.change(app, "INSERT INTO library_book (shelf_id, title) VALUES ('first', 'Persuasion')")
    assert rows.query(app, "SELECT title FROM library_stock") == [{"title": "Persuasion"}]
    assert rows.query(app, "SELECT id, books FROM library_shelf") == [{"id": "first", "books": 0}]


def test_an_application_has_tables_with_versions_of_their_own(app: Stepfast) -> None:
    assert schema_version(app.database, LIBRARY) is None

    assert migrate(app.database, LIBRARY) == ["0001_first", "0002_books"]
    assert migrate(app.database, LIBRARY) == []

    assert schema_version(app.database, LIBRARY) == 2
    assert schema_version(app.database) == CORE.version
    _fill_the_library(app)


def test_the_tables_of_an_application_are_upgraded(app: Stepfast) -> None:
    migrate(app.database, LIBRARY_BEFORE)
    rows.change(app, "INSERT INTO library_shelf (id, room) VALUES ('first', 'cellar')")

    assert migrate(app.database, LIBRARY) == ["0002_books"]

    _fill_the_library(app)
    assert rows.query(app, "SELECT room FROM library_shelf") == [{"room": "cellar"}]


def test_tables_of_an_application_that_are_newer_than_its_code_are_refused(app: Stepfast) -> None:
    migrate(app.database, LIBRARY)

    with pytest.raises(SchemaError, match=r"tables of library are at version 2, .* upgrade library here"):
        migrate(app.database, LIBRARY_BEFORE)

    enqueue_one(app)  # Stepfast's own tables are as it knows them


def test_the_printed_tables_of_an_application_applied_by_hand_are_migrated(app: Stepfast) -> None:
    with closing(app.database.connect()) as connection:
        for text in printed(connection.dialect, [LIBRARY]).split(";\n"):
            if text.strip():
                connection.execute(text)

    assert migrate(app.database, LIBRARY) == []  # but its first rows are filled in
    _fill_the_library(app)


class EntryPoint:
    """What an installed package says in its metadata."""

    name = "library"
    value = "library.tables:COMPONENT"

    def __init__(self, loaded: object) -> None:
        self._loaded = loaded

    def load(self) -> object:
        return self._loaded


@pytest.mark.parametrize(
    ("found", "refusal"),
    [
        (["not a component"], "library.tables:COMPONENT is no stepfast.applications.Component"),
        ([LIBRARY, LIBRARY_BEFORE], "two packages bring tables called 'library'"),
        ([CORE], "two packages bring tables called 'stepfast'"),
    ],
)
def test_a_package_that_brings_no_proper_component_is_named(
    monkeypatch: pytest.MonkeyPatch, found: list[object], refusal: str
) -> None:
    monkeypatch.setattr("importlib.metadata.entry_points", lambda **_: [EntryPoint(it) for it in found])

    with pytest.raises(ConfigurationError, match=refusal):
        installed_components()


def test_stepfast_is_migrated_before_the_applications(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.metadata.entry_points", lambda **_: [EntryPoint(LIBRARY)])

    assert installed_components() == (CORE, LIBRARY)
