"""Words of the command line that nobody means get one sentence, and no traceback."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.cli.conftest import Cli

pytestmark = pytest.mark.only_on("sqlite")

HUGE = "9" * 20  # more than a database counts to


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (("jobs", "show", "a\udcff"), 2, r"'a\\udcff' is not text in UTF-8"),
        (("jobs", "list", "--kind", "\udcff"), 2, "is not text in UTF-8"),
        (("debts", "close", HUGE, "--reason", "x"), 2, "Input should be less than or equal to"),
        (("debts", "retry", HUGE), 2, "Input should be less than or equal to"),
        (("quarantine", "show", HUGE), 2, "Input should be less than or equal to"),
        (("quarantine", "replay", "--id", HUGE), 2, "Input should be less than or equal to"),
        (("jobs", "show", "x", "--logs", HUGE), 2, "Input should be less than or equal to"),
        (("leases", "reset", "--crash-limit", HUGE), 2, "Input should be less than or equal to"),
        (("limits", "list", "--limit", HUGE), 2, "Input should be less than or equal to"),
        (("schedules", "change", "x", "--arguments", "[" * 10_000), 2, "is no JSON"),
        (("schedules", "change", "x", "--arguments", '{"a":"\\ud800"}'), 2, "is no JSON"),
        (("tasks", "send", "a", "--payload", "[" * 10_000), 1, "payload: it is no JSON"),
        (("tasks", "send", "a", "--env-file", "x" * 5_000), 1, "cannot be read"),
        (("tasks", "send", "a", "--env-file", "/"), 1, "there is no file"),
        (("config", "--env-file", "x" * 5_000), 1, "cannot be read"),
    ],
)
def test_what_cannot_be_meant_is_refused_in_one_sentence(
    cli: Cli, words: tuple[str, ...], code: int, sentence: str
) -> None:
    said = " ".join(cli(*words, code=code).split())

    assert sentence in said
    assert len(said) < 1_500


def test_bytes_that_are_no_text_are_refused_by_the_program_itself() -> None:
    program = Path(sys.executable).with_name("stepfast")
    done = subprocess.run([program, "jobs", "show", b"\xff"], check=False, capture_output=True, timeout=60)

    assert done.returncode == 2
    assert b"is not text in UTF-8" in done.stderr
    assert b"Traceback" not in done.stderr
