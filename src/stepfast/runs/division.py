"""A partition that holds far more rows than planned is divided, so that several workers share what it became.

Its own job does that, before it has read a page: each step counts a few pieces and stores how far it is. The last one
writes the pieces with their jobs, and marks the partition as split, in one commit: somebody reads its rows at any time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from stepfast.database.statement import sql
from stepfast.runs.completion import evaluate
from stepfast.runs.counting import count_next
from stepfast.runs.fan_out import Wanted, fan_out
from stepfast.runs.page import moved_on
from stepfast.runs.paging.state import Ask
from stepfast.runs.partition import end_partition
from stepfast.runs.partitioning.estimate import outgrown, pieces_of
from stepfast.runs.run import lock_run
from stepfast.runs.states import PartitionState
from stepfast.steps.outcome import Continue, Done, Outcome

if TYPE_CHECKING:
    from stepfast.database.connection import Transaction
    from stepfast.database.database import Database
    from stepfast.runs.declaration import Declaration
    from stepfast.runs.paging.state import Answer, Request
    from stepfast.runs.partition import Partition
    from stepfast.runs.partitioning.contract import Frontier, Planned
    from stepfast.runs.run import Run

KEEP_FRONTIER = sql("""
    UPDATE stepfast_partition
       SET frontier = :frontier, seq = seq + 1, requests = requests + :requests, state = 'running', updated_at = {now},
           started_at = COALESCE(started_at, {now})
     WHERE id = :id AND epoch = :epoch AND seq = :seq AND state IN ('ready', 'running')
""")
FORGET_PARENT = sql("""
    UPDATE stepfast_run SET partitions = partitions - 1, estimate = estimate - :estimate, updated_at = {now}
     WHERE id = :id AND ended_at IS NULL
""")


def outgrows(declared: Declaration, partition: Partition, request: Request, answer: Answer) -> bool:
    """Whether the source's first count says that the plan was wrong about this partition."""
    return (
        declared.partitioner is not None
        and partition.seq == 0
        and partition.debt_id is None
        and request.ask is Ask.COUNT
        and answer.count is not None
        and outgrown(partition.estimate, answer.count)
        and declared.partitioner.divide(partition.range) is not None
    )


async def divide(
    database: Database,
    declared: Declaration,
    run: Run,
    partition: Partition,
    *,
    admitted: int = 1,
    troubled: bool = False,
) -> Outcome:
    """One step of the division; `admitted` 0: it has asked the source already."""
    partitioner = declared.partitioner
    frontier = None
    if partitioner is not None:
        if partition.frontier is None:
            frontier = partitioner.divide(partition.range)
        else:
            frontier = partitioner.restore(msgspec.json.decode(partition.frontier))
    if frontier is None:  # the deployment of another partitioner: it stays whole
        return Continue(partition.seq + 1, effects=[Whole(partition)])
    if not frontier.finished:
        frontier, asked = await count_next(
            database, declared, partition.window, frontier, admitted=admitted, troubled=troubled
        )
        if not frontier.finished:
            return Continue(partition.seq + 1, effects=[KeepFrontier(partition, frontier, asked)])
    pieces = pieces_of(partition.range, frontier.plan())
    if not pieces:
        return Continue(partition.seq + 1, effects=[Whole(partition)])
    return Done(
        {"partition": "split", "pieces": len(pieces)},
        effects=[Split(declared, run, partition, pieces)],
    )


@dataclass(frozen=True)
class KeepFrontier:
    partition: Partition
    frontier: Frontier
    requests: int

    def apply(self, tx: Transaction, /) -> None:
        text = msgspec.json.encode(self.frontier.to_json()).decode()
        _keep(tx, self.partition, text, self.requests)


@dataclass(frozen=True)
class Whole:
    """It cannot be divided: it is read as it is."""

    partition: Partition

    def apply(self, tx: Transaction, /) -> None:
        _keep(tx, self.partition, None, 0)


@dataclass(frozen=True)
class Split:
    declared: Declaration
    run: Run
    partition: Partition
    pieces: tuple[Planned, ...]

    def apply(self, tx: Transaction, /) -> None:
        if not end_partition(tx, self.partition, PartitionState.SPLIT):
            raise moved_on(self.partition)
        run = lock_run(tx, self.run.id)
        tx.run(FORGET_PARENT, id=run.id, estimate=self.partition.estimate or 0)
        wanted = [
            Wanted(
                range=it.range,
                window=self.partition.window,
                name=it.range.name,
                estimate=it.estimate,
                parent=self.partition.id,
            )
            for it in self.pieces
        ]
        fan_out(tx, self.declared, run, wanted)
        evaluate(tx, self.declared, run.id)


def _keep(tx: Transaction, partition: Partition, frontier: str | None, requests: int) -> None:
    matched = tx.run(
        KEEP_FRONTIER,
        id=partition.id,
        epoch=partition.epoch,
        seq=partition.seq,
        frontier=frontier,
        requests=requests,
    )
    if matched != 1:
        raise moved_on(partition)
