"""The history of the simulator: what changed when, when searches see it, and what the oracle says about any instant."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepfast.errors import ConfigurationError
from stepfast_diamonds.simulator import oracle
from stepfast_diamonds.simulator.catalogue import Stone
from stepfast_diamonds.simulator.control import mutate
from stepfast_diamonds.simulator.faults import POLITE, change_knobs
from stepfast_diamonds.simulator.filter import EVERYTHING
from stepfast_diamonds.simulator.history import BURST, MUTATIONS
from stepfast_diamonds.simulator.virtual_clock import VirtualClock
from stepfast_diamonds.simulator.world import World, make_world

START = 1_700_000_000_000_000
SECOND = 1_000_000


def world(profile: str = "200", seed: int = 3, **knobs: Any) -> World:
    return make_world(profile, seed, change_knobs(POLITE, knobs), VirtualClock(START, 0))


def truths(it: World, at: int | None = None) -> dict[str, oracle.Truth]:
    return {found.id: found for found in oracle.snapshot(it, at)}


@settings(max_examples=50, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from([*MUTATIONS, BURST]), st.integers(1, 9), st.integers(0, 5)), max_size=15
    ),
    st.sampled_from([0, 2, 30]),
    st.integers(0, 50),
)
def test_the_oracle_remembers_every_instant(steps: list[tuple[str, int, int]], lag: int, seed: int) -> None:
    """Searches may be behind, in the middle or up to date: what was true then is what was copied then."""
    it = world("60", seed, index_lag_s=lag)
    copies = {it.clock.now(): truths(it)}
    for kind, count, seconds in steps:
        it.clock.advance(seconds + 1)
        mutate(it, kind, count=count)
        copies[it.clock.now()] = truths(it)

    for at, copy in copies.items():
        assert truths(it, at) == copy


def test_searches_see_a_change_when_the_index_has_caught_up_and_not_before() -> None:
    it = world(index_lag_s=2)
    (gone,) = mutate(it, "delete")

    before = it.history.index.count(EVERYTHING)
    it.clock.advance(1.9)
    it.look()
    nearly = it.history.index.count(EVERYTHING)
    it.clock.advance(0.1)
    it.look()

    assert (before, nearly, it.history.index.count(EVERYTHING)) == (200, 200, 199)
    assert gone.id not in truths(it)


def test_changes_are_those_after_the_first_instant_and_up_to_the_second() -> None:
    it = world()
    stamps = []
    for _ in range(3):
        it.clock.advance(10)
        mutate(it, "price")
        stamps.append(it.clock.now())

    assert [change.at for change in oracle.changes(it, stamps[0], stamps[2])] == stamps[1:]
    assert [change.at for change in oracle.changes(it, None)] == stamps
    assert oracle.changes(it, stamps[2]) == []


@pytest.mark.parametrize("kind", MUTATIONS)
def test_every_mutation_does_what_its_name_says_and_stamps_it(kind: str) -> None:
    it = world()
    before = truths(it)
    it.clock.advance("1h")

    (change,) = mutate(it, kind)

    old, new = before.get(change.id), truths(it).get(change.id)
    assert change.at == it.clock.now()
    assert new == change.truth
    if new is not None:
        assert new.updated_at == change.at
    match kind:
        case "insert":
            assert (old, new is None) == (None, False)
        case "delete":
            assert (old is None, new) == (False, None)
        case "price":
            assert old is not None
            assert new is not None
            assert old.price != new.price
        case "hold":
            assert new is not None
            assert new.availability == "HOLD"
        case "relist":
            assert new is not None
            assert new.availability == "AVAILABLE"
        case "recertificate":
            assert old is not None
            assert new is not None
            assert old.certificate != new.certificate
        case _:
            assert old is not None
            assert new is not None
            assert old.availability != new.availability


def test_a_deleted_stone_is_listed_again_under_its_old_id() -> None:
    it = world()
    (gone,) = mutate(it, "delete")
    it.clock.advance(5)

    (back,) = mutate(it, "relist", ids=[gone.id])

    assert back.id == gone.id in truths(it)


def test_a_burst_reprices_thousands_at_one_instant() -> None:
    it = world("6k")
    it.clock.advance("1h")

    changes = mutate(it, BURST, count=5_000)

    assert len({change.id for change in changes}) == 5_000
    assert {change.truth.updated_at for change in changes if change.truth} == {it.clock.now()}


def test_the_driver_makes_the_same_life_however_often_somebody_looks() -> None:
    once, often = (world("300", churn_per_minute=90) for _ in range(2))
    once.clock.advance("10m")
    once.look()
    for _ in range(600):
        often.clock.advance(1)
        often.look()

    assert once.history.log == often.history.log
    assert 700 < len(once.history.log) < 1_100
    assert {it.kind for it in once.history.log} == set(MUTATIONS)


def test_another_number_makes_another_catalogue_and_another_life() -> None:
    one, same, other = (world(seed=seed, churn_per_minute=60) for seed in (1, 1, 2))
    for it in (one, same, other):
        it.clock.advance("5m")

    assert truths(one) == truths(same)
    assert set(truths(one)).isdisjoint(truths(other))


def test_nothing_happens_while_the_driver_is_off() -> None:
    it = world()
    it.clock.advance("1d")
    it.look()

    assert it.history.log == []


def test_what_never_was_cannot_be_changed() -> None:
    it = world()

    with pytest.raises(ConfigurationError, match="no diamond 'x'"):
        mutate(it, "price", ids=["x"])
    with pytest.raises(ConfigurationError, match="no kind 'melt'"):
        mutate(it, "melt")
    late = it.history.truth(0)
    assert isinstance(late, Stone)
    mutate(it, "price")
    with pytest.raises(ValueError, match="older"):
        it.history.record("price", late)


def test_a_clock_runs_at_its_speed_and_can_be_pushed() -> None:
    time = [100.0]
    clock = VirtualClock(START, 60, monotonic=lambda: time[0])
    time[0] += 2

    assert clock.now() == START + 120 * SECOND
    assert clock.advance("1m") == START + 180 * SECOND
    assert clock.for_limits() == pytest.approx(62)  # rates go by our own seconds


def test_instants_are_read_as_tests_write_them() -> None:
    assert oracle.micros_of("1970-01-01T00:00:01Z") == oracle.micros_of("1000000") == oracle.micros_of(SECOND)
    with pytest.raises(ConfigurationError, match="no instant"):
        oracle.micros_of("soon")
