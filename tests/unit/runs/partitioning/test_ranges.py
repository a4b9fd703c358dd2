"""Ranges: their names, their parts, and the proof that several of them leave nothing out."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from decimal import Decimal
from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepfast.errors import ConfigurationError
from stepfast.runs.partitioning.ranges import EVERYTHING, LONGEST_NAME, Bounds, Range, gap, tiles

some = settings(max_examples=80, deadline=None, database=None)

SHAPES = ("ROUND", "OVAL", "PEAR")


@st.composite
def stretches(draw: st.DrawFn) -> Bounds:
    low, high = sorted(
        draw(st.tuples(st.integers(0, 6), st.integers(0, 6)).filter(lambda it: it[0] != it[1]))
    )
    return Bounds(
        draw(st.sampled_from([low, None])),
        draw(st.sampled_from([high, None])),
        draw(st.sampled_from(("both", "left"))),
    )


ranges = st.builds(
    lambda price, weight, shape: Range.of(
        {name: it for name, it in (("price", price), ("weight", weight), ("shape", shape)) if it is not None}
    ),
    st.none() | stretches(),
    st.none() | stretches(),
    st.none() | st.lists(st.sampled_from(SHAPES), min_size=1, max_size=3, unique=True),
)

# Values between which nothing new can happen: whole numbers, and one between each two of them.
HALVES = [Decimal(it) / 2 for it in range(13)]
POINTS: list[dict[str, Any]] = [
    {"price": price, "weight": weight, "shape": it} for price, weight, it in product(HALVES, HALVES, SHAPES)
]


# The proof


@some
@given(st.lists(ranges, max_size=6))
def test_ranges_tile_exactly_if_every_point_is_in_one(given_ranges: list[Range]) -> None:
    domain = Range.of(price=Bounds(0, 6), weight=Bounds(0, 6), shape=SHAPES)

    covered = all(any(one.contains(it) for one in given_ranges) for it in POINTS)

    assert tiles(domain, given_ranges) == covered


@some
@given(st.lists(stretches(), max_size=7))
def test_stretches_tile_exactly_if_every_value_is_in_one(parts: list[Bounds]) -> None:
    covered = all(any(it.contains(value) for it in parts) for value in HALVES)

    assert tiles(Range.of(price=Bounds(0, 6)), [Range.of(price=it) for it in parts]) == covered


def test_a_gap_of_a_fraction_is_found() -> None:
    """`[0, 249]` and `[250, 500]`: the bounds that lost every price with cents at their edge."""
    domain = Range.of(price=Bounds(0, 500))

    assert (
        gap(domain, [Range.of(price=Bounds(0, 249)), Range.of(price=Bounds(250, 500))]) == "price >249..<250"
    )
    assert gap(domain, [Range.of(price=Bounds(0, 250)), Range.of(price=Bounds(250, 500))]) is None


def test_a_gap_of_one_value_is_found() -> None:
    domain = Range.of(price=Bounds(0, 500))
    half_open = [Range.of(price=Bounds(0, 250, "left")), Range.of(price=Bounds(250, 500, "left"))]

    assert gap(domain, half_open) == "price 500"
    assert gap(Range.of(price=Bounds(0, 500, "left")), half_open) is None


def test_a_gap_above_the_last_range_is_found() -> None:
    assert gap(EVERYTHING, [Range.of(price=Bounds(0, 100_000))]) == "price ..<0"
    assert gap(Range.of(price=Bounds(0)), [Range.of(price=Bounds(0, 100_000))]) == "price >100000.."


def test_a_gap_in_another_dimension_is_found_where_it_is() -> None:
    domain = Range.of(price=Bounds(0, 10), shape=SHAPES)
    column = [Range.of(price=Bounds(0, 5)), Range.of(price=Bounds(5, 10), shape=["ROUND", "PEAR"])]

    assert gap(domain, column) == "price >5..10, shape OVAL"
    assert gap(domain, [*column, Range.of(price=Bounds(5, 10), shape=["OVAL"])]) is None


def test_nothing_covers_nothing() -> None:
    assert gap(EVERYTHING, []) == "everything"
    assert gap(EVERYTHING, [EVERYTHING]) is None
    assert gap(Range.of(price=Bounds(0, 1)), [EVERYTHING]) is None


def test_a_list_of_values_covers_no_stretch() -> None:
    assert gap(Range.of(price=Bounds(0, 1)), [Range.of(price=[0, 1])]) is not None


def test_a_value_that_nobody_listed_is_a_gap_in_everything() -> None:
    assert not tiles(EVERYTHING, [Range.of(shape=SHAPES)])


# Names


@some
@given(ranges, ranges)
def test_equal_ranges_have_the_same_name_and_others_have_not(one: Range, other: Range) -> None:
    assert (one == other) == (one.name == other.name)


def test_a_name_can_be_read() -> None:
    when = datetime(2026, 1, 1, tzinfo=UTC)

    assert EVERYTHING.name == "everything"
    assert Range.of(price=Bounds(0, 250)).name == "price 0..250"
    assert (
        Range.of(price=Bounds(0, 250, "left"), carats=Bounds(0.4, None)).name == "carats 0.4.., price 0..<250"
    )
    assert Range.of(updated_at=Bounds(when)).name == "updated_at 2026-01-01T00:00:00Z.."
    assert Range.of(items=["EU", "9", "no, way"]).name == 'items EU "9" "no, way"'


def test_a_long_name_is_cut_and_stays_the_only_one() -> None:
    many = [f"tenant-{it}" for it in range(200)]

    one, other = Range.of(items=many), Range.of(items=many[:-1])

    assert len(one.name) == len(other.name) == LONGEST_NAME
    assert one.name != other.name


# Parts


@some
@given(ranges)
def test_a_range_survives_json(given_range: Range) -> None:
    assert Range.from_json(json.loads(json.dumps(given_range.to_json()))) == given_range


def test_the_json_says_what_the_range_says() -> None:
    assert Range.of(price=Bounds(0, 250), shape=["OVAL"]).to_json() == {
        "price": {"from": 0, "to": 250, "closed": "both"},
        "shape": ["OVAL"],
    }
    assert Range.of(items=["EU", 7]).to_json() == {"items": ["EU", 7]}


@some
@given(ranges, ranges)
def test_a_point_is_in_the_overlap_exactly_if_it_is_in_both(one: Range, other: Range) -> None:
    common = one.overlap(other)

    for it in POINTS[::7]:
        assert (common is not None and common.contains(it)) == (one.contains(it) and other.contains(it))


@some
@given(ranges, st.sampled_from(["price", "weight", "shape"]))
def test_halves_tile_the_whole(whole: Range, dimension: str) -> None:
    halves = whole.bisect(dimension)

    if halves:
        assert tiles(whole, halves)
        assert all(whole.overlap(it) == it for it in halves)


def test_a_range_that_names_other_bounds_or_lists_is_asked_for_the_right_thing() -> None:
    there = Range.of(price=Bounds(0, 250), shape=["OVAL"])

    assert there.bounds("price") == Bounds(0, 250)
    assert there.bounds("carats") == Bounds()
    assert there.choices("shape") == ("OVAL",)
    assert there.choices("colour") is None
    assert Range.of(items=["EU"]).items == ("EU",)
    assert there.items == ()
    with pytest.raises(ConfigurationError, match="choices"):
        there.bounds("shape")
    with pytest.raises(ConfigurationError, match="bounds"):
        there.choices("price")


def test_an_item_without_a_value_is_in_no_part_of_that_dimension() -> None:
    assert EVERYTHING.contains({})
    assert not Range.of(price=Bounds()).contains({"carats": 1})


@pytest.mark.parametrize(
    ("parts", "problem"),
    [
        ({"price per carat": Bounds(0, 1)}, "no name"),
        ({"shape": []}, "no values"),
        ({"shape": ["OVAL", "OVAL"]}, "twice"),
        ({"shape": "OVAL"}, "a list of values"),
        ({"shape": 7}, "a list of values"),
        ({"carats": [0.5]}, "texts or whole numbers"),
    ],
)
def test_parts_that_cannot_be_are_refused(parts: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        Range.of(parts)


def test_the_proof_for_a_thousand_partitions_is_quick() -> None:
    """It is made whenever a plan is asked whether it is complete."""
    columns = [
        Range.of(price=Bounds(it, it + 1), carats=Bounds(part, part + 1))
        for it in range(200)
        for part in range(5)
    ]

    assert tiles(Range.of(price=Bounds(0, 200), carats=Bounds(0, 5)), columns)
    assert not tiles(Range.of(price=Bounds(0, 200), carats=Bounds(0, 5)), columns[:-1])


def test_the_proof_looks_at_no_value_of_a_dimension_that_nobody_names() -> None:
    """Of six lists of fifty values there are fifteen thousand million combinations."""
    lists = {f"list{number}": tuple(range(50)) for number in range(6)}
    domain = Range.of({**lists, "price": Bounds(0, 100)})
    halves = [Range.of(price=Bounds(0, 50)), Range.of(price=Bounds(50, 100))]

    assert gap(domain, halves) is None
    assert gap(domain, halves[:1]) == "price >50..100"
