"""The status of a run: where it stands, why it does not advance and which command helps, and how fast it goes.

`show_run` reads all facts at once; `why` turns them into reasons and is pure. `RunObserver` watches a run: each look
reads the run's row and those of its partitions that were written lately, wherever their workers are.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import chain
from math import ceil
from typing import TYPE_CHECKING, Any, Final, assert_never

from stepfast.admin.rows import now, reader
from stepfast.admin.run_reports import (
    IS_STUCK,
    PARTITIONS_WITH_JOBS,
    ErrorGroup,
    RunReport,
    failed_by_error,
    run_report,
)
from stepfast.clock import micros, moment, spoken
from stepfast.database.statement import sql
from stepfast.database.stored import is_known, stored_state
from stepfast.errors import ContentionError, UnreachableError
from stepfast.outbox.exports import export_destination, problem_of_export
from stepfast.runs.consolidation import LOADING_RULES, VALIDATING
from stepfast.runs.debts import MOST_TRIES
from stepfast.runs.partition import OPEN_PARTITION, PartitionState, partition_id
from stepfast.runs.repair import FIND_BLOCKING_RUN, JOIN_JOBS, jobs_of
from stepfast.runs.run import ACTIVE_RUN, Run, RunState, find_feed, find_run
from stepfast.runs.sweep_rows import is_held, sweep_state

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepfast.database.connection import Transaction
    from stepfast.database.database import Database
    from stepfast.runs.run import FeedRow


NAMED: Final = 5  # partitions that are named; of the others only their number
GROUPS: Final = 3  # errors that are told apart
WATERMARK: Final = "watermark"  # the phase of a completed run whose watermark others cannot read yet


@dataclass(frozen=True)
class Reason:
    """A reason why a run does not advance, and the command that helps."""

    sentence: str
    command: str | None = None


@dataclass(frozen=True, kw_only=True)
class JobFacts:
    """The unfinished jobs of a run, and those that gave up."""

    queue: str | None = None  # where they wait; None: not known any more
    ready: int = 0
    running: int = 0
    abandoned: int = 0  # leased by a worker that sends no heartbeat
    scheduled: int = 0
    next_at: datetime | None = None
    error: str | None = None  # of one that waits for another try
    held: int = 0
    held_by: str | None = None
    dead: int = 0
    dead_error: str | None = None

    @property
    def alive(self) -> int:
        return self.ready + self.running + self.scheduled + self.held


@dataclass(frozen=True, kw_only=True)
class RunFacts:
    """All facts that decide whether a run advances."""

    id: str
    feed: str
    state: RunState
    phase: RunState  # where it is, also if it has stalled there
    now: datetime
    moved_at: datetime  # when it or one of its partitions was moved on last
    reason: str | None = None
    planned: bool = True
    partitions: int = 0
    completed: int = 0
    failed: int = 0
    unverified: int = 0
    open: int = 0
    orphans: tuple[str, ...] = ()  # open partitions that no job reads, by their ids
    errors: tuple[ErrorGroup, ...] = ()
    quarantined: int = 0
    pending: int | None = None  # raw rows that wait for consolidation
    debts: int = 0  # of the feed that are open
    given_up: int = 0  # those of them that no run reads before an operator decides
    owes: bool = True  # whether ranges that it lacks become debts; not for trials and checks
    sweep_held: str | None = None  # why an operator must decide about its sweep
    held: str | None = None  # what a person must do before its rows are written
    jobs: JobFacts = JobFacts()
    queue_paused_at: datetime | None = None
    queue_paused_by: str | None = None  # None: not by a command
    queue_note: str | None = None
    workers: int = 0  # alive, and serving the queue
    feed_paused_until: datetime | None = None
    pause_reason: str | None = None
    newer: str | None = None  # a run that keeps this one from being reopened
    newer_active: bool = False
    exports: bool = False  # its watermark is still to be written to where others read it
    export_error: str | None = None


@dataclass(frozen=True)
class PageTimes:
    """How long the source took for the pages of a run."""

    pages: int
    p95_seconds: float  # 95 of 100 pages took no longer
    slowest_seconds: float
    slowest_partition: str
    slowest_offset: int  # of its first row


@dataclass(frozen=True)
class RunDetail:
    """A run with everything that is known about where it stands."""

    run: RunReport
    states: dict[str, int]  # of its partitions
    errors: tuple[ErrorGroup, ...]
    pending: int | None  # raw rows of the feed that wait for consolidation, while that is going on
    debts: int
    newer: str | None  # a run of the feed that keeps this one from being reopened
    why: tuple[Reason, ...]
    still_there: int = 0  # rows that it did not see and that would have gone, but the source has them
    phase: str | None = None  # what its workers do now; None: it has ended
    pages: PageTimes | None = None  # None: it has read none


# Where a run stands

PARTITION_STATES = sql("SELECT state, count(*) FROM stepfast_partition WHERE run_id = :id GROUP BY state")
ORPHANED_PARTITIONS = sql(
    f"SELECT p.number {PARTITIONS_WITH_JOBS} WHERE p.run_id = :id AND {IS_STUCK} AND j.id IS NULL ORDER BY p.number"
)
PARTITIONS_MOVED_AT = sql("SELECT max(updated_at) FROM stepfast_partition WHERE run_id = :id")
LIVE_JOBS = sql(
    """
    SELECT j.queue, j.state, count(*), min(j.ready_at), max(j.last_error), max(j.held_by),
           sum(CASE WHEN j.state = 'leased' AND COALESCE(j.lease_until, w.alive_until, 0) < {now} THEN 1 ELSE 0 END)
      FROM stepfast_job j LEFT JOIN stepfast_worker w ON w.incarnation = j.owner
    """
    + JOIN_JOBS.format(table="stepfast_job")
    + "GROUP BY j.queue, j.state"
)
DEAD_JOBS = sql(
    "SELECT count(*), max(j.last_error), max(j.queue) FROM stepfast_archive j"
    + JOIN_JOBS.format(table="stepfast_archive")
    + "WHERE j.state = 'dead'"
)
QUEUE_OF_ENDED_JOB = sql("SELECT queue FROM stepfast_archive WHERE id = :id")
PAUSED_QUEUE = sql("""
    SELECT q.paused_at, q.note,
           (SELECT max(a.who) FROM stepfast_audit a
             WHERE a.subject = q.id AND a.what = 'queue.pause' AND a.at >= q.paused_at)
      FROM stepfast_queue q WHERE q.id = :id AND q.paused_at IS NOT NULL
""")
QUEUES_OF_WORKERS = sql("SELECT queues FROM stepfast_worker WHERE state = 'alive' AND alive_until >= {now}")
COUNT_DEBTS = sql("""
    SELECT count(*), COALESCE(sum(CASE WHEN tries >= :tries THEN 1 ELSE 0 END), 0)
      FROM stepfast_debt WHERE feed = :feed AND state = 'open'
""")
WAITING_EXPORT = sql("""
    SELECT last_error FROM stepfast_outbox WHERE destination = :destination AND state <> 'sent' ORDER BY seq DESC LIMIT 1
""")
COUNT_PENDING = sql("SELECT count(*) FROM stepfast_raw WHERE feed = :feed AND pending = 1")


def show_run(tx: Transaction, run_id: str) -> RunDetail:
    """Where one run stands, by its full id, and why it does not advance."""
    run = find_run(tx, run_id)
    report = run_report(tx, run_id)
    states = {str(state): int(count) for state, count in tx.rows(PARTITION_STATES, id=run_id)}
    facts = _facts(tx, run, report, states)
    sweep = sweep_state(run)
    return RunDetail(
        report,
        states,
        facts.errors,
        facts.pending,
        facts.debts,
        facts.newer,
        tuple(why(facts)),
        0 if sweep is None else sweep.still_there,
        phase_of(tx, run, exports=facts.exports),
        page_times(tx, run_id),
    )


def why_run(tx: Transaction, run_id: str) -> tuple[Reason, ...]:
    """Why one run does not advance, by its full id."""
    states = {str(state): int(count) for state, count in tx.rows(PARTITION_STATES, id=run_id)}
    return tuple(why(_facts(tx, find_run(tx, run_id), run_report(tx, run_id), states)))


# What its workers do now, in the words of the operators' documents. The shards of a consolidation say it themselves.

NOTES_OF_SHARDS = sql("SELECT id, state, progress_note FROM stepfast_job WHERE id > :first AND id < :beyond")


def phase_of(tx: Transaction, run: Run, *, exports: bool = False) -> str | None:
    """The phase of a run; `exports`: its watermark is still to be written to where others read it."""
    match run.phase:
        case RunState.PLANNING | RunState.FETCHING | RunState.SWEEPING:
            return str(run.phase)
        case RunState.APPLYING if run.shards:
            return _phase_of_shards(tx, run)
        case RunState.APPLYING:
            return VALIDATING
        case RunState.COMPLETED if exports:
            return WATERMARK
        case _:
            return None


def _phase_of_shards(tx: Transaction, run: Run) -> str:
    current = f"{run.id}.{run.epoch}.{run.rounds}."
    shards = [
        (str(state), str(note or LOADING_RULES))
        for job_id, state, note in tx.rows(NOTES_OF_SHARDS, first=current, beyond=f"{current}~")
    ]
    at_work = Counter(note for state, note in shards if state == "leased")
    words = at_work or Counter(note for _, note in shards) or Counter([LOADING_RULES])
    if len(words) == 1:
        return next(iter(words))
    return ", ".join(f"{word} ({some(count, 'shard')})" for word, count in sorted(words.items()))


# How long its pages took. Counts are requests, too, but no pages.

_PAGES_OF_RUN = """
      FROM stepfast_partition p JOIN stepfast_page g ON g.partition_id = p.id
     WHERE p.run_id = :id AND g.request_offset IS NOT NULL
"""
COUNT_PAGES = sql(f"SELECT count(*) {_PAGES_OF_RUN}")
NTH_SLOWEST_PAGE = sql(f"""
    SELECT g.milliseconds, p.number, g.request_offset {_PAGES_OF_RUN}
     ORDER BY g.milliseconds DESC, p.number, g.epoch, g.seq LIMIT 1 OFFSET :skipped
""")


def page_times(tx: Transaction, run_id: str) -> PageTimes | None:
    """How long the pages of a run took; None: it has read none."""
    pages = int(tx.first(COUNT_PAGES, id=run_id))
    if not pages:
        return None
    ((p95, _, _),) = tx.rows(NTH_SLOWEST_PAGE, id=run_id, skipped=pages - ceil(0.95 * pages))
    ((slowest, number, offset),) = tx.rows(NTH_SLOWEST_PAGE, id=run_id, skipped=0)
    return PageTimes(pages, _seconds(p95), _seconds(slowest), partition_id(number), offset)


def _seconds(milliseconds: Any) -> float:
    """Seconds; of a value that was written by hand and is no number, none."""
    return milliseconds / 1000 if isinstance(milliseconds, int | float) else 0.0


def _facts(tx: Transaction, run: Run, report: RunReport, states: dict[str, int]) -> RunFacts:
    active = run.state in ACTIVE_RUN
    jobs = _jobs(tx, run)
    feed = find_feed(tx, run.feed)
    newer = (
        []
        if active or run.kind == "backfill"
        else tx.rows(FIND_BLOCKING_RUN, feed=run.feed, id=run.id, started_at=run.started_at)
    )
    ((debts, given_up),) = tx.rows(COUNT_DEBTS, feed=run.feed, tries=MOST_TRIES)
    exports = _waiting_exports(tx, run, feed)
    paused = tx.rows(PAUSED_QUEUE, id=jobs.queue) if active and jobs.queue is not None else []
    return RunFacts(
        id=run.id,
        feed=run.feed,
        state=run.state,
        phase=run.phase,
        now=moment(now(tx)),
        moved_at=max(
            report.updated_at, _moment(tx.first(PARTITIONS_MOVED_AT, id=run.id)) or report.updated_at
        ),
        reason=run.reason,
        planned=report.planned_at is not None,
        partitions=run.partitions,
        completed=run.completed,
        failed=run.failed,
        unverified=run.unverified,
        open=states.get(PartitionState.READY, 0) + states.get(PartitionState.RUNNING, 0),
        orphans=(
            tuple(partition_id(row[0]) for row in tx.rows(ORPHANED_PARTITIONS, id=run.id)) if active else ()
        ),
        errors=failed_by_error(tx, run.id),
        quarantined=run.quarantined,
        pending=int(tx.first(COUNT_PENDING, feed=run.feed) or 0) if run.phase is RunState.APPLYING else None,
        debts=int(debts),
        given_up=int(given_up),
        owes=run.kind != "verify" and run.most_rows is None,
        sweep_held=_held(run),
        held=run.reason if run.state is RunState.APPLYING else None,
        jobs=jobs,
        queue_paused_at=_moment(paused[0][0]) if paused else None,
        queue_note=paused[0][1] if paused else None,
        queue_paused_by=paused[0][2] if paused else None,
        workers=_workers(tx, jobs.queue),
        feed_paused_until=_moment(feed.paused_until),
        pause_reason=feed.pause_reason,
        newer=str(newer[0][0]) if newer else None,
        newer_active=bool(newer) and stored_state(RunState, newer[0][1]) in ACTIVE_RUN,
        exports=bool(exports),
        export_error=exports[0][0] if exports else None,
    )


def _waiting_exports(tx: Transaction, run: Run, feed: FeedRow) -> Sequence[Sequence[Any]]:
    """The export of the run's watermark, with its error, while it waits."""
    if run.state is not RunState.COMPLETED or feed.last_run != run.id or feed.export_to is None:
        return []
    if problem_of_export(feed.export_to) is not None:  # somebody has written it by hand
        return []
    return tx.rows(WAITING_EXPORT, destination=export_destination(feed.export_to))


def _jobs(tx: Transaction, run: Run) -> JobFacts:
    asked = jobs_of(run)
    counts: dict[str, int] = {}
    queue = next_at = error = held_by = None
    abandoned = 0
    for its_queue, state, count, ready_at, last_error, its_limit, silent in tx.rows(LIVE_JOBS, **asked):
        queue = str(its_queue)
        counts[state] = counts.get(state, 0) + int(count)
        abandoned += int(silent)
        held_by = its_limit or held_by
        if state == "scheduled":
            next_at, error = moment(int(ready_at)), last_error
    ((dead, dead_error, dead_queue),) = tx.rows(DEAD_JOBS, **asked)
    return JobFacts(
        queue=queue or dead_queue or _former_queue(tx, run),
        ready=counts.get("ready", 0) + counts.get("suspect", 0),
        running=counts.get("leased", 0) - abandoned,
        abandoned=abandoned,
        scheduled=counts.get("scheduled", 0),
        next_at=next_at,
        error=error,
        held=counts.get("held", 0),
        held_by=held_by,
        dead=int(dead),
        dead_error=dead_error,
    )


def _former_queue(tx: Transaction, run: Run) -> str | None:
    return None if run.job_id is None else tx.first(QUEUE_OF_ENDED_JOB, id=run.job_id)


def _workers(tx: Transaction, queue: str | None) -> int:
    """How many living workers serve this queue; all living workers if the queue is not known."""
    served = [str(row[0]).split(",") for row in tx.rows(QUEUES_OF_WORKERS)]
    return sum(queue is None or "*" in queues or queue in queues for queues in served)


def _held(run: Run) -> str | None:
    found = sweep_state(run)
    return (found.note or "") if found is not None and is_held(run) else None


def _moment(at: int | None) -> datetime | None:
    return None if at is None else moment(int(at))


# Why it does not advance


def why(facts: RunFacts) -> list[Reason]:
    """The reasons, the decisive one first. For an active run without one, the reason says that it advances."""
    if not is_known(facts.state):
        return [
            Reason(
                f"its state {facts.state!r} does not exist: somebody has written it by hand, and nothing moves it on"
            )
        ]
    match facts.state:
        case RunState.COMPLETED:
            causes = _completed(facts)
        case RunState.PUBLISHED_PARTIAL:
            causes = _published(facts)
        case RunState.FAILED:
            causes = chain(_failed(facts), _newer(facts))
        case RunState.FAILED_QUALITY:
            causes = chain(_poor(facts), _newer(facts))
        case RunState.CANCELLED:
            causes = chain(_cancelled(facts), _newer(facts))
        case RunState.STALLED | RunState.PLANNING | RunState.FETCHING | RunState.APPLYING | RunState.SWEEPING:
            causes = _active(facts)
        case _:
            assert_never(facts.state)
    return list(causes)


def _completed(facts: RunFacts) -> Iterator[Reason]:
    yield Reason("it has completed")
    if facts.exports:
        error = f": {facts.export_error}" if facts.export_error else ""
        yield Reason(f"its watermark is not exported yet{error}", "stepfast outbox list --channel export")
    if facts.unverified:
        yield Reason(f"{some(facts.unverified, 'partition')} could not be shown to be complete")
        yield from _owed(facts)


def _published(facts: RunFacts) -> Iterator[Reason]:
    yield Reason("it was published in part, by force: its watermark stays")
    yield from _owed(facts)


def _owed(facts: RunFacts) -> Iterator[Reason]:
    """What becomes of the ranges that it lacks, by the debts of the feed as they are now."""
    if not facts.owes:
        yield Reason("it was a trial or a check: nothing is owed for what it did not read")
        return
    listed = f"stepfast debts list --feed {facts.feed}"
    if to_read := facts.debts - facts.given_up:
        yield Reason(
            f"the next full or incremental run reads what is owed ({some(to_read, 'open debt')})", listed
        )
    if facts.given_up:
        yield Reason(
            f"{some(facts.given_up, 'debt')} of the feed {are(facts.given_up, 'was', 'were')} given up after {MOST_TRIES} "
            "tries: no run reads it before a person lets it be tried again, with: stepfast debts retry ID",
            listed,
        )
    if not facts.debts:
        yield Reason("nothing is owed: later runs have read it, or a person closed the debts")


def _failed(facts: RunFacts) -> Iterator[Reason]:
    if not facts.planned:
        error = facts.jobs.dead_error or facts.reason or "nobody knows why"
        yield Reason(f"planning gave up: {error}", f"stepfast runs retry {facts.id}")
    elif facts.failed:
        yield Reason(
            f"{facts.failed} of {some(facts.partitions, 'partition')} failed, so nothing was consolidated and the "
            "watermark stays",
            f"stepfast runs retry {facts.id}",
        )
        yield from _errors(facts)
        yield Reason(
            "or publish what was read; what is missing is owed",
            f"stepfast runs consolidate {facts.id} --force",
        )
    else:
        error = facts.jobs.dead_error or facts.reason or "nobody knows why"
        yield Reason(
            f"everything was read, but what came after it gave up: {error}",
            f"stepfast runs consolidate {facts.id}",
        )


def _poor(facts: RunFacts) -> Iterator[Reason]:
    yield Reason(
        f"too many rows ended in quarantine: {facts.reason or 'more than the error budget allows'}",
        f"stepfast quarantine list --feed {facts.feed}",
    )
    yield Reason("mend map(), and have them tried again", f"stepfast quarantine replay --feed {facts.feed}")
    yield Reason("once they are applied, go on", f"stepfast runs consolidate {facts.id}")
    yield Reason(
        "or publish the others; the watermark stays", f"stepfast runs consolidate {facts.id} --force"
    )


def _cancelled(facts: RunFacts) -> Iterator[Reason]:
    reason = f": {facts.reason}" if facts.reason else ""
    yield Reason(f"it was cancelled{reason}", f"stepfast runs resume {facts.id}")


def _newer(facts: RunFacts) -> Iterator[Reason]:
    if facts.newer is not None:
        what = "is active" if facts.newer_active else "is newer"
        yield Reason(
            f"run {facts.newer} of the feed {what}, so this one stays ended: what it lacks is owed, or read by that one",
            f"stepfast runs show {facts.newer}",
        )


def _active(facts: RunFacts) -> Iterator[Reason]:
    causes = list(_causes(facts))
    if facts.state is RunState.STALLED:
        yield _stalled(facts, alone=not causes)
    elif not causes:
        yield _advances(facts)
    yield from causes
    yield from _failed_so_far(facts)


def _stalled(facts: RunFacts, *, alone: bool) -> Reason:
    since = spoken(facts.now - facts.moved_at)
    sentence = f"nothing has moved it for {since}; it stopped while {facts.phase}"
    return Reason(sentence, f"stepfast runs resume {facts.id}" if alone else None)


def _causes(facts: RunFacts) -> Iterator[Reason]:
    """The reasons that keep an active run from its next step."""
    jobs = facts.jobs
    if facts.queue_paused_at is not None:
        by = f" by {facts.queue_paused_by}" if facts.queue_paused_by else ""
        note = f" ({facts.queue_note})" if facts.queue_note else ""
        yield Reason(
            f"queue {jobs.queue} is paused{by} since {clock_time(facts.queue_paused_at)}{note}",
            f"stepfast queues resume {jobs.queue}",
        )
    elif not facts.workers and not jobs.running:
        where = "" if jobs.queue is None else f" for queue {jobs.queue}"
        option = "" if jobs.queue in (None, "default") else f" --queues {jobs.queue}"
        yield Reason(f"no worker is alive{where}", f"stepfast worker MODULE:APP{option}")
    if facts.feed_paused_until is not None and facts.feed_paused_until > facts.now:
        yield Reason(
            f"the source is in trouble: feed {facts.feed} waits until {clock_time(facts.feed_paused_until)}"
            + (f": {facts.pause_reason}" if facts.pause_reason else "")
        )
    if facts.held is not None:
        yield Reason(f"it is held, and goes on by itself: {facts.held}")
        return
    if facts.sweep_held is not None:
        yield Reason(
            f"its sweep is held until somebody approves it: {facts.sweep_held}",
            f'stepfast sweeps approve {facts.id} --reason "…"',
        )
        yield Reason("or keep the rows", f'stepfast sweeps decline {facts.id} --reason "…"')
        return
    if jobs.abandoned:
        yield Reason(
            f"{some(jobs.abandoned, 'job')} of it {are(jobs.abandoned)} held by a worker that is silent; another "
            "worker takes over by itself when its lease has run out",
            "stepfast workers list",
        )
    if facts.orphans:
        yield Reason(
            f"no job reads {partitions_named(facts.orphans)}; {_who_repairs(facts)}",
            f"stepfast runs resume {facts.id}",
        )
    if not jobs.running and not jobs.ready:
        yield from _waits(facts)


def _waits(facts: RunFacts) -> Iterator[Reason]:
    """What the jobs of a run wait for, when none of them runs or could run."""
    jobs = facts.jobs
    if jobs.scheduled and jobs.next_at is not None:
        error = f" after: {jobs.error}" if jobs.error else ""
        yield Reason(
            f"{some(jobs.scheduled, 'job')} of it {are(jobs.scheduled, 'waits', 'wait')} for another try, the next at "
            f"{clock_time(jobs.next_at)}{error}",
            f"stepfast jobs list --queue {jobs.queue}",
        )
    if jobs.held:
        yield Reason(
            f"{some(jobs.held, 'job')} of it {are(jobs.held)} held by limit {jobs.held_by}",
            "stepfast limits list",
        )
    if not jobs.alive and not facts.orphans:
        error = f": {jobs.dead_error}" if jobs.dead_error else ""
        lost = f"the job that moved it on is dead{error}" if jobs.dead else "no job of it is left"
        yield Reason(f"{lost}; {_who_repairs(facts)}", f"stepfast runs resume {facts.id}")


def _who_repairs(facts: RunFacts) -> str:
    """What becomes of a run that has lost a job."""
    if facts.workers:
        return f"a worker that knows feed {facts.feed} looks every few seconds, and repairs it; by hand"
    return f"a worker that knows feed {facts.feed} would repair it, but none is alive; by hand"


def _failed_so_far(facts: RunFacts) -> Iterator[Reason]:
    if facts.failed and facts.phase is RunState.FETCHING:
        yield Reason(
            f"{some(facts.failed, 'partition')} failed so far: it will end as failed, unless they are read again",
            f"stepfast runs retry {facts.id}",
        )
        yield from _errors(facts)


def _errors(facts: RunFacts) -> Iterator[Reason]:
    for group in facts.errors[:GROUPS]:
        yield Reason(f"{partitions_named(group.partitions)}: {group.error}")
    if len(facts.errors) > GROUPS:
        rest = len(facts.errors) - GROUPS
        yield Reason(
            f"and {some(rest, 'other error')}", f"stepfast partitions list --run {facts.id} --failed"
        )


def _advances(facts: RunFacts) -> Reason:
    ago = spoken(max(facts.now - facts.moved_at, timedelta(0)))
    match facts.phase:
        case RunState.FETCHING:
            ended = facts.completed + facts.failed
            done = f"{ended} of {some(facts.partitions, 'partition')} ended, {some(facts.jobs.running, 'job')} at work"
        case RunState.APPLYING:
            left = "" if facts.pending is None else f", {some(facts.pending, 'row')} to go"
            done = f"raw rows become target rows{left}"
        case RunState.SWEEPING:
            done = "rows that are gone are looked for"
        case _:
            done = "its partitions are being found"
    return Reason(f"it advances: {done}; it last moved {ago} ago", f"stepfast runs watch {facts.id}")


def partitions_named(ids: tuple[str, ...]) -> str:
    named = ", ".join(ids[:NAMED])
    rest = len(ids) - NAMED
    return f"{named} and {rest} more" if rest > 0 else named


def some(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def are(count: int, one: str = "is", many: str = "are") -> str:
    return one if count == 1 else many


def clock_time(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M:%S} UTC"


# Progress

# No transaction of ours is open for so long: a look that goes back by it misses no row.
LATE: Final = timedelta(seconds=60)
PACE_OVER: Final = 30.0  # seconds over which a speed is measured
PENDING_EVERY: Final = 2.0  # seconds between two counts of the rows that wait for consolidation
POLL: Final = 0.5
OUTAGE_PAUSE: Final = 1.0

WRITTEN_LATELY = sql("""
    SELECT number, name, state, seen, COALESCE(counted, estimate), requests, last_error FROM stepfast_partition
     WHERE run_id = :id AND updated_at >= :since ORDER BY number
""")


@dataclass(frozen=True)
class PartitionProgress:
    """How far a partition is."""

    partition_id: str = field(init=False)
    number: int
    name: str
    state: PartitionState
    seen: int
    expected: int | None
    requests: int
    error: str | None

    def __post_init__(self) -> None:
        object.__setattr__(self, "partition_id", partition_id(self.number))

    @property
    def is_open(self) -> bool:
        return self.state in OPEN_PARTITION


_read_partition = reader(PartitionProgress, state=PartitionState)


@dataclass(frozen=True, kw_only=True)
class RunProgress:
    """One look at a run."""

    run_id: str
    feed: str
    state: RunState
    reason: str | None
    partitions: int
    completed: int
    failed: int
    rows: int  # rows that were read
    expected: int | None  # rows to read, as far as the source or the plan says
    requests: int
    applied: int
    quarantined: int
    pending: int | None  # rows that wait for consolidation
    rows_per_second: float
    pages_per_second: float
    seconds_left: float | None  # until the end of the state that the run is in; None: not known
    changed: tuple[PartitionProgress, ...]  # since the look before this one
    still_for: float = 0.0  # seconds since a partition changed while we looked

    @property
    def ended(self) -> bool:
        return self.state not in ACTIVE_RUN

    @property
    def succeeded(self) -> bool:
        return self.state in (RunState.COMPLETED, RunState.PUBLISHED_PARTIAL)


class Pace:
    """Speeds over the last 30 seconds. Pure: the time comes in."""

    def __init__(self) -> None:
        self._looks: deque[tuple[float, tuple[int, ...]]] = deque()

    def add(self, at: float, *counts: int) -> tuple[float, ...]:
        """Add counts at an instant; returns how fast each of them grows."""
        while len(self._looks) > 1 and self._looks[1][0] <= at - PACE_OVER:
            self._looks.popleft()
        self._looks.append((at, counts))
        then, before = self._looks[0]
        took = at - then
        return tuple(
            max(0.0, (new - old) / took) if took > 0 else 0.0 for new, old in zip(counts, before, strict=True)
        )


class RunObserver:
    """Watches one run: remembers what it saw of the run, and finds what is new."""

    def __init__(self, database: Database, run_id: str) -> None:
        self.run_id = run_id
        self._database = database
        self._known: dict[int, PartitionProgress] = {}
        self._since = 0
        self._pace = Pace()
        self._pending: int | None = None
        self._pending_at = float("-inf")
        self._still_since: float | None = None

    def watch(self, *, poll: float = POLL, every: float | None = None) -> Iterator[RunProgress]:
        """A look whenever something changed, and one when the run has ended; with `every`, also after so many seconds.

        An outage of the database is waited for.
        """
        shown: tuple[object, ...] | None = None
        shown_at = float("-inf")
        while True:
            try:
                progress = self.look()
            except (UnreachableError, ContentionError):
                time.sleep(OUTAGE_PAUSE)
                continue
            facts = (progress.state, progress.completed, progress.failed, progress.applied, progress.pending)
            due = every is not None and time.monotonic() - shown_at >= every
            if progress.changed or facts != shown or progress.ended or due:
                shown, shown_at = facts, time.monotonic()
                yield progress
            if progress.ended:
                return
            time.sleep(poll)

    def why(self) -> tuple[Reason, ...]:
        """Why the run does not advance, as it stands now."""
        with self._database.reading() as tx:
            return why_run(tx, self.run_id)

    def look(self) -> RunProgress:
        """How far the run is now."""
        at = time.monotonic()
        with self._database.reading() as tx:
            # The run first: when it has ended, its partitions do not change any more.
            run = find_run(tx, self.run_id)
            changed = self._changes(tx)
            pending = self._rows_that_wait(tx, run, at)
        if changed or self._still_since is None:
            self._still_since = at
        rows = sum(part.seen for part in self._known.values())
        requests = sum(part.requests for part in self._known.values())
        rows_pace, pages_pace, applied_pace = self._pace.add(
            at, rows, requests, run.applied + run.quarantined
        )
        expected = self._expected()
        applying = run.phase is RunState.APPLYING
        left = pending if applying else None if expected is None else max(0, expected - rows)
        pace = applied_pace if applying else rows_pace
        return RunProgress(
            run_id=run.id,
            feed=run.feed,
            state=run.state,
            reason=run.reason,
            partitions=run.partitions,
            completed=run.completed,
            failed=run.failed,
            rows=rows,
            expected=expected,
            requests=requests,
            applied=run.applied,
            quarantined=run.quarantined,
            pending=pending,
            rows_per_second=pace,
            pages_per_second=0.0 if applying else pages_pace,
            seconds_left=left / pace if left and pace and run.ended_at is None else None,
            changed=changed,
            still_for=0.0 if run.phase is RunState.APPLYING else at - self._still_since,
        )

    @property
    def partitions(self) -> list[PartitionProgress]:
        """The partitions as they stood at the last look, by number."""
        return [self._known[number] for number in sorted(self._known)]

    def _changes(self, tx: Transaction) -> tuple[PartitionProgress, ...]:
        since, self._since = self._since, now(tx) - micros(LATE)
        found = tx.all(WRITTEN_LATELY, _read_partition, id=self.run_id, since=since)
        changed = tuple(part for part in found if self._known.get(part.number) != part)
        self._known |= {part.number: part for part in changed}
        return changed

    def _rows_that_wait(self, tx: Transaction, run: Run, at: float) -> int | None:
        if run.phase is not RunState.APPLYING:
            self._pending = None
        elif self._pending is None or at - self._pending_at >= PENDING_EVERY:
            self._pending, self._pending_at = int(tx.first(COUNT_PENDING, feed=run.feed) or 0), at
        return self._pending

    def _expected(self) -> int | None:
        """Rows to read: of ended partitions what was read, of open ones what the source or the plan says."""
        read = [part for part in self._known.values() if part.state is not PartitionState.SPLIT]
        sizes = [max(part.seen, part.expected or 0) if part.is_open else part.seen for part in read]
        if any(part.is_open and part.expected is None for part in read):
            return None
        return sum(sizes) if read else None
