"""Checks of feeds and runs: how far each feed is, which source is in trouble, and which runs wait for an operator.

`read_feeds` reads what the tables say, `judge_feeds` turns it into findings and is pure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from stepfast.admin.doctor.finding import Finding, listed, ok, warn
from stepfast.admin.rows import now
from stepfast.admin.run_reports import IS_STUCK, PARTITIONS_WITH_JOBS
from stepfast.clock import counted, moment, spoken
from stepfast.database.statement import sql
from stepfast.runs.debts import MOST_TRIES
from stepfast.runs.run import find_run
from stepfast.runs.sweep_rows import is_held

if TYPE_CHECKING:
    from stepfast.database.connection import Transaction


LONGEST_REASON: Final = 200

FEEDS = sql("""
    SELECT f.id, f.watermark, f.troubles, f.troubled_at, f.paused_until, f.pause_reason, {now} + f.skew,
           (SELECT count(*) FROM stepfast_debt d WHERE d.feed = f.id AND d.state = 'open' AND d.tries >= :tries)
      FROM stepfast_feed f ORDER BY f.id
""")
# Of each feed the newest run, and every run that has not ended. Backfills and remaps replace no other run.
NEWEST_RUN_OF_FEED = sql("""
    SELECT id, feed, state, reason FROM stepfast_run WHERE feed = :feed AND kind NOT IN ('backfill', 'remap')
     ORDER BY started_at DESC, id DESC LIMIT 1
""")
RUNS_NOT_ENDED = sql(
    "SELECT id, feed, state, reason FROM stepfast_run WHERE ended_at IS NULL ORDER BY started_at"
)
STUCK_PARTITIONS = sql(
    f"SELECT p.run_id, count(*) {PARTITIONS_WITH_JOBS} WHERE {IS_STUCK} GROUP BY p.run_id ORDER BY p.run_id"
)


@dataclass(frozen=True)
class FeedSummary:
    """A feed in one line."""

    feed: str
    watermark: datetime | None
    troubles: int  # throttles and outages since the last good answer
    troubled_at: datetime | None
    paused_until: datetime | None  # the breaker: its source is not asked before
    pause_reason: str | None
    source_now: datetime
    given_up: int  # debts that no run reads before an operator decides


@dataclass(frozen=True)
class RunSummary:
    """A run in one line. Its state is a text: one that was written by hand is shown as it is."""

    id: str
    feed: str
    state: str
    reason: str | None


@dataclass(frozen=True, kw_only=True)
class FeedFacts:
    """What the tables say about feeds and runs."""

    now: datetime
    feeds: Sequence[FeedSummary] = ()
    newest: Sequence[RunSummary] = ()  # of each feed
    active: Sequence[RunSummary] = ()
    held: Sequence[RunSummary] = ()  # their sweep waits for an operator
    stuck: Mapping[str, int] | None = None  # by run: open partitions that no job reads
    fresh: Mapping[str, timedelta] | None = None  # by feed: how old its watermark may be, where that is known


def check_feeds(tx: Transaction, fresh: Mapping[str, timedelta] | None = None) -> list[Finding]:
    """The findings about feeds and runs. No finding if there are none."""
    return judge_feeds(read_feeds(tx, fresh))


def read_feeds(tx: Transaction, fresh: Mapping[str, timedelta] | None = None) -> FeedFacts:
    """The facts now."""
    feeds = tx.all(FEEDS, _read_feed, tries=MOST_TRIES)
    active = tx.all(RUNS_NOT_ENDED, RunSummary)
    return FeedFacts(
        now=moment(now(tx)),
        feeds=feeds,
        newest=[run for feed in feeds for run in tx.all(NEWEST_RUN_OF_FEED, RunSummary, feed=feed.feed)],
        active=active,
        held=[run for run in active if run.state == "sweeping" and is_held(find_run(tx, run.id))],
        stuck={str(run_id): int(count) for run_id, count in tx.rows(STUCK_PARTITIONS)},
        fresh=fresh,
    )


def _read_feed(*row: Any) -> FeedSummary:
    """The feed; values that were written by hand and cannot be read are left out."""
    feed, watermark, troubles, troubled_at, paused_until, reason, source_now, given_up = row
    return FeedSummary(
        str(feed),
        _moment(watermark),
        _number(troubles),
        _moment(troubled_at),
        _moment(paused_until),
        reason,
        _moment(source_now) or moment(0),
        _number(given_up),
    )


def _moment(at: Any) -> datetime | None:
    try:
        return None if at is None else moment(int(at))
    except (TypeError, ValueError, OverflowError):
        return None


def _number(count: Any) -> int:
    try:
        return int(count)
    except (TypeError, ValueError, OverflowError):
        return 0


def judge_feeds(facts: FeedFacts) -> list[Finding]:
    """All findings about feeds and runs, in the order in which an operator would ask. Pure."""
    if not facts.feeds:
        return []
    checks: tuple[Callable[[FeedFacts], list[Finding]], ...] = (_feeds, _sources, _runs, _partitions, _debts)
    return [finding for check in checks for finding in check(facts)]


def _feeds(facts: FeedFacts) -> list[Finding]:
    """How far each feed has been read; a warning for one that is older than its declaration allows."""
    found = [ok("feeds", listed(f"{feed.feed} {_far(feed)}" for feed in facts.feeds))]
    for feed in facts.feeds:
        allowed = (facts.fresh or {}).get(feed.feed)
        if allowed is not None and feed.watermark is not None and feed.source_now - feed.watermark > allowed:
            found.append(
                warn(
                    "feeds",
                    f"feed {feed.feed} {_far(feed)}; it should be at most {spoken(allowed)} behind",
                    f"stepfast runs show {feed.feed}; if no run is active: stepfast runs start {feed.feed}",
                )
            )
    return found


def _far(feed: FeedSummary) -> str:
    if feed.watermark is None:
        return "has no watermark yet"
    return f"is read up to {_clock(feed.watermark)}, {spoken(feed.source_now - feed.watermark)} ago"


def _sources(facts: FeedFacts) -> list[Finding]:
    """Breakers that are open: sources that throttle, refuse us or do not answer."""
    troubled = [feed for feed in facts.feeds if feed.troubles or feed.paused_until is not None]
    if not troubled:
        return [ok("sources", f"no source of {counted(len(facts.feeds), 'feed')} is in trouble")]
    return [
        warn(
            "sources",
            f"the source of feed {feed.feed} is in trouble{_since(facts, feed)}: {_cut(feed.pause_reason)}; {_next(facts, feed)}",
            "runs wait for it and lose no attempt; if it does not pass, mend the source, its limits or its credentials",
        )
        for feed in troubled
    ]


def _since(facts: FeedFacts, feed: FeedSummary) -> str:
    if feed.troubled_at is None:
        return ""
    return (
        f" for {spoken(max(facts.now - feed.troubled_at, timedelta(0)))} ({counted(feed.troubles, 'time')})"
    )


def _next(facts: FeedFacts, feed: FeedSummary) -> str:
    if feed.paused_until is None or feed.paused_until <= facts.now:
        return "it is asked again by the next step"
    return f"it is not asked before {_clock(feed.paused_until)}"


def _runs(facts: FeedFacts) -> list[Finding]:
    """Runs that wait for an operator: stalled, failed and not replaced by a newer one, or with a held sweep."""
    found = [
        warn(
            "runs",
            f"run {run.id} of feed {run.feed} has stalled: {_cut(run.reason)}",
            f"stepfast runs show {run.id}, then stepfast runs resume {run.id}",
        )
        for run in facts.active
        if run.state == "stalled"
    ]
    found += [
        warn(
            "runs",
            f"the newest run of feed {run.feed}, {run.id}, is {run.state}: {_cut(run.reason)}",
            f"stepfast runs show {run.id}, then {_cure(run)}",
        )
        for run in facts.newest
        if run.state in ("failed", "failed_quality")
    ]
    found += [
        warn(
            "runs",
            f"the sweep of run {run.id} of feed {run.feed} would mark more rows than its fuse allows, and waits",
            f"stepfast sweeps approve {run.id}, or decline",
        )
        for run in facts.held
    ]
    if found:
        return found
    return [ok("runs", f"{counted(len(facts.active), 'run')} active, no run waits for an operator")]


def _cure(run: RunSummary) -> str:
    if run.state == "failed_quality":
        return f"stepfast quarantine list --feed {run.feed}"
    return f"stepfast runs retry {run.id}"


def _partitions(facts: FeedFacts) -> list[Finding]:
    return [
        warn(
            "partitions",
            f"no job reads {counted(count, 'open partition')} of run {run_id}, or a worker that is silent holds it",
            f"a worker that knows its feed repairs that within seconds; by hand: stepfast runs resume {run_id}",
        )
        for run_id, count in (facts.stuck or {}).items()
    ]


def _debts(facts: FeedFacts) -> list[Finding]:
    return [
        warn(
            "debts",
            f"{counted(feed.given_up, 'range')} of feed {feed.feed} could not be verified in {MOST_TRIES} tries, and is not read any more",
            f"stepfast debts list --feed {feed.feed}, then retry or close them",
        )
        for feed in facts.feeds
        if feed.given_up
    ]


def _cut(reason: object) -> str:
    return str(reason or "no reason is known").partition("\n")[0][:LONGEST_REASON]


def _clock(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M:%S} UTC"
