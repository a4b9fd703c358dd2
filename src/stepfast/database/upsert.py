"""Bulk upsert, the effect most steps end with: one statement per chunk of rows."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from decimal import Decimal
from enum import Enum
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

import msgspec

from stepfast.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from stepfast.database.connection import Transaction, Value
    from stepfast.database.dialects import Dialect

CHUNK: Final = 500
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True)
class Upsert:
    """Write `rows` into `table`; rows that agree on `key` replace each other."""

    table: str
    key: Sequence[str]
    rows: Sequence[Mapping[str, Value]]

    def apply(self, tx: Transaction) -> None:
        if not self.rows:
            return
        columns = tuple(self.rows[0])
        rows = self._ordered(columns, tx.dialect)
        step = max(1, min(CHUNK, tx.dialect.most_parameters // len(columns)))
        for start in range(0, len(rows), step):
            chunk = rows[start : start + step]
            text = _statement(tx.dialect, self.table, tuple(self.key), columns, len(chunk))
            tx.execute(
                text, {f"{column}_{n}": value for n, row in enumerate(chunk) for column, value in row.items()}
            )

    def _ordered(self, columns: tuple[str, ...], dialect: Dialect) -> list[dict[str, Value]]:
        """The last of several rows with one key, all in key order: two writers then never meet head-on."""
        unique: dict[tuple[Any, ...], dict[str, Value]] = {}
        for row in self.rows:
            if tuple(row) != columns and set(row) != set(columns):
                raise ConfigurationError(
                    f"upsert into {self.table}: every row needs the columns {', '.join(columns)}"
                )
            missing = [name for name in self.key if row.get(name) is None]
            if missing:
                raise ConfigurationError(
                    f"upsert into {self.table}: a row has no value for its key {', '.join(missing)}"
                )
            unique[tuple(row[name] for name in self.key)] = {
                name: plain(row[name], dialect) for name in columns
            }
        return [unique[key] for key in sorted(unique, key=lambda key: tuple(map(str, key)))]


@lru_cache(maxsize=256)
def _statement(
    dialect: Dialect, table: str, key: tuple[str, ...], columns: tuple[str, ...], count: int
) -> str:
    names = {name: quoted(dialect, name) for name in (*columns, *key)}
    target = ".".join(quoted(dialect, part) for part in table.split("."))
    values = ", ".join("(" + ", ".join(f":{column}_{n}" for column in columns) + ")" for n in range(count))
    insert = f"INSERT INTO {target} ({', '.join(names[column] for column in columns)}) VALUES {values}"
    return f"{insert} {replacing(dialect, key, columns)}"


def replacing(dialect: Dialect, key: tuple[str, ...], columns: tuple[str, ...]) -> str:
    """How an INSERT ends whose rows replace those that agree on `key`."""
    names = {name: quoted(dialect, name) for name in (*columns, *key)}
    others = [names[column] for column in columns if column not in key]
    if dialect.name == "mariadb":
        kept = [f"{it} = VALUES({it})" for it in others] or [f"{names[key[0]]} = {names[key[0]]}"]
        return f"ON DUPLICATE KEY UPDATE {', '.join(kept)}"
    match = f"ON CONFLICT ({', '.join(names[name] for name in key)})"
    if not others:
        return f"{match} DO NOTHING"
    return f"{match} DO UPDATE SET " + ", ".join(f"{it} = excluded.{it}" for it in others)


def quoted(dialect: Dialect, name: str) -> str:
    if not _NAME.fullmatch(name):
        raise ConfigurationError(f"{name!r} is no table or column name; use letters, digits and underscores")
    return f"{dialect.quote}{name}{dialect.quote}"


def plain(value: Any, dialect: Dialect) -> Value:  # noqa: PLR0911 - one line per type
    """A form that the driver stores without adapters, and without a surprise in SQLite."""
    match value:
        case Enum():
            return plain(value.value, dialect)
        case None | str() | int() | float() | bytes():
            return value
        case datetime() if value.tzinfo is not None and dialect.name != "postgresql":
            # Neither keeps a zone: UTC, as everything else here.
            return value.astimezone(UTC).replace(tzinfo=None).isoformat(sep=" ")
        case datetime():
            return value.isoformat(sep=" ")
        case date() | time():
            return value.isoformat()
        case Decimal() | UUID():
            return str(value)
        case _:
            return msgspec.json.encode(value).decode()
