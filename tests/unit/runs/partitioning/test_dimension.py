"""Dimensions as rows of ticks: what lies between two ticks, and where to look first."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepfast.errors import ConfigurationError
from stepfast.runs.partitioning.dimension import Axis, Choices, Dimension, axis_from_json, prices
from stepfast.runs.partitioning.ranges import Bounds

some = settings(max_examples=80, deadline=None, database=None)

START = datetime(2026, 1, 1, tzinfo=UTC)
AXES: list[Axis] = [
    prices("price"),
    Dimension("carats", Decimal("0.4"), Decimal("15.01"), Decimal("0.01")),
    Dimension("weight", 0, 10, 3, "left"),
    Dimension("score", -5, 5, 0.25, below=True, above=True),
    Dimension("updated_at", START, START + timedelta(days=9), timedelta(hours=1), "left"),
    Choices("shape", ["ROUND", "OVAL", "PEAR"]),
]
each = pytest.mark.parametrize("axis", AXES, ids=lambda it: it.name)


@each
@some
@given(data=st.data())
def test_what_lies_between_two_ticks_says_between_which(axis: Axis, data: st.DataObject) -> None:
    first = data.draw(st.integers(0, axis.size - 1))
    last = data.draw(st.integers(first + 1, axis.size))

    assert axis.ticks(axis.part(first, last)) == (first, last)


@each
def test_a_dimension_survives_json(axis: Axis) -> None:
    assert axis_from_json(axis.to_json()) == axis


@each
@pytest.mark.parametrize("pieces", [1, 2, 7, 150])
def test_the_first_look_cuts_inside_and_goes_upwards(axis: Axis, pieces: int) -> None:
    cuts = axis.first_look(pieces)

    assert cuts == sorted(set(cuts))
    assert cuts
    assert cuts[0] > 0
    assert cuts[-1] < axis.size
    assert len(cuts) < 130


def test_the_last_step_may_be_shorter() -> None:
    weight = Dimension("weight", 0, 10, 3)

    assert weight.size == 4
    assert [weight.part(it, it + 1) for it in range(4)] == [
        Bounds(0, 3),
        Bounds(3, 6),
        Bounds(6, 9),
        Bounds(9, 10),
    ]


def test_steps_are_exact_where_floats_are_not() -> None:
    carats = Dimension("carats", 0.4, 15.01, 0.01)

    assert carats.part(3, 70) == Bounds(Decimal("0.43"), Decimal("1.1"))


def test_outermost_parts_of_a_dimension_without_ends_have_none() -> None:
    score = Dimension("score", 0, 4, below=True, above=True)

    assert [score.part(0, 1), score.part(1, 3), score.part(3, 4)] == [
        Bounds(None, 1),
        Bounds(1, 3),
        Bounds(3, None),
    ]


def test_the_first_look_at_prices_is_close_below_five_thousand_and_wide_above() -> None:
    cuts = prices("price").first_look(150)

    assert cuts[:3] == [50, 100, 150]
    assert [it for it in cuts if it >= 5_000] == [5_000 * 5**it for it in range(9)]


def test_the_first_look_costs_little_if_there_is_little_to_divide() -> None:
    assert len(prices("price").first_look(2)) < 15


def test_bounds_that_are_not_at_ticks_are_not_ours() -> None:
    weight = Dimension("weight", 0, 10, 3)

    assert weight.ticks(Bounds(0, 4)) is None
    assert weight.ticks(Bounds(-3, 3)) is None
    assert weight.ticks(Bounds(None, 3)) is None
    assert weight.ticks(Bounds(0, 3, "left")) is None
    assert weight.ticks(("heavy",)) is None
    assert Choices("shape", ["A", "B", "C"]).ticks(("A", "C")) is None
    assert Choices("shape", ["A", "B"]).ticks(Bounds(0, 1)) is None
    assert Choices("shape", ["A", "B"]).ticks(("X",)) is None


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("price", 10, 0), "inverted"),
        (("price", 5, 5, 1, "left"), "empty"),
        (("price", 0, 10, 0), "leads nowhere"),
        (("price", 0, 10, -1), "leads nowhere"),
        (("price", 0, 10, timedelta(1)), "does not fit"),
        (("updated_at", START, START + timedelta(1)), "does not fit"),
        (("sku", "a", "z"), "KeyRanges"),
        (("a price", 0, 1), "no name"),
    ],
)
def test_a_dimension_that_cannot_be_is_refused(arguments: tuple[Any, ...], problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        Dimension(*arguments)


def test_a_dense_zone_lies_above_the_lowest_value() -> None:
    with pytest.raises(ConfigurationError, match="nothing lies below"):
        Dimension("price", 100, 200, dense_until=100)


def test_choices_are_checked_like_those_of_a_range() -> None:
    with pytest.raises(ConfigurationError, match="twice"):
        Choices("shape", ["OVAL", "OVAL"])
