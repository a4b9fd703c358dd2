"""Names that are in use where new tables are made: what a migration must know before it makes one of its own.

A table that Stepfast made on MariaDB carries `MARK` as its comment: there a migration that was cut off leaves tables behind,
and the next one must know them for its own. PostgreSQL and SQLite take back what was cut off.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from stepfast.database.dialects import MARK
from stepfast.database.statement import sql

if TYPE_CHECKING:
    from collections.abc import Collection

    from stepfast.database.connection import Transaction


# PostgreSQL and SQLite have one set of names for tables, views and indexes; an index of MariaDB has its name inside its table.
FIND_RELATIONS = sql(
    """
    SELECT lower(name), type, CASE type WHEN 'view' THEN sql END, NULL FROM sqlite_master
     WHERE type <> 'trigger' AND lower(name) {any_of:names}
    """,
    # Only the schema in which a CREATE would make it: tables further down the search path are not in the way.
    postgresql="""
    SELECT c.relname, CASE c.relkind WHEN 'v' THEN 'view' WHEN 'm' THEN 'materialized view' WHEN 'i' THEN 'index'
                      WHEN 'I' THEN 'index' WHEN 'S' THEN 'sequence' WHEN 'c' THEN 'type' ELSE 'table' END,
           CASE c.relkind WHEN 'v' THEN pg_get_viewdef(c.oid) END, NULL
      FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
     WHERE n.nspname = current_schema() AND c.relname {any_of:names}
    UNION ALL
    SELECT t.typname, 'type', NULL, NULL FROM pg_type t JOIN pg_namespace n ON n.oid = t.typnamespace
     WHERE n.nspname = current_schema() AND t.typrelid = 0 AND t.typname {any_of:names}
    """,
    mariadb="""
    SELECT t.table_name, CASE t.table_type WHEN 'VIEW' THEN 'view' ELSE 'table' END, v.view_definition, t.table_comment
      FROM information_schema.tables t
           LEFT JOIN information_schema.views v ON v.table_schema = t.table_schema AND v.table_name = t.table_name
     WHERE t.table_schema = DATABASE() AND BINARY t.table_name {any_of:names}
    """,
)


@dataclass(frozen=True)
class Relation:
    """A table, view, index or type, by the name that it takes."""

    name: str
    kind: str
    definition: str | None  # of a view; empty where this user may not read it
    comment: str | None  # of a table of MariaDB

    def __str__(self) -> str:
        return f"{'an' if self.kind[0] in 'aeiou' else 'a'} {self.kind} {self.name}"

    @property
    def made_by_migrate(self) -> bool:
        """Whether a migration of a component that was cut off on MariaDB left this table."""
        return self.kind == "table" and self.comment == MARK


def find_relations(tx: Transaction, names: Collection[str]) -> dict[str, Relation]:
    """Those of `names` that are in use here."""
    if not names:
        return {}
    return {found.name: found for found in tx.all(FIND_RELATIONS, Relation, names=sorted(names))}
