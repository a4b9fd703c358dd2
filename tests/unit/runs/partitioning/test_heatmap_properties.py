"""The density heatmap, whatever the density: it tiles, it terminates, and only the counts decide."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepfast.runs.partitioning.contract import Planned, pieces_of
from stepfast.runs.partitioning.dimension import Axis, Choices, Dimension
from stepfast.runs.partitioning.partitioners import Heatmap
from tests.support.paged_source import Items, explore

if TYPE_CHECKING:
    from stepfast.runs.partitioning.ranges import Closed, Range

some = settings(max_examples=30, deadline=None, database=None)

COLOURS: Final = ("D", "E", "F", "G")


@st.composite
def axes(draw: st.DrawFn) -> tuple[Axis, ...]:
    """One to three dimensions: prices of any extent, weights, colours."""
    closed: Closed = draw(st.sampled_from(("both", "left")))
    high = draw(st.sampled_from([1, 2, 7, 60, 1_000, 2_147_483_647]))
    dense = draw(st.sampled_from([None, 3, 50]))
    price = Dimension(
        "price", 0, high, 1, closed, dense_until=dense, dense_step=draw(st.sampled_from([None, 2]))
    )
    weight = Dimension("weight", 0, 3, 0.5, closed)
    both: list[Axis] = [weight, Choices("colour", COLOURS)]
    others = draw(st.permutations(both))
    return (price, *others[: draw(st.integers(0, 2))])


@st.composite
def catalogues(draw: st.DrawFn) -> tuple[tuple[Axis, ...], Items]:
    """Items inside the dimensions, many of them at the same few places."""
    chosen = draw(axes())
    places = draw(st.lists(st.tuples(*(_place(it) for it in chosen)), min_size=1, max_size=8))
    numbers = draw(st.lists(st.integers(0, 40), min_size=len(places), max_size=len(places)))
    items = [
        dict(zip((it.name for it in chosen), place, strict=True))
        for place, number in zip(places, numbers, strict=True)
        for _ in range(number)
    ]
    return chosen, Items(items)


def _place(axis: Axis) -> st.SearchStrategy[Any]:
    if isinstance(axis, Choices):
        return st.sampled_from(axis.values)
    quarters = int(Decimal(str(axis.high)) * 4)
    last = quarters - 1 if axis.closed == "left" else quarters
    return st.integers(0, last).map(lambda it: Decimal(it) / 4)


def heatmaps(chosen: tuple[Axis, ...], **more: int) -> Heatmap:
    return Heatmap(*chosen, **{"target": 10, "least_rows": 1, **more})


@some
@given(catalogues(), st.integers(1, 30))
def test_at_every_step_the_partitions_tile_the_domain(
    catalogue: tuple[tuple[Axis, ...], Items], target: int
) -> None:
    chosen, source = catalogue
    heatmap = heatmaps(chosen, target=target)

    for step in explore(heatmap, source, heatmap.start()):
        assert step.plan().gap is None


@some
@given(catalogues(), st.integers(1, 30))
def test_every_item_is_in_a_partition_and_counted(
    catalogue: tuple[tuple[Axis, ...], Items], target: int
) -> None:
    chosen, source = catalogue
    heatmap = heatmaps(chosen, target=target)

    plan = explore(heatmap, source, heatmap.start())[-1].plan()

    assert all(any(it.range.contains(item) for it in plan.partitions) for item in source.items)
    assert all((it.estimate or 0) >= source.count(it.range) for it in plan.partitions)
    assert (plan.rows or 0) >= len(source.items) == plan.baseline


@some
@given(catalogues(), st.integers(1, 30))
def test_only_what_cannot_be_divided_is_too_large(
    catalogue: tuple[tuple[Axis, ...], Items], target: int
) -> None:
    chosen, source = catalogue
    heatmap = heatmaps(chosen, target=target, most=100_000, budget=100_000)

    plan = explore(heatmap, source, heatmap.start())[-1].plan()

    for it in plan.partitions:
        if (it.estimate or 0) > 1.2 * target:
            assert it.problem == "dense"
            assert not _can_be_divided(it, chosen, source)
        else:
            assert it.problem is None


def _can_be_divided(partition: Planned, chosen: tuple[Axis, ...], source: Items) -> bool:
    """Whether a cut at any tick would leave fewer items on both sides."""
    parts = dict(partition.range.parts)
    for axis in chosen:
        first, last = axis.ticks(parts[axis.name]) if axis.name in parts else (0, axis.size)  # type: ignore[misc]
        for tick in _telling(axis, first, last, source):
            sides = [
                partition.range.with_part(axis.name, axis.part(*it)) for it in ((first, tick), (tick, last))
            ]
            if max(source.count(it) for it in sides) < source.count(partition.range):
                return True
    return False


def _telling(axis: Axis, first: int, last: int, source: Items) -> list[int]:
    """The ticks at which a cut could make a difference: all, or those beside an item."""
    if last - first < 200:
        return list(range(first + 1, last))
    assert isinstance(axis, Dimension)
    near = {int(Decimal(it[axis.name])) + beside for it in source.items for beside in (-1, 0, 1, 2)}
    return [it for it in near if first < it < last]


@some
@given(catalogues(), st.integers(1, 50), st.integers(1, 8), st.integers(1, 40))
def test_counts_and_partitions_stay_within_their_limits(
    catalogue: tuple[tuple[Axis, ...], Items], budget: int, most: int, at_once: int
) -> None:
    chosen, source = catalogue
    heatmap = heatmaps(chosen, budget=budget, most=most, at_once=at_once)

    plan = explore(heatmap, source, heatmap.start())[-1].plan()

    assert plan.requests == len(source.asked) <= budget
    assert len(plan.partitions) <= most
    assert plan.gap is None


@some
@given(catalogues(), st.integers(1, 40), st.data())
def test_neither_failures_nor_the_size_of_a_step_change_the_plan(
    catalogue: tuple[tuple[Axis, ...], Items], at_once: int, data: st.DataObject
) -> None:
    chosen, source = catalogue
    calm, hasty = heatmaps(chosen, at_once=3), heatmaps(chosen, at_once=at_once)
    whole = explore(calm, source, calm.start())[-1].plan()
    unlucky = data.draw(st.sets(st.sampled_from(source.asked)))

    def fails_once(name: str) -> bool:
        first = name in unlucky
        unlucky.discard(name)
        return first

    assert explore(hasty, Items(source.items), hasty.start(), fails=fails_once)[-1].plan() == whole


@some
@given(catalogues(), st.lists(st.integers(0, 60), min_size=1, max_size=30), st.integers(1, 12))
def test_a_source_whose_counts_make_no_sense_is_planned_all_the_same(
    catalogue: tuple[tuple[Axis, ...], Items], nonsense: list[int], target: int
) -> None:
    chosen, _ = catalogue
    heatmap = heatmaps(chosen, target=target, budget=300)
    asked: list[Range] = []

    def source(it: Range) -> int:
        asked.append(it)
        return nonsense[len(asked) % len(nonsense)]

    plan = explore(heatmap, source, heatmap.start())[-1].plan()

    assert plan.gap is None
    assert len(asked) <= 300


@some
@given(catalogues(), catalogues(), st.integers(2, 12))
def test_partitions_of_the_last_run_still_tile_and_still_divide(
    last: tuple[tuple[Axis, ...], Items], now: tuple[tuple[Axis, ...], Items], target: int
) -> None:
    """Whatever has happened to the items since."""
    chosen, before = last
    names = {it.name for it in chosen}
    since = Items(
        [
            {**it, **{name: value for name, value in new.items() if name in names}}
            for it in before.items
            for new in now[1].items[:1]
        ]
    )
    heatmap = heatmaps(chosen, target=target, most=100_000, budget=100_000)
    prior = explore(heatmap, before, heatmap.start())[-1].plan()

    steps = explore(heatmap, since, heatmap.start(prior=[it.range for it in prior.partitions]))

    assert all(step.plan().gap is None for step in steps)
    for it in steps[-1].plan().partitions:
        if (it.estimate or 0) > 1.2 * target:
            assert not _can_be_divided(it, chosen, since)


@some
@given(catalogues(), st.integers(1, 12), st.data())
def test_the_pieces_of_a_divided_partition_tile_it(
    catalogue: tuple[tuple[Axis, ...], Items], target: int, data: st.DataObject
) -> None:
    chosen, source = catalogue
    heatmap = heatmaps(chosen, target=target)
    plan = explore(heatmaps(chosen, target=40), source, heatmaps(chosen, target=40).start())[-1].plan()
    parent = data.draw(st.sampled_from(plan.partitions)).range

    begun = heatmap.divide(parent)

    if begun is None:
        assert not _can_be_divided(Planned(parent), chosen, source)
        return
    divided = explore(heatmap, source, begun)[-1].plan()
    pieces = pieces_of(parent, divided) or (Planned(parent),)
    inside = [it for it in source.items if parent.contains(it)]
    assert divided.baseline == len(inside)
    assert all(any(it.range.contains(item) for it in pieces) for item in inside)
    assert all(parent.overlap(it.range) == it.range for it in pieces)


@some
@given(axes())
def test_a_dimension_is_the_same_after_it_was_stored(chosen: tuple[Axis, ...]) -> None:
    frontier = Heatmap(*chosen).start()

    assert Heatmap(*chosen).restore(frontier.to_json()) == frontier


@pytest.mark.parametrize("rows", [1, 11, 12, 13, 14, 25, 100])
def test_rows_at_one_place_are_one_dense_partition_however_wide_the_domain(rows: int) -> None:
    source = Items([{"price": Decimal("1234567.5")}] * rows)
    heatmap = heatmaps((Dimension("price", 0, 2_147_483_647),))

    plan = explore(heatmap, source, heatmap.start())[-1].plan()

    holding = [it for it in plan.partitions if it.estimate]
    assert [it.estimate for it in holding] == [rows]
    assert plan.requests < 200
    if rows > 12:
        assert holding[0].problem == "dense"
        assert holding[0].range.bounds("price").contains(1_234_568)
