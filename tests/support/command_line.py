"""The command line, run in this process against one database."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import pytest
from typer.testing import CliRunner

from stepfast import Stepfast
from stepfast.cli.command import app as commands


@dataclass(frozen=True)
class Cli:
    """`cli("jobs", "list")` runs it, and insists on the exit code; `cli.json(...)` also reads what it printed."""

    url: str

    def __call__(self, *words: str, code: int = 0, answer: str | None = None) -> str:
        result = CliRunner().invoke(commands, ["--database-url", self.url, *words], input=answer)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert result.exit_code == code, result.output
        assert (
            code != 1
            or "Aborted" in result.stderr
            or result.stderr.startswith("stepfast: ")
            or not result.stderr
        )
        return result.stdout if code == 0 else result.output

    def complaints(self, *words: str) -> str:
        """What it says on stderr although all went well."""
        result = CliRunner().invoke(commands, ["--database-url", self.url, *words])
        assert result.exit_code == 0, result.output
        return result.stderr

    def json(self, *words: str, code: int = 0) -> Any:
        result = CliRunner().invoke(commands, ["--database-url", self.url, *words, "--json"])
        assert result.exit_code == code, result.output
        return json.loads(result.stdout)


@pytest.fixture(autouse=True)
def _plain_surroundings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("STEPFAST_DATABASE_URL", "COLUMNS", "NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def cli(database_url: str) -> Cli:
    return Cli(database_url)


@pytest.fixture
def app(database_url: str) -> Iterator[Stepfast]:
    with closing(Stepfast(database_url)) as app:
        yield app
