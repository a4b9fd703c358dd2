"""`stepfast diamonds simulate`: a process that prints its address and ends on a signal."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

import httpx
import pytest

from tests.diamonds.nivoda import LOGIN

COMMAND = [sys.executable, "-m", "stepfast", "diamonds", "simulate"]


def refused(*options: str) -> tuple[int, str]:
    done = subprocess.run([*COMMAND, *options], capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stderr


@contextmanager
def serving(*options: str) -> Iterator[tuple[subprocess.Popen[str], IO[str]]]:
    """The process and what it prints; it never outlives its test."""
    with subprocess.Popen([*COMMAND, "--port", "0", *options], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process, process.stdout
        finally:
            process.kill()


def test_the_command_serves_until_it_is_told_to_stop() -> None:
    options = ["--profile", "1k+500-labgrown", "--seed", "9", "--faults", "none", "--speed", "60", "--json"]
    with serving(*options) as (process, printed):
        facts = json.loads(printed.readline())
        variables = {"u": facts["username"], "p": facts["password"]}
        login = httpx.post(facts["url"], json={"query": LOGIN, "variables": variables}).json()
        token = login["data"]["authenticate"]["username_and_password"]["token"]
        count = "{ diamonds_by_query_count(query: {labgrown: true}) }"
        found = httpx.post(
            facts["url"], json={"query": count}, headers={"Authorization": f"Bearer {token}"}
        ).json()
        process.send_signal(signal.SIGTERM)
        code = process.wait(timeout=20)

    assert facts["stones"] == 1_500
    assert found == {"data": {"diamonds_by_query_count": 500}}
    assert code == 0


def test_without_json_it_says_the_same_in_words() -> None:
    with serving("--profile", "1k") as (process, printed):
        lines = [printed.readline() for _ in range(3)]
        process.send_signal(signal.SIGINT)
        code = process.wait(timeout=20)

    assert lines[0].startswith("1,000 stones at http://127.0.0.1:")
    assert "log in as demo@example.com" in lines[1]
    assert "/oracle/" in lines[2]
    assert code == 0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--profile", "lots"], "is not understood"),
        (["--faults", "gentle"], "neither a setting"),
        (["--faults", "none,burst=x"], "is a number"),
    ],
)
def test_options_that_make_no_sense_are_wrong_usage(options: list[str], words: str) -> None:
    code, said = refused(*options)

    assert code == 2
    assert words in " ".join(said.split())
