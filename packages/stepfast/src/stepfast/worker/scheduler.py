"""Every worker turns due ticks into jobs, for all workers: no process is special, and none is needed.

A worker that has nothing to fire looks once a second, with one statement and no lock.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from stepfast.database.database import persist
from stepfast.errors import ConfigurationError
from stepfast.schedules.definition import BATCH
from stepfast.schedules.schedule import (
    REMEMBERED,
    FiredPlan,
    FiringPlan,
    Tick,
    TickResult,
    due,
    fire,
    forget_finished,
    next_due,
    outdated,
    plan,
    spelled,
    synchronise,
)
from stepfast.telemetry import happened
from stepfast.worker.periodic import Periodic

if TYPE_CHECKING:
    from collections.abc import Mapping

    from stepfast.database.database import Database
    from stepfast.jobs.kinds import Kinds
    from stepfast.schedules.definition import Definition
    from stepfast.schedules.schedule import Schedule
    from stepfast.worker.vital import VitalParts


LOOK: Final = 1.0  # seconds between looks, at most
SOON: Final = 0.005  # and at least
MOST: Final = 500  # schedules of one look
FORGETTING_EVERY: Final = 3600.0
UNREADABLE_FOR: Final = 60.0  # seconds before a schedule that cannot be read here is tried again


def fire_due(database: Database, now: int | None = None) -> list[Tick]:
    """Fire everything that is due, at the database's time or at the moment given."""
    return [tick for fired in Scheduler(database, {}).fire(now) for tick in fired.ticks]


class Scheduler:
    """A thread that fires the due ticks of all schedules. It also writes down the schedules that the code declares."""

    def __init__(
        self,
        database: Database,
        declared: Mapping[str, Definition],
        kinds: Kinds | None = None,
        vital: VitalParts | None = None,
    ) -> None:
        self._database = database
        self._declared = declared
        self._kinds = kinds
        self._unreadable: dict[str, float] = {}  # schedules left to other workers, and until when
        self._thread = Periodic("scheduler", vital=vital)
        self._thread.add(self.work, first=random.uniform(0, 0.1))
        self._thread.add(self.forget_finished, first=random.uniform(1, FORGETTING_EVERY))

    def start(self) -> None:
        """Write down what the code declares, then keep looking."""
        self.synchronise()
        self._thread.start()

    def stop(self) -> None:
        self._thread.stop()

    def synchronise(self) -> None:
        """Write the declared schedules that are new or have changed."""
        with self._database.looking() as tx:
            new = outdated(tx, self._declared)
        for name in persist(self._database, lambda tx: synchronise(tx, new)) if new else ():
            happened("schedule.declared", schedule=name)

    def work(self) -> float:
        """Fire what is due; returns the seconds until the next look."""
        with self._database.looking() as tx:
            wait = next_due(tx)
        if wait is not None and wait <= 0:
            # Nothing fired means that another worker has it; should that worker die of it, the next look sees it.
            return SOON if self.fire() else LOOK * random.uniform(0.5, 1.0)
        return LOOK if wait is None else min(LOOK, max(SOON, wait / 1e6))

    def forget_finished(self) -> float:
        """Forget one-off schedules that were fired long ago."""
        persist(self._database, lambda tx: forget_finished(tx, REMEMBERED))
        return FORGETTING_EVERY

    def fire(self, now: int | None = None) -> list[FiredPlan]:
        """Fire up to `MOST` due schedules, at the database's time or at the moment given."""
        with self._database.looking() as tx:
            found, at = due(tx, MOST, now)
        plans = [planned for schedule in found if (planned := self._plan(schedule, at)) is not None]
        return [fired for batch in _batches(plans) for fired in self._fire_batch(batch, at)]

    def _plan(self, schedule: Schedule, now: int) -> FiringPlan | None:
        if self._unreadable.get(schedule.name, 0.0) > time.monotonic():
            return None
        try:
            self._seal(schedule.definition.kind, "{}", "")
            return plan(schedule, now)
        except ConfigurationError as error:
            # It is of another version, has other time zone data, or its key is not here.
            self._unreadable[schedule.name] = time.monotonic() + UNREADABLE_FOR
            happened("schedule.unreadable", schedule=schedule.name, error=error)
            return None

    def _fire_batch(self, plans: Sequence[FiringPlan], now: int) -> list[FiredPlan]:
        done = persist(self._database, lambda tx: fire(tx, plans, self._seal))
        for fired in done:
            for tick in fired.ticks:
                _report(tick, now)
            if (since := fired.plan.decision.dropped_since) is not None:
                schedule = fired.plan.schedule
                policy = schedule.definition.missed
                happened("ticks.missed", schedule=schedule.name, since=spelled(since), note=policy)
        return done

    def _seal(self, kind: str, payload: str, job_id: str) -> str:
        """The payload as it is stored: encrypted, where its kind wants that."""
        return payload if self._kinds is None else self._kinds.stored(kind, payload, job_id)


def _report(tick: Tick, now: int) -> None:
    at = spelled(tick.at)
    if tick.result is TickResult.FIRED:
        late = max(0.0, (now - tick.at) / 1e6)
        happened("tick.fired", schedule=tick.schedule, tick=at, job_id=tick.job_id, late_s=late)
    else:
        happened("tick.skipped", schedule=tick.schedule, tick=at, job_id=tick.job_id, note=tick.result)


def _batches(plans: Sequence[FiringPlan]) -> Iterator[list[FiringPlan]]:
    """The plans of each transaction: not too many ticks, and not too many schedules."""
    batch: list[FiringPlan] = []
    size = 0
    for planned in plans:
        ticks = max(1, len(planned.decision.fire))
        if batch and size + ticks > BATCH:
            yield batch
            batch, size = [], 0
        batch.append(planned)
        size += ticks
    if batch:
        yield batch
