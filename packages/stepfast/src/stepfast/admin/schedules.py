"""`app.schedules`: schedules with their next and last ticks, and changing them at run time. Each change is recorded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, TypeVar, Unpack

from stepfast.admin.audit import Actor, actor_named, actor_or_default, record
from stepfast.clock import moment
from stepfast.database.database import persist
from stepfast.database.statement import sql
from stepfast.database.stored import stored_document
from stepfast.errors import ConfigurationError
from stepfast.results.enqueued_job import EnqueuedJob
from stepfast.schedules import schedule as stored
from stepfast.schedules.cron import zone
from stepfast.schedules.definition import ScheduleOptions, checked_schedule_name, define
from stepfast.schedules.schedule import REMEMBERED, SCOPE, clock, get, schedules
from stepfast.telemetry.masking import masked_document

if TYPE_CHECKING:
    from stepfast.database.connection import Transaction
    from stepfast.database.database import Database
    from stepfast.jobs.kinds import Kind, Kinds
    from stepfast.schedules.definition import Definition
    from stepfast.schedules.schedule import Schedule


T = TypeVar("T")

SHOWN: Final = 5  # ticks ahead, and ticks behind
UNITS: Final = (("d", 86_400_000_000), ("h", 3_600_000_000), ("m", 60_000_000), ("s", 1_000_000))

State = Literal["active", "paused", "finished", "removed"]

# Ticks are remembered under the schedule's name, in the order of time; ";" follows ":".
# A tick is remembered before its job is made: a job that is older than the tick belongs to another one.
RECENT_TICKS = sql("""
    SELECT k.id, k.job_id, COALESCE(j.state, a.state),
           CASE WHEN COALESCE(j.created_at, a.created_at) < k.until_at - :remembered THEN 1 ELSE 0 END
      FROM stepfast_key k LEFT JOIN stepfast_job j ON j.id = k.job_id LEFT JOIN stepfast_archive a ON a.id = k.job_id
     WHERE k.id > :first AND k.id < :last
     ORDER BY k.id DESC LIMIT :limit
""")


@dataclass(frozen=True)
class ScheduleReport:
    """A schedule in one line."""

    name: str
    state: State
    when: str  # its timing, as people read it
    kind: str
    queue: str
    priority: int
    cron: str | None
    every_seconds: float | None
    at: datetime | None
    tz: str
    missed: str
    overlap: str
    tick_as: str | None
    next_at: datetime | None
    last_at: datetime | None  # the last tick that fired
    paused_at: datetime | None
    removed_at: datetime | None
    source: str  # code or operator: where its current definition comes from
    declared: bool  # whether code declares it
    note: str | None
    changed_at: datetime


@dataclass(frozen=True)
class TickAhead:
    """A tick to come, in UTC and in the schedule's time zone."""

    utc: datetime
    local: datetime


@dataclass(frozen=True)
class TickBehind:
    """A past tick, and its job; or, if it was skipped, the unfinished job that it was skipped for."""

    utc: datetime
    job_id: str
    job_state: str | None  # None: forgotten
    skipped: bool  # it became no job: `job_id`, of an earlier tick or of a trigger, was unfinished


@dataclass(frozen=True)
class ScheduleDetail:
    """A schedule with its arguments and ticks."""

    schedule: ScheduleReport
    arguments: Any
    ahead: tuple[TickAhead, ...]  # of a paused schedule: if it were resumed now
    behind: tuple[TickBehind, ...]  # newest first; remembered for 30 days


def list_schedules(tx: Transaction, *, everyone: bool = False) -> list[ScheduleReport]:
    """All schedules by name; with `everyone` also those that an operator removed although code declares them."""
    return [report(schedule) for schedule in schedules(tx, everyone=everyone)]


def show_schedule(tx: Transaction, name: str, *, now: int | None = None) -> ScheduleDetail:
    """One schedule, with its next and its last ticks."""
    schedule = get(tx, name)
    arguments = masked_document(stored_document(schedule.definition.payload))
    try:
        ahead = _ahead(schedule, clock(tx, now))
    except (ConfigurationError, ArithmeticError):  # written by hand: no worker can tell its ticks either
        ahead = ()
    return ScheduleDetail(report(schedule), arguments, ahead, _behind(tx, name))


def report(schedule: Schedule) -> ScheduleReport:
    definition = schedule.definition
    return ScheduleReport(
        name=schedule.name,
        state=_state(schedule),
        when=_when(definition),
        kind=definition.kind,
        queue=definition.queue,
        priority=definition.priority,
        cron=definition.cron,
        every_seconds=None if definition.every is None else definition.every / 1e6,
        at=_moment(definition.once_at),
        tz=definition.tz,
        missed=definition.missed,
        overlap=definition.overlap,
        tick_as=definition.tick_as,
        next_at=_moment(schedule.next_at),
        last_at=_moment(schedule.last_at),
        paused_at=_moment(schedule.paused_at),
        removed_at=_moment(schedule.removed_at),
        source=schedule.source,
        declared=schedule.declared is not None,
        note=schedule.note,
        changed_at=moment(schedule.changed_at),
    )


def _ahead(schedule: Schedule, now: int) -> tuple[TickAhead, ...]:
    timing, where = schedule.definition.timing, zone(schedule.definition.tz)
    tick = schedule.next_at if schedule.paused_at is None else timing.next_after(now)
    found: list[TickAhead] = []
    while tick is not None and len(found) < SHOWN:
        found.append(TickAhead(moment(tick), moment(tick).astimezone(where)))
        tick = timing.next_after(tick)
    return tuple(found)


def _behind(tx: Transaction, name: str) -> tuple[TickBehind, ...]:
    prefix = f"{SCOPE}:{name}:"
    rows = tx.rows(
        RECENT_TICKS, first=prefix, last=f"{SCOPE}:{name};", limit=SHOWN + 1, remembered=REMEMBERED
    )
    before = [*(row[1] for row in rows[1:]), None]  # of a forgotten job the age is not known either
    found = (
        TickBehind(
            datetime.fromisoformat(key.removeprefix(prefix)), job_id, state, bool(older) or job_id == earlier
        )
        for (key, job_id, state, older), earlier in zip(rows, before, strict=False)
    )
    return tuple(found)[:SHOWN]


def _state(schedule: Schedule) -> State:
    if schedule.removed_at is not None:
        return "removed"
    if schedule.paused_at is not None:
        return "paused"
    return "finished" if schedule.next_at is None else "active"


def _when(definition: Definition) -> str:
    if definition.cron is not None:
        return definition.cron
    if definition.every is not None:
        unit, size = next(
            ((unit, size) for unit, size in UNITS if definition.every % size == 0), ("s", 1_000_000)
        )
        return f"every {definition.every / size:g}{unit}"
    return f"once, {moment(definition.once_at or 0):%Y-%m-%d %H:%M:%S} UTC"


def _moment(at: int | None) -> datetime | None:
    return None if at is None else moment(at)


class HasKind(Protocol):
    """A registered job."""

    @property
    def kind(self) -> Kind: ...


class Schedules:
    """Looks at schedules and changes them at run time. Every change is in the audit, with its actor and reason."""

    def __init__(self, database: Database, kinds: Kinds, actor: Actor | None = None) -> None:
        self.database = database
        self.kinds = kinds
        self._actor = actor or actor_or_default()

    def by(self, name: str | None = None, *, reason: str | None = None) -> Schedules:
        """The schedules for the actor of this name; without one for the user of this process."""
        return Schedules(self.database, self.kinds, actor_named(name, reason))

    def all(self, *, everyone: bool = False) -> list[ScheduleReport]:
        """All schedules by name; with `everyone` also those that an operator removed although code declares them."""
        with self.database.reading() as tx:
            return list_schedules(tx, everyone=everyone)

    def show(self, name: str) -> ScheduleDetail:
        """One schedule, with its next and its last ticks."""
        with self.database.reading() as tx:
            return show_schedule(tx, name)

    def add(
        self, name: str, job: HasKind | str, *, note: str | None = None, **options: Unpack[ScheduleOptions]
    ) -> ScheduleReport:
        """Add a schedule, in the table only. `job` is a registered job, or the name of a kind that workers know."""
        kind = job if isinstance(job, str) else job.kind.name
        known = self.kinds.find(kind) if isinstance(job, str) else job.kind
        definition = define(kind, known, options)
        checked = checked_schedule_name(name)

        def act(tx: Transaction, by: Actor) -> ScheduleReport:
            made = report(stored.add(tx, checked, definition, note=by.reason))
            record(tx, by, "schedule.add", checked, detail=_detail(made))
            return made

        return self._act(act, note)

    def change(
        self, name: str, *, note: str | None = None, **options: Unpack[ScheduleOptions]
    ) -> ScheduleReport:
        """Change the options that are given; the others stay. If its ticks change, they are counted from now."""

        def revise(before: Definition) -> Definition:
            return define(before.kind, self.kinds.find(before.kind), options, before)

        def act(tx: Transaction, by: Actor) -> ScheduleReport:
            made = report(stored.change(tx, name, revise, note=by.reason))
            record(tx, by, "schedule.change", name, detail=_detail(made))
            return made

        return self._act(act, note)

    def pause(self, name: str, note: str | None = None) -> bool:
        """Let no tick fire; jobs that exist go on. False if it was paused before."""

        def act(tx: Transaction, by: Actor) -> bool:
            changed = stored.pause(tx, name, note=by.reason)
            if changed:
                record(tx, by, "schedule.pause", name)
            return changed

        return self._act(act, note)

    def resume(self, name: str, note: str | None = None) -> bool:
        """Go on with the next tick; ticks in the pause are not made up. False if it was not paused."""

        def act(tx: Transaction, by: Actor) -> bool:
            changed = stored.resume(tx, name, note=by.reason)
            if changed:
                record(tx, by, "schedule.resume", name)
            return changed

        return self._act(act, note)

    def trigger(self, name: str, note: str | None = None) -> EnqueuedJob[Any]:
        """Enqueue its job now, once, also of a paused schedule; its next ticks stay as they are."""

        def act(tx: Transaction, by: Actor) -> str:
            job = stored.trigger(tx, name, seal=self.kinds.stored)
            record(tx, by, "schedule.trigger", name, detail={"job_id": job.id})
            return job.id

        return EnqueuedJob(self._act(act, note), created=True, app=self)

    def remove(self, name: str, note: str | None = None) -> None:
        """Remove a schedule; jobs that exist go on. One that code declares stays removed until it is reset."""

        def act(tx: Transaction, by: Actor) -> None:
            stored.remove(tx, name, note=by.reason)
            record(tx, by, "schedule.remove", name)

        self._act(act, note)

    def reset(self, name: str, note: str | None = None) -> ScheduleReport:
        """Make a schedule as the code declares it: unchanged, not paused, not removed."""

        def act(tx: Transaction, by: Actor) -> ScheduleReport:
            made = report(stored.reset(tx, name, note=by.reason))
            record(tx, by, "schedule.reset", name, detail=_detail(made))
            return made

        return self._act(act, note)

    def _act(self, action: Callable[[Transaction, Actor], T], note: str | None) -> T:
        by = self._actor.with_reason(note)
        return persist(self.database, lambda tx: action(tx, by))


def _detail(made: ScheduleReport) -> dict[str, str | int | None]:
    return {
        "when": made.when,
        "tz": made.tz,
        "kind": made.kind,
        "queue": made.queue,
        "priority": made.priority,
        "missed": made.missed,
        "overlap": made.overlap,
    }
