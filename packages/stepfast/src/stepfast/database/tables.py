"""Tables of users: their columns, types and unique keys."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepfast.clock import moment
from stepfast.database.statement import sql
from stepfast.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Collection
    from datetime import datetime

    from stepfast.database.connection import Transaction


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

# Only what an upsert can rely on: whole columns, and all rows of the table.
UNIQUE = sql(
    """
    SELECT i.name, c.name FROM pragma_index_list(:table, :folder) i, pragma_index_info(i.name, :folder) c
     WHERE i."unique" = 1 AND i.partial = 0
    UNION ALL SELECT '', name FROM pragma_table_info(:table, :folder) WHERE pk > 0
    """,
    postgresql="""
    SELECT i.indexrelid, a.attname
      FROM pg_index i
      JOIN LATERAL unnest(CAST(i.indkey AS SMALLINT[])) WITH ORDINALITY AS k (attnum, place) ON k.place <= i.indnkeyatts
      LEFT JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
     WHERE i.indrelid = to_regclass(COALESCE(quote_ident(CAST(:folder AS TEXT)) || '.', '') || quote_ident(CAST(:table AS TEXT)))
       AND i.indisunique AND i.indimmediate AND i.indisvalid AND i.indpred IS NULL
    """,
    mariadb="""
    SELECT index_name, CASE WHEN sub_part IS NULL THEN column_name END FROM information_schema.statistics
     WHERE table_schema = COALESCE(:folder, DATABASE()) AND table_name = :table AND non_unique = 0
    """,
)
COLLATIONS = sql(
    "",
    mariadb="""
    SELECT column_name, collation_name FROM information_schema.columns
     WHERE table_schema = COALESCE(:folder, DATABASE()) AND table_name = :table AND collation_name NOT LIKE '%!_bin' ESCAPE '!'
    """,
)
TABLE_NAMES = sql(
    "SELECT name FROM sqlite_master WHERE type IN ('table', 'view') ORDER BY name",
    postgresql="""
    SELECT table_name FROM information_schema.tables WHERE table_schema = ANY (current_schemas(false)) ORDER BY table_name
    """,
    mariadb="SELECT table_name FROM information_schema.tables WHERE table_schema = DATABASE() ORDER BY table_name",
)


def table_names(tx: Transaction) -> list[str]:
    """Tables and views of the database, Stepfast's and others."""
    return [str(row[0]) for row in tx.rows(TABLE_NAMES)]


def columns_of(tx: Transaction, table: str) -> dict[str, str]:
    """Names and types, as the database says them. `table` may name the schema it is in."""
    folder, _, name = table.rpartition(".")
    found = tx.rows(COLUMNS, table=name, folder=folder or None)
    if not found:
        raise ConfigurationError(f"there is no table {table} here; create it, or set the feed's table")
    return {str(row[0]): str(row[1]) for row in found}


def types_of(tx: Transaction, table: str) -> dict[str, str]:
    """Types of the columns, without their lengths: an explicit cast to those would cut values silently."""
    folder, _, name = table.rpartition(".")
    return {str(row[0]): str(row[1]) for row in tx.rows(TYPES, table=name, folder=folder or None)}


def is_unique(tx: Transaction, table: str, key: Collection[str]) -> bool:
    """Whether a primary key or a unique index has exactly these columns: without one, an upsert only inserts."""
    folder, _, name = table.rpartition(".")
    found: dict[object, set[str | None]] = {}
    for index, column in tx.rows(UNIQUE, table=name, folder=folder or None):
        found.setdefault(index, set()).add(column)
    return set(key) in found.values()


def blurred(tx: Transaction, table: str) -> dict[str, str]:
    """Columns in which texts that differ may count as equal, with their collations. Only MariaDB has them by default."""
    if tx.dialect.name != "mariadb":
        return {}
    folder, _, name = table.rpartition(".")
    return {str(row[0]): str(row[1]) for row in tx.rows(COLLATIONS, table=name, folder=folder or None)}


def as_instant(micros: int, column_type: str) -> int | datetime:
    """An instant as such a column keeps it: a number of microseconds where it is a number, else a time."""
    return micros if "int" in column_type.lower() else moment(micros)
