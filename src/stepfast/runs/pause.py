"""The pause of a feed, as its row has it: who begins it, how long it lasts, who asks first after it, who ends it.

Pure decisions, and the effects that write them. `breaker` is who uses them.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Final, Literal, assert_never

from stepfast.clock import micros, moment
from stepfast.database.statement import sql
from stepfast.runs import alerts
from stepfast.runs.feed_row import FeedRow, lock_feed
from stepfast.runs.trouble import Trouble, TroubleKind

if TYPE_CHECKING:
    from stepfast.database.connection import Transaction

FIRST: Final = {
    TroubleKind.THROTTLE: timedelta(seconds=1),
    TroubleKind.OUTAGE: timedelta(seconds=1),
    TroubleKind.AUTH: timedelta(
        seconds=30
    ),  # a password does not change in a second; an account may be locked
}
LONGEST: Final = timedelta(minutes=5)
LONGEST_LEAD: Final = timedelta(seconds=5)  # of the one who asks first
MARGIN: Final = timedelta(seconds=10)  # that a commit may come after its answer
TOLD_AFTER: Final = timedelta(minutes=5)

# The first of those who meet trouble at the same time begins the pause; the others find it begun.
PAUSE = sql("""
    UPDATE stepfast_feed
       SET troubles = troubles + 1, troubled_at = COALESCE(troubled_at, {now}), paused_until = {now} + :pause,
           pause_reason = :reason, probe = :job_id, updated_at = {now}
     WHERE id = :feed AND (paused_until IS NULL OR paused_until <= {now})
""")
LENGTHEN = sql("""
    UPDATE stepfast_feed SET paused_until = {now} + :pause, updated_at = {now}
     WHERE id = :feed AND paused_until < {now} + :pause
""")
# Only if nobody has met trouble since this step looked.
ALL_IS_WELL = sql("""
    UPDATE stepfast_feed
       SET troubles = 0, troubled_at = NULL, paused_until = NULL, pause_reason = NULL, probe = NULL, updated_at = {now}
     WHERE id = :feed AND troubles = :troubles AND paused_until = :paused_until
""")

# Since when a partition or a plan waits: trouble that is older than its last movement is over.
PARTITION_WAITS = sql("""
    UPDATE stepfast_partition
       SET troubled_at = CASE WHEN troubled_at >= updated_at THEN troubled_at ELSE {now} END, last_error = :error
     WHERE id = :id AND state IN ('ready', 'running')
""")
RUN_WAITS = sql("""
    UPDATE stepfast_run SET troubled_at = CASE WHEN troubled_at >= updated_at THEN troubled_at ELSE {now} END
     WHERE id = :id AND ended_at IS NULL
""")
PARTITION_WAITED = sql(
    "SELECT {now} - troubled_at FROM stepfast_partition WHERE id = :id AND troubled_at >= updated_at"
)
RUN_WAITED = sql("SELECT {now} - troubled_at FROM stepfast_run WHERE id = :id AND troubled_at >= updated_at")

# Another partition of the run, so that all of them get their turn.
NEXT_PROBE = sql("""
    SELECT job_id FROM stepfast_partition
     WHERE run_id = (SELECT m.run_id FROM stepfast_partition m WHERE m.id = :id)
       AND id <> :id AND state IN ('ready', 'running')
     ORDER BY CASE WHEN id > :id THEN 0 ELSE 1 END, id LIMIT 1
""")
# A page of another partition that was asked for after the trouble began, and answered.
OTHERS_ARE_ANSWERED = sql("""
    SELECT g.seq FROM stepfast_partition p
      JOIN stepfast_partition o ON o.run_id = p.run_id AND o.id <> p.id AND o.updated_at > p.troubled_at
      JOIN stepfast_page g ON g.partition_id = o.id
     WHERE p.id = :id AND g.request_offset IS NOT NULL AND g.at - 1000 * g.milliseconds > p.troubled_at + :margin
     LIMIT 1
""")


@dataclass(frozen=True)
class Waiter:
    """On whose behalf the source is asked: a partition, the plan of a run, or a run that has not begun."""

    what: Literal["partition", "run", "start"]
    id: str = ""


def paused(feed: FeedRow, job_id: str) -> timedelta:
    """How long this job must not ask the source; zero: it may."""
    if feed.paused_until is None:
        return timedelta(0)
    lead = 0 if job_id == feed.probe else micros(_lead(feed.troubles))
    return timedelta(microseconds=max(0, feed.paused_until + lead - feed.now))


def pause_for(trouble: Trouble, troubles: int, dice: float) -> timedelta:
    """How long to leave the source alone after `troubles` earlier ones in a row; `dice` is uniform in [0, 1)."""
    ceiling = min(FIRST[trouble.kind] * (1 << min(troubles, 20)), LONGEST)
    return max(ceiling * (0.75 + 0.25 * dice), (trouble.retry_after or timedelta(0)) * (1 + 0.05 * dice))


def own_wait(pause: timedelta, waited: timedelta) -> timedelta:
    """How long the one who met it waits: who keeps meeting it while others do not asks more and more seldom."""
    return max(pause, min(waited / 2, LONGEST))


def _lead(troubles: int) -> timedelta:
    return min(LONGEST_LEAD, timedelta(seconds=1 << min(max(0, troubles - 1), 10)))


@dataclass(frozen=True, kw_only=True)
class TroubleMet:
    """The effect of a step that met trouble: its partition waits, and so does the feed."""

    feed: str
    job_id: str
    waiter: Waiter
    trouble: Trouble
    pause: timedelta
    reason: str

    def apply(self, tx: Transaction, /) -> None:
        mark(tx, self.waiter, self.reason)
        row = lock_feed(tx, self.feed)
        span = {"feed": self.feed, "pause": micros(self.pause)}
        begun = tx.run(PAUSE, **span, reason=self.reason, job_id=self._probe(tx))
        if begun != 1 and self.trouble.retry_after:
            tx.run(LENGTHEN, **span)
        since = row.troubled_at or row.now
        if self.trouble.kind is TroubleKind.AUTH or row.now - since >= micros(TOLD_AFTER):
            alerts.source_in_trouble(tx, self.feed, self.trouble.kind.value, self.reason, moment(since))

    def _probe(self, tx: Transaction) -> str:
        if self.waiter.what != "partition":
            return self.job_id
        return str(tx.first(NEXT_PROBE, id=self.waiter.id) or self.job_id)


@dataclass(frozen=True)
class TroubleOver:
    """The effect of a good answer after trouble. Last in a commit: the feed's row is the last to be locked."""

    row: FeedRow

    def apply(self, tx: Transaction, /) -> None:
        tx.run(
            ALL_IS_WELL,
            feed=self.row.feed,
            troubles=self.row.troubles,
            paused_until=self.row.paused_until,
        )


def mark(tx: Transaction, waiter: Waiter, reason: str) -> None:
    """Remember since when it waits, and for what."""
    match waiter.what:
        case "partition":
            tx.run(PARTITION_WAITS, id=waiter.id, error=reason)
        case "run":
            tx.run(RUN_WAITS, id=waiter.id)
        case "start":
            pass  # the feed's own row says it
        case _:
            assert_never(waiter.what)


def is_alone(tx: Transaction, waiter: Waiter) -> bool:
    """Whether the source answers the others, while this one waits for it."""
    if waiter.what != "partition":
        return False
    return bool(tx.rows(OTHERS_ARE_ANSWERED, id=waiter.id, margin=micros(MARGIN)))


def waited_for(tx: Transaction, waiter: Waiter) -> timedelta:
    """For how long it has waited without a movement in between."""
    statement = PARTITION_WAITED if waiter.what == "partition" else RUN_WAITED
    return timedelta(microseconds=int(tx.first(statement, id=waiter.id) or 0))
