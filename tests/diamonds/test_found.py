"""Bugs that the property test has found, each in its smallest form."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import pytest

from stepfast_diamonds.feed import NATURAL
from stepfast_diamonds.source import NivodaSource
from tests.diamonds.test_incidents import until
from tests.diamonds.worlds import World
from tests.support import rows
from tests.support.run_facts import partitions, run_of

HOUR = 3_600 * rows.SECOND


@pytest.fixture
def world(database_url: str) -> Iterator[World]:
    with World(database_url) as it:
        yield it


def test_a_run_begins_at_the_time_that_a_test_has_set(world: World) -> None:
    """Its start was the default of a column, which a moved clock does not move: its sweep saw no row go."""
    world.let_pass(86_400)
    run = world.start()

    (row,) = rows.query(world.app, "SELECT started_at, updated_at FROM stepfast_run WHERE id = :id", id=run)
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


def missed(world: World, stone: str, into: int, price: float) -> str:
    """A full run that reads one partition first; then the stone moves there, and so no other shows it."""
    run = world.start(kind="full")
    until(world, lambda: run_of(world.app, run).state == "fetching")
    others = partitions(world.app, run)
    first = others.pop(into)
    aside = "UPDATE stepfast_job SET ready_at = :at, state = :state WHERE id = :id"
    for it in others:
        rows.change(world.app, aside, id=it["job_id"], state="scheduled", at=world.at + HOUR)
    until(world, lambda: partitions(world.app, run)[first["number"]]["state"] == "done")
    world.price([stone], price)
    for it in others:
        rows.change(world.app, aside, id=it["job_id"], state="ready", at=world.at)
    world.settle()
    report = world.report(run)
    (raw,) = rows.query(world.app, "SELECT run_id FROM stepfast_raw WHERE item_id = :id", id=stone)
    assert (report.state, report.unverified) == ("completed", 0)
    assert raw["run_id"] != run, "it was missed"
    world.check()
    world.let_pass(60)
    return run


def dearest(world: World) -> str:
    return max(world.truth().values(), key=lambda it: it.price / it.carats).id


def test_a_stone_that_moves_into_a_range_that_was_read_is_missed_once_and_not_taken_for_gone(
    world: World,
) -> None:
    """Every partition is verified, and none has seen it: so one full run is not enough to mark a row as gone. (F37)"""
    world.sync()
    world.let_pass(60)
    stone = dearest(world)

    run = missed(world, stone, into=0, price=150)

    assert (world.report(run).gone, world.table()[stone]["deleted_at"]) == (0, None)
    world.sync()
    world.check_equal()


def test_a_stone_that_two_full_runs_in_a_row_met_on_its_way_is_not_taken_for_gone(world: World) -> None:
    """Two strikes, though it exists, and no incremental run between them. So Nivoda is asked before it goes. (F37)"""
    world.sync()
    stone = dearest(world)
    sold = [it for it in world.living() if it != stone][:2]
    world.sim.mutate("hold", ids=sold[:1])
    world.sim.mutate("delete", ids=sold[1:])
    world.let_pass(60)

    missed(world, stone, into=0, price=150)
    run = missed(world, stone, into=-1, price=90_000)

    assert world.table()[stone]["deleted_at"] is None
    assert (world.report(run).gone, world.app.runs.show(run).still_there) == (len(sold), 1)
    assert not set(sold) & set(world.shown())
    world.sync()
    world.check_equal()
