"""Reserving future starts of a rate."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from stepfast import Rate
from stepfast.limits.limit_rows import LimitRow, next_starts

SECOND = 1_000_000


def row(rate: Rate, arrival: int = 0) -> LimitRow:
    return LimitRow("it", arrival, rate.gap, rate.tolerance, 0, None)


def test_the_first_starts_at_once_and_the_others_in_their_turn() -> None:
    (after,), starts = next_starts([row(Rate(10, per="1s", burst=1))], 5 * SECOND, 4, SECOND)

    assert [it - 5 * SECOND for it in starts] == [0, 100_000, 200_000, 300_000]
    assert after.arrival_at == 5 * SECOND + 400_000


def test_who_would_wait_too_long_gets_no_place() -> None:
    (after,), starts = next_starts([row(Rate(2, per="1s", burst=1))], SECOND, 9, SECOND)
    (same,), none = next_starts([after], SECOND, 9, 400_000)

    assert len(starts) == 3
    assert (same, none) == (after, [])


def test_the_slowest_of_several_rates_decides() -> None:
    rates = [row(Rate(10, per="1s", burst=1)), row(Rate(60, per="1m", burst=1))]

    _, starts = next_starts(rates, 0, 3, 10 * SECOND)

    assert starts == [0, SECOND, 2 * SECOND]


@given(
    count=st.integers(1, 40),
    burst=st.integers(1, 40),
    asked=st.lists(st.tuples(st.integers(0, 2 * SECOND), st.integers(1, 9)), min_size=1, max_size=20),
)
def test_in_any_window_there_are_no_more_than_the_rate_allows(
    count: int, burst: int, asked: list[tuple[int, int]]
) -> None:
    rate = Rate(count, per="1s", burst=min(burst, count))
    rows, now, every = [row(rate)], 0, []
    for passed, most in asked:
        now += passed
        rows, starts = next_starts(rows, now, most, 3 * SECOND)
        every += starts

    assert every == sorted(every)
    for first in every:
        assert sum(first <= it < first + SECOND for it in every) <= count
