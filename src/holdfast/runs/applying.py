"""The commit of one batch of consolidation: an effect of its step, so that all of it happens or nothing.

First the raw rows are marked under the content that was read, which also locks them. Then the target rows are written
of those that were still so. What could not be mapped or stored goes into quarantine.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from holdfast.database.statement import sql
from holdfast.database.tables import as_instant, columns_of
from holdfast.errors import ConfigurationError
from holdfast.runs.mapping import Batch, Mapped, refused
from holdfast.runs.pending import Mark, mark, set_aside
from holdfast.runs.quarantine import EntryState, Refused, put_aside_for, settle
from holdfast.runs.storing import store
from holdfast.runs.target import TargetColumn

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from holdfast.database.connection import Transaction
    from holdfast.runs.declaration import Declaration

CLOCK = sql("SELECT {now}")


class Applied(NamedTuple):
    """What became of a batch."""

    applied: int = 0
    refused: int = 0


@dataclass(frozen=True, kw_only=True)
class Application:
    """One batch, mapped, on its way into the target."""

    declared: Declaration
    run_id: str
    batch: Batch
    columns: Mapping[str, str]  # of the target, with their types; empty if nobody asked
    entries: Collection[str] = ()  # items of the batch that have an entry in quarantine
    settled_as: EntryState = EntryState.SUPERSEDED

    def write(self, tx: Transaction) -> Applied:
        mapped, bad = self._current(tx)
        feed = self.declared.name
        guilty = store(tx, self.declared.feed, mapped)
        if guilty:
            set_aside(tx, feed, [it.row.item_id for it in guilty])
            bad = bad + [refused(self.declared, it.row, "store", it.error) for it in guilty]
        # All entries of these items are answered; those of rows that are refused again are opened again below.
        touched = {it.item_id for it in mapped} | {it.item_id for it in bad}
        settle(tx, feed, sorted(touched.intersection(self.entries)), self.settled_as)
        put_aside_for(tx, feed, self.run_id, bad)
        self._mark_stale(tx, sorted(it.item_id for it in bad))
        return Applied(len(mapped) - len(guilty), len(bad))

    def _current(self, tx: Transaction) -> tuple[list[Mapped], list[Refused]]:
        """Those rows that still have the content which was read; all of them are ours from here on."""
        mapped, bad = self.batch.mapped, self.batch.refused
        marks = [Mark(it.item_id, it.content_hash, good=True) for it in mapped]
        if bad:
            marks = sorted([*marks, *(Mark(it.item_id, it.content_hash, good=False) for it in bad)])
        if not marks:
            return [], []
        current = mark(tx, self.declared.name, marks)
        if current is None:
            return mapped, bad
        return [it for it in mapped if it.item_id in current], [it for it in bad if it.item_id in current]

    def _mark_stale(self, tx: Transaction, ids: list[str]) -> None:
        """Otherwise an old price would stay on sale, and nobody could tell that it is old. The next good row clears it."""
        stale, item_column = self.declared.stale, self.declared.item_column
        if ids and stale is not None and item_column is not None:
            since = as_instant(int(tx.first(CLOCK)), self.columns[stale])
            TargetColumn(self.declared.table, item_column, stale).set(tx, ids, since)


def target_columns(tx: Transaction, declared: Declaration) -> dict[str, str]:
    """The columns that rows may have; of a feed that stores its rows itself nobody else needs to know them."""
    if declared.stores and declared.stale is None:
        return {}
    columns = columns_of(tx, declared.table)
    if missing := [name for name in declared.cleared if name not in columns]:
        raise ConfigurationError(
            f"table {declared.table} has no column {missing[0]}; add one that may be NULL, or set another for the feed"
        )
    return columns
