"""Target rows are written together; if the database refuses them, the guilty ones are found and the others written.

A batch is tried inside a savepoint. What the database refuses is halved until the rows that it refuses stand alone. Who
meets a deadlock or a lost connection has no guilty row to look for: the whole step is done again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from stepfast.database.failures import blames_a_row
from stepfast.errors import DatabaseError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepfast.database.connection import Transaction
    from stepfast.runs.feed import Feed, Row


class Guilty(NamedTuple):
    """A row that the target does not take, and why."""

    place: int  # among those that were to be written
    error: Exception


def store(tx: Transaction, feed: Feed, rows: Sequence[Row], first: int = 0) -> list[Guilty]:
    """Write them, and return those that were refused; `first` is the place of the first of them."""
    if not rows:
        return []
    try:
        with tx.savepoint():
            feed.store(tx, rows)
    except Exception as error:
        if isinstance(error, DatabaseError) and not blames_a_row(error):
            raise
        if len(rows) == 1:
            return [Guilty(first, error)]
        middle = len(rows) // 2
        return store(tx, feed, rows[:middle], first) + store(tx, feed, rows[middle:], first + middle)
    return []
