"""Bounds: what belongs to them, and what cannot be bounds."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepfast.errors import ConfigurationError
from stepfast.runs.partitioning.ranges import Bounds, say

if TYPE_CHECKING:
    from stepfast.runs.partitioning.ranges import Closed

some = settings(max_examples=60, deadline=None, database=None)

numbers = st.one_of(
    st.integers(-50, 50), st.decimals(-50, 50, places=2), st.floats(-50, 50).map(lambda it: round(it, 2))
)
instants = st.datetimes(datetime(2020, 1, 1), datetime(2030, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001 - given one
texts = st.text(max_size=4)


@st.composite
def bounds(draw: st.DrawFn, values: st.SearchStrategy[Any] = numbers) -> Bounds:
    closed: Closed = draw(st.sampled_from(("both", "left")))
    low, high = draw(st.none() | values), draw(st.none() | values)
    if low is not None and high is not None and not low < high:
        low, high = (high, low) if high < low else (low, None)
    return Bounds(low, high, closed)


# F25: one meaning of bounds


def test_an_inverted_range_is_refused_before_a_source_can_answer_nonsense_to_it() -> None:
    with pytest.raises(ConfigurationError, match="inverted"):
        Bounds(251, 250)


def test_bounds_with_nothing_between_them_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="empty"):
        Bounds(250, 250, "left")
    assert Bounds(250, 250).contains(250)


def test_the_last_value_belongs_to_bounds_that_are_closed_at_both_ends_only() -> None:
    both, left = Bounds(0, 250, "both"), Bounds(0, 250, "left")

    assert (both.contains(0), both.contains(250), both.contains(Decimal("250.01"))) == (True, True, False)
    assert (left.contains(0), left.contains(250), left.contains(Decimal("249.99"))) == (True, False, True)


def test_a_missing_bound_excludes_nothing_on_its_side() -> None:
    assert Bounds(None, 5).contains(-(10**30))
    assert Bounds(5, None, "left").contains(10**30)
    assert Bounds().contains("anything")


def test_a_source_with_inclusive_bounds_is_asked_for_the_last_step_inside() -> None:
    assert Bounds(0, 250, "both").inclusive() == (0, 250)
    assert Bounds(0, 250, "left").inclusive() == (0, 249)
    assert Bounds(0, 1, "left").inclusive(Decimal("0.01")) == (0, Decimal("0.99"))
    assert Bounds(3, None, "left").inclusive() == (3, None)
    day = datetime(2026, 1, 2, tzinfo=UTC)
    assert Bounds(None, day, "left").inclusive(timedelta(seconds=1)) == (None, day - timedelta(seconds=1))


def test_bounds_narrower_than_a_step_have_no_inclusive_form() -> None:
    with pytest.raises(ConfigurationError, match="narrower"):
        Bounds(0, 0.5, "left").inclusive()


# Splitting


@some
@given(bounds(), numbers)
def test_a_value_is_in_a_half_exactly_if_it_is_in_the_whole(whole: Bounds, value: Any) -> None:
    halves = whole.bisect(Decimal("0.01"))

    if halves:
        assert whole.contains(value) == any(it.contains(value) for it in halves)


@some
@given(bounds(), bounds(), numbers)
def test_a_value_is_in_the_overlap_exactly_if_it_is_in_both(one: Bounds, other: Bounds, value: Any) -> None:
    common = one.overlap(other)

    assert (common is not None and common.contains(value)) == (one.contains(value) and other.contains(value))


def test_half_open_halves_share_no_value_and_closed_ones_share_one() -> None:
    assert Bounds(0, 10, "left").split(4) == (Bounds(0, 4, "left"), Bounds(4, 10, "left"))
    assert Bounds(0, 10, "both").split(4) == (Bounds(0, 4), Bounds(4, 10))
    assert Bounds().split("m") == (Bounds(None, "m"), Bounds("m", None))


@pytest.mark.parametrize("at", [0, 10, -1, 11])
def test_bounds_are_split_inside_only(at: int) -> None:
    with pytest.raises(ConfigurationError, match="does not lie inside"):
        Bounds(0, 10).split(at)


def test_what_is_one_step_wide_has_no_halves() -> None:
    assert Bounds(7, 8).bisect() is None
    assert Bounds(7, 8).bisect(0.5) == (Bounds(7, 7.5), Bounds(7.5, 8))
    assert Bounds(7, 10).bisect() == (Bounds(7, 8), Bounds(8, 10))
    assert Bounds(None, 8).bisect() is None
    assert Bounds("a", "z").bisect() is None


# Values


def test_equal_values_make_equal_bounds() -> None:
    east = timezone(timedelta(hours=2))
    noon = datetime(2026, 1, 1, 12, tzinfo=UTC)

    assert Bounds(0, 1.0) == Bounds(Decimal("0.00"), 1)
    assert Bounds(0.1, 2) == Bounds(Decimal("0.10"), 2)
    assert Bounds(noon, None) == Bounds(noon.astimezone(east), None)


@pytest.mark.parametrize(
    ("low", "high", "problem"),
    [
        (True, 5, "not a number"),
        ([1], 5, "not a number"),
        (float("nan"), 5, "no number"),
        (0, float("inf"), "no number"),
        ("a", 5, "cannot be compared"),
        (datetime(2026, 1, 1), None, "time zone"),  # noqa: DTZ001 - that is the point
    ],
)
def test_values_that_cannot_be_bounds_are_refused(low: Any, high: Any, problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        Bounds(low, high)


def test_values_of_different_types_are_not_compared() -> None:
    with pytest.raises(ConfigurationError, match="cannot be compared"):
        Bounds(0, 5).contains("3")
    with pytest.raises(ConfigurationError, match="cannot be compared"):
        Bounds(0, 5).overlap(Bounds("a", "b"))


def test_another_kind_of_closedness_does_not_exist() -> None:
    with pytest.raises(ConfigurationError, match="'both' ends or 'left'"):
        Bounds(0, 1, "right")  # type: ignore[arg-type]


@some
@given(bounds(numbers) | bounds(instants) | bounds(texts))
def test_bounds_survive_json(given_bounds: Bounds) -> None:
    assert Bounds.from_json(json.loads(json.dumps(given_bounds.to_json()))) == given_bounds


def test_json_keeps_what_a_float_would_lose() -> None:
    exact = Bounds(Decimal("0.1234567890123456789"), 10**30)

    assert Bounds.from_json(json.loads(json.dumps(exact.to_json()))) == exact


def test_the_json_of_plain_bounds_is_plain() -> None:
    assert Bounds(0, 250).to_json() == {"from": 0, "to": 250, "closed": "both"}
    assert Bounds("a", "f", "left").to_json() == {"from": "a", "to": "f", "closed": "left"}


def test_bounds_without_an_end_leave_nothing_out() -> None:
    assert Bounds(0, None, "left") == Bounds(0, None, "both")


def test_a_text_that_looks_like_something_else_is_quoted() -> None:
    assert [say(it) for it in ("EU", "12", "a b", 'say "x"', 12, Decimal("1.50"))] == [
        "EU", '"12"', '"a b"', '"say \\"x\\""', "12", "1.50",
    ]  # fmt: skip
