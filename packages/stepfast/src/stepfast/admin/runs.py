"""`app.runs`: look at runs of feeds, plan, start and repair them. `stepfast runs` goes through it.

Each action is one transaction and is recorded in the audit. Looks and `cancel` need only the database. The others need
the feed's code, because they enqueue its jobs or ask its source.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, TypeVar

from stepfast.admin.audit import Actor, actor_named, actor_or_default, record
from stepfast.admin.run_reports import (
    PartitionReport,
    RunReport,
    list_partitions,
    list_runs,
    resolve,
    run_report,
)
from stepfast.admin.run_status import RunDetail, RunObserver, RunProgress, show_run
from stepfast.coroutines import answer_of, wait_for
from stepfast.database.database import persist
from stepfast.errors import (
    ConfigurationError,
    DatabaseError,
    PermanentError,
    StateError,
    StepfastError,
    TransientError,
)
from stepfast.jobs.retry import describe
from stepfast.runs import repair
from stepfast.runs.debts import covers, open_debts
from stepfast.runs.paging.paginators import Offset
from stepfast.runs.partition import partition_id
from stepfast.runs.partitioning.contract import VERIFYING_COUNTS, Estimate, beginning, estimate
from stepfast.runs.partitioning.heatmap import describe_plan as describe_run_plan
from stepfast.runs.partitioning.heatmap import draw
from stepfast.runs.plan import count_next, first_frontier, plan_of, prior_ranges
from stepfast.runs.run import FeedRow, find_feed, find_run
from stepfast.runs.start import RunRequest, kind_for, source_clock, start_remap, start_run, window_of
from stepfast.telemetry import happened

if TYPE_CHECKING:
    from datetime import datetime

    from stepfast.database.connection import Transaction
    from stepfast.database.database import Database
    from stepfast.runs.declaration import Declaration
    from stepfast.runs.feeds import Feeds
    from stepfast.runs.partitioning.contract import Frontier, Plan
    from stepfast.runs.partitioning.ranges import Range
    from stepfast.runs.repair import Repaired
    from stepfast.runs.run import RunKind, RunState
    from stepfast.runs.window import Window


T = TypeVar("T")
Action = Callable[["Transaction", str], "Repaired"]

MOST_COUNTS: Final = 1_000  # of partitions that planning itself does not count


@dataclass(frozen=True)
class RunRepair:
    """What a repair did to a run."""

    run: RunReport  # as it is now
    was: RunState
    # Partitions that are read again, or were stopped; of a forced run, those that lack rows. By their ids: partition-7
    partitions: tuple[str, ...]
    debts: int  # ranges that a later run must read


@dataclass(frozen=True)
class PlannedPartition:
    """A partition of a plan."""

    partition_id: str  # that it would have in the run
    name: str
    rows: int | None  # None: not counted
    problem: str | None


@dataclass(frozen=True, kw_only=True)
class RunPlan:
    """What a run would read, and what it would cost."""

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


class Runs:
    """Looks at runs, starts and repairs them. A run is named by its id, the beginning of it, `latest`, or its feed."""

    def __init__(self, database: Database, feeds: Feeds | None = None, actor: Actor | None = None) -> None:
        self.database = database
        self._feeds = feeds
        self._actor = actor or actor_or_default()

    def by(self, name: str | None = None, *, reason: str | None = None) -> Runs:
        """The runs for the actor of this name; without one for the user of this process."""
        return Runs(self.database, self._feeds, actor_named(name, reason))

    # Look

    def report(self, run: str) -> RunReport:
        """A run in one line."""
        with self.database.reading() as tx:
            return run_report(tx, resolve(tx, run))

    def show(self, run: str) -> RunDetail:
        """Where a run stands, and why it does not advance."""
        with self.database.reading() as tx:
            return show_run(tx, resolve(tx, run))

    def partitions(
        self, run: str | None = None, *, failed: bool = False, stuck: bool = False, limit: int = 1_000
    ) -> Sequence[PartitionReport]:
        """Partitions of one run or of all, by number; only those that failed, or open ones that no job reads."""
        with self.database.reading() as tx:
            run_id = None if run is None else resolve(tx, run)
            return list_partitions(tx, run_id=run_id, failed=failed, stuck=stuck, limit=limit)

    def look(self, run: str) -> RunProgress:
        """How far a run is now."""
        return self.observe(run).look()

    def watch(self, run: str) -> Iterator[RunProgress]:
        """How far a run is, whenever that changed, until it has ended."""
        yield from self.observe(run).watch()

    def observe(self, run: str) -> RunObserver:
        """An observer of a run, for programs that show its partitions and why it does not advance."""
        with self.database.reading() as tx:
            return RunObserver(self.database, resolve(tx, run))

    # Begin

    @staticmethod
    def check(
        kind: RunKind | None = None,
        *,
        from_: datetime | None = None,
        to: datetime | None = None,
        max_rows: int | None = None,
    ) -> None:
        """Refuse options that no run can have, before the source or the database is asked."""
        RunRequest(kind=kind, from_=from_, to=to, most_rows=max_rows)

    def plan(
        self,
        feed: str,
        kind: RunKind | None = None,
        *,
        from_: datetime | None = None,
        to: datetime | None = None,
        max_rows: int | None = None,
    ) -> RunPlan:
        """What a run would read, and what it would cost. The source is asked from here; nothing is started."""
        request = RunRequest(kind=kind, from_=from_, to=to, most_rows=max_rows)
        return _answer_of_source(feed, plan_run(self.database, self._declared(feed), request))

    def start(
        self,
        feed: str,
        kind: RunKind | None = None,
        *,
        from_: datetime | None = None,
        to: datetime | None = None,
        max_rows: int | None = None,
        note: str | None = None,
    ) -> RunReport:
        """Start a run; workers do the rest. Without a kind: full the first time, then incremental."""
        request = RunRequest(kind=kind, from_=from_, to=to, most_rows=max_rows)
        declared = self._declared(feed)
        clock = _answer_of_source(feed, source_clock(self.database, declared))
        by = self._actor.with_reason(note)

        def act(tx: Transaction) -> RunReport:
            run = start_run(tx, declared, request, clock)
            record(tx, by, "run.start", run.id, detail={"feed": feed, "kind": run.kind, "max_rows": max_rows})
            return run_report(tx, run.id)

        return persist(self.database, act)

    def remap(self, feed: str, *, note: str | None = None) -> RunReport:
        """Map and write all rows of a feed again, after map() was fixed. The source is not asked."""
        declared = self._declared(feed)
        by = self._actor.with_reason(note)

        def act(tx: Transaction) -> RunReport:
            run = start_remap(tx, declared)
            record(tx, by, "run.remap", run.id, detail={"feed": feed, "mapper": declared.mapper_version})
            return run_report(tx, run.id)

        return persist(self.database, act)

    # Repair

    def retry(
        self,
        run: str,
        partitions: Sequence[str | int] = (),
        *,
        from_start: bool = False,
        note: str | None = None,
    ) -> RunRepair:
        """Read partitions again that failed or lost their job, from where they stopped; only `partitions`, if given.

        They are named by number or id (5, partition-5) or range. With `from_start` from their first row: then also
        partitions that could not be verified, and any open one that is named; the job that reads it is cancelled.
        """
        wanted = [str(partition) for partition in partitions]

        def act(tx: Transaction, run_id: str) -> Repaired:
            return repair.retry(tx, self._declared_of(tx, run_id), run_id, wanted, from_start=from_start)

        return self._repair("run.retry", run, act, note, {"from_start": "yes" if from_start else None})

    def consolidate(self, run: str, *, force: bool = False, note: str | None = None) -> RunRepair:
        """Consolidate the rows that were read, again; with `force` also if ranges are missing: they become debts."""

        def act(tx: Transaction, run_id: str) -> Repaired:
            return repair.consolidate(tx, self._declared_of(tx, run_id), run_id, force=force)

        return self._repair("run.consolidate", run, act, note, {"force": "yes" if force else None})

    def cancel(self, run: str, note: str | None = None) -> RunRepair:
        """Stop a run. The rows that it read stay, and it can be resumed until a newer run exists."""
        by = self._actor.with_reason(note)
        reason = f"Cancelled: {by.reason}" if by.reason else "Cancelled by an operator"
        return self._repair("run.cancel", run, lambda tx, run_id: repair.cancel(tx, run_id, reason), note)

    def resume(self, run: str, note: str | None = None) -> RunRepair:
        """Resume a cancelled or stalled run from where it was, or one that has lost its jobs."""

        def act(tx: Transaction, run_id: str) -> Repaired:
            return repair.resume(tx, self._declared_of(tx, run_id), run_id)

        return self._repair("run.resume", run, act, note)

    def list(self, *, feed: str | None = None, active: bool = False, limit: int = 50) -> list[RunReport]:
        """Runs, the newest first."""
        with self.database.reading() as tx:
            return list_runs(tx, feed=feed, active=active, limit=limit)

    def _repair(
        self,
        what: str,
        run: str,
        action: Action,
        note: str | None,
        detail: dict[str, str | None] | None = None,
    ) -> RunRepair:
        by = self._actor.with_reason(note)

        def act(tx: Transaction) -> tuple[Repaired, RunRepair]:
            run_id = resolve(tx, run, prefer_active=what == "run.cancel")
            done = action(tx, run_id)
            facts = {
                "feed": done.run.feed,
                "was": done.was,
                "state": done.run.state,
                "debts": done.debts or None,
            }
            if done.blocked_by is None:
                record(tx, by, what, run_id, touched=len(done.partitions), detail={**facts, **(detail or {})})
            elif done.new_debts:
                record(tx, by, "run.owe", run_id, touched=done.new_debts, detail=facts)
            ids = tuple(partition_id(number) for number in sorted(it.number for it in done.partitions))
            return done, RunRepair(run_report(tx, run_id), done.was, ids, done.debts)

        done, repaired = persist(self.database, act)
        if done.blocked_by is not None:
            raise StateError(_blocked(done))
        happened("run.repaired", done.run, action=what, state=done.run.state.value)
        return repaired

    def _declared_of(self, tx: Transaction, run_id: str) -> Declaration:
        return self._declared(find_run(tx, run_id).feed)

    def _declared(self, feed: str) -> Declaration:
        if self._feeds is None:
            raise ConfigurationError(
                f"this needs the code of feed {feed}: say where its app is with --app MODULE:APP, or STEPFAST_APP"
            )
        return self._feeds.get(feed)


def _answer_of_source(feed: str, work: Coroutine[Any, Any, T]) -> T:
    """The answer of the source, or an error of ours with a sentence about the exception of its code."""
    try:
        return wait_for(work)
    except (ConfigurationError, DatabaseError, StateError):
        raise
    except (TransientError, PermanentError) as error:  # its message says what the source did or refused
        raise StepfastError(f"feed {feed}: nothing was begun: {_sentence(error)}") from error
    except Exception as error:
        raise StepfastError(f"feed {feed}: the source could not be asked: {describe(error)}") from error


def _sentence(error: Exception) -> str:
    """The message of an error, without the name of its type."""
    return describe(error).removeprefix(f"{type(error).__qualname__}: ")


def _blocked(done: Repaired) -> str:
    stays = f"run {done.run.id} is {done.was}, and stays so: run {done.blocked_by} of feed {done.run.feed} has its place"
    if not done.debts:
        return f"{stays}; nothing is owed for it, begin a new one with: stepfast runs start {done.run.feed}"
    ranges = (
        "the range it lacks is a debt" if done.debts == 1 else f"the {done.debts} ranges it lacks are debts"
    )
    return f"{stays}; {ranges}, which the next run reads (see: stepfast debts list)"


# Planning without a run


async def plan_run(database: Database, declared: Declaration, request: RunRequest) -> RunPlan:
    """Plan as a run does, without starting one, and count the partitions where the feed can."""
    clock = await source_clock(database, declared)
    row = await asyncio.to_thread(_feed, database, declared.name)
    kind = kind_for(request, row)
    window = window_of(declared, request, kind, row, clock)
    prior, debts = await asyncio.to_thread(_known, database, declared.name, kind, window)
    if window.is_empty:
        return _run_plan(declared, kind, window, None, debts=debts)
    frontier = await first_frontier(declared, window, prior)
    while not frontier.finished:
        frontier, _ = await count_next(database, declared, window, frontier, admitted=0)
    read = plan_of(
        frontier, window, request.most_rows
    ).partitions  # as a run decides, before the counts below
    frontier = await _counted(declared, window, frontier)
    found = _run_plan(declared, kind, window, frontier, debts=debts, read=len(read))
    return found if request.most_rows is None else _trial(found, blind=read[-1].estimate is None)


def _trial(found: RunPlan, *, blind: bool) -> RunPlan:
    """The plan of a trial: its scope is partial, however much it reads."""
    end = "; the trial ends with a partition that nobody has counted, and reads all of it" if blind else ""
    return replace(found, scope="partial", summary=found.summary + end)


def _feed(database: Database, feed: str) -> FeedRow:
    with database.reading() as tx:
        return find_feed(tx, feed)


def _known(database: Database, feed: str, kind: RunKind, window: Window) -> tuple[list[Range], int]:
    with database.reading() as tx:
        owed = [
            debt for debt in open_debts(tx, feed) if not debt.is_given_up and not covers(window, debt.window)
        ]
        return prior_ranges(tx, feed, kind), len(owed) if kind in ("full", "incremental") else 0


async def _counted(declared: Declaration, window: Window, frontier: Frontier) -> Frontier:
    """The frontier with a count for each partition: a run learns that while it reads."""
    unknown = [part.range for part in frontier.plan().partitions if part.estimate is None]
    if not declared.counts or len(unknown) > MOST_COUNTS:
        return frontier
    counts = {range_.name: await answer_of(declared.feed.count, range_, window) for range_ in unknown}
    return frontier.learn(counts) if counts else frontier


def _run_plan(
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
        else tuple(
            PlannedPartition(partition_id(number), part.range.name, part.estimate, part.problem)
            for number, part in enumerate(plan.partitions)
        ),
        rows=0 if plan is None else plan.rows,
        baseline=None if plan is None else plan.baseline,
        debts=debts,
        requests=_requests(declared, plan),
        summary=nothing if plan is None else describe_run_plan(plan),
        drawing=nothing if frontier is None else draw(frontier),
    )


def _requests(declared: Declaration, plan: Plan | None) -> Estimate:
    if plan is None:
        return Estimate(planning=0, counts=0, pages=0, longest=0, unknown=0)
    paging = declared.paging
    return estimate(
        plan,
        declared.page_size,
        overlap=paging.overlap if isinstance(paging, Offset) else 0,
        closing=paging.closing_pages,
        counts=VERIFYING_COUNTS if declared.counts else 0,
        passes=1 if paging.trusted else 2,
    )
