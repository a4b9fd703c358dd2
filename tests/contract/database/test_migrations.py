"""Migrations: once each, whoever else tries; after a cut, again; and no work on tables this code does not know."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing

import pytest

from stepfast import Stepfast
from stepfast.database.connection import Connection
from stepfast.database.dialects import DIALECTS
from stepfast.database.migrate import known_version, migrations, printed, schema_version
from stepfast.errors import SchemaError
from tests.support import rows

FIRST = [f"{it.version:04d}_{it.name}" for it in migrations()]


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


@pytest.mark.only_on("postgresql", "mariadb")
def test_a_server_without_tables_is_refused_with_the_command_that_makes_them(empty: Stepfast) -> None:
    with pytest.raises(SchemaError, match="run `stepfast migrate`"):
        enqueue_one(empty)
    with pytest.raises(SchemaError, match="run `stepfast migrate`"):
        empty.worker()

    assert schema_version(empty._database) is None


@pytest.mark.only_on("sqlite")
def test_a_sqlite_file_gets_its_tables_by_itself(empty: Stepfast) -> None:
    enqueue_one(empty)

    assert schema_version(empty.database) == known_version()


def test_tables_of_a_newer_version_are_refused_by_everyone(database_url: str) -> None:
    with closing(Stepfast(database_url)) as app:
        rows.change(app, "INSERT INTO stepfast_schema (version, name, applied_at) VALUES (9999, 'future', 1)")

    with closing(Stepfast(database_url)) as old:
        for attempt in (old.migrate, old.worker, lambda: enqueue_one(old)):
            with pytest.raises(SchemaError, match=r"9999, newer than this code knows .* upgrade stepfast"):
                attempt()


def test_a_worker_that_was_made_before_the_upgrade_does_not_start_after_it(database_url: str) -> None:
    with closing(Stepfast(database_url)) as app:
        worker = app.worker()
        rows.change(app, "INSERT INTO stepfast_schema (version, name, applied_at) VALUES (9999, 'future', 1)")

        with pytest.raises(SchemaError, match="newer"):
            worker.start()


def test_tables_of_an_older_version_are_refused_with_the_command_that_upgrades_them(
    database_url: str,
) -> None:
    with closing(Stepfast(database_url)) as app:
        rows.change(app, "DELETE FROM stepfast_schema WHERE version > 1")

    with closing(Stepfast(database_url)) as app, pytest.raises(SchemaError, match="run `stepfast migrate`"):
        enqueue_one(app)


def test_a_migration_cut_off_at_any_statement_can_be_run_again(
    empty: Stepfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where DDL commits by itself each cut leaves a longer beginning behind; elsewhere it leaves nothing."""
    cuts = 0
    while True:
        left = iter(range(cuts))

        def cut(when: str, _: str, left: Iterator[int] = left) -> None:
            if when == "before" and next(left, None) is None:
                monkeypatch.undo()
                raise CutError

        monkeypatch.setattr(Connection, "watch", staticmethod(cut))
        try:
            applied = empty.migrate()
        except CutError:
            cuts += 1
        else:
            break
    monkeypatch.undo()

    assert cuts > len(list(migrations()[0].texts(empty._database.dialect)))
    assert applied == FIRST[-len(applied) :]  # where DDL commits by itself, whole migrations were done before
    assert empty.migrate() == []
    enqueue_one(empty)


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
