"""A worker may die at any point while it fires ticks: every tick becomes one job all the same."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from datetime import datetime
from typing import TYPE_CHECKING

import pytest

from stepfast import Job, Stepfast
from stepfast.clock import instant
from stepfast.schedules.schedule import spelled
from stepfast.worker.scheduler import fire_due
from tests.crash.cases.schedules import MINUTE, NOON, add
from tests.crash.conftest import make_effect_table
from tests.crash.daily_sample import SEED, Sample
from tests.crash.kill_points import die_at, kill_points, recorded
from tests.crash.setup import Setup, work
from tests.support import rows

if TYPE_CHECKING:
    from tests.crash.workers import Fleet


@pytest.fixture
def app_and_job(database_url: str) -> Iterator[tuple[Stepfast, Job[..., None]]]:
    with closing(Stepfast(database_url)) as app:
        make_effect_table(app)
        yield app, app.job()(work)


def test_a_firer_may_die_at_any_point_and_every_tick_becomes_one_job(
    app_and_job: tuple[Stepfast, Job[..., None]], sample: Sample
) -> None:
    """Two schedules, one of them behind; one colleague comes after the dead, and a third one after both."""
    app, job = app_and_job
    now = NOON + 2 * MINUTE
    expected = [
        *(f"schedule:behind:{spelled(NOON + n * MINUTE)}" for n in range(3)),
        f"schedule:on:{spelled(now)}",
    ]

    def prepare() -> None:
        setup = Setup(app, job)
        add(setup, "behind", missed="all")
        add(setup, "on", missed="once")

    prepare()
    points = recorded(lambda: fire_due(app.database, now), lambda: None)
    for point in sample.of("fire every tick", kill_points(points), most=6):
        prepare()
        app.database.close()
        die_at(point, lambda: fire_due(app.database, now), app)
        where = f"{point} of {len(points)} (STEPFAST_CRASH_SEED={SEED})"

        fire_due(app.database, now)
        assert fire_due(app.database, now) == [], where

        ticks = rows.query(app, "SELECT id, job_id FROM stepfast_key ORDER BY id")
        assert [row["id"] for row in ticks] == expected, where
        ids = [row["id"] for row in rows.query(app, "SELECT id FROM stepfast_job ORDER BY id")]
        assert sorted(row["job_id"] for row in ticks) == ids, where


AROUND = (-0.010, 0.002, 0.010)  # seconds from the tick to the kill


def test_workers_that_are_killed_around_their_ticks_lose_and_double_none(fleet: Fleet) -> None:
    fleet.app.schedules.add("beat", "brief", every="1s", missed="all")
    worker = fleet.worker()
    worker.says("worker.started")
    for offset in AROUND:
        victims = [fleet.worker(), fleet.worker()]
        for victim in victims:
            victim.says("worker.started")
        _wait_for_the_next_second(fleet.app, offset)
        for victim in victims:
            victim.kill()
    worker.says("tick.fired", times=worker.words().count("tick.fired") + 1)
    fleet.app.schedules.pause("beat")
    fleet.wait_until_done()

    ticks = rows.query(
        fleet.app, "SELECT id, job_id FROM stepfast_key WHERE id LIKE 'schedule:beat:%' ORDER BY id"
    )
    at = [instant(datetime.fromisoformat(row["id"].removeprefix("schedule:beat:"))) for row in ticks]
    assert at == list(range(at[0], at[0] + len(at) * rows.SECOND, rows.SECOND)), "a tick is missing"
    assert {row["job_id"] for row in ticks} == set(fleet.archived())
    assert fleet.effects() == Counter((row["job_id"], 0) for row in ticks)


def _wait_for_the_next_second(app: Stepfast, offset: float) -> None:
    left = rows.SECOND - rows.now(app) % rows.SECOND
    time.sleep(max(0.0, left / rows.SECOND + offset))
