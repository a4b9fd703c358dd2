"""Rows written by key: `Upsert`, the effect that most steps end with, and `BulkUpsert` for thousands of rows."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from decimal import Decimal
from enum import Enum
from functools import lru_cache
from itertools import chain, islice
from operator import itemgetter, lt
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

import msgspec

from stepfast.database.tables import types_of
from stepfast.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from stepfast.database.connection import Transaction, Value
    from stepfast.database.dialects import Dialect


CHUNK: Final = 500


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


# Thousands of rows at once, each database in the way it takes them fastest.
#
# Of a row with 12 columns, in chunks of 100: SQLite 1.5 µs as one statement with parameters that have no names (29 with
# named ones, 2.3 by its own executemany), PostgreSQL 13 µs as one array per column (51), MariaDB 15 µs by executemany,
# which its driver turns into one statement (28 with named parameters, 23 as a document and JSON_TABLE).

Columns = tuple[str, ...]
Rows = list[tuple[Any, ...]]
CHUNKS_PER_STATEMENT: Final = 10  # chunks of one statement on SQLite, to which no message grows too long
PLACEHOLDER: Final = {"sqlite": "?", "mariadb": "%s"}  # how the driver spells a parameter without a name
_STORED_AS_IS: Final = frozenset({str, int, float, bytes, bool, type(None)})


@dataclass(frozen=True)
class BulkUpsert:
    """Write `rows` into `table`; rows that agree on `key` replace each other. Columns that a row does not name stay."""

    table: str
    key: Columns
    rows: Sequence[Mapping[str, Value]]
    chunk: int  # rows of one statement, at most

    def apply(self, tx: Transaction) -> None:
        rows = self.rows
        if not isinstance(rows, SortedRows) or rows.key != self.key:
            rows = SortedRows(self.table, self.key, rows, tx.dialect)
        for columns, values in rows.groups:
            self._write(tx, columns, values)

    def _write(self, tx: Transaction, columns: Columns, rows: Rows) -> None:
        names = [quoted(tx.dialect, name) for name in columns]
        table = ".".join(quoted(tx.dialect, part) for part in self.table.split("."))
        insert = f"INSERT INTO {table} ({', '.join(names)})"
        end = replacing(tx.dialect, self.key, columns)
        if not tx.takes_columns:
            row = f"({', '.join([PLACEHOLDER[tx.dialect.name]] * len(columns))})"
            if tx.dialect.name == "sqlite":
                rows = _send_whole_chunks(tx, (f"{insert} VALUES", row, end), rows, self.chunk)
            for start in range(0, len(rows), self.chunk):
                tx.send_many(f"{insert} VALUES {row} {end}", rows[start : start + self.chunk])
            return
        types = types_of(tx, self.table)
        text = _from_arrays(insert, end, tuple(types.get(name, "text") for name in columns))
        for start in range(0, len(rows), self.chunk):
            chunk = rows[start : start + self.chunk]
            tx.execute(text, {f"c{n}": _texts(it) for n, it in enumerate(zip(*chunk, strict=True))})


class SortedRows(list["Mapping[str, Value]"]):
    """Rows that are ready to be written: sorted where they are made, not while others wait for the transaction."""

    def __init__(
        self, table: str, key: Columns, rows: Sequence[Mapping[str, Value]], dialect: Dialect
    ) -> None:
        super().__init__(rows)
        self.key = key
        self.groups = [
            (columns, _last_of_each_key(table, key, columns, values, dialect))
            for columns, values in _by_columns(rows)
        ]


def _by_columns(rows: Sequence[Mapping[str, Value]]) -> list[tuple[Columns, Rows]]:
    """The values of the rows, grouped by their sets of columns."""
    if (
        rows
        and len(columns := tuple(rows[0])) > 1
        and {(dict, len(columns))} == set(zip(map(type, rows), map(len, rows), strict=True))
    ):
        # Most often all rows have the same columns: a third of the time of looking at each.
        with suppress(KeyError):
            return [(columns, list(map(itemgetter(*columns), rows)))]
    groups: dict[Columns, Rows] = {}
    for row in rows:
        groups.setdefault(tuple(row), []).append(tuple(row.values()))
    return list(groups.items())


def _last_of_each_key(table: str, key: Columns, columns: Columns, values: Rows, dialect: Dialect) -> Rows:
    """The last of several rows with one key, all in key order: two writers then never meet head-on."""
    if missing := [name for name in key if name not in columns]:
        raise ConfigurationError(f"upsert into {table}: a row has no {', '.join(missing)}, its key")
    keys = list(map(itemgetter(*(columns.index(name) for name in key)), values))
    try:
        if not all(map(lt, keys, islice(keys, 1, None))):  # most often they come in their order
            unique = dict(zip(keys, values, strict=True))
            values = [unique[key] for key in sorted(unique)]
    except TypeError:  # numbers among texts
        unique = dict(zip(keys, values, strict=True))
        values = [unique[key] for key in sorted(unique, key=repr)]
    return _plain(values, dialect)


def _plain(rows: Rows, dialect: Dialect) -> Rows:
    """The rows with values that the drivers store; most need no change."""
    if _STORED_AS_IS.issuperset(map(type, chain.from_iterable(rows))):
        return rows
    columns = list(zip(*rows, strict=True))
    for place, values in enumerate(columns):
        if not _STORED_AS_IS.issuperset(map(type, values)):
            columns[place] = tuple(plain(it, dialect) for it in values)
    return list(zip(*columns, strict=True))


def _send_whole_chunks(tx: Transaction, words: tuple[str, str, str], rows: Rows, chunk: int) -> Rows:
    """Send one chunk, or ten of them, as one statement; returns the rows that are left.

    SQLite gives up the interpreter's lock for a statement, and then waits for it again, while other threads hold up the
    transaction and all that wait for it. What is left is less than a chunk: a statement for each number of rows would
    crowd out others that are kept prepared.
    """
    insert, row, end = words
    most = tx.dialect.most_parameters // len(rows[0])
    for size in (min(chunk * CHUNKS_PER_STATEMENT, most), min(chunk, most)):
        whole = len(rows) // size * size if size else 0
        text = f"{insert} {', '.join([row] * size)} {end}"
        for start in range(0, whole, size):
            tx.send_many(text, [list(chain.from_iterable(rows[start : start + size]))])
        rows = rows[whole:]
    return rows


@lru_cache(maxsize=256)
def _from_arrays(insert: str, end: str, types: Columns) -> str:
    """For PostgreSQL: an array of each column's own type, so that a value means what it would mean as a parameter."""
    # An array of arrays would be taken apart down to its elements: those travel as texts.
    sources = [f"CAST(:c{n} AS {'text' if it.endswith('[]') else it}[])" for n, it in enumerate(types)]
    names = [f"c{n}" for n in range(len(types))]
    chosen = [
        f"CAST({name} AS {it})" if it.endswith("[]") else name for name, it in zip(names, types, strict=True)
    ]
    return f"{insert} SELECT {', '.join(chosen)} FROM unnest({', '.join(sources)}) AS new ({', '.join(names)}) {end}"


def _texts(values: Iterable[Value]) -> list[str | None]:
    return [it if type(it) is str or it is None else _text(it) for it in values]


def _text(value: Value) -> str:
    return f"\\x{value.hex()}" if isinstance(value, bytes) else str(value)


_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def replacing(dialect: Dialect, key: tuple[str, ...], columns: tuple[str, ...]) -> str:
    """The end of an INSERT whose rows replace those that agree on `key`."""
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
