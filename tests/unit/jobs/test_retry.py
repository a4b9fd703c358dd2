"""The retry policy: attempts and waits."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepfast import Retry
from stepfast.errors import ConfigurationError

few = settings(max_examples=60, deadline=None, database=None)


def test_three_attempts_by_default() -> None:
    assert [Retry().exhausted(failures) for failures in (1, 2, 3, 4)] == [False, False, True, True]


@pytest.mark.parametrize(("failures", "least", "most"), [(1, 0.5, 1), (2, 1, 2), (3, 2, 4), (4, 4, 8)])
def test_the_wait_doubles_between_half_and_all(failures: int, least: float, most: float) -> None:
    retry = Retry(attempts=10)

    assert retry.delay(failures, 0.0) == timedelta(seconds=least)
    assert retry.delay(failures, 0.999_999) <= timedelta(seconds=most)


def test_the_longest_wait_is_kept() -> None:
    retry = Retry(attempts=10_000, longest="1m")

    assert retry.delay(9_999, 0.999) <= timedelta(minutes=1)


def test_a_first_wait_of_nothing_is_no_wait() -> None:
    assert Retry(first=0).delay(3, 0.7) == timedelta(0)


@few
@given(
    failures=st.integers(1, 100_000),
    dice=st.floats(0, 1, exclude_max=True),
    first=st.floats(0, 10_000),
    factor=st.floats(1, 100),
    longest=st.floats(0, 10_000),
)
def test_every_wait_lies_between_half_and_all_of_its_ceiling(
    failures: int, dice: float, first: float, factor: float, longest: float
) -> None:
    retry = Retry(attempts=5, first=first, factor=factor, longest=longest)

    wait = retry.delay(failures, dice).total_seconds()

    assert 0 <= wait <= longest + 1e-6
    assert wait <= first * factor ** min(failures - 1, 150) + 1e-6


@few
@given(failures=st.integers(1, 200), dice=st.floats(0, 1, exclude_max=True))
def test_with_the_same_dice_waits_never_shrink(failures: int, dice: float) -> None:
    retry = Retry(attempts=500)

    assert retry.delay(failures, dice) <= retry.delay(failures + 1, dice)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"attempts": 0}, "at least once"),
        ({"attempts": float("-inf")}, "a whole number from 1"),
        ({"attempts": float("nan")}, r"attempts=nan\): a whole number from 1, or math.inf"),
        ({"attempts": 2.5}, "a whole number from 1"),
        ({"attempts": True}, "a whole number from 1"),
        ({"attempts": "3"}, r"attempts='3'\): a whole number from 1"),
        ({"factor": "2"}, r"factor='2'\): waits must not shrink"),
        ({"factor": True}, "must not shrink"),
        ({"first": float("nan")}, r"Retry\(first=…\): nan is not a duration"),
        ({"factor": 0.5}, "must not shrink"),
        ({"factor": float("nan")}, "must not shrink"),
        ({"factor": float("inf")}, "must not shrink"),
        ({"first": "soon"}, r"Retry\(first=…\)"),
        ({"longest": -1}, r"Retry\(longest=…\)"),
    ],
)
def test_a_policy_that_cannot_work_is_refused(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigurationError, match=sentence):
        Retry(**options)


@pytest.mark.parametrize("failures", [1, 52, 98, 100_000])
def test_waits_beyond_any_number_are_the_longest(failures: int) -> None:
    retry = Retry(factor=1e6, attempts=99, longest="15m")

    assert retry.delay(failures, 0.5) <= timedelta(minutes=15)
    assert Retry(factor=1e6, first=0).delay(failures, 0.5) == timedelta(0)
