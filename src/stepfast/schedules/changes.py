"""What may be done to a schedule at run time. Each change locks the row, so that no tick fires meanwhile."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from stepfast.clock import moment, new_fence
from stepfast.database.statement import sql
from stepfast.errors import ConfigurationError, ContentionError, StateError
from stepfast.schedules.schedule import Schedule, Seal, as_is, clock, create, first_tick, job_of, lock, write
from stepfast.schedules.timing import Once
from stepfast.steps.enqueue import enqueue
from stepfast.telemetry.masking import without_secrets

if TYPE_CHECKING:
    from collections.abc import Callable

    from stepfast.database.connection import Transaction
    from stepfast.schedules.definition import Definition
    from stepfast.steps.job import Enqueued

LONGEST_NOTE: Final = 500

DELETE = sql("DELETE FROM stepfast_schedule WHERE id = :id AND revision = :revision")

# A one-off that fired is nothing but history. One that the code declares stays: it must not fire again.
FORGET = sql("""
    DELETE FROM stepfast_schedule
     WHERE next_at IS NULL AND declared IS NULL AND COALESCE(last_at, once_at) < {now} - :age
""")


def add(
    tx: Transaction, name: str, definition: Definition, *, note: str | None = None, now: int | None = None
) -> Schedule:
    """A new one, made at run time."""
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
    """Let it be what `revise` makes of it. If that concerns its ticks, they are counted from now on."""
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
    """Let no tick fire. False if it was paused before."""
    before = lock(tx, name)
    if before.paused_at is not None:
        return False
    at = clock(tx, now)
    write(tx, before, replace(before, paused_at=at, note=kept_note(note), changed_at=at))
    return True


def resume(tx: Transaction, name: str, *, note: str | None = None, now: int | None = None) -> bool:
    """Go on with the next tick; those that passed in the pause are not made up. False if it was not paused.

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
    """One job now, whatever the plan, which stays as it is."""
    schedule = lock(tx, name)
    job = enqueue(tx, job_of(schedule, clock(tx, now), seal), "skip")
    if not job.created:
        raise StateError(
            f"schedule {name!r}: its job {job.id} is unfinished, and overlap is 'skip'; wait for it or cancel it"
        )
    return job


def remove(tx: Transaction, name: str, *, note: str | None = None, now: int | None = None) -> None:
    """Let it be gone. One that the code declares leaves a mark, so that no worker brings it back."""
    before = lock(tx, name)
    if before.declared is None:
        if tx.run(DELETE, id=name, revision=before.revision) != 1:
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
    """Drop one-offs made at run time that are over since so many microseconds; returns how many."""
    return tx.run(FORGET, age=age)


def kept_note(text: str | None) -> str | None:
    return None if text is None else without_secrets(text)[:LONGEST_NOTE]


def _refuse_past(definition: Definition, now: int) -> None:
    if definition.once_at is not None and definition.once_at <= now:
        raise ConfigurationError(
            f"at: {moment(definition.once_at).isoformat()} has passed; enqueue the job instead, or trigger the schedule"
        )
