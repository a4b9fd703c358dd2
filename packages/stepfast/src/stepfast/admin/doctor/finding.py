"""A finding of the doctor: what was checked, what was found, and what to do. And sessions of the server in our way."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from stepfast.clock import spoken

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import timedelta


class Level(StrEnum):
    """How bad a finding is."""

    OK = "ok"
    WARN = "warn"  # works, but an operator should know
    FAIL = "fail"  # work is stuck, or could be lost


@dataclass(frozen=True)
class Finding:
    """The result of one check."""

    name: str
    level: Level
    found: str
    cure: str | None = None


def ok(name: str, found: str) -> Finding:
    return Finding(name, Level.OK, found)


def warn(name: str, found: str, cure: str) -> Finding:
    return Finding(name, Level.WARN, found, cure)


def fail(name: str, found: str, cure: str) -> Finding:
    return Finding(name, Level.FAIL, found, cure)


def healthy(findings: Iterable[Finding]) -> bool:
    """Whether nothing is stuck and nothing could be lost; warnings do not count."""
    return all(finding.level is not Level.FAIL for finding in findings)


def listed(names: Iterable[str], most: int = 5) -> str:
    """The first few by name, the rest by number."""
    every = list(names)
    rest = f" and {len(every) - most} more" if len(every) > most else ""
    return ", ".join(every[:most]) + rest


# Sessions are named so that an administrator finds them and learns no secret.

LONGEST_OUTLINE: Final = 100

# Where a value or a comment may begin. Everything from there on is left out: a cut at the first quote needs no
# knowledge of escapes, which differ between products.
_VALUE: Final = {
    "postgresql": re.compile(r"'|\$\w*\$|/\*|--"),
    "mariadb": re.compile(r"'|\"|/\*|--|#"),
}
_NUMBER: Final = re.compile(r"(?<![\w$])(?:0x[0-9a-fA-F]+|\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)")


@dataclass(frozen=True)
class Session:
    """A transaction that has been open for a while."""

    id: int
    user: str
    application: str
    state: str
    age: timedelta
    query: str  # without values
    locks_ours: bool  # certainly holds rows or tables of Stepfast
    pins: bool  # keeps dead rows from being removed
    blocks: int  # how many others wait for it
    commits: bool = False  # its COMMIT is under way, and waits for another server

    def __str__(self) -> str:
        who = ", ".join(part for part in (f"user {self.user}", self.application, self.state) if part)
        waiting = f", {self.blocks} wait for it" if self.blocks else ""
        query = f": {self.query}" if self.query else ""
        return f"session {self.id} ({who}), open for {spoken(self.age)}{waiting}{query}"


def outline(query: str, dialect: str) -> str:
    """The text of a statement without its values."""
    value = _VALUE[dialect].search(query)
    text = query[: value.start()] + "…" if value else query
    text = _NUMBER.sub("?", " ".join(text.split()))
    return text if len(text) <= LONGEST_OUTLINE else text[: LONGEST_OUTLINE - 1] + "…"
