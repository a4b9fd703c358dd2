"""Where a partition stands when a step begins: looked up, or remembered from the step before it.

A chain of pages stays with one process for a while, and what the next step would look up is what the last one wrote.
So that is kept, under the fence that the last step's commit consumed, and the job's cursor names this fence: if both
agree, that commit happened, and none after it. Whoever else moved the partition meanwhile is found out by the guard of
the page's own commit; then the step is tried again, and looks.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from stepfast.database.statement import sql
from stepfast.runs.asking import look_up
from stepfast.runs.partition import COLUMNS as PARTITION
from stepfast.runs.partition import Partition, read_partition
from stepfast.runs.run import COLUMNS as RUN
from stepfast.runs.run import Run, read_run
from stepfast.runs.states import RunState

if TYPE_CHECKING:
    from stepfast.database.database import Database
    from stepfast.steps.step import Step

MOST: Final = 1_000  # chains that went on elsewhere are forgotten in the end
REPEATING: Final = 3  # partitions that were given rows again, after which all of the feed are expected to be
_PARTITION_COLUMNS: Final = len(PARTITION.split(","))

# One look for all that a step needs to know.
LOOK = sql(f"""
    SELECT {PARTITION}, {RUN}, {{now}} + COALESCE(f.skew, 0)
      FROM stepfast_partition p
      JOIN stepfast_run r ON r.id = p.run_id
      LEFT JOIN stepfast_feed f ON f.id = r.feed
     WHERE p.id = :id
""")


@dataclass(frozen=True)
class Place:
    """A partition, its run, and what time it was at the source when they were looked up."""

    partition: Partition
    run: Run
    at: int
    looked_at: float  # on the clock of this process, just afterwards

    def may_go_on(self, epoch: int) -> bool:
        return self.partition.is_open and self.partition.epoch == epoch and self.run.at is RunState.FETCHING

    def moved(self, partition: Partition) -> Place:
        """The same with the partition after a commit."""
        return Place(partition, self.run, self.at, self.looked_at)

    @property
    def now(self) -> int:
        """What time it is at the source; rather too early than too late, for an answer is no older than its request."""
        return self.at + int((time.monotonic() - self.looked_at) * 1e6)


class Places:
    """Of the chains that are in this process."""

    def __init__(self) -> None:
        self._kept: dict[str, tuple[int, Place]] = {}
        self._repeating: set[str] = set()

    def keep(self, step: Step, place: Place) -> tuple[int, int]:
        """Where the partition stands once this step is committed; returns the cursor for the next one."""
        self._kept[place.partition.id] = step.fence, place
        if len(self._kept) > MOST:
            del self._kept[next(iter(self._kept))]
        return place.partition.seq, step.fence

    def may_suppose_new(self, partition_id: str) -> bool:
        """Whether the rows of a page may pass for new until its commit says otherwise."""
        return len(self._repeating) < REPEATING and partition_id not in self._repeating

    def repeats(self, partition_id: str) -> None:
        """It was given rows that it had read: from now on they are looked up first."""
        self._repeating.add(partition_id)

    async def find(self, step: Step, database: Database, partition_id: str, epoch: int) -> Place | None:
        fence, place = self._kept.pop(partition_id, (0, None))
        if (
            place is not None
            and was_written_by(fence, place, step)
            and place.partition.epoch == epoch
            and database.shift is None  # a test's clock may stand still, or jump
        ):
            return place
        return await look_up(database, _look, partition_id)


def was_written_by(fence: int, place: Place, step: Step) -> bool:
    """Whether the commit that consumed this fence is the one that the step goes on from."""
    return bool(step.cursor == [place.partition.seq, fence])


def _look(database: Database, partition_id: str) -> Place | None:
    with database.looking() as tx:
        found = tx.rows(LOOK, id=partition_id)
    return _place(*found[0]) if found else None


def _place(*row: Any) -> Place:
    partition = read_partition(*row[:_PARTITION_COLUMNS])
    return Place(partition, read_run(*row[_PARTITION_COLUMNS:-1]), int(row[-1]), time.monotonic())
