"""The rows of a page, each once. A source may name a row twice on one page, or leave holes; neither may stop the page."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from stepfast.telemetry.facts import message_of
from stepfast.telemetry.masking import without_secrets

LONGEST_ID: Final = 200
LONGEST_MESSAGE: Final = 2_000


@dataclass(frozen=True)
class Stranger:
    """A row of which nobody can say which one it is, and why."""

    item: Any
    reason: str
    unfit: bool = False  # it has an identity, but cannot be kept


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

    def without(self, unfit: Mapping[str, str]) -> Contents:
        """The same page where these rows, which cannot be kept for a reason, are strangers."""
        others = [Stranger(self.rows[it], reason, unfit=True) for it, reason in unfit.items()]
        return Contents(
            [None if it in unfit else it for it in self.ids],
            {it: item for it, item in self.rows.items() if it not in unfit},
            self.duplicates,
            self.holes,
            self.strangers + others,
        )


def contents(items: Sequence[Any], identify: Callable[[Any], object]) -> Contents:
    ids: list[str | None] = []
    rows: dict[str, Any] = {}
    strangers: list[Stranger] = []
    holes = 0
    for item in items:
        if item is None:
            holes += 1
            ids.append(None)
        elif isinstance(found := identity(item, identify), Stranger):
            strangers.append(found)
            ids.append(None)
        else:
            ids.append(found)
            rows[found] = item
    duplicates = len(items) - holes - len(strangers) - len(rows)
    return Contents(ids, rows, duplicates, holes, strangers)


def identity(item: Any, identify: Callable[[Any], object]) -> str | Stranger:
    """Which one it is, or why nobody can say."""
    try:
        found = identify(item)
    except Exception as error:  # noqa: BLE001 - the user's code may raise anything; the row is put aside with it
        said = without_secrets(message_of(error)[:LONGEST_MESSAGE])
        return Stranger(item, f"identify() raised {type(error).__name__}: {said}")
    if not isinstance(found, str) or not found:
        return Stranger(item, f"identify() answered {found!r:.80}; a row's identity is a text")
    if found[-1] == " " or "\0" in found:  # not every database tells such texts apart, or stores them
        return Stranger(
            item, f"identify() answered {found!r:.80}; no identity ends with a space or has a NUL in it"
        )
    if not found.isascii() and "\\" in found.encode("utf-8", "backslashreplace").decode():
        return Stranger(item, f"identify() answered {found!a:.80}; half a character is no text")
    if len(found) > LONGEST_ID:
        return Stranger(item, f"identify() answered {len(found):,} characters; at most {LONGEST_ID} fit")
    return found
