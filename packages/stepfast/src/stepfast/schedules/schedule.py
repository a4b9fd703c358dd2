"""The row of a schedule: read, written, changed by operators, declared by code, and fired.

What a schedule says, also about ticks that were missed, is in `definition.py`, when it ticks in `cron.py`. `fire` makes one
job of each tick that is due; every worker calls it (`worker/scheduler.py`).

A firing moves `next_at` only; every other change writes a new `revision`, and a firing that was planned for an older
one does nothing.

A worker that starts stores the schedules that its code declares. A row that no operator has changed follows the code; one
that an operator changed, paused or removed stays as the operator left it, until it is reset.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, Literal

from stepfast.clock import moment, new_fence, new_id
from stepfast.database.statement import sql
from stepfast.errors import ConfigurationError, ContentionError, NotFoundError, StateError
from stepfast.jobs.enqueue import enqueue
from stepfast.jobs.keys import hand_over_key, remember_key
from stepfast.jobs.payload import decode, to_json
from stepfast.jobs.state import NewJob
from stepfast.schedules.cron import Once
from stepfast.schedules.definition import (
    Decision,
    Definition,
    Overlap,
    checked_schedule_name,
    decide,
    define,
    restored,
    stored,
)
from stepfast.telemetry.masking import without_secrets

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from stepfast.database.connection import Transaction
    from stepfast.jobs.kinds import Kind
    from stepfast.jobs.state import Enqueued
    from stepfast.schedules.definition import ScheduleOptions


Source = Literal["code", "operator"]
Seal = Callable[[str, str, str], str]  # of a kind, a payload and the job's id: the payload as it is stored

_DEFINED: Final = tuple(it.name for it in fields(Definition))
_STATE: Final = (
    "next_at", "last_at", "paused_at", "removed_at", "source", "declared", "note", "changed_at", "revision",
)  # fmt: skip
COLUMNS: Final = ", ".join(("id", *_DEFINED, *_STATE))

DATABASE_NOW = sql("SELECT {now}")
FIND_SCHEDULE = sql(f"SELECT {COLUMNS} FROM stepfast_schedule WHERE id = :id")
LOCK_SCHEDULE = sql(f"SELECT {COLUMNS} FROM stepfast_schedule WHERE id = :id {{for_update}}")
LIST_SCHEDULES = sql(
    f"SELECT {COLUMNS} FROM stepfast_schedule WHERE removed_at IS NULL OR :everyone = 1 ORDER BY id"
)

CREATE_SCHEDULE = sql("""
    INSERT INTO stepfast_schedule (id, kind, queue, priority, payload, cron, every, once_at, tz, missed, overlap, tick_as,
                                   next_at, source, declared, note, changed_at, revision)
    VALUES (:id, :kind, :queue, :priority, :payload, :cron, :every, :once_at, :tz, :missed, :overlap, :tick_as,
            :next_at, :source, :declared, :note, :changed_at, :revision)
    {keep_existing}
""")

WRITE_SCHEDULE = sql("""
    UPDATE stepfast_schedule
       SET kind = :kind, queue = :queue, priority = :priority, payload = :payload, cron = :cron, every = :every,
           once_at = :once_at, tz = :tz, missed = :missed, overlap = :overlap, tick_as = :tick_as, next_at = :next_at,
           paused_at = :paused_at, removed_at = :removed_at, source = :source, declared = :declared, note = :note,
           changed_at = :changed_at, revision = :new_revision
     WHERE id = :id AND revision = :revision
""")


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """A schedule, as its row has it."""

    name: str
    definition: Definition
    next_at: int | None  # when it is due; None: never again
    last_at: int | None = None  # the last tick that fired
    paused_at: int | None = None
    removed_at: int | None = None  # removed by an operator although the code declares it
    source: Source  # whose definition it has now
    declared: str | None = None  # the definition in the code, as JSON
    note: str | None = None  # why an operator changed it last
    changed_at: int
    revision: int


def read(*row: Any) -> Schedule:
    """A row in the order of COLUMNS."""
    name, *values = row
    return Schedule(
        name=name,
        definition=restored(dict(zip(_DEFINED, values, strict=False))),
        **dict(zip(_STATE, values[len(_DEFINED) :], strict=True)),
    )


def clock(tx: Transaction, given: int | None = None) -> int:
    """The database's time, unless an instant was given."""
    return int(tx.first(DATABASE_NOW)) if given is None else given


def schedules(tx: Transaction, *, everyone: bool = False) -> list[Schedule]:
    """All schedules by name; with `everyone` also those that were removed although the code declares them."""
    return tx.all(LIST_SCHEDULES, read, everyone=int(everyone))


def get(tx: Transaction, name: str) -> Schedule:
    return _present(name, tx.all(FIND_SCHEDULE, read, id=name))


def lock(tx: Transaction, name: str) -> Schedule:
    """A schedule, locked: it is not changed or fired before this transaction ends."""
    return _present(name, tx.all(LOCK_SCHEDULE, read, id=name))


def create(tx: Transaction, fresh: Schedule) -> Schedule:
    """Store a schedule unless there is one of its name; returns the row that is there, locked."""
    tx.run(CREATE_SCHEDULE, **_parameters(fresh))
    if not (found := tx.all(LOCK_SCHEDULE, read, id=fresh.name)):
        raise ContentionError(f"schedule {fresh.name!r} was removed while we looked; try again")
    return found[0]


def write(tx: Transaction, before: Schedule, after: Schedule) -> Schedule:
    """Write a row that the caller has locked."""
    after = replace(after, revision=new_fence())
    given = {**_parameters(after), "paused_at": after.paused_at, "removed_at": after.removed_at}
    if tx.run(WRITE_SCHEDULE, **{**given, "revision": before.revision, "new_revision": after.revision}) != 1:
        raise ContentionError(f"schedule {before.name!r} changed while we held it")
    return after


def first_tick(definition: Definition, now: int, last_at: int | None = None) -> int | None:
    """When a schedule that begins now is first due. The time of a one-off may have passed."""
    if definition.once_at is None:
        return definition.timing.next_after(now)
    return None if last_at is not None and last_at >= definition.once_at else definition.once_at


def as_is(_kind: str, payload: str, _job_id: str) -> str:
    return payload


def job_of(schedule: Schedule, tick: int, seal: Seal = as_is) -> NewJob:
    """The job that a tick becomes; `seal` encrypts its payload where its kind wants that."""
    it, job_id = schedule.definition, new_id()
    return NewJob(
        id=job_id,
        queue=it.queue,
        kind=it.kind,
        payload=seal(it.kind, it.arguments_at(tick), job_id),
        priority=it.priority,
        key=f"schedule:{schedule.name}" if it.overlap is Overlap.SKIP else None,
    )


def _parameters(schedule: Schedule) -> dict[str, Any]:
    return {
        "id": schedule.name,
        **stored(schedule.definition),
        "next_at": schedule.next_at,
        "source": schedule.source,
        "declared": schedule.declared,
        "note": schedule.note,
        "changed_at": schedule.changed_at,
        "revision": schedule.revision,
    }


def _present(name: str, found: list[Schedule]) -> Schedule:
    if not found or found[0].removed_at is not None:
        raise NotFoundError(f"there is no schedule {name!r}; `stepfast schedules list` shows all")
    return found[0]


# Changes at run time. Each locks the row, so that no tick fires meanwhile.

LONGEST_NOTE: Final = 500

DELETE_SCHEDULE = sql("DELETE FROM stepfast_schedule WHERE id = :id AND revision = :revision")

# One-offs that fired are deleted. One that the code declares stays: it must not fire again.
FORGET_SCHEDULES = sql("""
    DELETE FROM stepfast_schedule
     WHERE next_at IS NULL AND declared IS NULL AND COALESCE(last_at, once_at) < {now} - :age
""")


def add(
    tx: Transaction, name: str, definition: Definition, *, note: str | None = None, now: int | None = None
) -> Schedule:
    """Add a schedule at run time."""
    at = clock(tx, now)
    _refuse_past(definition, at)
    fresh = Schedule(
        name=name,
        definition=definition,
        next_at=first_tick(definition, at),
        source="operator",
        note=kept_note(note),
        changed_at=at,
        revision=new_fence(),
    )
    found = create(tx, fresh)
    if found.revision == fresh.revision:
        return found
    if found.removed_at is None:
        raise StateError(f"schedule {name!r} exists already; change it, or remove it first")
    return write(tx, found, replace(fresh, declared=found.declared, last_at=found.last_at))


def change(
    tx: Transaction,
    name: str,
    revise: Callable[[Definition], Definition],
    *,
    note: str | None = None,
    now: int | None = None,
) -> Schedule:
    """Change the definition of a schedule by `revise`. If its ticks change, they are counted from now on."""
    before = lock(tx, name)
    definition, at = revise(before.definition), clock(tx, now)
    next_at = before.next_at
    if definition.when != before.definition.when:
        _refuse_past(definition, at)
        next_at = first_tick(definition, at)
    return write(
        tx,
        before,
        replace(
            before,
            definition=definition,
            next_at=next_at,
            source="operator",
            note=kept_note(note),
            changed_at=at,
        ),
    )


def pause(tx: Transaction, name: str, *, note: str | None = None, now: int | None = None) -> bool:
    """Pause a schedule: no tick fires. False if it was paused before."""
    before = lock(tx, name)
    if before.paused_at is not None:
        return False
    at = clock(tx, now)
    write(tx, before, replace(before, paused_at=at, note=kept_note(note), changed_at=at))
    return True


def resume(tx: Transaction, name: str, *, note: str | None = None, now: int | None = None) -> bool:
    """Resume with the next tick; those that passed in the pause are not made up. False if it was not paused.

    A one-off whose time has come meanwhile is due at once: then its policy for missed ticks decides.
    """
    before = lock(tx, name)
    if before.paused_at is None:
        return False
    at = clock(tx, now)
    once = isinstance(before.definition.timing, Once)
    next_at = before.next_at if once else before.definition.timing.next_after(at)
    after = replace(before, paused_at=None, next_at=next_at, note=kept_note(note), changed_at=at)
    write(tx, before, after)
    return True


def trigger(tx: Transaction, name: str, *, now: int | None = None, seal: Seal = as_is) -> Enqueued:
    """Enqueue one job of a schedule now; its ticks stay as they are."""
    schedule = lock(tx, name)
    job = enqueue(tx, job_of(schedule, clock(tx, now), seal), "skip")
    if not job.created:
        raise StateError(
            f"schedule {name!r}: its job {job.id} is unfinished, and overlap is 'skip'; wait for it or cancel it"
        )
    return job


def remove(tx: Transaction, name: str, *, note: str | None = None, now: int | None = None) -> None:
    """Remove a schedule. One that the code declares leaves a mark, so that no worker brings it back."""
    before = lock(tx, name)
    if before.declared is None:
        if tx.run(DELETE_SCHEDULE, id=name, revision=before.revision) != 1:
            raise ContentionError(f"schedule {name!r} changed while we held it")
        return
    at = clock(tx, now)
    after = replace(
        before,
        removed_at=at,
        paused_at=None,
        next_at=None,
        source="operator",
        note=kept_note(note),
        changed_at=at,
    )
    write(tx, before, after)


def forget_finished(tx: Transaction, age: int) -> int:
    """Delete one-offs added at run time that fired so many microseconds ago; returns how many."""
    return tx.run(FORGET_SCHEDULES, age=age)


def kept_note(text: str | None) -> str | None:
    return None if text is None else without_secrets(text)[:LONGEST_NOTE]


def _refuse_past(definition: Definition, now: int) -> None:
    if definition.once_at is not None and definition.once_at <= now:
        raise ConfigurationError(
            f"at: {moment(definition.once_at).isoformat()} has passed; enqueue the job instead, or trigger the schedule"
        )


# Schedules that the code declares.

DECLARED_SCHEDULES = sql("SELECT id, declared FROM stepfast_schedule WHERE id {any_of:ids}")


def declare(known: dict[str, Definition], name: str, kind: Kind, given: ScheduleOptions) -> None:
    """Add a schedule to the declared ones of an application."""
    definition = define(kind.name, kind, given)
    if known.setdefault(checked_schedule_name(name), definition) != definition:
        raise ConfigurationError(f"schedule {name!r} is declared twice; give one of them another name")


def outdated(tx: Transaction, declared: Mapping[str, Definition]) -> dict[str, Definition]:
    """Declared schedules whose rows are missing or differ."""
    if not declared:
        return {}
    known = {row[0]: row[1] for row in tx.rows(DECLARED_SCHEDULES, ids=list(declared))}
    return {name: it for name, it in declared.items() if known.get(name) != _text(it)}


def synchronise(tx: Transaction, declared: Mapping[str, Definition], *, now: int | None = None) -> list[str]:
    """Store declared schedules; returns the names of those that follow the code from now on."""
    at = clock(tx, now)
    return [name for name in sorted(declared) if _follows(tx, name, declared[name], at)]


def _follows(tx: Transaction, name: str, definition: Definition, now: int) -> bool:
    text = _text(definition)
    fresh = Schedule(
        name=name,
        definition=definition,
        next_at=first_tick(definition, now),
        source="code",
        declared=text,
        changed_at=now,
        revision=new_fence(),
    )
    found = create(tx, fresh)
    if found.revision == fresh.revision:
        return True
    if found.declared == text:  # another worker was faster
        return False
    if found.source == "operator":
        write(tx, found, replace(found, declared=text))
        return False
    write(tx, found, replace(_following(found, definition, now), declared=text))
    return True


def reset(tx: Transaction, name: str, *, note: str | None = None, now: int | None = None) -> Schedule:
    """Reset a schedule to the definition in the code: not changed, not paused, not removed."""
    rows = tx.all(LOCK_SCHEDULE, read, id=name)
    if not rows:
        raise NotFoundError(f"there is no schedule {name!r}; `stepfast schedules list --all` shows all")
    (found,) = rows
    if found.declared is None:
        raise StateError(f"schedule {name!r} is declared by no code; there is nothing to reset it to")
    plain = replace(found, paused_at=None, removed_at=None)
    gone = found.removed_at is not None or found.paused_at is not None
    after = _following(plain, restored(decode(found.declared)), clock(tx, now), anew=gone)
    return write(tx, found, replace(after, note=kept_note(note)))


def _following(found: Schedule, definition: Definition, now: int, *, anew: bool = False) -> Schedule:
    """The row with this definition; its next tick is kept if its ticks are the same, unless it begins `anew`."""
    same = definition.when == found.definition.when and not anew
    return replace(
        found,
        definition=definition,
        next_at=found.next_at if same else first_tick(definition, now, found.last_at),
        source="code",
        changed_at=now,
    )


def _text(definition: Definition) -> str:
    return to_json(stored(definition))


# Due ticks become jobs, each exactly once, however many workers fire them.
#
# A firing is planned without a lock. Then one short transaction moves `next_at` from the tick that was due to the next
# one, if it is still there and the schedule did not change meanwhile, and stores the jobs. So of many workers one fires,
# and a crash leaves either all of it or nothing. Each tick is also remembered by name: where a clock was set back, or a
# schedule begins anew, a tick that was fired before becomes no second job.

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
        FiredPlan(it, tuple(_job_of_tick(tx, it.schedule, tick, seal) for tick in it.decision.fire))
        for it in sorted(plans, key=lambda one: one.schedule.name)
        if it.schedule.name in free and _move_schedule(tx, it)
    ]


def _move_schedule(tx: Transaction, it: FiringPlan) -> bool:
    matched = tx.run(
        MOVE_SCHEDULE,
        id=it.schedule.name,
        due=it.due,
        revision=it.schedule.revision,
        next_at=it.decision.next_at,
        last_at=it.decision.fire[-1] if it.decision.fire else None,
    )
    return matched == 1


def _job_of_tick(tx: Transaction, schedule: Schedule, tick: int, seal: Seal) -> Tick:
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
