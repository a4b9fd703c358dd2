"""A process is killed before every statement, and after every COMMIT, of everything the engine writes.

Afterwards the rows are exactly those of the last COMMIT that returned, and another worker brings all jobs to their end:
none lost, none doubled, every counter as the rules say. SQLite is tried at every point; the servers at a sample that
changes daily, and with --chaos at every point too.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from stepfast import Job, Stepfast
from tests.crash.cases.outbox import relay_everything
from tests.crash.cases.registry import CASES, SAMPLED
from tests.crash.conftest import make_effect_table
from tests.crash.daily_sample import SEED, Sample
from tests.crash.kill_points import Action, die_at, kill_points, recorded
from tests.crash.recovery import RecoveringWorker, check_promises, expected_ends
from tests.crash.setup import KEY, Setup, work
from tests.crash.table_dump import dump

if TYPE_CHECKING:
    from tests.crash.cases.case import Case


@dataclass
class CaseRunner:
    """A database on which one operation is played again and again."""

    app: Stepfast
    job: Job[..., None]
    observer: Stepfast  # looks while the operation is under way

    def set(self, case: Case) -> Action:
        return case.prepare(Setup(self.app, self.job))

    def close_sqlite_files(self) -> None:
        """SQLite keeps its locks per process: a child must not inherit open files."""
        if self.app.database.dialect.name == "sqlite":
            self.app.database.close()
            self.observer.database.close()

    def finish(self, act: Action, case: Case) -> None:
        """Let the caller repeat its call, and another worker finish the jobs."""
        if case.repeated:
            act()
        expected = expected_ends(self.observer)
        RecoveringWorker(self.app).finish_everything()
        check_promises(self.observer, expected)
        relay_everything(self.app)
        assert self.job.enqueue(n=0, key=KEY).created, "the key is not free"


@pytest.fixture
def runner(database_url: str) -> Iterator[CaseRunner]:
    with closing(Stepfast(database_url)) as app, closing(Stepfast(database_url)) as observer:
        make_effect_table(app)
        yield CaseRunner(app, app.job()(work), observer)


@pytest.mark.parametrize(
    "name",
    [pytest.param(it, marks=[pytest.mark.sampled] if it in SAMPLED else []) for it in CASES],
)
def test_a_process_may_die_at_any_point(name: str, runner: CaseRunner, sample: Sample) -> None:
    case = CASES[name]
    act = runner.set(case)
    states = [dump(runner.observer)]
    points = recorded(act, lambda: states.append(dump(runner.observer)))
    runner.finish(act, case)

    for point in sample.of(name, kill_points(points), most=2):
        act = runner.set(case)
        runner.close_sqlite_files()
        die_at(point, act, runner.observer)
        where = f"{name}, {point} of {len(points)} (STEPFAST_CRASH_SEED={SEED})"

        assert dump(runner.observer) == states[point.commits], where
        runner.finish(act, case)
