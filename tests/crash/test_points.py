"""A process is killed before every statement, and after every COMMIT, of everything the engine writes.

Afterwards the rows are exactly those of the last COMMIT that returned, and whoever is left brings all jobs to their
end: none lost, none doubled, every counter as the rules say. SQLite is tried at every point; the servers at a
sample that changes daily, and with --chaos at every point too.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from stepfast import Job, Stepfast
from tests.crash import table_dump as picture
from tests.crash.cases import admin as operations_of_operators
from tests.crash.cases import dependencies as operations_of_dependencies
from tests.crash.cases import events as operations_of_events
from tests.crash.cases import jobs as operations_of_steps
from tests.crash.cases import limits as operations_of_limits
from tests.crash.cases import outbox as operations_of_outbox
from tests.crash.cases import recovery as operations_of_others
from tests.crash.cases import schedules as operations_of_schedules
from tests.crash.conftest import make_effect_table
from tests.crash.daily_sample import SEED, Sample
from tests.crash.kill_points import Act, deadly, die_at, recorded
from tests.crash.recovery import Survivor, check_promises, forecast
from tests.crash.setup import KEY, Scene, work

if TYPE_CHECKING:
    from tests.crash.cases.case import Operation

OPERATIONS = (
    operations_of_steps.OPERATIONS
    | operations_of_others.OPERATIONS
    | operations_of_limits.OPERATIONS
    | operations_of_events.OPERATIONS
    | operations_of_operators.OPERATIONS
    | operations_of_schedules.OPERATIONS
    | operations_of_outbox.OPERATIONS
    | operations_of_dependencies.OPERATIONS
)


@dataclass
class Stage:
    """A database on which one operation is played again and again."""

    app: Stepfast
    job: Job[..., None]
    observer: Stepfast  # looks while the operation is under way

    def set(self, operation: Operation) -> Act:
        return operation.arrange(Scene(self.app, self.job))

    def empty_handed(self) -> None:
        """SQLite keeps its locks per process: a child must not inherit open files."""
        if self.app.database.dialect.name == "sqlite":
            self.app.database.close()
            self.observer.database.close()

    def finish(self, act: Act, operation: Operation) -> None:
        """Let the caller ask again, and somebody else do the work."""
        if operation.repeated:
            act()
        expected = forecast(self.observer)
        Survivor(self.app).finish_everything()
        check_promises(self.observer, expected)
        operations_of_outbox.relay_everything(self.app)
        assert self.job.enqueue(n=0, key=KEY).created, "the key is not free"


@pytest.fixture
def stage(database_url: str) -> Iterator[Stage]:
    with closing(Stepfast(database_url)) as app, closing(Stepfast(database_url)) as observer:
        make_effect_table(app)
        yield Stage(app, app.job()(work), observer)


# Their statements and guards are tried on the servers by the contract tests every time.
SAMPLED = operations_of_dependencies.OPERATIONS | operations_of_events.OPERATIONS


@pytest.mark.parametrize(
    "name",
    [pytest.param(it, marks=[pytest.mark.sampled] if it in SAMPLED else []) for it in OPERATIONS],
)
def test_a_process_may_die_at_any_point(name: str, stage: Stage, sample: Sample) -> None:
    operation = OPERATIONS[name]
    act = stage.set(operation)
    states = [picture.taken(stage.observer)]
    points = recorded(act, lambda: states.append(picture.taken(stage.observer)))
    stage.finish(act, operation)

    for point in sample.of(name, deadly(points), most=2):
        act = stage.set(operation)
        stage.empty_handed()
        die_at(point, act, stage.observer)
        where = f"{name}, {point} of {len(points)} (STEPFAST_CRASH_SEED={SEED})"

        assert picture.taken(stage.observer) == states[point.commits], where
        stage.finish(act, operation)
