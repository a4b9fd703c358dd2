"""`stepfast migrate` and `doctor`, and which database a command uses."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from stepfast.cli.command import app as commands
from stepfast.database.drivers import open_database
from stepfast.database.migrate import CORE, schema_version
from tests.support import rows
from tests.support.command_line import Cli
from tests.support.jobs_in_every_state import died, greeting

if TYPE_CHECKING:
    from stepfast import Stepfast


def test_migrating_twice_is_harmless(empty_database_url: str) -> None:
    cli = Cli(empty_database_url)

    assert cli("migrate").startswith("stepfast: applied 0001_first;")
    assert (
        cli("migrate", "--only", "stepfast")
        == f"stepfast: nothing to do; the tables are at version {CORE.version}\n"
    )
    assert cli.json("migrate", "--only", "stepfast") == [
        {"component": "stepfast", "applied": [], "version": CORE.version, "notes": []}
    ]
    assert "'jewels' is not installed" in cli("migrate", "--only", "jewels", code=2)


def test_the_printed_sql_makes_the_tables(empty_database_url: str) -> None:
    text = Cli(empty_database_url)("migrate", "--print")

    with closing(open_database(empty_database_url)) as database:
        assert schema_version(database) is None  # printing changes nothing
        connection = database.connect()
        for statement in text.split(";\n"):
            if statement.strip():
                connection.raw.cursor().execute(statement)
        connection.close()
        assert schema_version(database) == CORE.version
    assert Cli(empty_database_url)("jobs", "list") == "no such jobs\n"


@pytest.mark.only_on("sqlite")
def test_sql_is_printed_for_any_product_without_a_database(cli: Cli) -> None:
    assert "ENGINE=InnoDB" in cli("migrate", "--print", "--dialect", "mariadb")
    assert cli("migrate", "--print", "--dialect", "mysql") == cli(
        "migrate", "--print", "--dialect", "mariadb"
    )
    assert "autovacuum" in cli("migrate", "--print", "--dialect", "postgresql")
    assert "--dialect goes with --print" in cli("migrate", "--dialect", "sqlite", code=2)
    cli("migrate", "--print", "--json", code=2)
    cli("migrate", "--print", "--dialect", "oracle", code=2)


def test_without_tables_a_command_says_what_to_run(empty_database_url: str) -> None:
    cli = Cli(empty_database_url)
    with closing(open_database(empty_database_url)) as database:
        database.connect().close()  # on SQLite this makes an empty file

        assert "run `stepfast migrate` once" in cli("jobs", "list", code=1)
        assert schema_version(database) is None


@pytest.mark.parametrize(("version", "cure"), [(999, "upgrade stepfast here"), (0, "run `stepfast migrate`")])
def test_tables_of_another_version_are_refused(cli: Cli, app: Stepfast, version: int, cure: str) -> None:
    rows.set_schema_version(app, version)

    assert cure in cli("jobs", "list", code=1)


@pytest.mark.only_on("sqlite")
def test_looking_never_creates_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    for words in (["jobs", "list"], ["doctor"], ["leases", "reset"]):
        result = CliRunner().invoke(commands, words)
        assert result.exit_code == 1
        assert "there is no SQLite file 'stepfast.db'" in result.stderr

    assert list(tmp_path.iterdir()) == []


@pytest.mark.only_on("sqlite")
def test_the_url_after_the_command_wins_over_the_one_before_it_and_over_the_environment(
    database_url: str, app: Stepfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = greeting(app).enqueue().id

    monkeypatch.setenv("STEPFAST_DATABASE_URL", database_url)
    from_environment = CliRunner().invoke(commands, ["jobs", "list"])
    monkeypatch.setenv("STEPFAST_DATABASE_URL", "sqlite:////no/such/file.db")
    before = CliRunner().invoke(commands, ["--database-url", database_url, "jobs", "list"])
    after = CliRunner().invoke(
        commands, ["--database-url", "sqlite:////no/other.db", "jobs", "list", "--database-url", database_url]
    )

    for result in (from_environment, before, after):
        assert job_id in result.stdout


@pytest.mark.only_on("sqlite")
def test_the_doctor_exits_with_zero_when_nothing_is_stuck(cli: Cli, app: Stepfast) -> None:
    died(app, greeting(app))

    assert "warn  dead letters" in cli("doctor")
    assert cli.json("doctor")["healthy"] is True
    assert "→ stepfast dead-letters list" in cli("doctor", "--strict", code=1)


def test_the_doctor_exits_with_one_when_work_is_stuck(cli: Cli, app: Stepfast) -> None:
    greeting(app).enqueue()

    found = cli.json("doctor", code=1)

    assert found["healthy"] is False
    workers = next(it for it in found["findings"] if it["name"] == "workers")
    assert set(workers) == {"name", "level", "found", "cure"}
    assert workers["level"] == "fail"


def test_the_doctor_repairs_jobs_that_wait_for_what_has_ended(cli: Cli, app: Stepfast) -> None:
    work = greeting(app)
    gone = work.enqueue()
    child = work.enqueue(after=gone, on_dead="run")
    rows.change(app, "DELETE FROM stepfast_job WHERE id = :id", id=gone.id)

    assert "→ stepfast doctor --repair" in cli("doctor", code=1)
    said = cli("doctor", "--repair", "--by", "alice", code=1)  # no worker runs

    assert "repair: decided about the jobs that waited for 1 job which had ended" in said
    assert "stranded" not in said
    assert rows.state(app, child.id) == "ready"
    assert app.operator.audit(what="dependants.release")[0].who == "alice"


@pytest.mark.parametrize("scheme", ["postgresql", "mysql"])
def test_the_doctor_of_a_database_that_is_down_says_so_without_the_password(scheme: str) -> None:
    cli = Cli(f"{scheme}://me:hunter2@127.0.0.1:1/name")

    found = json.dumps(cli.json("doctor", code=1))

    assert "does not answer" in found
    assert "hunter2" not in found + cli("doctor", code=1)
