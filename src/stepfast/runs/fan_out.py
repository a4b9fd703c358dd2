"""Partitions and the jobs that read them, written in one transaction: nobody can lose a partition between the two."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from stepfast.clock import new_id
from stepfast.database.statement import sql
from stepfast.runs.announcing import NextPage, announce_pages
from stepfast.runs.jobs import enqueue_jobs, told_job
from stepfast.runs.partition import NewPartition, insert_partitions

if TYPE_CHECKING:
    from stepfast.database.connection import Transaction
    from stepfast.runs.declaration import Declaration
    from stepfast.runs.ranges import Range
    from stepfast.runs.run import Run
    from stepfast.runs.window import Window

COUNT_NEW = sql("""
    UPDATE stepfast_run SET partitions = partitions + :more, estimate = estimate + :rows, updated_at = {now}
     WHERE id = :id AND ended_at IS NULL
""")


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """A partition to be read."""

    range: Range
    window: Window
    name: str
    estimate: int | None = None
    parent: str | None = None
    debt_id: int | None = None


def fan_out(tx: Transaction, declared: Declaration, run: Run, wanted: Sequence[Wanted]) -> None:
    """Write them and their jobs. The caller holds the run's row."""
    if not wanted:
        return
    asked = [(it, new_id()) for it in wanted]
    jobs = [told_job(declared, run, "page", partition_id=partition_id, epoch=0) for _, partition_id in asked]
    enqueue_jobs(tx, jobs)
    first = insert_partitions(
        tx,
        run.id,
        [
            NewPartition(
                id=partition_id,
                job_id=job.id,
                range=it.range,
                window=it.window,
                name=it.name,
                estimate=it.estimate,
                parent=it.parent,
                debt_id=it.debt_id,
            )
            for (it, partition_id), job in zip(asked, jobs, strict=True)
        ],
    )
    tx.run(COUNT_NEW, id=run.id, more=len(wanted), rows=sum(it.estimate or 0 for it in wanted))
    if declared.broker is not None:
        pages = [
            NextPage(first + place, it.range, 0, 0, 0, it.estimate, job.id)
            for place, (it, job) in enumerate(zip(wanted, jobs, strict=True))
        ]
        announce_pages(tx, declared, run, pages)
