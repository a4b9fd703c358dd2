"""A worker is killed before every statement, and after every COMMIT, of every kind of step that a run has.

Afterwards the rows are those of the last COMMIT that returned. Another worker brings the run to its end: the target is
what the source is, no partition is stuck, there is one consolidation, and every counter is exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from stepfast import Stepfast
from stepfast.runs import breaker
from stepfast.runs import page as place
from tests.crash.cases import sweeps_and_replays
from tests.crash.cases.registry import RUN_CASES
from tests.crash.daily_sample import SEED, Sample
from tests.crash.kill_points import die_at, kill_points
from tests.crash.recorded_run import RecordedRun, RecordedStep, dump

if TYPE_CHECKING:
    from tests.crash.kill_points import Point

MOST = {"plain": 10}  # points of a case that a server is tried at
FEW = 3  # ... and of all others
EVERY = {"division": 6, "plain": 40}  # ... and SQLite, where the run is long
SOME = 25  # ... and otherwise


@pytest.mark.timeout(400)  # with --chaos
@pytest.mark.parametrize("name", RUN_CASES)
def test_a_worker_may_die_at_any_point_of_a_run(
    name: str, database_url: str, sample: Sample, monkeypatch: pytest.MonkeyPatch, *, chaos: bool
) -> None:
    """(T1, F1, F27, F41)"""
    # Every step looks for itself, as in a process that has just started: the points must not differ.
    monkeypatch.setattr(breaker, "BELIEVED", 0.0)
    monkeypatch.setattr(place, "MOST_POSITIONS", 0)
    sweeps_and_replays.in_small_pieces(monkeypatch)
    with closing(Stepfast(database_url)) as app, closing(Stepfast(database_url)) as observer:
        recording = RecordedRun.of(RUN_CASES[name], app, observer)
        steps = list(recording.steps())
        recording.check()
        deaths = [(step, point) for step in steps for point in kill_points(step.points)]
        assert steps
        for step, point in chosen(name, deaths, sample, chaos=chaos):
            recording.restore(step)
            die_at(point, recording.step, observer)
            where = f"{name}, {step.kind}, {point} of {len(step.points)} (STEPFAST_CRASH_SEED={SEED})"

            assert dump(observer) == step.states[point.commits], where
            recording.recover()


def chosen(
    name: str, deaths: list[tuple[RecordedStep, Point]], sample: Sample, *, chaos: bool
) -> Sequence[tuple[RecordedStep, Point]]:
    most = EVERY.get(name, SOME) if sample.database_kind == "sqlite" else MOST.get(name, FEW)
    if chaos:
        return deaths
    return Sample(f"{sample.database_kind}, a run", everything=False).of(name, deaths, most)
