"""SECURITY.md is a threat model: each of its lines names tests, and these exist."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "SECURITY.md").read_text()
NAMED = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")
LINES = [line for line in TEXT.splitlines() if line.startswith("| c")]


@cache
def functions_of(path: str) -> set[str]:
    functions = ast.FunctionDef | ast.AsyncFunctionDef
    return {it.name for it in ast.parse((ROOT / path).read_text()).body if isinstance(it, functions)}


@pytest.mark.parametrize(("path", "name"), sorted(set(NAMED.findall(TEXT))), ids=str)
def test_a_test_that_the_threat_model_names_exists(path: str, name: str) -> None:
    assert (ROOT / path).exists()
    assert name in functions_of(path)


def test_every_line_says_can_or_cannot_and_names_a_test() -> None:
    assert len(LINES) > 30
    for line in LINES:
        can, what, tests = (it.strip() for it in line.strip("|").split("|"))
        assert can in {"can", "cannot"}, line
        assert what, line
        assert NAMED.findall(tests), f"no test shows it: {line}"


def test_everybody_of_the_threat_model_is_there() -> None:
    headings = re.findall(r"^### (.+?)(?::.*)?$", TEXT, re.MULTILINE)

    for who in (
        "A sender",
        "A receiver",
        "Data",
        "A writer",
        "Another user of the machine",
        "An operator",
        "A reader",
    ):
        assert who in headings
