"""Planning a run: a chain of steps, each of which counts a few ranges and stores the frontier.

A crash costs one step. The last step writes all partitions and their jobs, and moves the run on, in one commit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import msgspec

from stepfast.clock import new_id
from stepfast.coroutines import answer_of
from stepfast.database.database import persist
from stepfast.database.statement import sql
from stepfast.errors import AnswerError, TransientError
from stepfast.jobs.outcome import Continue, Done, Outcome
from stepfast.jobs.step import Step  # noqa: TC001 - a handler's hints are read at run time
from stepfast.limits.limit_rows import reserve_starts
from stepfast.runs import alerts
from stepfast.runs.breaker import Waiter
from stepfast.runs.debts import Debt, debts_to_read
from stepfast.runs.lifecycle import end_fetching
from stepfast.runs.messages import NextPage, announce_pages
from stepfast.runs.partition import NewPartition, insert_partitions
from stepfast.runs.partitioning.contract import Plan, capped
from stepfast.runs.partitioning.partitioners import Fixed, restore
from stepfast.runs.partitioning.ranges import Range
from stepfast.runs.run import (
    Run,
    RunState,
    enqueue_jobs,
    find_feed,
    find_run,
    lock_run,
    move_run,
    report_start,
    reserved_job,
)
from stepfast.runs.watermark import find_edit
from stepfast.telemetry import when_committed

if TYPE_CHECKING:
    from collections.abc import Callable

    from stepfast.database.connection import Transaction
    from stepfast.database.database import Database
    from stepfast.runs.breaker import Breaker
    from stepfast.runs.declaration import Declaration
    from stepfast.runs.partitioning.contract import Frontier, Planned
    from stepfast.runs.window import Window


class PlanJob:
    """The job that plans one run: its partitions, and the jobs that read them."""

    def __init__(self, declared: Declaration, database: Callable[[], Database], breaker: Breaker) -> None:
        self._declared = declared
        self._database = database
        self._breaker = breaker
        self._reported: set[tuple[str, int]] = set()  # runs and epochs whose start this process has reported

    async def plan(self, step: Step, run_id: str, epoch: int) -> Outcome:
        """One step, unless the feed is paused."""
        return await self._breaker.guard(step, Waiter("run", run_id), self._plan(step, run_id, epoch))

    async def _plan(self, step: Step, run_id: str, epoch: int) -> Outcome:
        """Count a few ranges and store the frontier; once planning is finished, write the partitions."""
        declared, database = self._declared, self._database()
        run, prior, debts, troubles = await asyncio.to_thread(_look, database, run_id)
        if run.phase is not RunState.PLANNING or run.epoch != epoch:
            return Done("this run is no longer planned by this job")
        step.annotate(run_id=run.id)
        self._report_start(step, run)
        edits = await find_edit(declared, run) if run.frontier is None and step.attempt == 1 else []
        if run.window.is_empty:
            return Done("the window is empty", effects=[FanOut(declared, run, NOTHING, debts), *edits])
        frontier = await _frontier_of(declared, run, prior)
        asked = 0
        if not frontier.finished:
            troubled = bool(troubles) or step.attempt > 1
            frontier, asked = await count_next(database, declared, run.window, frontier, troubled=troubled)
        if not frontier.finished:
            return Continue(step.number + 1, effects=[KeepFrontier(run, frontier, asked), *edits])
        plan = plan_of(frontier, run.window, run.most_rows)
        effect = FanOut(declared, run, plan, debts, asked)
        return Done({"partitions": len(plan.partitions), "rows": plan.rows}, effects=[effect, *edits])

    def _report_start(self, step: Step, run: Run) -> None:
        """Report the start of a run where its work begins: the process that started it may have no log."""
        if step.number == 0 and (run.id, run.epoch) not in self._reported:
            self._reported.add((run.id, run.epoch))
            report_start(run)


def _look(database: Database, run_id: str) -> tuple[Run, list[Range], list[Debt], int]:
    with database.reading() as tx:
        run = find_run(tx, run_id)
        pays = run.kind in ("full", "incremental")
        debts = debts_to_read(tx, run) if pays else []
        return run, prior_ranges(tx, run.feed, run.kind), debts, find_feed(tx, run.feed).troubles


async def _frontier_of(declared: Declaration, run: Run, prior: list[Range]) -> Frontier:
    """Where planning stands: as it was stored, or at its beginning."""
    if run.frontier is not None:
        stored = msgspec.json.decode(run.frontier)
        return restore(stored) if declared.partitioner is None else declared.partitioner.restore(stored)
    return await first_frontier(declared, run.window, prior)


async def first_frontier(declared: Declaration, window: Window, prior: list[Range]) -> Frontier:
    """What the feed's own plan() or its partitioner begins with."""
    if declared.partitioner is not None:
        return declared.partitioner.start(window, prior)
    ranges: Any = await answer_of(declared.feed.plan, window)
    if not isinstance(ranges, list | tuple) or not all(isinstance(part, Range) for part in ranges):
        raise AnswerError("plan", f"is {ranges!r:.80}; plan() answers a list of stepfast.Range")
    if not ranges:
        raise _empty(window)
    return Fixed(ranges, counted=False).start(window)


# What the last run of the same kind was divided into: recounting that is cheaper than looking again.
FIND_PRIOR_RANGES = sql("""
    SELECT span FROM stepfast_partition
     WHERE debt_id IS NULL AND state <> 'split'
       AND run_id = (SELECT r.id FROM stepfast_run r
                      WHERE r.feed = :feed AND r.kind = :kind AND r.state = 'completed' AND r.scope = 'complete'
                      ORDER BY r.started_at DESC LIMIT 1)
     ORDER BY number
""")


def prior_ranges(tx: Transaction, feed: str, kind: str) -> list[Range]:
    return [
        Range.from_json(msgspec.json.decode(str(row[0])))
        for row in tx.rows(FIND_PRIOR_RANGES, feed=feed, kind=kind)
    ]


def plan_of(frontier: Frontier, window: Window, most_rows: int | None) -> Plan:
    """What a run reads. A plan without partitions is refused: its window would pass for read."""
    plan = frontier.plan()
    if not plan.partitions:
        raise _empty(window)
    return plan if most_rows is None else capped(plan, most_rows)


def _empty(window: Window) -> AnswerError:
    begins = "since ever" if window.from_ is None else f"from {window.from_:%Y-%m-%d %H:%M:%S}"
    return AnswerError(
        "plan",
        f"is empty: nobody would read what changed {begins} to {window.to:%Y-%m-%d %H:%M:%S} UTC, and all of it would "
        "pass for read; answer at least one range, such as Range()",
    )


NOTHING: Final = Plan(partitions=(), domain=None)  # of an empty window


# Counting what a frontier asks for, a few ranges at the same time.
#
# The limits of a feed let a step in for one request. For the others it reserves the next slots of the same limits, and
# asks when their time has come. If one request fails, the whole step has failed: nothing is learned from the others. So
# while a source is in trouble it is asked one after the other: of six counts one fails six times as often.

LONGEST_WAIT: Final = timedelta(seconds=1)  # of a step for its turn under the limits


async def count_next(
    database: Database,
    declared: Declaration,
    window: Window,
    frontier: Frontier,
    *,
    admitted: int = 1,
    troubled: bool = False,
) -> tuple[Frontier, int]:
    """The frontier with the answers, and how many requests that took. `admitted`: requests that the limits let in already."""
    asked = frontier.ask()[: 1 if troubled else None]
    waits = [0.0] * len(asked)
    if declared.limits and len(asked) > admitted:
        further = await asyncio.to_thread(_reserve, database, declared, len(asked) - admitted)
        waits = [*waits[:admitted], *further]
    if asked and not waits:
        await asyncio.sleep(LONGEST_WAIT.total_seconds())
    counts = await _counted(declared, window, asked[: len(waits)], waits)
    return frontier.learn(counts), len(counts)


def _reserve(database: Database, declared: Declaration, most: int) -> list[float]:
    return persist(
        database, lambda tx: reserve_starts(tx, declared.limits, declared.name, most, LONGEST_WAIT)
    )


async def _counted(
    declared: Declaration, window: Window, asked: Sequence[Range], waits: Sequence[float]
) -> dict[str, int]:
    """All counts, in their order, or the first failure: then the other requests are cancelled, and waited for."""

    async def count(part: Range, wait: float) -> Any:
        if wait:
            await asyncio.sleep(wait)
        return await answer_of(declared.feed.count, part, window)

    tasks = [asyncio.ensure_future(count(*task)) for task in zip(asked, waits, strict=True)]
    try:
        if tasks:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in tasks:  # in their order: the same failure is reported the same way each time
        if not task.cancelled() and (error := task.exception()) is not None:
            raise error
    return {part.name: task.result() for part, task in zip(asked, tasks, strict=True)}


# The effects of a planning step.

KEEP_FRONTIER = sql("""
    UPDATE stepfast_run SET frontier = :frontier, requests = requests + :requests, updated_at = {now}
     WHERE id = :id AND epoch = :epoch AND ended_at IS NULL
""")
END_PLANNING = sql("""
    UPDATE stepfast_run
       SET scope = :scope, baseline = :baseline, requests = requests + :requests, frontier = NULL, planned_at = {now}
     WHERE id = :id AND epoch = :epoch AND ended_at IS NULL
""")


@dataclass(frozen=True)
class KeepFrontier:
    """Stores how far planning is."""

    run: Run
    frontier: Frontier
    requests: int

    def apply(self, tx: Transaction, /) -> None:
        text = msgspec.json.encode(self.frontier.to_json()).decode()
        if (
            tx.run(KEEP_FRONTIER, id=self.run.id, epoch=self.run.epoch, frontier=text, requests=self.requests)
            != 1
        ):
            raise _moved_on(self.run)


@dataclass(frozen=True)
class FanOut:
    """The end of planning: partitions, their jobs, and the run's next state."""

    declared: Declaration
    run: Run
    plan: Plan
    debts: list[Debt]
    requests: int = 0

    def apply(self, tx: Transaction, /) -> None:
        run = lock_run(tx, self.run.id)
        if run.phase is not RunState.PLANNING or run.epoch != self.run.epoch:
            raise _moved_on(run)
        tx.run(
            END_PLANNING,
            id=run.id,
            epoch=run.epoch,
            scope=self.plan.scope if run.most_rows is None else "partial",
            baseline=self.plan.baseline,
            requests=self.requests,
        )
        if not move_run(tx, run, RunState.FETCHING):
            raise _moved_on(run)
        wanted = self._wanted()
        fan_out(tx, self.declared, run, wanted)
        when_committed(
            tx, "run.planned", run, partitions=len(wanted), rows=self.plan.rows, debts=len(self.debts)
        )
        if self.plan.misses_rows:
            alerts.plan_misses_rows(tx, run, self.plan)
        end_fetching(tx, self.declared, run.id)

    def _wanted(self) -> list[WantedPartition]:
        window = self.run.window
        planned = [
            WantedPartition(
                range=it.range,
                window=window,
                name=it.range.name,
                estimate=it.estimate,
                frontier=self._division(it),
            )
            for it in self.plan.partitions
        ]
        owed = [
            WantedPartition(
                range=it.range, window=it.window, name=f"debt {it.id}: {it.name}"[:200], debt_id=it.id
            )
            for it in self.debts
        ]
        return planned + owed

    def _division(self, planned: Planned) -> str | None:
        """Where the division of a partition begins that is too large for one reader; None: it is read as it is."""
        partitioner = self.declared.partitioner
        if planned.problem != "undivided" or partitioner is None:
            return None
        frontier = partitioner.divide(planned.range)
        return None if frontier is None else msgspec.json.encode(frontier.to_json()).decode()


def _moved_on(run: Run) -> TransientError:
    return TransientError(f"run {run.id} was moved on by somebody else; this plan is not written", delay=0)


COUNT_NEW_PARTITIONS = sql("""
    UPDATE stepfast_run SET partitions = partitions + :more, estimate = estimate + :rows, updated_at = {now}
     WHERE id = :id AND ended_at IS NULL
""")


@dataclass(frozen=True, kw_only=True)
class WantedPartition:
    """A partition that is to be written."""

    range: Range
    window: Window
    name: str
    estimate: int | None = None
    parent: str | None = None
    debt_id: int | None = None
    frontier: str | None = None  # it begins with its division


def fan_out(tx: Transaction, declared: Declaration, run: Run, wanted: Sequence[WantedPartition]) -> None:
    """Write partitions and the jobs that read them, in one transaction. The caller holds the run's row."""
    if not wanted:
        return
    named = [(partition, new_id()) for partition in wanted]
    jobs = [reserved_job(declared, run, "page", row_id=row_id, epoch=0) for _, row_id in named]
    enqueue_jobs(tx, jobs)
    first = insert_partitions(
        tx,
        run.id,
        [
            NewPartition(
                id=row_id,
                job_id=job.id,
                range=partition.range,
                window=partition.window,
                name=partition.name,
                estimate=partition.estimate,
                parent=partition.parent,
                debt_id=partition.debt_id,
                frontier=partition.frontier,
            )
            for (partition, row_id), job in zip(named, jobs, strict=True)
        ],
    )
    tx.run(
        COUNT_NEW_PARTITIONS,
        id=run.id,
        more=len(wanted),
        rows=sum(partition.estimate or 0 for partition in wanted),
    )
    if declared.broker is not None:
        pages = [
            NextPage(first + index, partition.range, 0, 0, 0, partition.estimate, job.id)
            for index, (partition, job) in enumerate(zip(wanted, jobs, strict=True))
        ]
        announce_pages(tx, declared, run, pages)
