"""Run the tests in parts, and go on with a part that was interrupted.

`--part 2/6` keeps the tests whose id hashes into the second of six parts: the same ones every time, on every machine.
`--resume` leaves out tests that have passed with the very same sources; each one that passes is written down at once,
so that a killed session loses nothing. Both work with xdist.
"""

from __future__ import annotations

import hashlib
import re
import zlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = ("packages", "tests", "devtools", "examples", "benchmarks", "docs")


@dataclass(frozen=True)
class Part:
    """The `number`-th of `count` parts, from 1."""

    number: int
    count: int

    @classmethod
    def read(cls, text: str) -> Part:
        found = re.fullmatch(r"(\d+)/(\d+)", text)
        if found is None or not 1 <= int(found[1]) <= int(found[2]):
            raise pytest.UsageError(f"no such part: {text}; a part is written as 2/6")
        return cls(int(found[1]), int(found[2]))

    @classmethod
    def check(cls, text: str) -> str:
        """The option stays a text: xdist hands it to its processes."""
        cls.read(text)
        return text

    def holds(self, nodeid: str) -> bool:
        return zlib.crc32(nodeid.encode()) % self.count == self.number - 1


class Passed:
    """The tests that have passed with the sources as they are now, one id per line."""

    def __init__(self, config: pytest.Config) -> None:
        self._records = not hasattr(config, "workerinput")  # a process of xdist reports to the first one
        self._path = config.cache.mkdir("stepfast") / f"passed-{sources()}"
        self.ids = set(self._path.read_text().splitlines()) if self._path.exists() else set[str]()

    @pytest.hookimpl
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Write a test down when its teardown has passed, too."""
        if report.failed or report.skipped:
            self.ids.discard(report.nodeid)
        elif report.when == "call":
            self.ids.add(report.nodeid)
        elif report.when == "teardown" and report.nodeid in self.ids and self._records:
            with self._path.open("a") as file:
                file.write(report.nodeid + "\n")


def drop(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect what is not in this part, or has passed before."""
    text: str | None = config.getoption("part")
    part = None if text is None else Part.read(text)
    passed = config.pluginmanager.get_plugin("passed")
    done = passed.ids if isinstance(passed, Passed) else set[str]()
    kept = [it for it in items if (part is None or part.holds(it.nodeid)) and it.nodeid not in done]
    if len(kept) < len(items):
        wanted = set(kept)
        config.hook.pytest_deselected(items=[it for it in items if it not in wanted])
        items[:] = kept


@cache
def sources() -> str:
    """A hash of every file that a test may depend on."""
    digest = hashlib.sha256()
    for folder in SOURCES:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in {".py", ".sql", ".md", ".toml", ".json"} and "node_modules" not in path.parts:
                digest.update(str(path.relative_to(ROOT)).encode())
                digest.update(path.read_bytes())
    return digest.hexdigest()[:16]
