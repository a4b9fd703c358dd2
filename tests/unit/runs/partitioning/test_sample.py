"""A heatmap that plans on a sample: few counts, partitions that tile everything, and estimates that are good enough."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepfast.errors import ConfigurationError
from stepfast.runs.partitioning.contract import Plan, outgrown
from stepfast.runs.partitioning.dimension import Choices, Dimension, prices
from stepfast.runs.partitioning.partitioners import Heatmap
from stepfast.runs.partitioning.ranges import EVERYTHING, Bounds, Range
from tests.support.paged_source import LAB_GROWN, NATURAL, PRICE, Density, Items, explore
from tests.unit.runs.partitioning.test_heatmap_properties import catalogues, heatmaps, some

if TYPE_CHECKING:
    from stepfast.runs.partitioning.dimension import Axis

CARATS = Dimension("carats", 0, 30, 0.01)
SAMPLE = 60


def sampled(**more: Any) -> Heatmap:
    return Heatmap(prices(PRICE), CARATS, **{"sample": SAMPLE, "fewest": 200, "at_once": 6, **more})


def planned(heatmap: Heatmap, source: Density | Items, prior: Sequence[Range] = ()) -> Plan:
    return explore(heatmap, source, heatmap.start(prior=prior))[-1].plan()


@pytest.mark.parametrize("profile", [NATURAL, LAB_GROWN], ids=["natural", "lab-grown"])
def test_half_a_million_rows_are_planned_with_sixty_counts(profile: dict[int, int]) -> None:
    source = Density(profile)

    plan = planned(sampled(), source)

    assert plan.requests == len(source.asked) <= SAMPLE
    assert len(plan.partitions) >= 200
    assert plan.gap is None
    assert not plan.misses_rows
    assert plan.rows is not None
    assert plan.rows >= source.rows


def test_the_partitions_are_about_as_large_as_estimated() -> None:
    """So few are divided when they are read."""
    source = Density(NATURAL)

    plan = planned(sampled(), source)

    held = [source(it.range) for it in plan.partitions]
    assert not any(outgrown(it.estimate, rows) for it, rows in zip(plan.partitions, held, strict=True))
    assert max(held) < 2 * source.rows / len(held)


def test_a_value_that_is_too_dense_is_left_to_its_own_job() -> None:
    plan = planned(sampled(), Density(LAB_GROWN))

    undivided = [it for it in plan.partitions if it.problem == "undivided"]
    assert f"{PRICE} 149..150" in {it.range.name for it in undivided}
    assert min(it.estimate or 0 for it in undivided) > 2 * 3_000
    assert all(sampled().divide(it.range) is not None for it in undivided)


def test_a_value_that_nothing_divides_is_said_to_be_dense() -> None:
    crowded = Items([{PRICE: 7}] * 3_000)

    plan = planned(Heatmap(Dimension(PRICE, 0, 20), sample=20, target=300), crowded)

    dense = [it for it in plan.partitions if it.problem]
    assert {it.problem for it in dense} == {"dense"}
    assert all(it.range.contains({PRICE: 7}) for it in dense)


def test_few_rows_are_one_partition() -> None:
    plan = planned(sampled(fewest=1), Items([{PRICE: 7}] * 10))

    assert [it.estimate for it in plan.partitions] == [10]
    assert plan.requests == 2


def test_a_source_that_hides_rows_from_its_ranges_is_reported() -> None:
    source = Density(NATURAL)

    def flaky(asked: Range) -> int:
        return source(asked) if asked == EVERYTHING else int(source(asked) * 0.98)

    heatmap = sampled()
    assert explore(heatmap, flaky, heatmap.start())[-1].plan().misses_rows


def test_a_sample_interrupted_anywhere_ends_with_the_same_plan() -> None:
    heatmap = sampled()
    whole = explore(heatmap, Density(NATURAL), heatmap.start())

    for interrupted in whole:
        assert interrupted.plan().gap is None
        restored = heatmap.restore(json.loads(json.dumps(interrupted.to_json())))
        assert explore(heatmap, Density(NATURAL), restored)[-1].plan() == whole[-1].plan()


def test_the_partitions_of_the_last_run_are_used_again_and_counted_in_groups() -> None:
    heatmap, grown = sampled(), Density(NATURAL, growth=1.04)
    last = planned(heatmap, Density(NATURAL))

    plan = planned(heatmap, grown, [it.range for it in last.partitions])

    assert plan.requests <= SAMPLE
    assert [it.range for it in plan.partitions] == [it.range for it in last.partitions]
    assert plan.gap is None
    assert (plan.rows or 0) >= grown.rows


def test_pieces_of_a_divided_value_are_counted_together_and_stay_apart() -> None:
    """What the last run divided by weight is not divided again."""
    cuts = [Range.of({PRICE: Bounds(5, 6), "carats": it}) for it in (Bounds(0, 2), Bounds(2, 30))]
    outside = [Range.of({PRICE: it}) for it in (Bounds(0, 5), Bounds(6, 20))]
    heatmap = Heatmap(Dimension(PRICE, 0, 20), CARATS, sample=10, target=50, least_rows=1)
    source = Items(
        [{PRICE: 5, "carats": number % 4} for number in range(100)] + [{PRICE: 9, "carats": 1}] * 50
    )

    plan = planned(heatmap, source, [*outside, *cuts])

    assert {it.range.name for it in plan.partitions} >= {it.name for it in cuts}
    assert plan.gap is None


def test_partitions_of_the_last_run_that_have_shrunk_are_joined() -> None:
    heatmap = sampled(fewest=1)
    last = planned(heatmap, Density(NATURAL))
    shrunk = Density({**NATURAL, 1_000: 1_000})

    plan = planned(heatmap, shrunk, [it.range for it in last.partitions])

    assert plan.gap is None
    assert len(plan.partitions) < len(last.partitions) - 20


@pytest.mark.parametrize("growth", [0.02, 6])
def test_partitions_of_a_run_that_was_far_smaller_or_larger_are_not_used(growth: float) -> None:
    heatmap = sampled(fewest=1)
    last = planned(heatmap, Density(NATURAL))
    other = Density(NATURAL, growth=growth)

    assert planned(heatmap, other, [it.range for it in last.partitions]) == planned(heatmap, other)


@pytest.mark.parametrize("sample", [0, 9, 2.5, True, "60"])
def test_a_sample_that_is_no_number_of_counts_is_refused(sample: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"Heatmap\(sample=.*10 or more"):
        Heatmap(prices(PRICE), sample=sample)


@some
@given(catalogues(), st.integers(1, 30), st.integers(10, 40))
def test_whatever_the_density_a_sample_tiles_and_keeps_to_its_counts(
    catalogue: tuple[tuple[Axis, ...], Items], target: int, sample: int
) -> None:
    chosen, source = catalogue
    heatmap = heatmaps(chosen, target=target, sample=sample)

    steps = explore(heatmap, source, heatmap.start())

    assert all(step.plan().gap is None for step in steps)
    plan = steps[-1].plan()
    assert plan.requests <= sample
    assert all(any(it.range.contains(item) for it in plan.partitions) for item in source.items)
    again = explore(heatmap, source, heatmap.start(prior=[it.range for it in plan.partitions]))
    assert all(step.plan().gap is None for step in again)
    assert again[-1].plan().requests <= sample


def test_a_list_of_values_can_be_the_first_dimension() -> None:
    shapes = Choices("shape", ["ROUND", "OVAL", "PEAR", "HEART"])
    items = [{"shape": shape} for shape in ("ROUND", "OVAL", "PEAR", "HEART") for _ in range(50)]

    plan = planned(Heatmap(shapes, sample=20, target=50, least_rows=1), Items(items))

    assert plan.gap is None
    assert [it.estimate for it in plan.partitions] == [50, 50, 50, 50]
