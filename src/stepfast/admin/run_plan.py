"""What a run would read, and what that would cost: planned as a run plans it, from here, and without starting one."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from stepfast.runs.asking import answer_of
from stepfast.runs.counting import count_next
from stepfast.runs.debts import covers, open_debts
from stepfast.runs.feed_row import FeedRow, find_feed
from stepfast.runs.paging.paginators import Offset
from stepfast.runs.partitioning.contract import beginning
from stepfast.runs.partitioning.drawing import describe, draw
from stepfast.runs.partitioning.estimate import VERIFYING_COUNTS, Estimate, estimate
from stepfast.runs.planning import first_frontier, planned, prior_ranges
from stepfast.runs.starting import kind_for, source_clock, window_of

if TYPE_CHECKING:
    from datetime import datetime

    from stepfast.database.database import Database
    from stepfast.runs.declaration import Declaration
    from stepfast.runs.partitioning.contract import Frontier, Plan
    from stepfast.runs.ranges import Range
    from stepfast.runs.starting import Request
    from stepfast.runs.states import RunKind
    from stepfast.runs.window import Window

MOST_COUNTS: Final = 1_000  # of partitions that planning itself does not count


@dataclass(frozen=True)
class PlannedPartition:
    name: str
    rows: int | None  # None: nobody counted
    problem: str | None


@dataclass(frozen=True, kw_only=True)
class RunPlan:
    """A run that nobody has started."""

    feed: str
    kind: RunKind
    window_from: datetime | None
    window_to: datetime
    scope: str
    partitions: tuple[PlannedPartition, ...]
    rows: int | None
    baseline: int | None  # rows of the source without any partition
    debts: int  # ranges of earlier runs that it would read as well
    requests: Estimate
    summary: str
    drawing: str


async def plan_run(database: Database, declared: Declaration, request: Request) -> RunPlan:
    """Ask the source what the plan of such a run asks, and count its partitions where the feed can."""
    clock = await source_clock(database, declared)
    row = await asyncio.to_thread(_feed, database, declared.name)
    kind = kind_for(request, row)
    window = window_of(declared, request, kind, row, clock)
    prior, debts = await asyncio.to_thread(_known, database, declared.name, kind, window)
    if window.is_empty:
        return _told(declared, kind, window, None, debts=debts)
    frontier = await first_frontier(declared, window, prior)
    while not frontier.finished:
        frontier, _ = await count_next(database, declared, window, frontier, admitted=0)
    read = planned(frontier, window, request.most_rows).partitions  # as a run decides, before anybody counts
    frontier = await _counted(declared, window, frontier)
    found = _told(declared, kind, window, frontier, debts=debts, read=len(read))
    return found if request.most_rows is None else _trial(found, blind=read[-1].estimate is None)


def _trial(found: RunPlan, *, blind: bool) -> RunPlan:
    """However much it reads, it does not pass for everything."""
    told = "; the trial ends with a partition that nobody has counted, and reads all of it" if blind else ""
    return replace(found, scope="partial", summary=found.summary + told)


def _feed(database: Database, feed: str) -> FeedRow:
    with database.reading() as tx:
        return find_feed(tx, feed)


def _known(database: Database, feed: str, kind: RunKind, window: Window) -> tuple[list[Range], int]:
    with database.reading() as tx:
        owed = [it for it in open_debts(tx, feed) if not it.is_given_up and not covers(window, it.window)]
        return prior_ranges(tx, feed, kind), len(owed) if kind in ("full", "incremental") else 0


async def _counted(declared: Declaration, window: Window, frontier: Frontier) -> Frontier:
    """The same partitions, each with its count: a run finds that out while it reads."""
    unknown = [it.range for it in frontier.plan().partitions if it.estimate is None]
    if not declared.counts or len(unknown) > MOST_COUNTS:
        return frontier
    counts = {it.name: await answer_of(declared.feed.count, it, window) for it in unknown}
    return frontier.learn(counts) if counts else frontier


def _told(
    declared: Declaration,
    kind: RunKind,
    window: Window,
    frontier: Frontier | None,
    *,
    debts: int,
    read: int = 0,
) -> RunPlan:
    plan = None if frontier is None else beginning(frontier.plan(), read)
    nothing = "the window is empty: there is nothing to read"
    return RunPlan(
        feed=declared.name,
        kind=kind,
        window_from=window.from_,
        window_to=window.to,
        scope="complete" if plan is None else plan.scope,
        partitions=()
        if plan is None
        else tuple(PlannedPartition(it.range.name, it.estimate, it.problem) for it in plan.partitions),
        rows=0 if plan is None else plan.rows,
        baseline=None if plan is None else plan.baseline,
        debts=debts,
        requests=_requests(declared, plan),
        summary=nothing if plan is None else describe(plan),
        drawing=nothing if frontier is None else draw(frontier),
    )


def _requests(declared: Declaration, plan: Plan | None) -> Estimate:
    if plan is None:
        return Estimate(planning=0, counts=0, pages=0, longest=0, unknown=0)
    overlap = declared.paging.overlap if isinstance(declared.paging, Offset) else 0
    counts = VERIFYING_COUNTS if declared.counts else 0
    return estimate(plan, declared.page_size, overlap=overlap, counts=counts)
