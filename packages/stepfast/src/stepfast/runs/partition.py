"""The rows of partitions: they exist, with their jobs, before anything can be lost.

A partition is read by one job per epoch. `seq` counts its committed requests: a page is committed by moving `seq` from
what its step read, so a step of an older epoch, or one that comes twice, changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import msgspec

from stepfast.database.statement import sql
from stepfast.runs.partitioning.ranges import Range
from stepfast.runs.run import PartitionState, require_transition
from stepfast.runs.window import Window

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepfast.database.connection import Transaction


INSERT_PARTITION = sql("""
    INSERT INTO stepfast_partition (id, run_id, number, name, parent, span, window_from, window_to, debt_id, estimate, job_id,
                                    created_at, updated_at)
    VALUES (:id, :run_id, :number, :name, :parent, :span, :window_from, :window_to, :debt_id, :estimate, :job_id, {now}, {now})
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


@dataclass(frozen=True)
class Partition:
    """A range of a source's rows that one job reads, page by page."""

    id: str
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
    frontier: str | None  # where its division stands, once it has outgrown its estimate
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
                "job_id": partition.job_id,
            }
            for index, partition in enumerate(new)
        ],
    )
    return number


def find_partition(tx: Transaction, partition_id: str) -> Partition | None:
    found = tx.all(FIND_PARTITION, read_partition, id=partition_id)
    return found[0] if found else None


def lock_partition(tx: Transaction, partition_id: str) -> Partition | None:
    found = tx.all(LOCK_PARTITION, read_partition, id=partition_id)
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
        require_transition(partition.state, target)
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
    values[10] = PartitionState(row[10])
    return Partition(*values)
