"""Half a million stones are counted without a walk over them, also while they change; measured in CPU time of this thread."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import pytest

from stepfast_diamonds.simulator.faults import POLITE
from stepfast_diamonds.simulator.filter import read_query
from stepfast_diamonds.simulator.virtual_clock import VirtualClock
from stepfast_diamonds.simulator.world import World, make_world

CHOICES = {
    "shapes": ["ROUND", "OVAL", "PEAR"],
    "availability": ["AVAILABLE"],
    "has_image": True,
    "has_v360": True,
}
ALWAYS = {"from": "2000-01-01T00:00:00Z", "to": "2100-01-01T00:00:00Z"}
START = 1_700_000_000_000_000
FAR_FROM_A_WALK = 10  # milliseconds; walking over all of them takes many times as long, counting about one


@pytest.fixture(scope="module")
def world() -> World:
    return make_world("500k", 1, POLITE, VirtualClock(START, 0))


def milliseconds(work: Callable[[int], object], times: int = 60) -> float:
    took = []
    for n in range(times):
        begun = time.thread_time()
        work(n)
        took.append(1_000 * (time.thread_time() - begun))
    return median(took)


def asking(world: World, **ranges: Any) -> Callable[[int], int]:
    def count(n: int) -> int:
        per_carat = {"from": 40 * n, "to": 40 * n + 700}
        query = CHOICES | {"updated": ALWAYS, "dollar_per_carat": per_carat} | ranges
        return world.search.count(read_query(query, world.catalogue, world.knobs), world.knobs, START)

    count(0)  # what is kept is made once
    return count


def test_a_range_of_half_a_million_is_counted_in_less_than_a_millisecond(world: World) -> None:
    assert milliseconds(asking(world)) < FAR_FROM_A_WALK


def test_a_second_range_does_not_make_it_slow(world: World) -> None:
    assert milliseconds(asking(world, sizes=[{"from": 0.5, "to": 1.2}])) < FAR_FROM_A_WALK


def test_a_window_that_just_misses_the_newest_changes_does_not_make_it_slow(world: World) -> None:
    """A run's window ends at its start, and while it reads the catalogue goes on."""
    world.clock.advance("1m")
    world.mutations.ask("price", world.look(), count=500)
    world.look()
    window = {"from": "2000-01-01T00:00:00Z", "to": "2023-11-14T22:13:21Z"}

    assert milliseconds(asking(world, sizes=[{"from": 0.5, "to": 1.2}], updated=window)) < FAR_FROM_A_WALK


def test_changes_do_not_make_it_slow(world: World) -> None:
    count = asking(world)

    def change_and_count(n: int) -> None:
        world.clock.advance(1)
        world.mutations.ask("price", world.look())
        world.look()
        count(n)

    assert milliseconds(change_and_count) < FAR_FROM_A_WALK
