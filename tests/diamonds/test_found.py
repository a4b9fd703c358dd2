"""What the property has found, each in its smallest form."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import pytest

from holdfast.diamonds.feed import NATURAL
from holdfast.diamonds.source import NivodaSource
from tests import rows
from tests.diamonds.test_incidents import until
from tests.diamonds.worlds import World
from tests.run_facts import partitions, run_of

HOUR = 3_600 * rows.SECOND


@pytest.fixture
def world(database_url: str) -> Iterator[World]:
    with World(database_url) as it:
        yield it


def test_a_run_begins_at_the_time_that_a_test_has_set(world: World) -> None:
    """Its beginning was left to the default of a column, which no moved clock moves: its sweep saw nobody go."""
    world.let_pass(86_400)
    run = world.start()

    (row,) = rows.query(world.app, "SELECT started_at, updated_at FROM holdfast_run WHERE id = :id", id=run)
    assert (row["started_at"], row["updated_at"]) == (world.at, world.at)


def test_what_a_source_shows_after_its_clock_was_set_back_is_believed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Observations carry its time: later ones passed for older ones, and were refused until the time had come again."""
    world.sync()
    changed = world.living()[:3]
    world.sim.mutate("price", ids=changed)
    world.let_pass(10)
    now = NivodaSource.now

    async def set_back(self: NivodaSource, **named: Any) -> datetime | None:
        shown = await now(self, **named)
        return None if shown is None else shown - timedelta(seconds=300)

    monkeypatch.setattr(NivodaSource, "now", set_back)
    world.sync(kind="full")

    world.check_covered(NATURAL, world.at)


def test_a_stone_that_moves_into_a_range_that_was_read_is_missed_once_and_not_taken_for_gone(
    world: World,
) -> None:
    """Every partition is verified, and none has seen it: so one full run is not enough to let anybody go. (F37)"""
    world.sync()
    world.let_pass(60)
    run = world.start(kind="full")
    until(world, lambda: run_of(world.app, run).state == "fetching")
    others = partitions(world.app, run)[1:]
    aside = "UPDATE holdfast_job SET ready_at = :at, state = :state WHERE id = :id"
    for it in others:
        rows.change(world.app, aside, id=it["job_id"], state="scheduled", at=world.at + HOUR)
    until(world, lambda: partitions(world.app, run)[0]["state"] == "done")
    dearest = max(world.truth().values(), key=lambda it: it.price / it.carats).id
    world.price([dearest], 150)
    for it in others:
        rows.change(world.app, aside, id=it["job_id"], state="ready", at=world.at)
    world.settle()

    report = world.report(run)
    (raw,) = rows.query(world.app, "SELECT run_id FROM holdfast_raw WHERE item_id = :id", id=dearest)
    assert (report.state, report.unverified, report.gone) == ("completed", 0, 0)
    assert raw["run_id"] != run, "it was missed"
    world.check()
    assert world.table()[dearest]["deleted_at"] is None
    world.let_pass(60)
    world.sync()
    world.check_equal()
