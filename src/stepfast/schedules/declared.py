"""Schedules that the code declares: how they get into the table, and who wins.

A worker that starts writes down what its code says. A row that no operator has changed follows the code; one that an
operator changed, paused or removed stays as the operator left it, until it is reset.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from stepfast.clock import new_fence
from stepfast.database.statement import sql
from stepfast.errors import ConfigurationError, NotFoundError, StateError
from stepfast.schedules.changes import kept_note
from stepfast.schedules.definition import checked_schedule_name, define, restored, stored
from stepfast.schedules.schedule import LOCK, Schedule, clock, create, first_tick, read, write
from stepfast.steps.payload import decode, to_json

if TYPE_CHECKING:
    from collections.abc import Mapping

    from stepfast.database.connection import Transaction
    from stepfast.schedules.definition import Definition, ScheduleOptions
    from stepfast.steps.kinds import Kind

KNOWN = sql("SELECT id, declared FROM stepfast_schedule WHERE id {any_of:ids}")


def declare(known: dict[str, Definition], name: str, kind: Kind, given: ScheduleOptions) -> None:
    """Add a schedule to those that an application declares."""
    definition = define(kind.name, kind, given)
    if known.setdefault(checked_schedule_name(name), definition) != definition:
        raise ConfigurationError(f"schedule {name!r} is declared twice; give one of them another name")


def outdated(tx: Transaction, declared: Mapping[str, Definition]) -> dict[str, Definition]:
    """Those that the table does not know as they are declared."""
    if not declared:
        return {}
    known = {row[0]: row[1] for row in tx.rows(KNOWN, ids=list(declared))}
    return {name: it for name, it in declared.items() if known.get(name) != _text(it)}


def synchronise(tx: Transaction, declared: Mapping[str, Definition], *, now: int | None = None) -> list[str]:
    """Write down what the code says; returns the names of those that follow it from now on."""
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
    if found.declared == text:  # a colleague was faster
        return False
    if found.source == "operator":
        write(tx, found, replace(found, declared=text))
        return False
    write(tx, found, replace(_following(found, definition, now), declared=text))
    return True


def reset(tx: Transaction, name: str, *, note: str | None = None, now: int | None = None) -> Schedule:
    """Let it be what the code says: not changed, not paused, not removed."""
    rows = tx.all(LOCK, read, id=name)
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
    """The row as `definition` has it; its plan is kept if its ticks are the same, unless it begins `anew`."""
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
