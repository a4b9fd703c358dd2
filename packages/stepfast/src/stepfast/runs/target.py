"""The way of a raw row into the target: it is mapped, marked, stored; what fails goes into quarantine.

    map_rows (no database) ──► TargetWrite.apply, in the step's commit: mark ──► store ──► quarantine

The raw rows are marked first, under the content that was read, which also locks them. Then the target rows are written
of those that were still so: by the feed's `store` (`feed.py`), which is an upsert in chunks (`database/upsert.py`) unless
the feed has another way.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from stepfast.database.failures import blames_a_row
from stepfast.database.statement import sql
from stepfast.database.tables import as_instant, columns_of, is_unique, types_of
from stepfast.database.upsert import plain, quoted
from stepfast.errors import ConfigurationError, DatabaseError
from stepfast.runs.quarantine import QuarantineState, RefusedRow, put_aside, settle_entries
from stepfast.runs.raw_rows import mark_applied, put_applied_aside
from stepfast.telemetry.masking import without_secrets
from stepfast.telemetry.sinks import message_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from stepfast.database.connection import Transaction
    from stepfast.database.dialects import Dialect
    from stepfast.runs.declaration import Declaration
    from stepfast.runs.feed import Feed, Row
    from stepfast.runs.raw_rows import PendingRow, PendingRows


# Mapping: the feed's map() makes target rows of raw rows. Touches no database.

LONGEST_MESSAGE: Final = 2_000
LONGEST_CODE: Final = 100


@dataclass(frozen=True)
class MappedBatch:
    """Target rows, the raw rows they were made of (one for one), and the rows that could not be mapped."""

    raw: PendingRows
    rows: list[Row]
    refused: list[RefusedRow]

    def only(self, ids: Collection[str]) -> MappedBatch:
        """The batch reduced to these item ids."""
        indexes = [index for index, item_id in enumerate(self.raw.ids) if item_id in ids]
        rows = [self.rows[index] for index in indexes]
        return MappedBatch(self.raw.only(indexes), rows, [row for row in self.refused if row.item_id in ids])


class UnfitRowError(Exception):
    """What map() answered is no row of the target."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


def map_rows(
    declared: Declaration,
    pending: PendingRows,
    columns: Collection[str],
    to_row: Callable[[Any], Row] | None = None,
) -> MappedBatch:
    """Map each row, by the feed's map() if no other is given; `columns` are those of the target."""
    rows: list[Row] = []
    bad: dict[int, RefusedRow] = {}
    to_row = to_row or declared.feed.map
    cleared, keep = declared.cleared, rows.append
    known = None if declared.stores else frozenset(columns)
    fit: tuple[str, ...] | None = None  # columns that were looked at: most rows have the same
    decode = msgspec.json.Decoder().decode  # one by one: thousands of items that live at once take longer
    for index, payload in enumerate(pending.payloads):
        try:
            row = to_row(decode(payload))
            if type(row) is not dict or tuple(row) != fit:
                fit = _fitting(declared, row, known)
            if known is not None:
                for name in declared.key:
                    if row[name] is None:
                        raise _no_key(declared, name)  # noqa: TRY301 - one function call per row less
        except Exception as error:  # noqa: BLE001 - the user's code may raise anything; the row is put aside with it
            bad[index] = refused_row(declared, pending.at(index), "map", error)
        else:
            keep({**cleared, **row} if cleared else row)
    if known is not None:
        rows = _one_for_each_key(declared, pending, rows, bad)
    raw = pending.only([index for index in range(len(pending.ids)) if index not in bad]) if bad else pending
    return MappedBatch(raw, rows, list(bad.values()))


def _one_for_each_key(
    declared: Declaration, pending: PendingRows, rows: list[Row], bad: dict[int, RefusedRow]
) -> list[Row]:
    """The last row of each key; the others would be overwritten without a trace, so they are put aside with the bad ones."""
    keys = list(map(itemgetter(*declared.key), rows))
    try:
        last = dict(zip(keys, range(len(keys)), strict=True))
    except TypeError:  # a list or a dict: the table accepts or refuses it
        return rows
    if len(last) == len(rows):
        return rows
    indexes = [index for index in range(len(pending.ids)) if index not in bad]
    for number, key in enumerate(keys):
        if last[key] != number:
            other = pending.ids[indexes[last[key]]]
            shown = ", ".join(declared.key)
            problem = f"map() answered the same key as item {other} ({shown}); only one of them can be in {declared.table}"
            bad[indexes[number]] = refused_row(
                declared, pending.at(indexes[number]), "map", UnfitRowError("same key", problem)
            )
    return [rows[number] for number in sorted(last.values())]


def refused_row(declared: Declaration, row: PendingRow, stage: str, error: BaseException) -> RefusedRow:
    """The row, with its reason in words that may be shown."""
    given = getattr(error, "code", None)
    code = given if isinstance(given, str) and given else type(error).__qualname__
    message = without_secrets(message_of(error)[: 2 * LONGEST_MESSAGE])[:LONGEST_MESSAGE]
    return RefusedRow(
        item_id=row.item_id,
        stage=stage,
        code=code[:LONGEST_CODE],
        message=message or code,
        content_hash=row.content_hash,
        payload=row.payload,
        mapper_version=declared.mapper_version,
    )


def _fitting(declared: Declaration, row: object, known: frozenset[str] | None) -> tuple[str, ...]:
    """The columns of a row that the target has."""
    if not isinstance(row, Mapping):
        raise UnfitRowError("no row", f"map() answered {type(row).__name__}; a row is a dict of columns")
    if known is not None and (strangers := row.keys() - known):
        shown = ", ".join(sorted(map(str, strangers)))
        raise UnfitRowError(
            "unknown column", f"map() answered {shown}, which table {declared.table} does not have"
        )
    if known is not None and (missing := [name for name in declared.key if name not in row]):
        raise _no_key(declared, missing[0])
    return tuple(row)


def _no_key(declared: Declaration, name: str) -> UnfitRowError:
    return UnfitRowError("no key", f"map() answered no {name}, which is in the key of {declared.table}")


# The write: an effect of its step, so that all of it happens or nothing.

DATABASE_CLOCK = sql("SELECT {now}")


class Applied(NamedTuple):
    """What became of a batch."""

    applied: int = 0
    refused: int = 0
    differing: int = 0  # rows that were not in the target as they are now, if they were compared


@dataclass(frozen=True, kw_only=True)
class TargetWrite:
    """The write of one mapped batch."""

    declared: Declaration
    run_id: str
    batch: MappedBatch
    columns: Mapping[str, str]  # of the target, with their types; empty if they are not needed
    entries: Collection[str] = ()  # items of the batch that have an entry in quarantine
    settled_as: QuarantineState = QuarantineState.SUPERSEDED
    compares: bool = False  # whether rows that differ from what was in the target are counted

    def apply(self, tx: Transaction) -> Applied:
        batch = self._current(tx)
        feed, bad = self.declared.name, batch.refused
        before = stored_rows(tx, self.declared, batch.rows) if self.compares else {}
        guilty = store_rows(tx, self.declared.feed, batch.rows)
        differing = differences(before, stored_rows(tx, self.declared, batch.rows)) if self.compares else 0
        if guilty:
            put_applied_aside(tx, feed, [batch.raw.ids[it.position] for it in guilty])
            bad = bad + [
                refused_row(self.declared, batch.raw.at(it.position), "store", it.error) for it in guilty
            ]
        if self.entries:
            # All entries of these items are answered; those of rows that are refused again are opened again below.
            touched = {*batch.raw.ids, *(it.item_id for it in bad)}
            settle_entries(tx, feed, sorted(touched.intersection(self.entries)), self.settled_as)
        if bad:
            put_aside(tx, feed, self.run_id, bad)
        self._mark_stale(tx, sorted(it.item_id for it in bad))
        return Applied(len(batch.rows) - len(guilty), len(bad), differing)

    def _current(self, tx: Transaction) -> MappedBatch:
        """The rows that still have the content which was read; from here on this transaction holds them."""
        batch = self.batch
        read = dict(zip(batch.raw.ids, batch.raw.hashes, strict=True))
        if batch.refused:
            read = dict(sorted({**read, **{row.item_id: row.content_hash for row in batch.refused}}.items()))
        current = (
            mark_applied(tx, self.declared.name, read, [row.item_id for row in batch.refused])
            if read
            else None
        )
        return batch if current is None else batch.only(current)

    def _mark_stale(self, tx: Transaction, ids: list[str]) -> None:
        """Mark the target rows of refused items as stale: else an old price would pass for new. The next good row clears it."""
        stale = self.declared.stale
        if ids and stale is not None and self.declared.item_column is not None:
            since = as_instant(int(tx.first(DATABASE_CLOCK)), self.columns[stale])
            target_column(self.declared, stale).set(tx, ids, since)


# Storing: target rows are written together; if the database refuses them, the guilty ones are found.
#
# A batch is tried inside a savepoint. A batch that is refused is halved until the refused rows stand alone. A deadlock
# or a lost connection has no guilty row: the whole step is done again.


class StoreFailure(NamedTuple):
    """A row that the target did not take, and why."""

    position: int  # among the rows that were to be written
    error: Exception


def store_rows(tx: Transaction, feed: Feed, rows: Sequence[Row], first: int = 0) -> list[StoreFailure]:
    """Write rows, and return those that were refused; `first` is the position of the first of them."""
    if not rows:
        return []
    try:
        with tx.savepoint():
            feed.store(tx, rows)
    except Exception as error:
        if isinstance(error, DatabaseError) and not blames_a_row(error):
            raise
        if len(rows) == 1:
            return [StoreFailure(first, error)]
        middle = len(rows) // 2
        return store_rows(tx, feed, rows[:middle], first) + store_rows(
            tx, feed, rows[middle:], first + middle
        )
    return []


# Comparing: a verify counts the rows that differ from what is written.
#
# The target is read before and after the write, and the database answers both: how a column keeps a value does not matter.

PARAMETERS: Final = 500  # of one statement

StoredRows = dict[str, "Mapping[str, Any]"]  # by key


def stored_rows(tx: Transaction, declared: Declaration, rows: Sequence[Row]) -> StoredRows:
    """The rows of the target that have these keys, in the columns that are written."""
    if not rows:
        return {}
    columns = sorted({name for row in rows for name in row})
    types = types_of(tx, declared.table) if tx.dialect.name == "postgresql" else {}
    found: StoredRows = {}
    step = max(1, PARAMETERS // len(declared.key))
    for start in range(0, len(rows), step):
        chunk = rows[start : start + step]
        text = _text(tx, declared, columns, types, len(chunk))
        given = {
            f"k{number}_{place}": _given(tx, row[name], types)
            for number, row in enumerate(chunk)
            for place, name in enumerate(declared.key)
        }
        for row in tx.query(text, given):
            found[repr([row[name] for name in declared.key])] = row
    return found


def differences(before: StoredRows, after: StoredRows) -> int:
    """How many of the rows that are there now were missing, or had another value."""
    return sum(before.get(key) != row for key, row in after.items())


def _text(
    tx: Transaction, declared: Declaration, columns: Sequence[str], types: Mapping[str, str], count: int
) -> str:
    dialect = tx.dialect
    table = ".".join(quoted(dialect, part) for part in declared.table.split("."))
    chosen = ", ".join(quoted(dialect, name) for name in columns)
    keys = [
        " AND ".join(
            f"{quoted(dialect, name)} = {_typed(f':k{number}_{place}', types.get(name))}"
            for place, name in enumerate(declared.key)
        )
        for number in range(count)
    ]
    return f"SELECT {chosen} FROM {table} WHERE {' OR '.join(f'({it})' for it in keys)}"


def _typed(parameter: str, kind: str | None) -> str:
    return parameter if kind is None else f"CAST({parameter} AS {kind})"


def _given(tx: Transaction, value: Any, types: Mapping[str, str]) -> Any:
    """PostgreSQL reads every text as what the column is, as it does when rows are written."""
    it = plain(value, tx.dialect)
    return str(it) if types and not isinstance(it, str | bytes) else it


# Columns of the target.


def target_columns(tx: Transaction, declared: Declaration) -> dict[str, str]:
    """The columns that rows may have; empty for a feed that stores its rows itself."""
    if declared.stores and declared.stale is None:
        return {}
    columns = columns_of(tx, declared.table)
    if missing := [name for name in declared.cleared if name not in columns]:
        raise ConfigurationError(
            f"table {declared.table} has no column {missing[0]}; add one that may be NULL, or set another for the feed"
        )
    if not declared.stores and not is_unique(tx, declared.table, declared.key):
        raise _not_unique(declared, columns)
    return columns


def _not_unique(declared: Declaration, columns: Collection[str]) -> ConfigurationError:
    """Without a unique key every run would add its rows to those that are there."""
    table, key = declared.table, ", ".join(declared.key)
    if missing := [name for name in declared.key if name not in columns]:
        return ConfigurationError(
            f"table {table} has no column {missing[0]}, which is in the feed's key; add it, or set another key for the feed"
        )
    return ConfigurationError(
        f"table {table} has no primary key or unique index over exactly {key}, by which rows replace each other; "
        f"add it with: CREATE UNIQUE INDEX {table.rpartition('.')[2]}_key ON {table} ({key}), or set another key for the feed"
    )


CHUNK: Final = 500
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class TargetColumn(msgspec.Struct, frozen=True):
    """One column of target rows, found by their items. It is kept with a run, and works without the feed's code."""

    table: str
    item_column: str
    column: str
    feed_column: str | None = None  # where several feeds write into one table
    feed: str | None = None

    def set(self, tx: Transaction, ids: Sequence[str], value: Any) -> int:
        """Set the column where it is NULL, or set it to NULL where it is not; returns how many rows."""
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
def _statement(dialect: Dialect, target: TargetColumn, count: int, *, empty: bool) -> str:
    # One parameter for each id: the column says of which type they are, and its index is used, number or text.
    ids = ", ".join(f":id_{n}" for n in range(count))
    table = ".".join(_quoted(dialect, part) for part in target.table.split("."))
    column, item = _quoted(dialect, target.column), _quoted(dialect, target.item_column)
    value, where = ("NULL", "IS NOT NULL") if empty else (":value", "IS NULL")
    ours = "" if target.feed_column is None else f" AND {_quoted(dialect, target.feed_column)} = :feed"
    return f"UPDATE {table} SET {column} = {value} WHERE {item} IN ({ids}){ours} AND {column} {where}"


def _quoted(dialect: Dialect, name: str) -> str:
    if not _NAME.fullmatch(name):
        raise ConfigurationError(f"{name!r} is no table or column name; use letters, digits and underscores")
    return f"{dialect.quote}{name}{dialect.quote}"
