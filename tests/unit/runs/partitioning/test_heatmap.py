"""The density heatmap: what each fix of the first implementation's flaws prevents."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest

from stepfast.errors import ConfigurationError
from stepfast.runs.partitioning.contract import Frontier, Plan, capped
from stepfast.runs.partitioning.dimension import LARGEST_INT, Choices, Dimension, prices
from stepfast.runs.partitioning.partitioners import Heatmap
from stepfast.runs.partitioning.ranges import EVERYTHING, Bounds, Range
from tests.support.paged_source import LAB_GROWN, NATURAL, PRICE, Density, Items, explore

CARATS = Dimension("carats", 0, 30, 0.01)
MANY = 100  # counts in one step, where it does not matter (it never does): storing takes most of the time


def planned(heatmap: Heatmap, source: Density | Items, prior: Sequence[Range] = ()) -> Plan:
    return explore(heatmap, source, heatmap.start(prior=prior))[-1].plan()


def stones(*prices: float | str, **more: str) -> list[dict[str, int | str | Decimal]]:
    return [{PRICE: Decimal(str(it)), **more} for it in prices]


# F24: the domain is tiled


def test_no_price_lies_between_two_partitions_or_beyond_the_last() -> None:
    plan = planned(Heatmap(prices(PRICE)), Density(NATURAL))

    assert plan.gap is None
    for price in ("0", "249.5", "250", "749.99", "100000.01", "2147483647"):
        assert any(it.range.contains({PRICE: Decimal(price)}) for it in plan.partitions), price


def test_an_empty_stretch_belongs_to_a_partition() -> None:
    source = Items(stones(*range(10), *range(1_000, 1_010)))

    plan = planned(Heatmap(prices(PRICE), target=5, least_rows=1), source)

    assert plan.gap is None
    assert any(it.range.contains({PRICE: 500}) for it in plan.partitions), "a stone repriced to 500 is missed"


def test_a_source_without_rows_is_one_partition_of_everything() -> None:
    plan = planned(Heatmap(prices(PRICE)), Items([]))

    assert [it.range for it in plan.partitions] == [Range.of({PRICE: Bounds(0, LARGEST_INT)})]
    assert plan.scope == "complete"
    assert plan.requests == 2


def test_neighbours_share_their_bound_so_that_no_fraction_falls_between_them() -> None:
    plan = planned(Heatmap(prices(PRICE)), Density(NATURAL))

    bounds = [it.range.bounds(PRICE) for it in plan.partitions]
    assert [it.to for it in bounds[:-1]] == [it.from_ for it in bounds[1:]]
    assert (bounds[0].from_, bounds[-1].to) == (0, LARGEST_INT)
    assert {it.closed for it in bounds} == {"both"}


def test_a_dimension_without_an_upper_end_has_a_last_partition_without_one() -> None:
    open_ended = Dimension(PRICE, 0, 100_000, above=True, dense_until=5_000, dense_step=50)

    plan = planned(Heatmap(open_ended), Density(NATURAL))

    assert plan.partitions[-1].range.bounds(PRICE).to is None
    assert plan.gap is None


def test_partitions_that_do_not_add_up_to_the_baseline_are_reported() -> None:
    """A price filter that drops 2 % of the rows, as one of the source's own did."""
    source = Density(NATURAL)
    heatmap = Heatmap(prices(PRICE))

    def flaky(asked: Range) -> int:
        return source(asked) if asked == EVERYTHING else math.floor(source(asked) * 0.98)

    plan = explore(heatmap, flaky, heatmap.start())[-1].plan()

    assert plan.gap is None
    assert plan.misses_rows
    assert plan.shortfall == pytest.approx(0.02 * source.rows, rel=0.1)


def test_partitions_that_add_up_are_not_reported() -> None:
    plan = planned(Heatmap(prices(PRICE)), Density(NATURAL))

    assert (plan.misses_rows, plan.shortfall) == (False, 0)
    assert plan.baseline == Density(NATURAL).rows
    assert (plan.rows or 0) >= plan.baseline


# F23: many small partitions


def test_a_catalogue_becomes_many_small_partitions() -> None:
    plan = planned(Heatmap(prices(PRICE)), Density(NATURAL))

    sizes = [it.estimate for it in plan.partitions]
    assert 100 < len(sizes) < 200
    assert all(it is not None and 2_000 <= it <= 5_000 for it in sizes)


@pytest.mark.parametrize("target", [2_000, 3_000, 5_000, 20_000])
def test_every_partition_is_within_a_fifth_of_the_target(target: int) -> None:
    plan = planned(Heatmap(prices(PRICE), target=target), Density(NATURAL))

    assert [it for it in plan.partitions if not 0.8 * target <= (it.estimate or 0) <= 1.2 * target] == []


def test_there_are_never_more_partitions_than_allowed() -> None:
    plan = planned(Heatmap(prices(PRICE), most=10), Density(NATURAL))

    assert len(plan.partitions) == 10
    assert plan.gap is None


def test_there_are_as_many_partitions_as_asked_for_if_the_rows_allow_it() -> None:
    few_rows = Density({1_000: 40_000})

    assert len(planned(Heatmap(prices(PRICE), fewest=30), few_rows).partitions) == 30


def test_no_partition_is_made_tiny_to_have_more_of_them() -> None:
    few_rows = Density({1_000: 4_000})

    assert len(planned(Heatmap(prices(PRICE), fewest=30), few_rows).partitions) == 4


def test_indivisible_prices_do_not_break_the_limit_of_partitions() -> None:
    crowded = Items(stones(*[price for price in range(12) for _ in range(7)]))
    whole_prices = Dimension(PRICE, 0, 12, closed="left")

    plan = planned(Heatmap(whole_prices, target=10, most=8, least_rows=1), crowded)

    assert len(plan.partitions) <= 8
    assert plan.gap is None
    assert {it.problem for it in plan.partitions if (it.estimate or 0) > 12} == {"crowded"}


# F26, T19: a price that is too dense is divided by another dimension


@pytest.mark.parametrize("target", [2_000, 3_000, 5_000])
def test_partitions_of_the_lab_grown_profile_are_within_a_fifth_of_the_target(target: int) -> None:
    source = Density(LAB_GROWN)

    plan = planned(Heatmap(prices(PRICE), CARATS, target=target, at_once=MANY), source)

    assert plan.gap is None
    assert [it for it in plan.partitions if not 0.8 * target <= (it.estimate or 0) <= 1.2 * target] == []
    assert any(dict(it.range.parts).keys() == {PRICE, "carats"} for it in plan.partitions)
    assert plan.rows is not None
    assert source.rows <= plan.rows <= source.rows * 1.002


def test_a_price_that_cannot_be_divided_is_said_to_be_dense() -> None:
    plan = planned(Heatmap(prices(PRICE)), Density(LAB_GROWN))

    dense = {it.range.name for it in plan.partitions if it.problem == "dense"}
    assert f"{PRICE} 149..150" in dense
    assert {it.range.name for it in plan.partitions if (it.estimate or 0) > 3_600} == dense


def test_a_list_of_values_is_a_second_dimension_too() -> None:
    shapes = ("ROUND", "OVAL", "PEAR", "HEART")
    at_one_price = [it for shape in shapes for it in stones(*["100.5"] * 50, shape=shape)]

    plan = planned(
        Heatmap(prices(PRICE), Choices("shape", shapes), target=50, least_rows=1), Items(at_one_price)
    )

    chosen = [it.range.choices("shape") for it in plan.partitions if it.estimate]
    assert chosen == [("ROUND",), ("OVAL",), ("PEAR",), ("HEART",)]
    assert not any(it.problem for it in plan.partitions)


def test_a_third_dimension_divides_what_the_second_cannot() -> None:
    items = [
        {PRICE: Decimal("100.5"), "shape": shape, "carats": Decimal(weight) / 100}
        for shape in ("ROUND", "OVAL")
        for weight in range(400)
    ]
    heatmap = Heatmap(prices(PRICE), Choices("shape", ["ROUND", "OVAL"]), CARATS, target=50, least_rows=1)

    plan = planned(heatmap, Items(items))

    assert max(it.estimate or 0 for it in plan.partitions) <= 60
    assert plan.gap is None


def test_a_second_dimension_that_loses_rows_is_not_used() -> None:
    """A tenth of the stones has no shape, or an unlisted one: a list of shapes would not read them."""
    at_one_price = stones(*["100.5"] * 90, shape="ROUND") + stones(*["100.5"] * 90, shape="OVAL")
    unknown = stones(*["100.5"] * 10, shape="KITE") + stones(*["100.5"] * 10)
    source = Items([*at_one_price, *unknown])

    plan = planned(
        Heatmap(prices(PRICE), Choices("shape", ["ROUND", "OVAL"]), target=50, least_rows=1), source
    )

    assert all(any(it.range.contains(item) for it in plan.partitions) for item in source.items)
    assert [it.estimate for it in plan.partitions if it.problem == "dense"] == [200]


def test_a_dimension_is_named_only_where_it_is_cut() -> None:
    """An item without a weight is in no range of weights, so weights are named only where they must be."""
    plan = planned(Heatmap(prices(PRICE), CARATS), Density(NATURAL))

    assert {tuple(dict(it.range.parts)) for it in plan.partitions} == {(PRICE,)}


# F27: planning is a chain of steps that can end anywhere


def test_a_frontier_says_the_same_after_every_step() -> None:
    heatmap = Heatmap(prices(PRICE), CARATS, target=20_000)
    steps = explore(heatmap, Density(LAB_GROWN), heatmap.start())
    without_storage = heatmap.start()
    source = Density(LAB_GROWN)

    for step in steps:
        assert step == without_storage
        without_storage = without_storage.learn({it.name: source(it) for it in without_storage.ask()})


def test_a_plan_interrupted_anywhere_is_the_plan_of_an_uninterrupted_one() -> None:
    heatmap = Heatmap(prices(PRICE), CARATS, target=40_000)
    whole = explore(heatmap, Density(LAB_GROWN), heatmap.start())

    for interrupted in whole:
        restored = heatmap.restore(json.loads(json.dumps(interrupted.to_json())))
        resumed = explore(heatmap, Density(LAB_GROWN), restored)
        assert resumed[-1].plan() == whole[-1].plan()


def test_a_count_that_fails_is_asked_again_and_nothing_else_is() -> None:
    heatmap = Heatmap(prices(PRICE), target=20_000)
    source, failed = Density(NATURAL), set[str]()

    def fails_once(name: str) -> bool:
        first = name not in failed
        failed.add(name)
        return first and len(failed) % 3 == 0

    plan = explore(heatmap, source, heatmap.start(), fails=fails_once)[-1].plan()

    assert plan == planned(heatmap, Density(NATURAL))
    assert len(source.asked) == len(set(source.asked)) == plan.requests


def test_a_deployment_in_the_middle_changes_nothing_for_the_run_that_is_planned() -> None:
    before, after = Heatmap(prices(PRICE), target=20_000), Heatmap(prices(PRICE), target=500, at_once=1)
    begun = explore(before, Density(NATURAL), before.start())

    resumed = explore(after, Density(NATURAL), begun[len(begun) // 2])

    assert resumed[-1].plan() == begun[-1].plan()


def test_an_answer_that_nobody_waits_for_changes_nothing() -> None:
    heatmap = Heatmap(prices(PRICE))
    frontier = heatmap.start()

    assert frontier.learn({"price 1..2": 7}) == frontier
    assert frontier.learn({}) == frontier


@pytest.mark.parametrize("answer", [-1, 2.5, None, True, "12"])
def test_an_answer_that_is_no_count_is_refused(answer: object) -> None:
    frontier = Heatmap(prices(PRICE)).start()

    with pytest.raises(ConfigurationError, match="number of rows"):
        frontier.learn({"everything": answer})  # type: ignore[dict-item]


def test_at_most_so_many_are_asked_at_once() -> None:
    heatmap = Heatmap(prices(PRICE), at_once=7)
    steps = explore(heatmap, Density(NATURAL), heatmap.start())

    assert max(len(it.ask()) for it in steps) == 7


# The number of counts


def test_planning_costs_a_few_counts_for_each_partition_and_says_how_many() -> None:
    natural, lab_grown = Density(NATURAL), Density(LAB_GROWN)

    of_natural = planned(Heatmap(prices(PRICE), CARATS, at_once=MANY), natural)
    of_lab_grown = planned(Heatmap(prices(PRICE), CARATS, at_once=MANY), lab_grown)

    assert of_natural.requests == len(natural.asked) <= 3 * len(of_natural.partitions)
    assert of_lab_grown.requests == len(lab_grown.asked) <= 6 * len(of_lab_grown.partitions)


@pytest.mark.parametrize("budget", [1, 20, 60, 200])
def test_planning_never_costs_more_than_its_budget(budget: int) -> None:
    source = Density(NATURAL)

    plan = planned(Heatmap(prices(PRICE), budget=budget), source)

    assert plan.requests == len(source.asked) <= budget
    assert plan.gap is None
    assert {it.problem for it in plan.partitions if it.estimate is None or it.estimate > 3_600} == {"budget"}


# The last run's partitions as a prior


def test_the_partitions_of_the_last_run_are_counted_again_instead_of_found_again() -> None:
    heatmap = Heatmap(prices(PRICE), CARATS, at_once=MANY)
    last = planned(heatmap, Density(LAB_GROWN))
    grown = Density(LAB_GROWN, growth=1.04)

    plan = planned(heatmap, grown, [it.range for it in last.partitions])

    assert plan.requests == len(last.partitions) + 1
    assert [it.range for it in plan.partitions] == [it.range for it in last.partitions]
    assert plan.rows is not None
    assert plan.rows >= grown.rows


def test_a_prior_partition_that_has_grown_is_divided() -> None:
    heatmap = Heatmap(prices(PRICE))
    last = planned(heatmap, Density(NATURAL))
    shifted = Density({**NATURAL, 500: 90_000})

    plan = planned(heatmap, shifted, [it.range for it in last.partitions])

    assert plan.gap is None
    assert max(it.estimate or 0 for it in plan.partitions) <= 3_600
    assert plan.requests < planned(heatmap, shifted).requests


def test_prior_partitions_that_have_shrunk_are_joined() -> None:
    heatmap = Heatmap(prices(PRICE))
    last = planned(heatmap, Density(NATURAL))
    shrunk = Density({**NATURAL, 1_000: 1_000})

    plan = planned(heatmap, shrunk, [it.range for it in last.partitions])

    assert plan.gap is None
    assert len(plan.partitions) < len(last.partitions) - 20


def test_a_prior_of_many_partitions_is_no_help_for_a_small_window() -> None:
    heatmap = Heatmap(prices(PRICE))
    last = planned(heatmap, Density(NATURAL))

    plan = planned(heatmap, Density(NATURAL, growth=0.02), [it.range for it in last.partitions])

    assert plan.requests < 40


@pytest.mark.parametrize(
    "prior",
    [
        [Range.of({PRICE: Bounds(0, 10)})],
        [Range.of({PRICE: Bounds(0, 99.5)}), Range.of({PRICE: Bounds(99.5, LARGEST_INT)})],
        [Range.of({PRICE: Bounds(0, LARGEST_INT, "left")})],
        [Range.of({"carats": Bounds(0, 30)})],
        [Range.of({PRICE: ["cheap", "dear"]})],
    ],
    ids=["a gap", "not our ticks", "another end", "another dimension", "a list"],
)
def test_a_prior_that_is_not_ours_is_ignored(prior: list[Range]) -> None:
    fresh = planned(Heatmap(prices(PRICE)), Density(NATURAL))

    assert planned(Heatmap(prices(PRICE)), Density(NATURAL), prior) == fresh


# F28: partitions may be added while a run is under way


def test_a_partition_that_outgrew_its_estimate_is_divided_into_pieces_that_tile_it() -> None:
    heatmap = Heatmap(prices(PRICE), CARATS)
    grown = Density(LAB_GROWN, growth=3)
    parent = Range.of({PRICE: Bounds(60, 61), "carats": Bounds(0, 2)})
    begun = heatmap.divide(parent)
    assert begun is not None

    plan = explore(heatmap, grown, begun)[-1].plan()

    assert plan.domain == parent
    assert plan.baseline == grown(parent)
    assert plan.gap is None
    assert len(plan.partitions) > 3
    assert max(it.estimate or 0 for it in plan.partitions) <= 3_600


def test_a_partition_is_divided_by_its_own_size_not_by_the_number_of_partitions_of_a_run() -> None:
    heatmap = Heatmap(prices(PRICE), fewest=30)
    begun = heatmap.divide(Range.of({PRICE: Bounds(500, 535)}))
    assert begun is not None

    plan = explore(heatmap, Density(NATURAL), begun)[-1].plan()

    assert len(plan.partitions) == 3


def test_a_partition_without_an_upper_bound_is_divided_into_pieces_of_which_the_last_has_none() -> None:
    heatmap = Heatmap(Dimension(PRICE, 0, 100_000, above=True), target=50, least_rows=1)
    begun = heatmap.divide(Range.of({PRICE: Bounds(500, None)}))
    assert begun is not None

    plan = explore(heatmap, Items(stones(*range(600, 800))), begun)[-1].plan()

    bounds = [it.range.bounds(PRICE) for it in plan.partitions]
    assert (bounds[0].from_, bounds[-1].to) == (500, None)
    assert plan.gap is None


@pytest.mark.parametrize(
    "parent",
    [Range.of({PRICE: Bounds(5, 6)}), Range.of({"colour": ["D"]}), Range.of({PRICE: Bounds(5, 9, "left")})],
    ids=["one tick", "another dimension", "another end"],
)
def test_a_partition_that_cannot_be_divided_stays_whole(parent: Range) -> None:
    assert Heatmap(prices(PRICE)).divide(parent) is None


# F29: a capped plan is a partial one


def test_a_capped_plan_says_that_it_is_partial_and_what_it_leaves_out() -> None:
    plan = planned(Heatmap(prices(PRICE)), Density(NATURAL))

    trial = capped(plan, 10_000)

    assert trial.scope == "partial"
    assert sum(it.estimate or 0 for it in trial.partitions) < 14_000
    assert trial.partitions + trial.left_out == plan.partitions
    assert trial.gap is not None


def test_a_cap_that_leaves_nothing_out_changes_nothing() -> None:
    plan = planned(Heatmap(prices(PRICE)), Density(NATURAL))

    assert capped(plan, 1_000_000) == plan
    assert plan.scope == "complete"


def test_a_plan_that_lost_a_partition_cannot_call_itself_complete() -> None:
    """The scope is proven from the ranges; there is no flag that could be forgotten."""
    plan = planned(Heatmap(prices(PRICE)), Density(NATURAL))

    holey = replace(plan, partitions=plan.partitions[:40] + plan.partitions[41:])

    assert holey.scope == "partial"


# Any ordered dimension


def test_instants_are_a_dimension() -> None:
    """5,000 rows that a supplier changed within one second, among a month of few."""
    start = datetime(2026, 1, 1, tzinfo=UTC)
    dimension = Dimension("updated_at", start, start + timedelta(days=30), timedelta(seconds=1), "left")
    heatmap = Heatmap(dimension, CARATS, target=1_000, least_rows=1)
    burst = start + timedelta(days=11, seconds=4_711)

    def source(asked: Range) -> int:
        when, carats = asked.bounds("updated_at"), asked.bounds("carats")
        share = 1 if carats.to is None else (float(carats.to) - float(carats.from_ or 0)) / 30  # type: ignore[arg-type]
        return math.ceil(5_000 * share) if when.contains(burst) else 0

    plan = explore(heatmap, source, heatmap.start())[-1].plan()

    assert plan.gap is None
    assert len([it for it in plan.partitions if it.estimate]) == 5
    assert plan.requests < 150


# Settings


def test_settings_that_cannot_work_are_refused() -> None:
    for given in (
        {"target": 0},
        {"fewest": 0},
        {"most": 0},
        {"budget": 0},
        {"at_once": 0},
        {"fewest": 9, "most": 8},
    ):
        with pytest.raises(ConfigurationError, match="Heatmap"):
            Heatmap(prices(PRICE), **given)
    with pytest.raises(ConfigurationError, match="dimensions"):
        Heatmap()
    with pytest.raises(ConfigurationError, match="of their own"):
        Heatmap(prices(PRICE), prices(PRICE))


def test_a_frontier_that_we_did_not_store_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="plan again"):
        Heatmap(prices(PRICE)).restore({"kind": "tea leaves"})


def test_a_frontier_of_a_large_catalogue_is_small_enough_to_be_stored_with_every_step() -> None:
    heatmap = Heatmap(prices(PRICE), CARATS, at_once=MANY)

    steps: list[Frontier] = explore(heatmap, Density(LAB_GROWN), heatmap.start())

    assert max(len(json.dumps(it.to_json())) for it in steps) < 100_000
