"""Every worker fires what is due, for all: no process is special, and none is needed.

A worker that has nothing to fire looks once a second, with one statement and no lock.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from stepfast.database.database import persist
from stepfast.errors import ConfigurationError, DatabaseError
from stepfast.schedules.definition import BATCH
from stepfast.schedules.firing import REMEMBERED, Fate, Fired, Plan, Tick, due, fire, next_due, plan, spelled
from stepfast.schedules.schedule import Seal, as_is, forget_finished, outdated, synchronise
from stepfast.telemetry import happened

if TYPE_CHECKING:
    from collections.abc import Mapping

    from stepfast.database.database import Database
    from stepfast.schedules.definition import Definition
    from stepfast.schedules.schedule import Schedule


LOOK: Final = 1.0  # seconds between looks, at most
SOON: Final = 0.005  # and at least
MOST: Final = 500  # schedules of one pass
FORGETTING: Final = 3600.0
UNREADABLE_FOR: Final = 60.0  # seconds before a schedule that cannot be read here is tried again


def fire_due(database: Database, now: int | None = None) -> list[Tick]:
    """Fire everything that is due, at the database's time or at the moment given."""
    return [tick for it in Ticks(database, {}).fire(now) for tick in it.ticks]


class Ticks:
    """A thread that turns ticks into jobs while the worker lives."""

    def __init__(self, database: Database, declared: Mapping[str, Definition], seal: Seal = as_is) -> None:
        self._database = database
        self._seal = seal
        self._declared = declared
        self._unreadable: dict[str, float] = {}  # schedules that somebody else has to fire, and until when
        self._failing = False
        self._next_forgetting = time.monotonic() + random.uniform(1, FORGETTING)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work_until_stopped, name="stepfast-ticks", daemon=True)

    def start(self) -> None:
        """Write down what the code declares, then keep looking."""
        self.synchronise()
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(timeout=10)

    def synchronise(self) -> None:
        with self._database.looking() as tx:
            new = outdated(tx, self._declared)
        for name in persist(self._database, lambda tx: synchronise(tx, new)) if new else ():
            happened("schedule.declared", schedule=name)

    def fire(self, now: int | None = None) -> list[Fired]:
        """One pass; returns what was done."""
        with self._database.looking() as tx:
            found, at = due(tx, MOST, now)
        plans = [it for it in (self._plan(schedule, at) for schedule in found) if it is not None]
        return [it for batch in _batches(plans) for it in self._carry_out(batch, at)]

    def _carry_out(self, plans: Sequence[Plan], now: int) -> list[Fired]:
        done = persist(self._database, lambda tx: fire(tx, plans, self._seal))
        for it in done:
            for tick in it.ticks:
                _tell(tick, now)
            if (since := it.plan.decision.dropped_since) is not None:
                schedule = it.plan.schedule
                policy = schedule.definition.missed
                happened("ticks.missed", schedule=schedule.name, since=spelled(since), note=policy)
        return done

    def _plan(self, schedule: Schedule, now: int) -> Plan | None:
        if self._unreadable.get(schedule.name, 0.0) > time.monotonic():
            return None
        try:
            self._seal(schedule.definition.kind, "{}")
            return plan(schedule, now)
        except (
            ConfigurationError
        ) as error:  # of another version, with other time zone data, or the key is not here
            self._unreadable[schedule.name] = time.monotonic() + UNREADABLE_FOR
            happened("schedule.unreadable", schedule=schedule.name, error=error)
            return None

    def _work_until_stopped(self) -> None:
        pause = random.uniform(0, 0.1)
        while not self._stop.wait(pause):
            try:
                pause = self._pass()
                if self._failing:
                    self._failing = False
                    happened("database.recovered", note="schedules go on")
            except DatabaseError as error:
                if not self._failing:
                    self._failing = True
                    happened("database.lost", error=error, note="schedules wait")
                pause = LOOK
            except Exception as error:  # noqa: BLE001 - others depend on this thread: it goes on
                happened("worker.failed", error=error, note="schedules")
                pause = 5 * LOOK

    def _pass(self) -> float:
        if time.monotonic() >= self._next_forgetting:
            self._next_forgetting = time.monotonic() + FORGETTING
            persist(self._database, lambda tx: forget_finished(tx, REMEMBERED))
        with self._database.looking() as tx:
            wait = next_due(tx)
        if wait is not None and wait <= 0:
            # Nothing for us means that a colleague has it; should it die of that, we see it at the next look.
            return SOON if self.fire() else LOOK * random.uniform(0.5, 1.0)
        return LOOK if wait is None else min(LOOK, max(SOON, wait / 1e6))


def _tell(it: Tick, now: int) -> None:
    at = spelled(it.at)
    if it.fate is Fate.FIRED:
        late = max(0.0, (now - it.at) / 1e6)
        happened("tick.fired", schedule=it.schedule, tick=at, job_id=it.job_id, late_s=late)
    else:
        happened("tick.skipped", schedule=it.schedule, tick=at, job_id=it.job_id, note=it.fate)


def _batches(plans: Sequence[Plan]) -> Iterator[list[Plan]]:
    """Not too many ticks, and not too many schedules, in one transaction."""
    batch: list[Plan] = []
    size = 0
    for it in plans:
        if batch and size + max(1, len(it.decision.fire)) > BATCH:
            yield batch
            batch, size = [], 0
        batch.append(it)
        size += max(1, len(it.decision.fire))
    if batch:
        yield batch
