"""Start a run: its window is fixed and its planning job is enqueued, in one transaction under the feed's row."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, get_args

from stepfast.clock import instant, moment, spoken
from stepfast.coroutines import answer_of
from stepfast.database.statement import sql
from stepfast.errors import AnswerError, ConfigurationError, HeldError, OutageError, StateError
from stepfast.jobs.outcome import Done, Outcome
from stepfast.jobs.step import Step  # noqa: TC001 - a handler's hints are read at run time
from stepfast.runs import alerts
from stepfast.runs.breaker import Waiter
from stepfast.runs.lifecycle import begin_consolidation, refuse_active_run
from stepfast.runs.run import (
    FeedRow,
    Run,
    RunKind,
    RunState,
    create_run,
    enqueue_job,
    find_run,
    lock_feed,
    move_run,
    watch_job,
)
from stepfast.runs.window import Window, backfill_window, next_window
from stepfast.telemetry import when_committed

if TYPE_CHECKING:
    from collections.abc import Callable

    from stepfast.database.connection import Transaction
    from stepfast.database.database import Database
    from stepfast.runs.breaker import Breaker
    from stepfast.runs.declaration import Declaration


class StartJob:
    """The job that starts a run by the calendar. While another run is active, the tick is skipped."""

    def __init__(self, declared: Declaration, database: Callable[[], Database], breaker: Breaker) -> None:
        self._declared = declared
        self._database = database
        self._breaker = breaker

    async def start(self, step: Step, kind: RunKind | None = None) -> Outcome:
        return await self._breaker.guard(step, Waiter("start"), self._start(kind))

    async def _start(self, kind: RunKind | None) -> Outcome:
        clock = await source_clock(self._database(), self._declared)
        return Done(effects=[StartRun(self._declared, kind, clock)])


@dataclass(frozen=True)
class StartRun:
    """Starts a run in the step's own commit, unless one is active."""

    declared: Declaration
    kind: RunKind | None
    clock: SourceClock

    def apply(self, tx: Transaction, /) -> None:
        try:
            start_run(tx, self.declared, RunRequest(kind=self.kind), self.clock)
        except StateError as active:
            when_committed(tx, "run.skipped", feed=self.declared.name, note=str(active))


DATABASE_CLOCK = sql("SELECT {now}")
# Observations carry the source's time: should its clock be set back, or differ from server to server, later ones would
# pass for older ones and be refused. So once there are any, the difference only grows.
KEEP_SKEW = sql("""
    UPDATE stepfast_feed SET skew = :skew, updated_at = {now}
     WHERE id = :feed
       AND (skew < :skew OR (skew > :skew AND NOT EXISTS (SELECT 1 FROM stepfast_raw r WHERE r.feed = :feed)))
""")

SKIP_FETCHING = sql("""
    UPDATE stepfast_run SET scope = 'partial', planned_at = {now}, fetched_at = {now} WHERE id = :id AND state = 'planning'
""")


@dataclass(frozen=True)
class SourceClock:
    """What time it is at the source, and how far that is ahead of the database's clock. Microseconds."""

    now: int
    skew: int = 0


@dataclass(frozen=True, kw_only=True)
class RunRequest:
    """What a run is to read. `kind` None: everything the first time, then what has changed."""

    kind: RunKind | None = None
    from_: datetime | None = None  # of a backfill
    to: datetime | None = None
    most_rows: int | None = None  # a trial: it is partial, and moves no watermark

    def __post_init__(self) -> None:
        if self.kind is not None and self.kind not in get_args(RunKind):
            known = ", ".join(get_args(RunKind))
            raise ConfigurationError(f"{self.kind!r:.80} is no kind of run; use {known}")
        if (self.from_ is not None or self.to is not None) and self.kind != "backfill":
            raise ConfigurationError(
                "only a backfill has a window of its own; the others begin at the watermark"
            )
        if self.most_rows is not None and (
            isinstance(self.most_rows, bool) or not isinstance(self.most_rows, int)
        ):
            raise ConfigurationError(
                f"max_rows={self.most_rows!r:.80}: a whole number of rows, or None for all"
            )
        if self.most_rows is not None and self.most_rows < 1:
            raise ConfigurationError(f"a run of {self.most_rows} rows reads nothing; allow at least one")


async def source_clock(database: Database, declared: Declaration) -> SourceClock:
    """Ask the source for its time; if it does not say, its clock is taken to go like ours."""
    shown = await answer_of(declared.feed.now)
    ours = await asyncio.to_thread(_database_clock, database)
    if shown is None:
        return SourceClock(ours)
    if not isinstance(shown, datetime):
        raise AnswerError("now", f"is {shown!r:.80}; now() answers a datetime with a time zone, or None")
    theirs = instant(shown, f"now() of feed {declared.name}")
    refuse_ahead(declared, timedelta(microseconds=theirs - ours))
    return SourceClock(theirs, theirs - ours)


def refuse_ahead(declared: Declaration, ahead: timedelta) -> None:
    """Refuse to start while the source's clock is far ahead: a watermark in the future passes over all that changes.

    Which of the two clocks is wrong cannot be known, so the run waits. A clock that is behind loses nothing: the window
    ends early, and the next run reads the rest.
    """
    if ahead > declared.ahead_at_most:
        raise OutageError(
            f"its clock is {spoken(ahead)} ahead of the database's, more than {spoken(declared.ahead_at_most)}; no run "
            "begins, because it would pass over what changes until then. Set the clock that is wrong; if both are "
            f"right, set ahead_at_most of feed {declared.name}"
        )


def start_run(tx: Transaction, declared: Declaration, request: RunRequest, clock: SourceClock) -> Run:
    """Create a run and the job that plans it. Refused while another run of the feed is active."""
    row = lock_feed(tx, declared.name)
    tx.run(KEEP_SKEW, feed=declared.name, skew=clock.skew)
    kind = kind_for(request, row)
    if kind != "backfill":
        refuse_active_run(tx, declared.name)
    run = create_run(
        tx,
        declared.name,
        kind,
        window_of(declared, request, kind, row, clock),
        watermark=row.watermark,
        most_rows=request.most_rows,
        mapper_version=declared.mapper_version,
        priority=declared.priority,
    )
    _call_started(tx, declared, run)
    watch_job(tx, run, enqueue_job(tx, declared, run, "plan", run_id=run.id, epoch=run.epoch))
    return run


def _call_started(tx: Transaction, declared: Declaration, run: Run) -> None:
    """Call the feed's hook. A run that will be held begins all the same: reading needs nothing of what is missing."""
    try:
        declared.feed.started(tx, run.id)
    except HeldError as held:
        alerts.run_held(tx, run, str(held))


def start_remap(tx: Transaction, declared: Declaration) -> Run:
    """A run that reads nothing: all known rows are mapped and written once more. Refused while another run is active."""
    row = lock_feed(tx, declared.name)
    at = moment(int(tx.first(DATABASE_CLOCK)) if row.watermark is None else row.watermark)
    run = create_run(
        tx,
        declared.name,
        "remap",
        Window(at, at),
        watermark=row.watermark,
        mapper_version=declared.mapper_version,
        priority=declared.priority,
    )
    _call_started(tx, declared, run)
    tx.run(SKIP_FETCHING, id=run.id)
    move_run(tx, run, RunState.APPLYING)
    run = find_run(tx, run.id)
    begin_consolidation(tx, declared, run)
    return run


def window_of(
    declared: Declaration, request: RunRequest, kind: RunKind, row: FeedRow, clock: SourceClock
) -> Window:
    now = moment(clock.now)
    if kind == "backfill":
        return backfill_window(request.from_, request.to, source_now=now, settle=declared.settle)
    return next_window(
        kind,
        watermark=None if row.watermark is None else moment(row.watermark),
        source_now=now,
        lookback=declared.lookback,
        settle=declared.settle,
        last_took=timedelta(microseconds=row.last_took),
    )


def kind_for(request: RunRequest, row: FeedRow) -> RunKind:
    """The kind of run that starts: the first run of a feed is full, whatever was asked for."""
    if request.kind is None or request.kind == "incremental":
        return "full" if row.watermark is None else "incremental"
    return request.kind


def _database_clock(database: Database) -> int:
    with database.looking() as tx:
        return int(tx.first(DATABASE_CLOCK) or 0)
