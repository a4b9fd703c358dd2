"""The rows of a page, each once. A source may name a row twice on one page, or leave holes; neither may stop the page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

LONGEST_ID: Final = 200


@dataclass(frozen=True)
class Stranger:
    """A row of which nobody can say which one it is, and why."""

    item: Any
    reason: str


@dataclass(frozen=True)
class Contents:
    ids: list[str | None] = field(default_factory=list)  # one for each place of the page
    rows: dict[str, Any] = field(default_factory=dict)  # of several with one identity the last
    duplicates: int = 0
    holes: int = 0  # places where the source gave nothing
    strangers: list[Stranger] = field(default_factory=list)

    @property
    def rejected(self) -> int:
        return self.holes + len(self.strangers)


def contents(items: Sequence[Any], identify: Callable[[Any], object]) -> Contents:
    ids: list[str | None] = []
    rows: dict[str, Any] = {}
    strangers: list[Stranger] = []
    for item in items:
        found = None if item is None else identity(item, identify)
        if isinstance(found, Stranger):
            strangers.append(found)
            found = None
        ids.append(found)
        if found is not None:
            rows[found] = item
    holes = sum(item is None for item in items)
    duplicates = len(items) - holes - len(strangers) - len(rows)
    return Contents(ids, rows, duplicates, holes, strangers)


def identity(item: Any, identify: Callable[[Any], object]) -> str | Stranger:
    """Which one it is, or why nobody can say."""
    try:
        found = identify(item)
    except Exception as error:  # noqa: BLE001 - the user's code may raise anything; the row is put aside with it
        return Stranger(item, f"identify() raised {type(error).__name__}: {error}")
    if not isinstance(found, str) or not found:
        return Stranger(item, f"identify() answered {found!r:.80}; a row's identity is a text")
    if found.endswith(" ") or "\0" in found:  # not every database tells such texts apart, or stores them
        return Stranger(
            item, f"identify() answered {found!r:.80}; no identity ends with a space or has a NUL in it"
        )
    if len(found) > LONGEST_ID:
        return Stranger(item, f"identify() answered {len(found):,} characters; at most {LONGEST_ID} fit")
    return found
