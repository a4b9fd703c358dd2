"""A schedule's row: how it is read, made and written.

A firing moves `next_at` only; every other change writes a new `revision`, and a firing that was planned for an older
one does nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Final, Literal

from stepfast.clock import new_fence, new_id
from stepfast.database.statement import sql
from stepfast.errors import ContentionError, NotFoundError
from stepfast.schedules.definition import Definition, Overlap, restored, stored
from stepfast.steps.job import NewJob

if TYPE_CHECKING:
    from stepfast.database.connection import Transaction

Source = Literal["code", "operator"]
Seal = Callable[[str, str], str]  # of a kind and a payload: the payload as it is stored

_DEFINED: Final = tuple(it.name for it in fields(Definition))
_STATE: Final = (
    "next_at", "last_at", "paused_at", "removed_at", "source", "declared", "note", "changed_at", "revision",
)  # fmt: skip
COLUMNS: Final = ", ".join(("id", *_DEFINED, *_STATE))

NOW = sql("SELECT {now}")
FIND = sql(f"SELECT {COLUMNS} FROM stepfast_schedule WHERE id = :id")
LOCK = sql(f"SELECT {COLUMNS} FROM stepfast_schedule WHERE id = :id {{for_update}}")
LIST = sql(f"SELECT {COLUMNS} FROM stepfast_schedule WHERE removed_at IS NULL OR :everyone = 1 ORDER BY id")

CREATE = sql("""
    INSERT INTO stepfast_schedule (id, kind, queue, priority, payload, cron, every, once_at, tz, missed, overlap, tick_as,
                                   next_at, source, declared, note, changed_at, revision)
    VALUES (:id, :kind, :queue, :priority, :payload, :cron, :every, :once_at, :tz, :missed, :overlap, :tick_as,
            :next_at, :source, :declared, :note, :changed_at, :revision)
    {keep_existing}
""")

WRITE = sql("""
    UPDATE stepfast_schedule
       SET kind = :kind, queue = :queue, priority = :priority, payload = :payload, cron = :cron, every = :every,
           once_at = :once_at, tz = :tz, missed = :missed, overlap = :overlap, tick_as = :tick_as, next_at = :next_at,
           paused_at = :paused_at, removed_at = :removed_at, source = :source, declared = :declared, note = :note,
           changed_at = :changed_at, revision = :new_revision
     WHERE id = :id AND revision = :revision
""")


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """One row."""

    name: str
    definition: Definition
    next_at: int | None  # when it is due; None: never again
    last_at: int | None = None  # the last tick that fired
    paused_at: int | None = None
    removed_at: int | None = None  # removed by an operator although the code declares it
    source: Source  # who says what it is now
    declared: str | None = None  # what the code says, as JSON
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
    """The database's time, unless a moment was given."""
    return int(tx.first(NOW)) if given is None else given


def schedules(tx: Transaction, *, everyone: bool = False) -> list[Schedule]:
    """All of them by name; with `everyone` also those that were removed although the code declares them."""
    return tx.all(LIST, read, everyone=int(everyone))


def get(tx: Transaction, name: str) -> Schedule:
    return _present(name, tx.all(FIND, read, id=name))


def lock(tx: Transaction, name: str) -> Schedule:
    """The same, and nobody changes or fires it before this transaction ends."""
    return _present(name, tx.all(LOCK, read, id=name))


def create(tx: Transaction, fresh: Schedule) -> Schedule:
    """Store it unless there is one of this name; returns the row that is there, locked."""
    tx.run(CREATE, **_parameters(fresh))
    if not (found := tx.all(LOCK, read, id=fresh.name)):
        raise ContentionError(f"schedule {fresh.name!r} was removed while we looked; try again")
    return found[0]


def write(tx: Transaction, before: Schedule, after: Schedule) -> Schedule:
    """Let the row, which the caller has locked, be `after`."""
    after = replace(after, revision=new_fence())
    given = {**_parameters(after), "paused_at": after.paused_at, "removed_at": after.removed_at}
    if tx.run(WRITE, **{**given, "revision": before.revision, "new_revision": after.revision}) != 1:
        raise ContentionError(f"schedule {before.name!r} changed while we held it")
    return after


def first_tick(definition: Definition, now: int, last_at: int | None = None) -> int | None:
    """When it is due, if it begins now. The time of a one-off may have passed."""
    if definition.once_at is None:
        return definition.timing.next_after(now)
    return None if last_at is not None and last_at >= definition.once_at else definition.once_at


def as_is(_kind: str, payload: str) -> str:
    return payload


def job_of(schedule: Schedule, tick: int, seal: Seal = as_is) -> NewJob:
    """The job that a tick becomes; `seal` encrypts its payload where its kind wants that."""
    it = schedule.definition
    return NewJob(
        id=new_id(),
        queue=it.queue,
        kind=it.kind,
        payload=seal(it.kind, it.arguments_at(tick)),
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
