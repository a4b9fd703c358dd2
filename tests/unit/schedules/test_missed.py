"""Missed ticks: which of them become jobs, decided without a database."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepfast.schedules.cron import Every, Once
from stepfast.schedules.definition import BATCH, LATE, MOST, Decision, Missed, decide

MINUTE = 60_000_000
every_minute = Every(MINUTE)


@pytest.mark.parametrize("missed", Missed)
def test_a_tick_that_is_fired_in_time_is_fired_whatever_the_policy(missed: Missed) -> None:
    assert decide(every_minute, missed, 10 * MINUTE, 10 * MINUTE + 5) == Decision(
        (10 * MINUTE,), 11 * MINUTE, None
    )


def test_once_is_one_job_for_all_of_them_as_of_the_latest() -> None:
    assert decide(every_minute, Missed.ONCE, 10 * MINUTE, 500 * MINUTE + 5) == Decision(
        (500 * MINUTE,), 501 * MINUTE, 10 * MINUTE
    )


def test_skip_fires_the_latest_if_it_is_not_late() -> None:
    hourly = Every(60 * MINUTE)
    hour = 60 * MINUTE

    assert decide(hourly, Missed.SKIP, hour, 5 * hour + LATE) == Decision((5 * hour,), 6 * hour, hour)
    assert decide(hourly, Missed.SKIP, hour, 5 * hour + LATE + 1) == Decision((), 6 * hour, hour)


def test_all_are_fired_oldest_first_and_in_batches() -> None:
    due, now = 10 * MINUTE, (10 + BATCH + 7) * MINUTE

    first = decide(every_minute, Missed.ALL, due, now)
    assert first == Decision(tuple(range(due, due + BATCH * MINUTE, MINUTE)), due + BATCH * MINUTE, None)
    assert first.next_at is not None
    second = decide(every_minute, Missed.ALL, first.next_at, now)
    assert second == Decision(tuple(range(first.next_at, now + 1, MINUTE)), now + MINUTE, None)


def test_of_too_many_the_newest_are_made_up() -> None:
    now = 10_000 * MINUTE

    decision = decide(every_minute, Missed.ALL, 10 * MINUTE, now)

    oldest = now - (MOST - 1) * MINUTE
    assert decision.fire == tuple(range(oldest, oldest + BATCH * MINUTE, MINUTE))
    assert decision.next_at == oldest + BATCH * MINUTE
    assert decision.dropped_since == 10 * MINUTE


@pytest.mark.parametrize("missed", [Missed.ONCE, Missed.ALL])
def test_a_one_off_that_was_missed_is_fired_late_and_never_again(missed: Missed) -> None:
    assert decide(Once(MINUTE), missed, MINUTE, 10 * MINUTE) == Decision((MINUTE,), None, None)


def test_a_one_off_that_is_skipped_is_over() -> None:
    assert decide(Once(MINUTE), Missed.SKIP, MINUTE, 10 * MINUTE) == Decision((), None, MINUTE)


@pytest.mark.parametrize("missed", Missed)
def test_a_plan_of_other_time_zone_data_fires_what_was_planned(missed: Missed) -> None:
    planned = 10 * MINUTE + 7  # a tick that the timing does not know

    assert decide(Every(60 * MINUTE), missed, planned, planned + 3) == Decision((planned,), 60 * MINUTE, None)


@given(st.sampled_from(Missed), st.integers(1, 500), st.integers(0, 3_000 * MINUTE))
def test_time_goes_on_and_no_tick_comes_twice(missed: Missed, first: int, span: int) -> None:
    due: int | None = first * MINUTE
    now = first * MINUTE + span
    fired: list[int] = []
    rounds = 0
    while due is not None and due <= now:
        decision = decide(every_minute, missed, due, now)
        assert decision.next_at is not None
        assert decision.next_at > due
        assert len(decision.fire) <= BATCH
        fired += decision.fire
        due = decision.next_at
        rounds += 1

    assert fired == sorted(set(fired))
    assert all(first * MINUTE <= tick <= now for tick in fired)
    assert due == (now // MINUTE + 1) * MINUTE
    if missed is Missed.ALL:
        assert len(fired) == min(MOST, span // MINUTE + 1)
    else:
        assert rounds == 1
        assert len(fired) <= 1
