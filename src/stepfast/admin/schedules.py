"""What an operator may do to schedules, from Python; the command line is thin over it. Each change is written down."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, Unpack

from stepfast.admin.audit import Actor, record, whoever
from stepfast.admin.reports.schedules import list_schedules, report, show_schedule
from stepfast.database.database import persist
from stepfast.results.handle import EnqueuedJob
from stepfast.schedules import changes, declared
from stepfast.schedules.definition import ScheduleOptions, checked_schedule_name, define

if TYPE_CHECKING:
    from stepfast.admin.reports.schedules import ScheduleDetail, ScheduleReport
    from stepfast.database.connection import Transaction
    from stepfast.database.database import Database
    from stepfast.schedules.definition import Definition
    from stepfast.steps.kinds import Kind, Kinds

T = TypeVar("T")


class HasKind(Protocol):
    """A registered job."""

    @property
    def kind(self) -> Kind: ...


class Schedules:
    """Looks at schedules and changes them at run time. What it changes is written down with who did it, and why."""

    def __init__(self, database: Database, kinds: Kinds, actor: Actor | None = None) -> None:
        self.database = database
        self.kinds = kinds
        self._actor = actor or whoever()

    def by(self, name: str, *, reason: str | None = None) -> Schedules:
        """The same, in this one's name."""
        return Schedules(self.database, self.kinds, Actor(name, reason))

    def all(self, *, everyone: bool = False) -> list[ScheduleReport]:
        """By name; with `everyone` also those that were removed although the code declares them."""
        with self.database.reading() as tx:
            return list_schedules(tx, everyone=everyone)

    def show(self, name: str) -> ScheduleDetail:
        """One, with its next and its last ticks."""
        with self.database.reading() as tx:
            return show_schedule(tx, name)

    def add(
        self, name: str, job: HasKind | str, *, note: str | None = None, **options: Unpack[ScheduleOptions]
    ) -> ScheduleReport:
        """A new one, in the table only. `job` is a registered job, or the name of a kind that workers know."""
        kind = job if isinstance(job, str) else job.kind.name
        known = self.kinds.find(kind) if isinstance(job, str) else job.kind
        definition = define(kind, known, options)
        checked = checked_schedule_name(name)

        def act(tx: Transaction, by: Actor) -> ScheduleReport:
            made = report(changes.add(tx, checked, definition, note=by.reason))
            record(tx, by, "schedule.add", checked, detail=_detail(made))
            return made

        return self._act(act, note)

    def change(
        self, name: str, *, note: str | None = None, **options: Unpack[ScheduleOptions]
    ) -> ScheduleReport:
        """Let it be as given from now on; what is not given stays. If its ticks change, they are counted from now."""

        def revise(before: Definition) -> Definition:
            return define(before.kind, self.kinds.find(before.kind), options, before)

        def act(tx: Transaction, by: Actor) -> ScheduleReport:
            made = report(changes.change(tx, name, revise, note=by.reason))
            record(tx, by, "schedule.change", name, detail=_detail(made))
            return made

        return self._act(act, note)

    def pause(self, name: str, note: str | None = None) -> bool:
        """Let no tick fire; jobs that exist go on. False if it was paused before."""

        def act(tx: Transaction, by: Actor) -> bool:
            changed = changes.pause(tx, name, note=by.reason)
            if changed:
                record(tx, by, "schedule.pause", name)
            return changed

        return self._act(act, note)

    def resume(self, name: str, note: str | None = None) -> bool:
        """Go on with the next tick; those of the pause are not made up. False if it was not paused."""

        def act(tx: Transaction, by: Actor) -> bool:
            changed = changes.resume(tx, name, note=by.reason)
            if changed:
                record(tx, by, "schedule.resume", name)
            return changed

        return self._act(act, note)

    def trigger(self, name: str, note: str | None = None) -> EnqueuedJob[Any]:
        """One job now; the plan stays as it is, also of a paused one."""

        def act(tx: Transaction, by: Actor) -> str:
            job = changes.trigger(tx, name, seal=self.kinds.stored)
            record(tx, by, "schedule.trigger", name, detail={"job_id": job.id})
            return job.id

        return EnqueuedJob(self._act(act, note), created=True, app=self)

    def remove(self, name: str, note: str | None = None) -> None:
        """Let it be gone; jobs that exist go on. One that the code declares stays away until it is reset."""

        def act(tx: Transaction, by: Actor) -> None:
            changes.remove(tx, name, note=by.reason)
            record(tx, by, "schedule.remove", name)

        self._act(act, note)

    def reset(self, name: str, note: str | None = None) -> ScheduleReport:
        """Let it be as the code declares it: unchanged, not paused, not removed."""

        def act(tx: Transaction, by: Actor) -> ScheduleReport:
            made = report(declared.reset(tx, name, note=by.reason))
            record(tx, by, "schedule.reset", name, detail=_detail(made))
            return made

        return self._act(act, note)

    def _act(self, action: Callable[[Transaction, Actor], T], note: str | None) -> T:
        by = self._actor.because(note)
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
