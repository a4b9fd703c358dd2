"""The tables of others: which columns they have, and of which types."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.clock import moment
from holdfast.database.statement import sql
from holdfast.errors import ConfigurationError

if TYPE_CHECKING:
    from datetime import datetime

    from holdfast.database.connection import Transaction

_ATTRIBUTES = """
    SELECT attname, format_type(atttypid, {length}) FROM pg_attribute
     WHERE attrelid = to_regclass(COALESCE(quote_ident(CAST(:folder AS TEXT)) || '.', '') || quote_ident(CAST(:table AS TEXT)))
       AND attnum > 0 AND NOT attisdropped
     ORDER BY attnum
"""
COLUMNS = sql(
    "SELECT name, type FROM pragma_table_info(:table, :folder) ORDER BY cid",
    postgresql=_ATTRIBUTES.format(length="atttypmod"),
    mariadb="""
    SELECT column_name, column_type FROM information_schema.columns
     WHERE table_schema = COALESCE(:folder, DATABASE()) AND table_name = :table
     ORDER BY ordinal_position
    """,
)
TYPES = sql("", postgresql=_ATTRIBUTES.format(length="-1"))


def columns_of(tx: Transaction, table: str) -> dict[str, str]:
    """Names and types, as the database says them. `table` may name the schema it is in."""
    folder, _, name = table.rpartition(".")
    found = tx.rows(COLUMNS, table=name, folder=folder or None)
    if not found:
        raise ConfigurationError(f"there is no table {table} here; create it, or set the feed's table")
    return {str(row[0]): str(row[1]) for row in found}


def types_of(tx: Transaction, table: str) -> dict[str, str]:
    """Of which types the columns are, without their lengths: an explicit cast to those would cut values silently."""
    folder, _, name = table.rpartition(".")
    return {str(row[0]): str(row[1]) for row in tx.rows(TYPES, table=name, folder=folder or None)}


def as_instant(micros: int, column_type: str) -> int | datetime:
    """An instant as such a column keeps it: a number of microseconds where it is a number, else a time."""
    return micros if "int" in column_type.lower() else moment(micros)
