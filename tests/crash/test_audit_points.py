"""Wherever an operator's command is killed, the audit log says exactly what it has done so far.

`test_points` proves that each transaction is whole; this one, that an action and its audit entry share one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from stepfast import Job, Stepfast
from tests.crash.cases.registry import CASES
from tests.crash.conftest import make_effect_table
from tests.crash.daily_sample import SEED, Sample
from tests.crash.kill_points import die_at, kill_points, recorded
from tests.crash.setup import Setup, work
from tests.support import rows

if TYPE_CHECKING:
    from tests.crash.cases.case import Case

Count = Callable[[Stepfast], int]


def found(table: str, where: str) -> Count:
    return lambda app: rows.count(app, table, where)


def less_than(before: int, table: str, where: str = "1 = 1") -> Count:
    return lambda app: before - rows.count(app, table, where)


# How many rows each of them has changed, as the tables tell.
CHANGED: dict[str, Count] = {
    "revive_all": less_than(3, "stepfast_archive"),
    "revive_in_batches": less_than(3, "stepfast_archive"),
    "purge_all": less_than(2, "stepfast_archive", "state = 'dead'"),
    "purge_in_batches": less_than(3, "stepfast_archive"),
    "purge_a_dead_letter": less_than(2, "stepfast_archive"),
    "retry_a_dead_letter": found("stepfast_job", "state = 'ready'"),
    "retry_a_job": found("stepfast_job", "state = 'ready'"),
    "hasten": found("stepfast_job", "state = 'ready'"),
    "cancel_a_waiting_job": found("stepfast_archive", "state = 'cancelled'"),
    "cancel_a_running_job": found("stepfast_job", "cancel_at IS NOT NULL"),
    "rescue_three": less_than(3, "stepfast_job", "state = 'leased'"),
    "reset_leases_in_batches": less_than(3, "stepfast_job", "state = 'leased'"),
    "pause_a_queue": found("stepfast_queue", "paused_at IS NOT NULL"),
}


@dataclass
class CaseRunner:
    """A database on which one command is given again and again."""

    app: Stepfast
    job: Job[..., None]

    def set(self, case: Case) -> Callable[[], object]:
        act = case.prepare(Setup(self.app, self.job))
        if self.app.database.dialect.name == "sqlite":
            self.app.database.close()  # SQLite keeps its locks per process
        return act


@pytest.fixture
def runner(database_url: str) -> Iterator[CaseRunner]:
    with closing(Stepfast(database_url)) as app:
        make_effect_table(app)
        yield CaseRunner(app, app.job()(work))


@pytest.mark.parametrize("name", CHANGED)
def test_a_killed_command_has_written_down_what_it_did_and_no_more(
    name: str, runner: CaseRunner, sample: Sample
) -> None:
    points = recorded(runner.set(CASES[name]), lambda: None)
    assert CHANGED[name](runner.app) == _written_down(runner.app) > 0

    for point in sample.of(name, kill_points(points), most=3):
        act = runner.set(CASES[name])
        die_at(point, act, runner.app)

        where = f"{name}, {point} of {len(points)} (STEPFAST_CRASH_SEED={SEED})"
        assert CHANGED[name](runner.app) == _written_down(runner.app), where


def _written_down(app: Stepfast) -> int:
    return int(rows.query(app, "SELECT COALESCE(sum(touched), 0) AS n FROM stepfast_audit")[0]["n"])
