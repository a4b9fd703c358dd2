"""`stepfast demo`, from the first process to the last: real workers, a real kill, and nothing left running."""

from __future__ import annotations

import os
import re
import shlex
import signal
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from stepfast import ConfigurationError
from stepfast.cli.command import app as commands
from stepfast_diamonds.demo import folder as place
from stepfast_diamonds.demo import story as demo_story
from stepfast_diamonds.demo.comparison import compare
from tests.support import rows

if TYPE_CHECKING:
    from stepfast import Stepfast
    from tests.support.command_line import Cli

PROGRAM = str(Path(sys.executable).with_name("stepfast"))


def surroundings(**more: str) -> dict[str, str]:
    """The environment of a user who works with Stepfast for real: the demo must not touch it."""
    path = f"{Path(PROGRAM).parent}{os.pathsep}{os.environ['PATH']}"
    real = {
        "STEPFAST_DATABASE_URL": "sqlite:////no/such/folder/real.db",
        "NIVODA_URL": "https://127.0.0.1:1/",
    }
    return {"PATH": path, "HOME": "/nonexistent", **real, **more}


@contextmanager
def demo(*options: str, **environment: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [PROGRAM, "demo", *options],
        env=surroundings(**environment),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def refused(*options: str, code: int = 1) -> str:
    done = CliRunner().invoke(commands, ["demo", *options])
    assert done.exit_code == code, done.output
    return " ".join(done.stderr.split())


def pids_in(said: str) -> list[int]:
    """Of the simulator and the workers."""
    found = re.findall(r"\(pid (\d+)\)|pids ([\d, ]+);", said)
    return [int(it) for pair in found for it in re.findall(r"\d+", " ".join(pair))]


def is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_a_killed_worker_is_replaced_and_the_table_equals_the_source(tmp_path: Path) -> None:
    folder = tmp_path / "left"
    with demo("--stones", "1000", "--workers", "2", "--directory", str(folder)) as process:
        said, complained = process.communicate(timeout=100)

    assert (process.returncode, complained) == (0, ""), said
    assert re.search(r"kill -9 \d+: worker-\d is dead, in the middle of a page", said)
    assert re.search(r"[\d.]+ s after the kill its guardian has told the others that worker-\d is dead", said)
    assert re.search(r"[\d.]+ s after the kill \S+ has read partition-\d+ on from row [\d,]+", said)
    assert re.search(r"after the kill all \d+ partitions? go on where they were|1 partition go on", said)
    assert re.search(r"the watermark has moved from \S+ to ", said)
    assert "missing 0, doubled 0, stale 0" in said
    assert "\x1b" not in said, "a pipe gets plain lines"
    pids = pids_in(said)
    assert len(pids) == 3
    assert all(is_gone(it) for it in pids)
    check_the_last_words(said, folder)


def check_the_last_words(said: str, folder: Path) -> None:
    """Every command that the demo suggests at its end works; the last one removes everything."""
    export, *typed = [it.strip() for it in said.partition("Where to look next")[2].splitlines() if it.strip()]
    environment = dict([export.removeprefix("export ").split("=", 1)])
    assert len(typed) >= 7
    for it in typed:
        program, *words = shlex.split(it)
        if program == "stepfast":
            done = CliRunner().invoke(commands, words, env=environment)
            assert done.exit_code == 0, f"{it}: {done.output}"
        else:
            subprocess.run([program, *words], check=True, capture_output=True)
    assert not folder.exists()


@pytest.mark.parametrize("transport", ["service-bus", "storage-queue"])
def test_workers_that_a_broker_tells_sync_the_catalogue_as_well(transport: str, tmp_path: Path) -> None:
    options = ["--stones", "200", "--workers", "1", "--no-kill", "--directory", str(tmp_path / "demo")]

    with demo(*options, "--transport", transport) as process:
        said, complained = process.communicate(timeout=120)

    assert process.returncode == 0, said + complained
    (told,) = re.findall(r"messages told workers of ([\d,]+) pages and consolidations\n", said)
    assert int(told.replace(",", "")) > 20
    assert "the table is the source: missing 0, doubled 0, stale 0" in said
    for pid in pids_in(said):
        rows.eventually(partial(is_gone, pid))


def test_a_row_that_is_not_as_at_the_source_is_exit_code_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:

    def break_one(*given: Any) -> Any:
        with closing(sqlite3.connect(tmp_path / "left" / "diamonds.db")) as database, database:
            database.execute("UPDATE diamonds SET feed_price = feed_price + 1 WHERE id = 1")
        return compare(*given)

    monkeypatch.setattr(demo_story, "compare", break_one)
    before = signal.getsignal(signal.SIGTERM)
    options = ["--stones", "300", "--workers", "1", "--no-kill", "--faults", "none", "--directory", str(tmp_path / "left"), "--remove"]  # fmt: skip

    done = CliRunner().invoke(commands, ["demo", *options])

    assert done.exit_code == 1, done.output
    assert re.search(r"stale: other values than the source has +1 +WRONG", done.output)
    assert re.search(r"missing in the table +0 +right", done.output)
    assert "kill -9" not in done.output
    assert not (tmp_path / "left").exists()
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_whoever_stops_it_leaves_no_process_behind(number: signal.Signals, tmp_path: Path) -> None:
    """Ctrl-C and SIGTERM end everything before it ends; after a SIGKILL the others notice by themselves."""
    heard = ""
    with demo("--stones", "1000", "--workers", "2", TMPDIR=str(tmp_path)) as process:
        assert process.stdout is not None
        while "is started: full" not in heard:
            line = process.stdout.readline()
            assert line, heard
            heard += line
        process.send_signal(number)
        code = process.wait(timeout=30)
        pids = pids_in(heard)

    assert len(pids) == 3
    assert code == {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGKILL: -9}[number]
    rows.eventually(lambda: all(is_gone(it) for it in pids))


def test_a_port_that_is_taken_is_one_sentence() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
        said = refused("--stones", "300", "--port", str(port), "--remove")

    assert said.startswith(f"stepfast: port {port} cannot be used")


def test_a_file_or_folder_that_holds_something_is_not_touched(tmp_path: Path) -> None:
    file = tmp_path / "mine.db"
    file.write_text("precious")

    assert "is not empty" in refused("--database", f"sqlite:///{file}")
    assert "is not empty" in refused("--directory", str(tmp_path))
    assert "there is no folder" in refused("--database", f"sqlite:///{tmp_path}/nowhere/new.db")
    assert "cannot be used" in refused("--directory", str(file / "below"))
    assert file.read_text() == "precious"
    assert list(tmp_path.iterdir()) == [file]


def test_a_database_that_holds_something_is_refused(app: Stepfast) -> None:
    jobs = rows.query(app, "SELECT count(*) AS n FROM stepfast_job")

    with pytest.raises(ConfigurationError, match="is not empty"):
        place.refuse_used_database(app.database.url)

    assert rows.query(app, "SELECT count(*) AS n FROM stepfast_job") == jobs


def test_the_database_of_the_surroundings_is_not_the_one_to_fill(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A database on the command line is used if it is empty; one in the environment may hold real data."""
    told: list[str | None] = []

    def note(story: demo_story.DemoOptions) -> bool:
        told.append(story.database)
        return True

    monkeypatch.setattr(demo_story, "run_demo", note)

    cli("demo")
    CliRunner().invoke(commands, ["demo"], env={"STEPFAST_DATABASE_URL": cli.url})

    assert told == [cli.url, None]


@pytest.mark.only_on("postgresql", "mariadb")
def test_an_empty_database_is_filled(empty_database_url: str, tmp_path: Path) -> None:
    options = ["--stones", "300", "--workers", "1", "--no-kill", "--faults", "none", "--directory", str(tmp_path / "logs")]  # fmt: skip
    with demo("--database", empty_database_url, *options) as process:
        said, complained = process.communicate(timeout=100)

    assert (process.returncode, complained) == (0, ""), said
    assert "missing 0, doubled 0, stale 0" in said


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--workers", "1"], "nobody could take over from a single worker"),
        (["--faults", "gentle"], "neither a setting"),
        (["--stones", "7"], "greater than or equal to 100"),
        (["--transport", "pigeon"], "'pigeon' is none of database, memory, service-bus, storage-queue"),
    ],
)
def test_options_that_make_no_sense_are_wrong_usage(options: list[str], words: str) -> None:
    assert words in refused(*options, code=2)
