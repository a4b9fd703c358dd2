"""One column of target rows, set by the identity of their items."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import msgspec

from stepfast.database.upsert import plain
from stepfast.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepfast.database.connection import Transaction
    from stepfast.database.dialects import Dialect
    from stepfast.runs.declaration import Declaration

CHUNK: Final = 500
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class TargetColumn(msgspec.Struct, frozen=True):
    """Where it is: it can be kept with a run, and be found again without the feed's code."""

    table: str
    item_column: str
    column: str
    feed_column: str | None = None  # where several feeds write into one table
    feed: str | None = None

    def set(self, tx: Transaction, ids: Sequence[str], value: Any) -> int:
        """Set it where it is NULL, or set it to NULL where it is not; returns how many rows."""
        changed = 0
        for start in range(0, len(ids), CHUNK):
            chunk = ids[start : start + CHUNK]
            text = _statement(tx.dialect, self, len(chunk), empty=value is None)
            given: dict[str, Any] = {f"id_{n}": it for n, it in enumerate(chunk)}
            if self.feed_column is not None:
                given["feed"] = self.feed
            changed += tx.execute(
                text, given if value is None else {**given, "value": plain(value, tx.dialect)}
            )
        return changed


def target_column(declared: Declaration, column: str) -> TargetColumn:
    """This column of the rows that the feed writes."""
    feed = None if declared.feed_column is None else declared.name
    return TargetColumn(declared.table, declared.item_column or "", column, declared.feed_column, feed)


@lru_cache(maxsize=64)
def _statement(dialect: Dialect, it: TargetColumn, count: int, *, empty: bool) -> str:
    # One parameter for each id: the column says of which type they are, and its index is used, number or text.
    ids = ", ".join(f":id_{n}" for n in range(count))
    table = ".".join(_quoted(dialect, part) for part in it.table.split("."))
    column, item = _quoted(dialect, it.column), _quoted(dialect, it.item_column)
    value, where = ("NULL", "IS NOT NULL") if empty else (":value", "IS NULL")
    ours = "" if it.feed_column is None else f" AND {_quoted(dialect, it.feed_column)} = :feed"
    return f"UPDATE {table} SET {column} = {value} WHERE {item} IN ({ids}){ours} AND {column} {where}"


def _quoted(dialect: Dialect, name: str) -> str:
    if not _NAME.fullmatch(name):
        raise ConfigurationError(f"{name!r} is no table or column name; use letters, digits and underscores")
    return f"{dialect.quote}{name}{dialect.quote}"
