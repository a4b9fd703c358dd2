"""Why a run does not advance, in words, and which command helps. Pure: the facts were read before, all at once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import chain
from typing import TYPE_CHECKING, Final, assert_never

from stepfast.admin.reports.run_words import are, clock_time, partitions_named, some
from stepfast.clock import spoken
from stepfast.runs.debts import TRIES
from stepfast.runs.states import RunState

if TYPE_CHECKING:
    from stepfast.admin.reports.partitions import ErrorGroup

GROUPS: Final = 3  # errors that are told apart


@dataclass(frozen=True)
class Reason:
    """One cause, and the command that does something about it."""

    sentence: str
    command: str | None = None


@dataclass(frozen=True, kw_only=True)
class JobFacts:
    """The unfinished jobs of a run, and those that gave up."""

    queue: str | None = None  # where they wait; None: nobody knows any more
    ready: int = 0
    running: int = 0
    abandoned: int = 0  # leased by a worker that is silent
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
    """All that decides whether a run advances."""

    id: str
    feed: str
    state: RunState
    at: RunState  # where it is, also if it has stalled there
    now: datetime
    moved_at: datetime  # when it or one of its partitions was moved on last
    reason: str | None = None
    planned: bool = True
    partitions: int = 0
    completed: int = 0
    failed: int = 0
    unverified: int = 0
    open: int = 0
    orphans: tuple[int, ...] = ()  # open partitions that no job reads
    errors: tuple[ErrorGroup, ...] = ()
    quarantined: int = 0
    pending: int | None = None  # raw rows that wait for consolidation
    debts: int = 0  # of the feed that are open
    given_up: int = 0  # those of them that nobody reads before a person decides
    owes: bool = True  # whether what it lacks is owed; not by trials and checks
    sweep_held: str | None = None  # why a person must decide about its sweep
    jobs: JobFacts = JobFacts()
    queue_paused_at: datetime | None = None
    queue_note: str | None = None
    workers: int = 0  # alive, and serving the queue
    feed_paused_until: datetime | None = None
    pause_reason: str | None = None
    newer: str | None = None  # a run that keeps this one from being reopened
    newer_active: bool = False


def why(facts: RunFacts) -> list[Reason]:
    """The causes, the decisive one first. An active run without one of them advances, which is said as well."""
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
    if facts.unverified:
        yield Reason(f"{some(facts.unverified, 'partition')} could not be shown to be complete")
        yield from _owed(facts)


def _published(facts: RunFacts) -> Iterator[Reason]:
    yield Reason("it was published in part, by force: its watermark stays")
    yield from _owed(facts)


def _owed(facts: RunFacts) -> Iterator[Reason]:
    """What becomes of what it lacks: only what the debts of the feed say, as they are now."""
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
            f"{some(facts.given_up, 'debt')} of the feed {are(facts.given_up, 'was', 'were')} given up after {TRIES} "
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
    told = f": {facts.reason}" if facts.reason else ""
    yield Reason(f"it was cancelled{told}", f"stepfast runs resume {facts.id}")


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
    told = f"nothing has moved it for {since}; it stopped while {facts.at}"
    return Reason(told, f"stepfast runs resume {facts.id}" if alone else None)


def _causes(facts: RunFacts) -> Iterator[Reason]:
    """What keeps an active run from its next step."""
    jobs = facts.jobs
    if facts.queue_paused_at is not None:
        note = f" ({facts.queue_note})" if facts.queue_note else ""
        yield Reason(f"queue {jobs.queue} is paused{note}", f"stepfast queues resume {jobs.queue}")
    elif not facts.workers and not jobs.running:
        where = "" if jobs.queue is None else f" for queue {jobs.queue}"
        option = "" if jobs.queue in (None, "default") else f" --queues {jobs.queue}"
        yield Reason(f"no worker is alive{where}", f"stepfast worker MODULE:APP{option}")
    if facts.feed_paused_until is not None and facts.feed_paused_until > facts.now:
        yield Reason(
            f"the source is in trouble: feed {facts.feed} waits until {clock_time(facts.feed_paused_until)}"
            + (f": {facts.pause_reason}" if facts.pause_reason else "")
        )
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
            f"no job reads {partitions_named(facts.orphans)}; a worker gives it another one by itself, soon",
            f"stepfast partitions list --run {facts.id} --stuck",
        )
    if not jobs.running and not jobs.ready:
        yield from _waits(facts)


def _waits(facts: RunFacts) -> Iterator[Reason]:
    """Nothing of it runs, and nothing could: what its jobs wait for."""
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
        yield Reason(f"{lost}; a worker finds that by itself, soon", f"stepfast runs cancel {facts.id}")


def _failed_so_far(facts: RunFacts) -> Iterator[Reason]:
    if facts.failed and facts.at is RunState.FETCHING:
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
    match facts.at:
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
