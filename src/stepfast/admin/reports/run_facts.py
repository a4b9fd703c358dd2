"""Where one run stands, with all that decides whether it advances, read at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from stepfast.admin.reports.partitions import JOINED, STUCK, ErrorGroup, failed_by_error
from stepfast.admin.reports.run_reason import JobFacts, Reason, RunFacts, why
from stepfast.admin.reports.runs import RunReport, run_report
from stepfast.admin.rows import now
from stepfast.clock import moment
from stepfast.database.statement import sql
from stepfast.runs.debts import TRIES
from stepfast.runs.feed_row import find_feed
from stepfast.runs.restarting import JOIN_JOBS, OTHERS, jobs_of
from stepfast.runs.run import Run, find_run
from stepfast.runs.states import ACTIVE_RUN, PartitionState, RunState
from stepfast.runs.sweep_state import is_held, state_of

if TYPE_CHECKING:
    from datetime import datetime

    from stepfast.database.connection import Transaction

STATES = sql("SELECT state, count(*) FROM stepfast_partition WHERE run_id = :id GROUP BY state")
ORPHANS = sql(f"SELECT p.number {JOINED} WHERE p.run_id = :id AND {STUCK} AND j.id IS NULL ORDER BY p.number")
MOVED = sql("SELECT max(updated_at) FROM stepfast_partition WHERE run_id = :id")
LIVE = sql(
    """
    SELECT j.queue, j.state, count(*), min(j.ready_at), max(j.last_error), max(j.held_by),
           sum(CASE WHEN j.state = 'leased' AND COALESCE(j.lease_until, w.alive_until, 0) < {now} THEN 1 ELSE 0 END)
      FROM stepfast_job j LEFT JOIN stepfast_worker w ON w.incarnation = j.owner
    """
    + JOIN_JOBS.format(table="stepfast_job")
    + "GROUP BY j.queue, j.state"
)
DEAD = sql(
    "SELECT count(*), max(j.last_error), max(j.queue) FROM stepfast_archive j"
    + JOIN_JOBS.format(table="stepfast_archive")
    + "WHERE j.state = 'dead'"
)
ENDED_QUEUE = sql("SELECT queue FROM stepfast_archive WHERE id = :id")
PAUSED = sql("SELECT paused_at, note FROM stepfast_queue WHERE id = :id AND paused_at IS NOT NULL")
WORKERS = sql("SELECT queues FROM stepfast_worker WHERE state = 'alive' AND alive_until >= {now}")
DEBTS = sql("""
    SELECT count(*), COALESCE(sum(CASE WHEN tries >= :tries THEN 1 ELSE 0 END), 0)
      FROM stepfast_debt WHERE feed = :feed AND state = 'open'
""")
PENDING = sql("SELECT count(*) FROM stepfast_raw WHERE feed = :feed AND pending = 1")


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


def show_run(tx: Transaction, run_id: str) -> RunDetail:
    """One run, by its full id, and why it does not advance."""
    run = find_run(tx, run_id)
    report = run_report(tx, run_id)
    states = {str(state): int(count) for state, count in tx.rows(STATES, id=run_id)}
    facts = _facts(tx, run, report, states)
    sweep = state_of(run)
    return RunDetail(
        report,
        states,
        facts.errors,
        facts.pending,
        facts.debts,
        facts.newer,
        tuple(why(facts)),
        0 if sweep is None else sweep.still_there,
    )


def _facts(tx: Transaction, run: Run, report: RunReport, states: dict[str, int]) -> RunFacts:
    active = run.state in ACTIVE_RUN
    jobs = _jobs(tx, run)
    feed = find_feed(tx, run.feed)
    newer = (
        []
        if active or run.kind == "backfill"
        else tx.rows(OTHERS, feed=run.feed, id=run.id, started_at=run.started_at)
    )
    ((debts, given_up),) = tx.rows(DEBTS, feed=run.feed, tries=TRIES)
    paused = tx.rows(PAUSED, id=jobs.queue) if active and jobs.queue is not None else []
    return RunFacts(
        id=run.id,
        feed=run.feed,
        state=run.state,
        at=run.at,
        now=moment(now(tx)),
        moved_at=max(report.updated_at, _moment(tx.first(MOVED, id=run.id)) or report.updated_at),
        reason=run.reason,
        planned=report.planned_at is not None,
        partitions=run.partitions,
        completed=run.completed,
        failed=run.failed,
        unverified=run.unverified,
        open=states.get(PartitionState.READY, 0) + states.get(PartitionState.RUNNING, 0),
        orphans=tuple(int(row[0]) for row in tx.rows(ORPHANS, id=run.id)) if active else (),
        errors=failed_by_error(tx, run.id),
        quarantined=run.quarantined,
        pending=int(tx.first(PENDING, feed=run.feed) or 0) if run.at is RunState.APPLYING else None,
        debts=int(debts),
        given_up=int(given_up),
        owes=run.kind != "verify" and run.most_rows is None,
        sweep_held=_held(run),
        jobs=jobs,
        queue_paused_at=_moment(paused[0][0]) if paused else None,
        queue_note=paused[0][1] if paused else None,
        workers=_workers(tx, jobs.queue),
        feed_paused_until=_moment(feed.paused_until),
        pause_reason=feed.pause_reason,
        newer=str(newer[0][0]) if newer else None,
        newer_active=bool(newer) and RunState(newer[0][1]) in ACTIVE_RUN,
    )


def _jobs(tx: Transaction, run: Run) -> JobFacts:
    asked = jobs_of(run)
    counts: dict[str, int] = {}
    queue = next_at = error = held_by = None
    abandoned = 0
    for its_queue, state, count, ready_at, last_error, its_limit, silent in tx.rows(LIVE, **asked):
        queue = str(its_queue)
        counts[state] = counts.get(state, 0) + int(count)
        abandoned += int(silent)
        held_by = its_limit or held_by
        if state == "scheduled":
            next_at, error = moment(int(ready_at)), last_error
    ((dead, dead_error, dead_queue),) = tx.rows(DEAD, **asked)
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
    return None if run.job_id is None else tx.first(ENDED_QUEUE, id=run.job_id)


def _workers(tx: Transaction, queue: str | None) -> int:
    """Workers that are alive and serve this queue; if nobody knows the queue, all that are alive."""
    served = [str(row[0]).split(",") for row in tx.rows(WORKERS)]
    return sum(queue is None or "*" in it or queue in it for it in served)


def _held(run: Run) -> str | None:
    found = state_of(run)
    return (found.note or "") if found is not None and is_held(run) else None


def _moment(at: int | None) -> datetime | None:
    return None if at is None else moment(int(at))
