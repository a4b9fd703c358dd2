"""One thing the doctor looked at: what it found, and what to do."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


class Level(StrEnum):
    OK = "ok"
    WARN = "warn"  # works, but somebody should know
    FAIL = "fail"  # work is stuck, or could be lost


@dataclass(frozen=True)
class Finding:
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
    """Nothing is stuck and nothing could be lost; warnings are no illness."""
    return all(finding.level is not Level.FAIL for finding in findings)


def listed(names: Iterable[str], most: int = 5) -> str:
    """The first few by name, the rest by number."""
    every = list(names)
    rest = f" and {len(every) - most} more" if len(every) > most else ""
    return ", ".join(every[:most]) + rest
