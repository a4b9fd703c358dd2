"""Rows that are gone at the source are marked as deleted, never removed. Off unless a feed asks for it.

Not to be seen proves nothing in most runs. Only one that was full, complete and verified strikes the rows that it did
not see, and a row goes only after several such runs in a row. If more would go at once than a fuse allows, a person
decides. A row that is seen again is back.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from stepfast.clock import Duration, duration
from stepfast.errors import ConfigurationError

MOST_STRIKES: Final = 100
_COLUMN: Final = re.compile(r"[A-Za-z_]\w*", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """How rows that are gone at the source are marked.

    `fuse`: the share of the living rows that may go in one run without a person; `most`: how many, whatever the share.
    `keep`: how long what is known about a row is kept after it has gone; None for ever. Undoing ends with it.
    """

    column: str = "deleted_at"  # of the target: since when the row is gone, NULL while it is there
    strikes: int = 2  # full runs in a row that did not see it
    fuse: float = 0.02
    most: int | None = None
    keep: Duration | None = None

    def __post_init__(self) -> None:
        for name, fits, wanted in (
            ("column", _is_column, "the name of a column of the target"),
            ("strikes", _is_strikes, f"a whole number from 1 to {MOST_STRIKES}"),
            ("fuse", _is_share, "a share of the rows, from 0 to 1; 0.02 is one in fifty"),
            ("most", _is_most, "a number of rows, or None"),
        ):
            value = getattr(self, name)
            if not fits(value):
                raise ConfigurationError(f"Sweep({name}={value!r:.80}): {wanted}")
        if self.keep is not None:
            duration(self.keep, "Sweep(keep=…)")

    @property
    def keeps(self) -> timedelta | None:
        return None if self.keep is None else duration(self.keep, "Sweep(keep=…)")

    def holds(self, going: int, living: int) -> str | None:
        """Why so many of so many living rows may not go without a person; None if they may."""
        if self.most is not None and going > self.most:
            return f"{going:,} rows would go, more than {self.most:,}"
        if going > self.fuse * living:
            return f"{going:,} of {living:,} rows would go ({going / living:.1%}), more than {self.fuse:.1%}"
        return None


def _is_column(value: object) -> bool:
    return isinstance(value, str) and bool(_COLUMN.fullmatch(value))


def _is_strikes(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MOST_STRIKES


def _is_share(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1


def _is_most(value: object) -> bool:
    return value is None or (isinstance(value, int) and not isinstance(value, bool) and value >= 0)
