"""The `stepfast` program as a process: exit codes, output streams, signals, and imports that stay small."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from devtools import cli_reference
from stepfast.database.migrate import CORE
from tests.support import rows
from tests.support.jobs_in_every_state import died, greeting

if TYPE_CHECKING:
    from stepfast import Stepfast

ROOT = Path(__file__).parents[2]
PROGRAM = str(Path(sys.executable).with_name("stepfast"))


def run(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [PROGRAM, *words],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
        env=_surroundings(**environment),
    )


def _surroundings(**more: str) -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "HOME": "/nonexistent", **more}


@pytest.mark.parametrize(
    ("url", "complaint"),
    [
        ("postgresql://me:hunter2@127.0.0.1:1/name", "cannot reach PostgreSQL at 127.0.0.1:1"),
        ("mysql://me:hunter2@127.0.0.1:1/name", "cannot reach MariaDB/MySQL at 127.0.0.1:1"),
        ("postgresql://me:hunter2@127.0.0.1:port/name", "is not a database URL"),
        ("postgresql://me:hunter2@elsewhere@127.0.0.1/name", "is not a database URL"),
        ("postgresql://127.0.0.1:1/name?user=me&password=hunter2%zz", "is not a PostgreSQL URL"),
        ("postgresql+psycopg://me:hunter2@127.0.0.1/name", "without '+driver' suffixes"),
        ("postgres//me:hunter2@127.0.0.1/name", "is not a database URL"),
        ("mysql://me:hunter2@127.0.0.1:1", "names no database"),
        ("sqlite://work.db", "write three slashes"),
        ("sqlite:////no/such/folder/work.db", "there is no SQLite file '/no/such/folder/work.db'"),
        ("work.db", "is not a database URL"),
    ],
)
def test_a_url_that_cannot_work_is_one_sentence_without_its_password(url: str, complaint: str) -> None:
    done = run("jobs", "list", STEPFAST_DATABASE_URL=url)

    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("stepfast: ")
    assert done.stderr.count("\n") == 1
    assert complaint in done.stderr
    assert "hunter2" not in done.stderr


def test_wrong_usage_exits_with_two_and_help_with_zero() -> None:
    assert run("jobs", "show").returncode == 2
    assert run("nonsense").returncode == 2
    assert run("jobs", "list", "--state", "odd").returncode == 2
    help_text = run("--help")
    assert help_text.returncode == 0
    assert "dead-letters" in help_text.stdout


def test_the_version_is_an_option_too() -> None:
    option, command = run("--version"), run("version")

    assert (option.returncode, option.stdout) == (0, command.stdout)
    assert option.stdout.startswith("stepfast ")


def test_the_package_is_a_program_too() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "stepfast", "version", "--json"],
        check=True,
        capture_output=True,
        text=True,
        env=_surroundings(),
    )

    assert set(json.loads(done.stdout)) == {"stepfast", "python", "schema"}
    assert run("version").stdout.startswith("stepfast ")


@pytest.mark.only_on("sqlite")
def test_only_the_document_is_on_standard_output(database_url: str, app: Stepfast) -> None:
    greeting(app).enqueue()
    rows.set_schema_version(app, 999)

    refused = run("jobs", "list", "--json", STEPFAST_DATABASE_URL=database_url)
    rows.set_schema_version(app, CORE.version)
    done = run("jobs", "list", "--json", "--limit", "1", STEPFAST_DATABASE_URL=database_url)

    assert (refused.returncode, refused.stdout) == (1, "")
    assert "newer than this code knows" in refused.stderr
    assert len(json.loads(done.stdout)) == 1


@pytest.mark.only_on("sqlite")
@pytest.mark.parametrize("no_color", ["", "1"])
def test_many_dead_letters_are_retried_behind_a_progress_bar(
    database_url: str, app: Stepfast, no_color: str
) -> None:
    greet = greeting(app)
    for _ in range(3):
        died(app, greet)

    seen, code = on_a_terminal(
        "dead-letters", "retry", "--all", STEPFAST_DATABASE_URL=database_url, NO_COLOR=no_color
    )

    assert code == 0
    assert "retrying" in seen
    assert "3/3" in seen
    assert ("\x1b[3" in seen) == (not no_color)  # coloured, or not


def on_a_terminal(*words: str, **environment: str) -> tuple[str, int]:
    mine, theirs = pty.openpty()
    process = subprocess.Popen(
        [PROGRAM, *words],
        stdout=theirs,
        stderr=theirs,
        env=_surroundings(
            TERM="xterm-256color", COLUMNS="100", **{k: v for k, v in environment.items() if v}
        ),
    )
    os.close(theirs)
    seen = b""
    while True:
        try:
            piece = os.read(mine, 65536)
        except OSError:  # how Linux says that the other end is closed
            break
        seen += piece
    os.close(mine)
    return seen.decode(), process.wait()


def test_a_worker_serves_the_app_it_was_given_until_sigterm(
    database_url: str, app: Stepfast, tmp_path: Path
) -> None:
    (tmp_path / "shop.py").write_text(
        "from stepfast import Stepfast\n"
        "app = Stepfast()\n"
        "@app.job(queue='mail')\n"
        "def greet(name: str) -> str:\n"
        "    return 'hello ' + name\n"
    )
    job_id = greeting(app, queue="mail").enqueue(name="Ada").id
    options = [
        "--queues",
        "mail",
        "--concurrency",
        "3",
        "--lease",
        "20",
        "--worker-id",
        "here",
        "--renew-at",
        "75",
    ]
    worker = subprocess.Popen(
        [PROGRAM, "--database-url", database_url, "worker", "shop:app", *options],
        cwd=tmp_path,
        env=_surroundings(),
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        row = rows.eventually(lambda: rows.ended(app, job_id))
        (listed,) = json.loads(run("workers", "list", "--json", STEPFAST_DATABASE_URL=database_url).stdout)
        worker.send_signal(signal.SIGTERM)
        _, said = worker.communicate(timeout=30)
    finally:
        worker.kill()

    assert (row["state"], row["result"]) == ("done", '"hello Ada"')
    assert (listed["worker_id"], listed["queues"], listed["concurrency"]) == ("here", ["mail"], 3)
    assert (listed["lease_seconds"], listed["running"]) == (20.0, True)
    assert worker.returncode == 0, said
    (gone,) = json.loads(run("workers", "list", "--all", "--json", STEPFAST_DATABASE_URL=database_url).stdout)
    assert gone["state"] == "stopped"


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["nowhere:app"], "no module 'nowhere'"),
        (["shop"], "is not an app; write module:app"),
        (["json:app"], "has no Stepfast app named 'app'"),
    ],
)
def test_a_worker_without_its_app_says_what_is_missing(words: list[str], complaint: str) -> None:
    done = run("worker", *words)

    assert done.returncode == 1
    assert complaint in done.stderr
    assert "Traceback" not in done.stderr


def test_help_shows_commands_in_groups_on_eighty_columns() -> None:
    text = run("--help", COLUMNS="80").stdout

    groups = [line.removesuffix(":") for line in text.splitlines() if re.fullmatch(r"[A-Z][a-z ]+:", line)]
    assert groups == ["Options", "Work", "Look", "Mend", "Sync", "Set up", "Applications"]
    assert "  worker        Run jobs until told to stop.\n" in text
    assert "..." not in text.partition("Work:")[2], "a short help is cut off"
    assert max(map(len, text.splitlines())) <= 80


def test_help_appears_without_drivers_tables_or_network() -> None:
    heavy = ("psycopg", "pymysql", "sqlite3", "rich", "email", "http", "pydantic", "unittest")
    script = "import sys, stepfast.cli.command\nprint(*[it for it in sys.argv[1:] if it in sys.modules])"

    done = subprocess.run([sys.executable, "-c", script, *heavy], check=True, capture_output=True, text=True)

    assert done.stdout.split() == []


def test_the_reference_of_the_command_line_is_current() -> None:
    kept = (ROOT / "docs/reference/cli.md").read_text()

    assert cli_reference.text() in kept, "run: PYTHONPATH=. cog -r docs/reference/cli.md"
