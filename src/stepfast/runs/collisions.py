"""Items that differ, and are one for the target: MariaDB compares texts by a column's collation, which may ignore case
and accents. The later one would replace the other without a trace."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from stepfast.database.statement import sql
from stepfast.database.tables import blurred

if TYPE_CHECKING:
    from stepfast.database.connection import Transaction
    from stepfast.runs.declaration import Declaration

# The collation that takes most texts for equal: whichever the column has, it finds what that one would.
ALIKE = sql(
    "",
    mariadb="""
    SELECT min(item_id), max(item_id) FROM stepfast_raw WHERE feed = :feed AND gone_at IS NULL
     GROUP BY item_id COLLATE utf8mb4_unicode_ci HAVING count(*) > 1 LIMIT 1
    """,
)
# Texts of one case with nothing that a collation folds cannot collide. Looking for one that is not so takes a tenth of
# the time, and stops at the first.
FOLDABLE = sql(
    "",
    mariadb="""
    SELECT EXISTS (SELECT 1 FROM stepfast_raw WHERE feed = :feed AND item_id NOT REGEXP '^[0-9a-z_.:-]*$')
       AND EXISTS (SELECT 1 FROM stepfast_raw WHERE feed = :feed AND item_id NOT REGEXP '^[0-9A-Z_.:-]*$')
    """,
)


class Alike(NamedTuple):
    """Two of the items, and the column that cannot tell them apart."""

    one: str
    other: str
    column: str
    collation: str


def items_alike(tx: Transaction, declared: Declaration) -> Alike | None:
    """An example, if the feed has any. Of items that are not found by their identity nobody can tell."""
    column = declared.item_column
    if declared.stores or column is None or tx.dialect.name != "mariadb":
        return None
    collation = blurred(tx, declared.table).get(column)
    if collation is None or not tx.first(FOLDABLE, feed=declared.name):
        return None
    found = tx.rows(ALIKE, feed=declared.name)
    return Alike(str(found[0][0]), str(found[0][1]), column, str(collation)) if found else None
