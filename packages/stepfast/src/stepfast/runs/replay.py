"""Rows in quarantine are tried again, after a fix: mapped and stored exactly as a consolidation does it.

An operator chooses entries; they become `replaying`, and a job takes them in batches. A row is applied only if it is
still the newest version of its item: if the item came again meanwhile, that version counts.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from stepfast.database.statement import sql
from stepfast.jobs.outcome import Continue, Done, Outcome
from stepfast.jobs.step import Step  # noqa: TC001 - a handler's hints are read at run time
from stepfast.runs.page import NO_IDENTITY, NOT_STORABLE
from stepfast.runs.paging.decision import UnidentifiedItem, identity
from stepfast.runs.quarantine import QuarantineState, RefusedRow, put_aside, settle_entries
from stepfast.runs.raw_rows import Observation, PendingRow, PendingRows, observe, observed
from stepfast.runs.target import TargetWrite, map_rows, refused_row, target_columns
from stepfast.threads import in_own_thread

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from stepfast.database.connection import Transaction
    from stepfast.database.database import Database
    from stepfast.runs.declaration import Declaration


STAGES: Final = 2  # an item may be refused by the mapper, and by the table

READ_REPLAYING = sql("""
    SELECT q.item_id, q.stage, q.code, q.message, q.content_hash, q.payload, q.run_id, q.last_seen_at, r.content_hash,
           r.pending
      FROM stepfast_quarantine q
      LEFT JOIN stepfast_raw r ON r.feed = q.feed AND r.item_id = q.item_id AND r.gone_at IS NULL
     WHERE q.feed = :feed AND q.state = 'replaying' AND q.item_id > :after
     ORDER BY q.item_id, q.stage LIMIT :limit
""")
FIND_SKEW = sql("SELECT skew FROM stepfast_feed WHERE id = :feed")


class ReplayEntry(NamedTuple):
    """An entry of the quarantine that is tried again, beside what is known about its item now."""

    item_id: str
    stage: str
    code: str
    message: str
    content_hash: str
    payload: str
    run_id: str
    last_seen_at: int
    current_hash: str | None
    pending: int | None

    @property
    def counts(self) -> bool:
        """Whether this is the newest version of the item."""
        return self.current_hash == self.content_hash and self.pending == 2  # noqa: PLR2004 - put aside

    @property
    def row(self) -> PendingRow:
        return PendingRow(self.item_id, self.content_hash, self.payload)


class ReplayJob:
    """The job that tries the chosen entries of a feed again."""

    def __init__(self, declared: Declaration, database: Callable[[], Database]) -> None:
        self._declared = declared
        self._database = database

    async def replay(self, step: Step) -> Outcome:
        """One step: take the next batch of entries."""
        done = step.cursor or {"after": "", "tried": 0}
        entries = await asyncio.to_thread(self._read, done["after"])
        if not entries:
            return Done({"tried": done["tried"]})
        effect = await in_own_thread(_prepare, self._database(), self._declared, entries)
        further = {"after": entries[-1].item_id, "tried": done["tried"] + len(entries)}
        return Continue(further, effects=[effect])

    def _read(self, after: str) -> list[ReplayEntry]:
        """A batch, and never a part of the entries of one item."""
        declared = self._declared
        limit = declared.batch + STAGES
        with self._database().reading() as tx:
            found = tx.all(READ_REPLAYING, ReplayEntry, feed=declared.name, after=after, limit=limit)
        if len(found) == limit:
            last = found[-1].item_id
            found = [entry for entry in found if entry.item_id != last]
        return found


def _prepare(database: Database, declared: Declaration, entries: Sequence[ReplayEntry]) -> Replay:
    with database.reading() as tx:
        columns = target_columns(tx, declared)
        to_row = declared.feed.mapping(tx, None)
        skew = int(tx.first(FIND_SKEW, feed=declared.name) or 0)
    with_identity = [entry for entry in entries if entry.stage != "identify"]
    newest = {entry.item_id: entry for entry in with_identity if entry.counts}
    identified: list[tuple[ReplayEntry, Observation]] = []
    unidentified: list[RefusedRow] = []
    for entry in entries:
        if entry.stage == "identify":
            found = _identify(declared, entry)
            if isinstance(found, RefusedRow):
                unidentified.append(found)
            else:
                identified.append((entry, found))
    rows = {item_id: entry.row for item_id, entry in newest.items()}
    rows |= {seen.item_id: PendingRow(*seen) for _, seen in identified}
    runs = {item_id: entry.run_id for item_id, entry in newest.items()}
    runs |= {seen.item_id: entry.run_id for entry, seen in identified}
    batch = map_rows(declared, PendingRows.of([rows[item_id] for item_id in sorted(rows)]), columns, to_row)
    batch = replace(batch, refused=[row._replace(run_id=runs[row.item_id]) for row in batch.refused])
    write = TargetWrite(
        declared=declared,
        run_id=entries[0].run_id,
        batch=batch,
        columns=columns,
        entries=set(rows),
        settled_as=QuarantineState.REPLAYED,
    )
    return Replay(
        write=write,
        newest=list(newest.values()),
        identified=[(entry, seen, entry.last_seen_at + skew) for entry, seen in identified],
        unidentified=unidentified,
        overtaken=[entry.item_id for entry in with_identity if entry.item_id not in newest],
    )


def _identify(declared: Declaration, entry: ReplayEntry) -> Observation | RefusedRow:
    """The row with the identity that it has now, or refused again."""
    if entry.code == NOT_STORABLE:  # what was kept is not what the source gave: only the source can mend it
        return RefusedRow(*entry[:6], run_id=entry.run_id)
    item = msgspec.json.decode(entry.payload)
    found = identity(item, declared.feed.identify)
    if isinstance(found, UnidentifiedItem):
        refused = refused_row(declared, entry.row, "identify", ValueError(found.reason))
        return refused._replace(code=NO_IDENTITY, run_id=entry.run_id)
    return observed(found, item, declared.volatile)


# Still the newest version, and still refused: for this transaction it waits again.
MAKE_PENDING = sql("""
    UPDATE stepfast_raw SET pending = 1
     WHERE feed = :feed AND item_id {any_of:ids} AND content_hash {any_of:hashes} AND pending = 2
       AND gone_at IS NULL
""")


@dataclass(frozen=True, kw_only=True)
class Replay:
    """Writes one batch of rows that were refused before."""

    write: TargetWrite
    newest: Sequence[ReplayEntry]  # rows whose newest version this is
    identified: Sequence[tuple[ReplayEntry, Observation, int]]  # now with an identity; when it was seen
    unidentified: Sequence[RefusedRow]  # rows that still have none
    overtaken: Sequence[str]  # items that came again meanwhile, or are not known any more

    def apply(self, tx: Transaction, /) -> None:
        feed = self.write.declared.name
        if self.newest:
            ids, hashes = (
                [entry.item_id for entry in self.newest],
                [entry.content_hash for entry in self.newest],
            )
            tx.run(MAKE_PENDING, feed=feed, ids=ids, hashes=hashes)
        for entry, seen, at in self.identified:
            observe(tx, feed, entry.run_id, at, [seen])
        self.write.apply(tx)
        settle_entries(tx, feed, sorted(self.overtaken), QuarantineState.SUPERSEDED)
        replayed = sorted(entry.item_id for entry, *_ in self.identified)
        settle_entries(tx, feed, replayed, QuarantineState.REPLAYED)
        if self.unidentified:
            put_aside(tx, feed, self.write.run_id, self.unidentified)
