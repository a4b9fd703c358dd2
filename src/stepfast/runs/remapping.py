"""Rows that were applied wait again: all of a feed after its map() was mended, or those that a verify has seen.

The former is the beginning of a consolidation: steps that each take a range of ids, so that nobody waits long for the
rows, and a crash costs one of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from stepfast.database.statement import sql
from stepfast.errors import TransientError

if TYPE_CHECKING:
    from stepfast.database.connection import Transaction
    from stepfast.runs.run import Run

LOT: Final = 2_000  # rows of one step

LAST_OF_LOT = sql("""
    SELECT max(item_id) FROM (SELECT item_id FROM stepfast_raw WHERE feed = :feed AND item_id > :after
                               ORDER BY item_id LIMIT :limit) lot
""")
# Applied in no version: should the source show one of them again meanwhile, it waits all the same.
WAIT_AGAIN = sql("""
    UPDATE stepfast_raw SET pending = 1, applied_hash = NULL
     WHERE feed = :feed AND item_id > :after AND item_id <= :until AND gone_at IS NULL AND pending IN (0, 2)
""")
COUNT = sql("""
    UPDATE stepfast_run SET seen = seen + :rows, updated_at = {now}
     WHERE id = :id AND epoch = :epoch AND rounds = 0 AND state IN ('applying', 'stalled')
""")

# Of these, what the run has seen last; what has changed waits anyway.
COMPARE = sql("""
    UPDATE stepfast_raw SET pending = 1, applied_hash = NULL
     WHERE feed = :feed AND item_id {any_of:ids} AND run_id = :run_id AND pending = 0
""")


def wait_to_be_compared(tx: Transaction, run: Run, ids: list[str]) -> None:
    """Rows that a verify has just seen are consolidated whether they have changed or not."""
    tx.run(COMPARE, feed=run.feed, run_id=run.id, ids=ids)


def next_lot(tx: Transaction, run: Run, after: str | None) -> WaitAgain | None:
    """The next rows that wait again; None if there are no more."""
    until = tx.first(LAST_OF_LOT, feed=run.feed, after=after or "", limit=LOT)
    return None if until is None else WaitAgain(run, after or "", str(until))


@dataclass(frozen=True)
class WaitAgain:
    """Makes a range of rows wait for consolidation, except those that are gone at the source."""

    run: Run  # as the step saw it
    after: str
    until: str

    def apply(self, tx: Transaction, /) -> None:
        run = self.run
        rows = tx.run(WAIT_AGAIN, feed=run.feed, after=self.after, until=self.until)
        if tx.run(COUNT, id=run.id, epoch=run.epoch, rows=rows) != 1:
            raise TransientError(f"run {run.id} was moved on by somebody else; its rows do not wait", delay=0)
