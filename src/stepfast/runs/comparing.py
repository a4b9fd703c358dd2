"""What is in the target, beside what is written into it: a verify counts the rows that differ.

The target is read before and after the write, and the database says both: nobody has to know how a column keeps a value.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from stepfast.database.tables import types_of
from stepfast.database.upsert import plain, quoted

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from stepfast.database.connection import Transaction
    from stepfast.runs.declaration import Declaration
    from stepfast.runs.feed import Row

PARAMETERS: Final = 500  # of one statement

Stored = dict[str, "Mapping[str, Any]"]  # by key


def stored_rows(tx: Transaction, declared: Declaration, rows: Sequence[Row]) -> Stored:
    """The rows of the target that have these keys, in the columns that are written."""
    if not rows:
        return {}
    columns = sorted({name for row in rows for name in row})
    types = types_of(tx, declared.table) if tx.dialect.name == "postgresql" else {}
    found: Stored = {}
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


def differences(before: Stored, after: Stored) -> int:
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
