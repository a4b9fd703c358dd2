"""Due ticks become jobs, each exactly once, however many workers fire them.

A firing is planned without a lock. Then one short transaction moves `next_at` from the tick that was due to the next
one, if it is still there and the schedule did not change meanwhile, and stores the jobs. So of many workers one fires,
and a crash leaves either all of it or nothing. Each tick is also remembered by name: where a clock was set back, or a
schedule begins anew, a tick that was fired before becomes no second job.

Every worker calls it (`worker/scheduler.py`). The row of a schedule is in `schedule.py`, what it says in `definition.py`,
and when it ticks in `cron.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from stepfast.clock import moment
from stepfast.database.statement import sql
from stepfast.jobs.enqueue import enqueue
from stepfast.jobs.keys import hand_over_key, remember_key
from stepfast.schedules.definition import Decision, decide
from stepfast.schedules.schedule import COLUMNS, Schedule, Seal, as_is, clock, job_of, read

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepfast.database.connection import Transaction


SCOPE: Final = "schedule"  # of remembered ticks: schedule:nightly:2026-11-15T02:00:00Z
REMEMBERED: Final = 30 * 24 * 3600 * 1_000_000  # microseconds; longer than any clock is wrong

# The first of its index; min() would read all of them on MariaDB.
NEXT_TICK = sql("""
    SELECT next_at - {now} FROM stepfast_schedule
     WHERE next_at IS NOT NULL AND paused_at IS NULL ORDER BY next_at LIMIT 1
""")

DUE_SCHEDULES = sql(f"""
    SELECT {COLUMNS} FROM stepfast_schedule
     WHERE next_at <= :now AND paused_at IS NULL ORDER BY next_at, id LIMIT :limit
""")

# A schedule that another worker is firing is left to that worker.
FREE_SCHEDULES = sql("SELECT id FROM stepfast_schedule WHERE id {any_of:ids} ORDER BY id {skip_locked}")

MOVE_SCHEDULE = sql("""
    UPDATE stepfast_schedule SET next_at = :next_at, last_at = COALESCE(:last_at, last_at)
     WHERE id = :id AND next_at = :due AND revision = :revision AND paused_at IS NULL
""")


class TickResult(StrEnum):
    """What became of a tick."""

    FIRED = "fired"  # it became a job
    OVERLAPPED = "overlapped"  # the job before it is unfinished, and the schedule says to skip
    REMEMBERED = "remembered"  # it had become a job before


@dataclass(frozen=True)
class FiringPlan:
    """Which ticks of a due schedule become jobs, decided on its row as it was read."""

    schedule: Schedule
    due: int
    decision: Decision


@dataclass(frozen=True)
class Tick:
    """One tick, and what became of it."""

    schedule: str
    at: int
    job_id: str  # its job, or the job that prevented one
    result: TickResult


@dataclass(frozen=True)
class FiredPlan:
    """A plan that was carried out; it may have dropped every tick."""

    plan: FiringPlan
    ticks: tuple[Tick, ...]


def next_due(tx: Transaction) -> int | None:
    """Microseconds until the next schedule is due; None if none ever is."""
    due = tx.first(NEXT_TICK)
    return None if due is None else int(due)


def due(tx: Transaction, limit: int, now: int | None = None) -> tuple[list[Schedule], int]:
    """Schedules that are due, the most overdue first, and the instant that was asked for."""
    at = clock(tx, now)
    return tx.all(DUE_SCHEDULES, read, now=at, limit=limit), at


def plan(schedule: Schedule, now: int) -> FiringPlan:
    """Decide which ticks of a due schedule become jobs. Pure."""
    assert schedule.next_at is not None  # noqa: S101 - it is due
    it = schedule.definition
    return FiringPlan(schedule, schedule.next_at, decide(it.timing, it.missed, schedule.next_at, now))


def fire(tx: Transaction, plans: Sequence[FiringPlan], seal: Seal = as_is) -> list[FiredPlan]:
    """Carry out plans whose schedules did not change meanwhile."""
    free = {row[0] for row in tx.rows(FREE_SCHEDULES, ids=[it.schedule.name for it in plans])}
    return [
        FiredPlan(it, tuple(_job(tx, it.schedule, tick, seal) for tick in it.decision.fire))
        for it in sorted(plans, key=lambda one: one.schedule.name)
        if it.schedule.name in free and _move(tx, it)
    ]


def _move(tx: Transaction, it: FiringPlan) -> bool:
    matched = tx.run(
        MOVE_SCHEDULE,
        id=it.schedule.name,
        due=it.due,
        revision=it.schedule.revision,
        next_at=it.decision.next_at,
        last_at=it.decision.fire[-1] if it.decision.fire else None,
    )
    return matched == 1


def _job(tx: Transaction, schedule: Schedule, tick: int, seal: Seal) -> Tick:
    job, key = job_of(schedule, tick, seal), f"{schedule.name}:{spelled(tick)}"
    holder = remember_key(tx, SCOPE, key, job.id, REMEMBERED)
    if holder != job.id:
        return Tick(schedule.name, tick, holder, TickResult.REMEMBERED)
    answer = enqueue(tx, job, "skip")
    if answer.created:
        return Tick(schedule.name, tick, job.id, TickResult.FIRED)
    hand_over_key(tx, SCOPE, key, job.id, answer.id)
    return Tick(schedule.name, tick, answer.id, TickResult.OVERLAPPED)


def spelled(tick: int) -> str:
    """A tick as it stands in its key."""
    return moment(tick).isoformat().replace("+00:00", "Z")
