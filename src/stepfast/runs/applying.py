"""The commit of one batch of consolidation: an effect of its step, so that all of it happens or nothing.

First the raw rows are marked under the content that was read, which also locks them. Then the target rows are written
of those that were still so. What could not be mapped or stored goes into quarantine.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from stepfast.database.statement import sql
from stepfast.database.tables import as_instant, columns_of, is_unique
from stepfast.errors import ConfigurationError
from stepfast.runs.comparing import differences, stored_rows
from stepfast.runs.mapping import Batch, refused
from stepfast.runs.pending import mark, set_aside
from stepfast.runs.quarantine import EntryState, put_aside_for, settle
from stepfast.runs.storing import store
from stepfast.runs.target import target_column

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from stepfast.database.connection import Transaction
    from stepfast.runs.declaration import Declaration

CLOCK = sql("SELECT {now}")


class Applied(NamedTuple):
    """What became of a batch."""

    applied: int = 0
    refused: int = 0
    differing: int = 0  # rows that were not in the target as they are now, if anybody compared


@dataclass(frozen=True, kw_only=True)
class Application:
    """One batch, mapped, on its way into the target."""

    declared: Declaration
    run_id: str
    batch: Batch
    columns: Mapping[str, str]  # of the target, with their types; empty if nobody asked
    entries: Collection[str] = ()  # items of the batch that have an entry in quarantine
    settled_as: EntryState = EntryState.SUPERSEDED
    compares: bool = False  # whether rows that differ from what was in the target are counted

    def write(self, tx: Transaction) -> Applied:
        batch = self._current(tx)
        feed, bad = self.declared.name, batch.refused
        before = stored_rows(tx, self.declared, batch.rows) if self.compares else {}
        guilty = store(tx, self.declared.feed, batch.rows)
        differing = differences(before, stored_rows(tx, self.declared, batch.rows)) if self.compares else 0
        if guilty:
            set_aside(tx, feed, [batch.raw.ids[it.place] for it in guilty])
            bad = bad + [refused(self.declared, batch.raw.at(it.place), "store", it.error) for it in guilty]
        if self.entries:
            # All entries of these items are answered; those of rows that are refused again are opened again below.
            touched = {*batch.raw.ids, *(it.item_id for it in bad)}
            settle(tx, feed, sorted(touched.intersection(self.entries)), self.settled_as)
        put_aside_for(tx, feed, self.run_id, bad)
        self._mark_stale(tx, sorted(it.item_id for it in bad))
        return Applied(len(batch.rows) - len(guilty), len(bad), differing)

    def _current(self, tx: Transaction) -> Batch:
        """Those rows that still have the content which was read; all of them are ours from here on."""
        batch = self.batch
        read = dict(zip(batch.raw.ids, batch.raw.hashes, strict=True))
        if batch.refused:
            read = dict(sorted({**read, **{it.item_id: it.content_hash for it in batch.refused}}.items()))
        current = mark(tx, self.declared.name, read, [it.item_id for it in batch.refused]) if read else None
        return batch if current is None else batch.only(current)

    def _mark_stale(self, tx: Transaction, ids: list[str]) -> None:
        """Otherwise an old price would stay on sale, and nobody could tell that it is old. The next good row clears it."""
        stale = self.declared.stale
        if ids and stale is not None and self.declared.item_column is not None:
            since = as_instant(int(tx.first(CLOCK)), self.columns[stale])
            target_column(self.declared, stale).set(tx, ids, since)


def target_columns(tx: Transaction, declared: Declaration) -> dict[str, str]:
    """The columns that rows may have; of a feed that stores its rows itself nobody else needs to know them."""
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
    """Every run would add its rows to those that are there."""
    table, key = declared.table, ", ".join(declared.key)
    if missing := [name for name in declared.key if name not in columns]:
        return ConfigurationError(
            f"table {table} has no column {missing[0]}, which is in the feed's key; add it, or set another key for the feed"
        )
    return ConfigurationError(
        f"table {table} has no primary key or unique index over exactly {key}, by which rows replace each other; "
        f"add it with: CREATE UNIQUE INDEX {table.rpartition('.')[2]}_key ON {table} ({key}), or set another key for the feed"
    )
