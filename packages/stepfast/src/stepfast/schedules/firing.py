"""Due ticks become jobs, each exactly once, whoever asks and however often.

A firing is planned without a lock. Then one short transaction moves `next_at` from the tick that was due to the next
one, if it is still there and nobody changed the schedule meanwhile, and stores the jobs. So of many workers one fires,
and a crash leaves either all of it or nothing. Each tick is also remembered by name: where a clock was set back, or a
plan begins anew, a tick that was fired before becomes no second job.
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

# The first of its index; a minimum would walk over all of them on MariaDB.
NEXT_DUE = sql("""
    SELECT next_at - {now} FROM stepfast_schedule
     WHERE next_at IS NOT NULL AND paused_at IS NULL ORDER BY next_at LIMIT 1
""")

DUE = sql(f"""
    SELECT {COLUMNS} FROM stepfast_schedule
     WHERE next_at <= :now AND paused_at IS NULL ORDER BY next_at, id LIMIT :limit
""")

# Whom a colleague is firing is left to the colleague.
FREE = sql("SELECT id FROM stepfast_schedule WHERE id {any_of:ids} ORDER BY id {skip_locked}")

MOVE = sql("""
    UPDATE stepfast_schedule SET next_at = :next_at, last_at = COALESCE(:last_at, last_at)
     WHERE id = :id AND next_at = :due AND revision = :revision AND paused_at IS NULL
""")


class Fate(StrEnum):
    FIRED = "fired"  # it became a job
    OVERLAPPED = "overlapped"  # the job before it is unfinished, and the schedule says to skip
    REMEMBERED = "remembered"  # it had become a job before


@dataclass(frozen=True)
class Plan:
    """What to do about a schedule that is due, as it was seen."""

    schedule: Schedule
    due: int
    decision: Decision


@dataclass(frozen=True)
class Tick:
    """What became of one tick."""

    schedule: str
    at: int
    job_id: str  # its job, or the one that kept it from having one
    fate: Fate


@dataclass(frozen=True)
class Fired:
    """A plan that was carried out; perhaps it said to drop every tick."""

    plan: Plan
    ticks: tuple[Tick, ...]


def next_due(tx: Transaction) -> int | None:
    """Microseconds until something is due, or None if nothing is ever."""
    due = tx.first(NEXT_DUE)
    return None if due is None else int(due)


def due(tx: Transaction, limit: int, now: int | None = None) -> tuple[list[Schedule], int]:
    """What is due, the longest first, and the moment that was asked for."""
    at = clock(tx, now)
    return tx.all(DUE, read, now=at, limit=limit), at


def plan(schedule: Schedule, now: int) -> Plan:
    """Decide which ticks of a due schedule become jobs. Pure."""
    assert schedule.next_at is not None  # noqa: S101 - it is due
    it = schedule.definition
    return Plan(schedule, schedule.next_at, decide(it.timing, it.missed, schedule.next_at, now))


def fire(tx: Transaction, plans: Sequence[Plan], seal: Seal = as_is) -> list[Fired]:
    """Carry out what still holds of these plans."""
    free = {row[0] for row in tx.rows(FREE, ids=[it.schedule.name for it in plans])}
    return [
        Fired(it, tuple(_job(tx, it.schedule, tick, seal) for tick in it.decision.fire))
        for it in sorted(plans, key=lambda one: one.schedule.name)
        if it.schedule.name in free and _move(tx, it)
    ]


def _move(tx: Transaction, it: Plan) -> bool:
    matched = tx.run(
        MOVE,
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
        return Tick(schedule.name, tick, holder, Fate.REMEMBERED)
    answer = enqueue(tx, job, "skip")
    if answer.created:
        return Tick(schedule.name, tick, job.id, Fate.FIRED)
    hand_over_key(tx, SCOPE, key, job.id, answer.id)
    return Tick(schedule.name, tick, answer.id, Fate.OVERLAPPED)


def spelled(tick: int) -> str:
    """A tick as its key has it."""
    return moment(tick).isoformat().replace("+00:00", "Z")
