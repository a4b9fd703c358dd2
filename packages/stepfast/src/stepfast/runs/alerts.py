"""Alerts about runs and feeds: one per cause, raised in the transaction that found out."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from stepfast.clock import micros, spoken
from stepfast.database.statement import sql
from stepfast.outbox.alerts import Alert, alert, raise_alert

if TYPE_CHECKING:
    from stepfast.database.connection import Transaction
    from stepfast.runs.consolidation import AlikeItems
    from stepfast.runs.partitioning.contract import Plan
    from stepfast.runs.run import Run


QUIET = timedelta(hours=1)  # for causes that are looked at again and again

RAISED_LATELY = sql("SELECT last_at FROM stepfast_alert WHERE id = :id AND last_at > {now} - :quiet")


def consolidation_skipped(tx: Transaction, run: Run) -> None:
    """A partition failed: nothing of the run is published, and its watermark stays."""
    raise_alert(
        tx,
        alert(
            f"run:{run.id}:consolidation-skipped",
            "Consolidation Skipped",
            f"Run ID: {run.id}\n"
            f"Feed: {run.feed}\n"
            f"Partitions: {run.partitions} expected, {run.completed} completed, {run.failed} failed\n"
            "Watermark NOT advanced\n"
            f"Action: review the failed partitions with: stepfast runs show {run.id}\n"
            f"then retry them with: stepfast runs retry {run.id}",
        ),
    )


def consolidation_failed(tx: Transaction, run: Run, error: str) -> None:
    """A consolidation gave up, or too many rows ended in quarantine."""
    raise_alert(
        tx,
        alert(
            f"run:{run.id}:consolidation-failed",
            "Consolidation Failed",
            f"Run ID: {run.id}\n"
            f"Feed: {run.feed}\n"
            f"Error: {error}\n"
            "Watermark NOT advanced\n"
            f"Action: review it with: stepfast runs show {run.id}\n"
            f"then go on with: stepfast runs consolidate {run.id}",
        ),
    )


def plan_misses_rows(tx: Transaction, run: Run, plan: Plan) -> None:
    """The source's counts do not add up: there may be rows that no partition holds."""
    raise_alert(
        tx,
        alert(
            f"feed:{run.feed}:plan-misses-rows",
            "Plan misses rows",
            f"Run ID: {run.id}\n"
            f"Feed: {run.feed}\n"
            f"The source counts {plan.baseline:,} rows, the partitions hold {plan.rows:,}: {plan.shortfall:,} are missing\n"
            "The run goes on\n"
            f"Action: compare the feed's domain and partitioner with the plan; see it with: stepfast runs plan {run.feed}",
            severity="warning",
        ),
    )


def items_collide(tx: Transaction, run: Run, alike: AlikeItems) -> None:
    """Items that differ replace each other in the target."""
    raise_alert(
        tx,
        alert(
            f"feed:{run.feed}:items-collide",
            "Items replace each other",
            f"Run ID: {run.id}\n"
            f"Feed: {run.feed}\n"
            f"Items such as {alike.one!r} and {alike.other!r} may be one for column {alike.column}, "
            f"whose collation is {alike.collation}\n"
            "Action: give the column a collation that tells them apart, such as utf8mb4_bin, then write all rows again\n"
            f"with: stepfast runs remap {run.feed}",
            severity="warning",
        ),
    )


def planning_failed(tx: Transaction, run: Run, error: str) -> None:
    """Planning gave up: the run ended before it had partitions."""
    _run_failed(
        tx, run, error, what="planning-failed", title="Planning Failed", cure=f"stepfast runs retry {run.id}"
    )


def sweep_failed(tx: Transaction, run: Run, error: str) -> None:
    """Everything was read and applied, but the search for rows that are gone gave up."""
    _run_failed(
        tx, run, error, what="sweep-failed", title="Sweep Failed", cure=f"stepfast runs consolidate {run.id}"
    )


def _run_failed(tx: Transaction, run: Run, error: str, *, what: str, title: str, cure: str) -> None:
    raise_alert(
        tx,
        alert(
            f"run:{run.id}:{what}",
            title,
            f"Run ID: {run.id}\n"
            f"Feed: {run.feed}\n"
            f"Error: {error}\n"
            "Watermark NOT advanced\n"
            f"Action: review it with: stepfast runs show {run.id}\n"
            f"then go on with: {cure}",
        ),
    )


def run_stalled(tx: Transaction, run: Run, still_for: timedelta, why: str) -> None:
    """Nothing has moved the run for too long."""
    raise_alert(
        tx,
        alert(
            f"run:{run.id}:stalled",
            "Run stalled",
            f"Run ID: {run.id}\n"
            f"Feed: {run.feed}\n"
            f"State: {run.phase.value}, without a movement for {spoken(still_for)}\n"
            f"Why: {why}\n"
            f"Action: see what it waits for with: stepfast runs show {run.id}",
            severity="warning",
        ),
    )


def run_held(tx: Transaction, run: Run, reason: str) -> bool:
    """A person has to do something before rows of the run can be mapped. Raised at most once an hour; returns whether now."""
    return _raise_once_an_hour(
        tx,
        alert(
            f"run:{run.id}:held",
            "Run held",
            f"Run ID: {run.id}\n"
            f"Feed: {run.feed}\n"
            f"Reason: {reason}\n"
            "Until then none of its rows are written; no attempts are spent, and it goes on by itself\n"
            "Watermark NOT advanced\n"
            f"Action: see it with: stepfast runs show {run.id}",
        ),
    )


def watermark_too_old(tx: Transaction, feed: str, age: timedelta, allowed: timedelta) -> bool:
    """The watermark is older than the feed allows. Raised at most once an hour; returns whether now."""
    return _raise_once_an_hour(
        tx,
        alert(
            f"feed:{feed}:watermark-too-old",
            "Watermark too old",
            f"Feed: {feed}\n"
            f"Age: {spoken(age)}; it should be fresh within {spoken(allowed)}\n"
            f"Action: see its runs with: stepfast runs list --feed {feed}",
            severity="warning",
        ),
    )


def dead_letters_growing(tx: Transaction, feed: str, new: int, total: int, error: str | None) -> bool:
    """Many jobs of the feed have died. Raised at most once an hour; returns whether now."""
    return _raise_once_an_hour(
        tx,
        alert(
            f"feed:{feed}:dead-letters-growing",
            "Dead letters growing",
            f"Feed: {feed}\n"
            f"Dead letters: {new:,} new, {total:,} in all\n"
            f"Error: {error or 'unknown'}\n"
            "Action: review them with: stepfast dead-letters list",
        ),
    )


def source_in_trouble(tx: Transaction, feed: str, trouble: str, reason: str, since: datetime) -> bool:
    """The source throttles, is away, or does not let us in. Raised at most once an hour; returns whether now."""
    return _raise_once_an_hour(
        tx,
        alert(
            f"feed:{feed}:{trouble}",
            "Source in trouble",
            f"Feed: {feed}\n"
            f"Since: {since:%Y-%m-%d %H:%M:%S} UTC\n"
            f"Trouble: {reason}\n"
            "The feed is paused and asks again by itself; no attempts are spent\n"
            + (
                "Action: renew the credentials of the source"
                if trouble == "auth"
                else "Action: none, unless it lasts; a partition waits at most as long as the feed's wait_at_most"
            ),
            severity="failure" if trouble == "auth" else "warning",
        ),
    )


def sweep_held(tx: Transaction, run: Run, reason: str) -> None:
    """More rows would be marked as gone than the feed allows without a person."""
    raise_alert(
        tx,
        alert(
            f"run:{run.id}:sweep-held",
            "Sweep held",
            f"Run ID: {run.id}\n"
            f"Feed: {run.feed}\n"
            f"Reason: {reason}\n"
            "Nothing was marked as gone; the run waits\n"
            f"Action: let them go with: stepfast sweeps approve {run.id} --reason …\n"
            f"or keep them with: stepfast sweeps decline {run.id} --reason …",
            severity="warning",
        ),
    )


def debt_given_up(tx: Transaction, feed: str, debt_id: int, name: str, tries: int) -> None:
    """A range could not be verified time and again: no run reads it again by itself."""
    raise_alert(
        tx,
        alert(
            f"feed:{feed}:debt:{debt_id}",
            "Debt given up",
            f"Feed: {feed}\n"
            f"Range: {name}\n"
            f"Tries: {tries}; it could not be shown to be complete in any of them\n"
            f"Action: let the next runs try again with: stepfast debts retry {debt_id}\n"
            f"or accept it with: stepfast debts close {debt_id} --reason …",
        ),
    )


def _raise_once_an_hour(tx: Transaction, raised: Alert) -> bool:
    """A cause that is seen at every look is raised once an hour, not once a look."""
    if tx.rows(RAISED_LATELY, id=raised.cause, quiet=micros(QUIET)):
        return False
    raise_alert(tx, raised)
    return True
