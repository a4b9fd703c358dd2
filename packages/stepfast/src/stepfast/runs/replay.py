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
from stepfast.runs.page import NOT_STORABLE
from stepfast.runs.paging.decision import UnidentifiedItem, identity
from stepfast.runs.quarantine import QuarantineState, RefusedRow, put_aside_for, settle_entries
from stepfast.runs.raw_rows import Observation, PendingRow, PendingRows, observe, observed
from stepfast.runs.target import TargetWrite, map_rows, refused_row, target_columns
from stepfast.threads import in_own_thread

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepfast.database.connection import Transaction
    from stepfast.database.database import Database
    from stepfast.jobs.step import Step
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
# Still the newest version, and still refused: for this transaction it waits again.
MAKE_PENDING = sql("""
    UPDATE stepfast_raw SET pending = 1
     WHERE feed = :feed AND item_id {any_of:ids} AND content_hash {any_of:hashes} AND pending = 2
       AND gone_at IS NULL
""")
FIND_SKEW = sql("SELECT skew FROM stepfast_feed WHERE id = :feed")


class ReplayEntry(NamedTuple):
    """An entry that is to be tried again, beside what is known about its item now."""

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
        """Whether nothing newer is known."""
        return self.current_hash == self.content_hash and self.pending == 2  # noqa: PLR2004 - put aside


async def replay(step: Step, database: Database, declared: Declaration) -> Outcome:
    """Take the next entries of the feed that are to be tried again."""
    done = step.cursor or {"after": "", "tried": 0}
    entries = await asyncio.to_thread(_read, database, declared, done["after"])
    if not entries:
        return Done({"tried": done["tried"]})
    effect = await in_own_thread(_prepare, database, declared, entries)
    further = {"after": entries[-1].item_id, "tried": done["tried"] + len(entries)}
    return Continue(further, effects=[effect])


def _read(database: Database, declared: Declaration, after: str) -> list[ReplayEntry]:
    """A batch, and never a part of the entries of one item."""
    with database.reading() as tx:
        found = tx.all(
            READ_REPLAYING, ReplayEntry, feed=declared.name, after=after, limit=declared.batch + STAGES
        )
    if len(found) == declared.batch + STAGES:
        last = found[-1].item_id
        found = [it for it in found if it.item_id != last]
    return found


def _prepare(database: Database, declared: Declaration, entries: Sequence[ReplayEntry]) -> Replay:
    with database.reading() as tx:
        columns = target_columns(tx, declared)
        to_row = declared.feed.mapping(tx, None)
        skew = int(tx.first(FIND_SKEW, feed=declared.name) or 0)
    known = {it.item_id: it for it in entries if it.stage != "identify" and it.counts}
    strangers = [it for it in entries if it.stage == "identify"]
    met: list[tuple[ReplayEntry, Observation]] = []
    unmet: list[RefusedRow] = []
    for it in strangers:
        if it.code == NOT_STORABLE:  # what was kept is not what the source gave: only the source can mend it
            why = it.message
            unmet.append(
                RefusedRow(it.item_id, it.stage, it.code, why, it.content_hash, it.payload, run_id=it.run_id)
            )
            continue
        item = msgspec.json.decode(it.payload)
        found = identity(item, declared.feed.identify)
        if isinstance(found, UnidentifiedItem):
            reason = refused_row(
                declared,
                PendingRow(*it[:1], it.content_hash, it.payload),
                "identify",
                ValueError(found.reason),
            )
            unmet.append(reason._replace(code="no identity", run_id=it.run_id))
        else:
            met.append((it, observed(found, item, declared.volatile)))
    waiting = {it.item_id: PendingRow(it.item_id, it.content_hash, it.payload) for it in known.values()}
    waiting |= {seen.item_id: PendingRow(*seen) for _, seen in met}
    batch = map_rows(
        declared, PendingRows.of([waiting[item_id] for item_id in sorted(waiting)]), columns, to_row
    )
    runs = {it.item_id: it.run_id for it in known.values()} | {seen.item_id: it.run_id for it, seen in met}
    named = replace(batch, refused=[it._replace(run_id=runs[it.item_id]) for it in batch.refused])
    application = TargetWrite(
        declared=declared,
        run_id=entries[0].run_id,
        batch=named,
        columns=columns,
        entries=set(waiting),
        settled_as=QuarantineState.REPLAYED,
    )
    return Replay(
        application=application,
        known=list(known.values()),
        met=[(it, seen, it.last_seen_at + skew) for it, seen in met],
        unmet=unmet,
        others=[it.item_id for it in entries if it.stage != "identify" and it.item_id not in known],
    )


@dataclass(frozen=True, kw_only=True)
class Replay:
    """Writes one batch of rows that were refused before."""

    application: TargetWrite
    known: Sequence[ReplayEntry]  # rows whose newest version this is
    met: Sequence[
        tuple[ReplayEntry, Observation, int]
    ]  # rows that have an identity now, and when they were seen
    unmet: Sequence[RefusedRow]  # rows that still have none
    others: Sequence[str]  # items that came again meanwhile, or are not known any more

    def apply(self, tx: Transaction, /) -> None:
        feed = self.application.declared.name
        if self.known:
            ids, hashes = [it.item_id for it in self.known], [it.content_hash for it in self.known]
            tx.run(MAKE_PENDING, feed=feed, ids=ids, hashes=hashes)
        for entry, seen, at in self.met:
            observe(tx, feed, entry.run_id, at, [seen])
        self.application.write(tx)
        settle_entries(tx, feed, sorted(self.others), QuarantineState.SUPERSEDED)
        settle_entries(tx, feed, sorted(it.item_id for it, *_ in self.met), QuarantineState.REPLAYED)
        if self.unmet:
            put_aside_for(tx, feed, self.application.run_id, self.unmet)
