"""What became of every stone, and when: the truth, the searches that lag behind it, and the oracle.

The columns of the catalogue are what searches see. A change is written into a log with its stamp at once, and into the
columns when the index has caught up. So the truth at any time is the columns with the log replayed forwards, or taken
back, and nothing has to be copied.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from stepfast.diamonds.simulator.selection import Index

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stepfast.diamonds.simulator.catalogue import Catalogue, Stone
    from stepfast.diamonds.simulator.filter import Filter

MANY: Final = 200  # changes at once: making the listings anew is cheaper than changing all of them


@dataclass(frozen=True)
class Change:
    """One stone became another at an instant; `before` is None for a new one."""

    at: int
    kind: str
    before: Stone | None
    after: Stone

    @property
    def row(self) -> int:
        return self.after.row


class History:
    """The catalogue, the index over it, and the log."""

    def __init__(self, catalogue: Catalogue) -> None:
        self.catalogue = catalogue
        self.index = Index(catalogue)
        self.log: list[Change] = []
        self._stamps: list[int] = []
        self._visible = 0  # so many changes are in the columns
        self._pending: dict[int, Stone] = {}  # rows whose newest change is not
        self._rows = len(catalogue)

    def __len__(self) -> int:
        """Rows there have ever been."""
        return self._rows

    def truth(self, row: int) -> Stone | None:
        """The stone as the source's database has it now."""
        if not 0 <= row < self._rows:
            return None
        return self._pending.get(row) or self.catalogue.stone(row)

    def record(self, kind: str, after: Stone) -> Change:
        """A stone changes at its own `updated_at`; stamps never go backwards."""
        if self._stamps and after.updated_at < self._stamps[-1]:
            raise ValueError("a change cannot be older than the one before it")
        change = Change(after.updated_at, kind, self.truth(after.row), after)
        self._rows = max(self._rows, after.row + 1)
        self.log.append(change)
        self._stamps.append(change.at)
        self._pending[after.row] = after
        return change

    def reveal(self, until: int) -> None:
        """Searches now see every change up to this stamp."""
        end = bisect_right(self._stamps, until)
        if end - self._visible > MANY:
            self.index.forget_listings()
        for change in self.log[self._visible : end]:
            self.index.change(change.before, change.after)
            if self._pending.get(change.row) == change.after:
                del self._pending[change.row]
        self._visible = max(end, self._visible)

    def count(self, filter_: Filter, until: int | None = None) -> int:
        """As searches see it; with `until`, as they saw it when the log had come so far."""
        total = self.index.count(filter_)
        if until is not None:
            for change in self.log[bisect_right(self._stamps, until) : self._visible]:
                total += self._fits(filter_, change.before) - self._fits(filter_, change.after)
        return total

    def position(self, at: int | None = None) -> int:
        """How many changes had happened at an instant, its own included; until now, without one."""
        return len(self.log) if at is None else bisect_right(self._stamps, at)

    def snapshot(
        self, position: int, filter_: Filter | None = None, rows: range | None = None
    ) -> Iterator[Stone]:
        """Every stone (of these rows) that was there after so many changes, whatever searches knew of it."""
        moved = self._moved(position)
        for row in range(self._rows) if rows is None else rows:
            stone = moved[row] if row in moved else self.catalogue.stone(row)
            if (
                stone is not None
                and stone.present
                and (filter_ is None or filter_.matches(stone, self.catalogue))
            ):
                yield stone

    def changes(self, since: int, until: int) -> list[Change]:
        """What happened in (since, until]."""
        return self.log[bisect_right(self._stamps, since) : bisect_right(self._stamps, until)]

    def _moved(self, end: int) -> dict[int, Stone | None]:
        """The rows whose stone after so many changes is not the one in the columns."""
        moved: dict[int, Stone | None] = {}
        for change in reversed(self.log[end : self._visible]):
            moved[change.row] = change.before
        for change in self.log[self._visible :]:
            moved.setdefault(change.row, change.before)  # rows that are not in the columns yet
        for change in self.log[self._visible : end]:
            moved[change.row] = change.after
        return moved

    def _fits(self, filter_: Filter, stone: Stone | None) -> int:
        return int(stone is not None and filter_.matches(stone, self.catalogue))
