"""The states and the rows of partitions: they exist, with their jobs, before anything can be lost.

A partition is read by one job per epoch. `seq` counts its committed requests: a page is committed by moving `seq` from
what its step read, so a step of an older epoch, or one that comes twice, changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import msgspec

from stepfast.database.statement import sql
from stepfast.database.stored import stored_state
from stepfast.errors import StateError
from stepfast.runs.partitioning.ranges import Range
from stepfast.runs.window import Window

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepfast.database.connection import Transaction


class PartitionState(StrEnum):
    """The state of a partition."""

    READY = "ready"  # no page of it has been asked for
    RUNNING = "running"  # a job reads it
    DONE = "done"  # read, and shown to be complete
    DONE_UNVERIFIED = "done_unverified"  # read, but nothing shows that it is complete: a debt
    SPLIT = "split"  # outgrew its estimate; its pieces are read instead
    FAILED = "failed"  # its job gave up
    CANCELLED = "cancelled"  # its run was cancelled


PARTITION_TRANSITIONS: Final[dict[PartitionState, dict[PartitionState, str]]] = {
    PartitionState.READY: {
        PartitionState.READY: "retry",
        PartitionState.RUNNING: "first request",
        PartitionState.DONE: "one page, verified",
        PartitionState.DONE_UNVERIFIED: "one page, unverified",
        PartitionState.SPLIT: "outgrown",
        PartitionState.FAILED: "give up",
        PartitionState.CANCELLED: "cancel",
    },
    PartitionState.RUNNING: {
        PartitionState.READY: "retry",
        PartitionState.RUNNING: "next request",
        PartitionState.DONE: "end, verified",
        PartitionState.DONE_UNVERIFIED: "end, unverified",
        PartitionState.SPLIT: "outgrown",
        PartitionState.FAILED: "give up",
        PartitionState.CANCELLED: "cancel",
    },
    PartitionState.DONE: {},
    PartitionState.DONE_UNVERIFIED: {PartitionState.READY: "retry from the start"},
    PartitionState.SPLIT: {},
    PartitionState.FAILED: {PartitionState.READY: "retry"},
    PartitionState.CANCELLED: {PartitionState.READY: "resume"},
}

# A run goes on to consolidation once none of its partitions is open.
OPEN_PARTITION: Final = (PartitionState.READY, PartitionState.RUNNING)
ENDED_PARTITION: Final = tuple(it for it in PartitionState if it not in OPEN_PARTITION)


def require_partition_transition(source: PartitionState, target: PartitionState) -> str:
    """Why a partition moves from one state to another. Raises if there is no such transition."""
    found = PARTITION_TRANSITIONS[source].get(target)
    if found is None:
        raise StateError(f"a partition that is {source} cannot become {target}")
    return found


# The row.

INSERT_PARTITION = sql("""
    INSERT INTO stepfast_partition (id, run_id, number, name, parent, span, window_from, window_to, debt_id, estimate, frontier,
                                    job_id, created_at, updated_at)
    VALUES (:id, :run_id, :number, :name, :parent, :span, :window_from, :window_to, :debt_id, :estimate, :frontier, :job_id, {now}, {now})
""")
NEXT_PARTITION_NUMBER = sql(
    "SELECT COALESCE(max(number) + 1, 0) FROM stepfast_partition WHERE run_id = :run_id"
)

PARTITION_COLUMNS = """p.id, p.run_id, p.number, p.name, p.parent, p.span, p.window_from, p.window_to, p.debt_id, p.estimate, p.state,
           p.epoch, p.seq, p.paging, p.frontier, p.next_offset, p.seen, p.rejected, p.requests, p.counted, p.job_id, p.worker_id,
           p.last_error, p.started_at, p.updated_at, p.ended_at"""
FIND_PARTITION = sql(f"SELECT {PARTITION_COLUMNS} FROM stepfast_partition p WHERE p.id = :id")
LOCK_PARTITION = sql(f"SELECT {PARTITION_COLUMNS} FROM stepfast_partition p WHERE p.id = :id {{for_update}}")
PARTITIONS_OF_RUN = sql(
    f"SELECT {PARTITION_COLUMNS} FROM stepfast_partition p WHERE p.run_id = :run_id ORDER BY p.number"
)
LOCK_PARTITIONS_OF_RUN = sql(
    f"SELECT {PARTITION_COLUMNS} FROM stepfast_partition p WHERE p.run_id = :run_id ORDER BY p.id {{for_update}}"
)

# The one statement that moves a partition on, and ends it if this was its last page.
ADVANCE_PARTITION = sql("""
    UPDATE stepfast_partition
       SET seq = seq + 1, requests = requests + 1, paging = :paging, next_offset = :next_offset, seen = seen + :fresh,
           rejected = rejected + :rejected, worker_id = :worker_id, state = :target, counted = :counted,
           last_error = :error, updated_at = {now}, started_at = COALESCE(started_at, {now}),
           ended_at = CASE WHEN :ends = 1 THEN {now} ELSE NULL END
     WHERE id = :id AND epoch = :epoch AND seq = :seq AND state IN ('ready', 'running')
""")

END_PARTITION = sql("""
    UPDATE stepfast_partition
       SET state = :target, last_error = :error, updated_at = {now}, ended_at = {now}, epoch = epoch + :restarts
     WHERE id = :id AND epoch = :epoch AND state IN ('ready', 'running')
""")


def partition_id(number: int) -> str:
    """The id of a partition within its run, as logs, views, messages and commands show it. Its row's own id is for joins."""
    return f"partition-{number}"


@dataclass(frozen=True)
class Partition:
    """A range of a source's rows that one job reads, page by page."""

    id: str  # of its row
    run_id: str
    number: int
    name: str
    parent: str | None
    span: str  # the range, as JSON
    window_from: int | None
    window_to: int
    debt_id: int | None  # the debt of an earlier run that it reads again
    estimate: int | None
    state: PartitionState
    epoch: int
    seq: int
    paging: str | None  # where its pages stand, as JSON; None before the first
    frontier: str | None  # where its division stands: it outgrew its estimate, or was planned to be divided
    next_offset: int
    seen: int
    rejected: int
    requests: int
    counted: int | None  # what the source counted last
    job_id: str | None
    worker_id: str | None
    last_error: str | None
    started_at: int | None
    updated_at: int
    ended_at: int | None

    @property
    def public_id(self) -> str:
        return partition_id(self.number)

    @property
    def description(self) -> str:
        """Its id and its range, for a sentence."""
        return f"{self.public_id} ({self.name})"

    @cached_property
    def range(self) -> Range:
        return Range.from_json(msgspec.json.decode(self.span))

    @cached_property
    def window(self) -> Window:
        return Window.of(self.window_from, self.window_to)

    @property
    def is_open(self) -> bool:
        return self.state in (PartitionState.READY, PartitionState.RUNNING)

    def moved(self, **changes: Any) -> Partition:
        """The partition with these changes; `dataclasses.replace` would take ten times as long, for every page."""
        after = object.__new__(Partition)
        after.__dict__.update(self.__dict__, **changes)
        return after


@dataclass(frozen=True, kw_only=True)
class NewPartition:
    """A partition to be written, with the job that will read it."""

    id: str
    job_id: str
    range: Range
    window: Window
    name: str
    estimate: int | None = None
    parent: str | None = None
    debt_id: int | None = None
    frontier: str | None = None  # it begins with its division


def insert_partitions(tx: Transaction, run_id: str, new: Sequence[NewPartition]) -> int:
    """Write partitions; returns the number of the first. The caller holds the run's row, which counts them."""
    number = int(tx.first(NEXT_PARTITION_NUMBER, run_id=run_id) or 0)
    tx.run_many(
        INSERT_PARTITION,
        [
            {
                "id": partition.id,
                "run_id": run_id,
                "number": number + index,
                "name": partition.name,
                "parent": partition.parent,
                "span": msgspec.json.encode(partition.range.to_json()).decode(),
                "window_from": partition.window.micros[0],
                "window_to": partition.window.micros[1],
                "debt_id": partition.debt_id,
                "estimate": partition.estimate,
                "frontier": partition.frontier,
                "job_id": partition.job_id,
            }
            for index, partition in enumerate(new)
        ],
    )
    return number


def find_partition(tx: Transaction, row_id: str) -> Partition | None:
    found = tx.all(FIND_PARTITION, read_partition, id=row_id)
    return found[0] if found else None


def lock_partition(tx: Transaction, row_id: str) -> Partition | None:
    found = tx.all(LOCK_PARTITION, read_partition, id=row_id)
    return found[0] if found else None


def partitions_of(tx: Transaction, run_id: str) -> list[Partition]:
    """The partitions of a run in the order of their numbers."""
    return tx.all(PARTITIONS_OF_RUN, read_partition, run_id=run_id)


def lock_partitions(tx: Transaction, run_id: str) -> list[Partition]:
    """Lock all partitions of a run until the commit. Before the run's own row in the order of locks."""
    return tx.all(LOCK_PARTITIONS_OF_RUN, read_partition, run_id=run_id)


def end_partition(
    tx: Transaction,
    partition: Partition,
    target: PartitionState,
    error: str | None = None,
    *,
    restart: bool = False,
) -> bool:
    """Move a partition along an arrow that ends it; False if it was ended or restarted before. With `restart` its job is stale."""
    if partition.is_open:
        require_partition_transition(partition.state, target)
    return (
        tx.run(
            END_PARTITION,
            id=partition.id,
            epoch=partition.epoch,
            target=target.value,
            error=error,
            restarts=int(restart),
        )
        == 1
    )


def read_partition(*row: Any) -> Partition:
    values = [*row]
    values[10] = stored_state(PartitionState, row[10])
    return Partition(*values)
