"""The window of a run: what one run leaves to the next, and that nothing falls between them."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from datetime import UTC, datetime, timedelta, timezone
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepfast.errors import ConfigurationError
from stepfast.runs.watermark import watermark_after
from stepfast.runs.window import Window, backfill_window, next_window, skew, source_time

if TYPE_CHECKING:
    from stepfast.runs.run import RunKind

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
SETTLE = timedelta(seconds=120)
LOOKBACK = timedelta(minutes=15)


def window(
    kind: RunKind = "incremental",
    *,
    watermark: datetime | None = NOON - timedelta(hours=1),
    now: datetime = NOON,
    lookback: timedelta = LOOKBACK,
    last_took: timedelta = timedelta(0),
) -> Window:
    return next_window(
        kind, watermark=watermark, source_now=now, lookback=lookback, settle=SETTLE, last_took=last_took
    )


def seconds(most: int) -> st.SearchStrategy[timedelta]:
    return st.integers(0, most).map(lambda it: timedelta(seconds=it))


def test_an_incremental_run_reads_from_a_little_before_the_watermark_to_a_little_while_ago() -> None:
    assert window() == Window(NOON - timedelta(hours=1) - LOOKBACK, NOON - SETTLE)


@pytest.mark.parametrize("kind", ["full", "verify"])
def test_a_full_run_reads_everything_up_to_a_little_while_ago(kind: RunKind) -> None:
    assert window(kind) == Window(None, NOON - SETTLE)


def test_the_first_incremental_run_reads_everything() -> None:
    assert window(watermark=None) == Window(None, NOON - SETTLE)


def test_the_watermark_is_the_end_of_the_window_and_not_the_time_of_completion() -> None:
    """What changed while the run was reading is read by the next one."""
    run = window()
    completed_at, changed_during_the_run = NOON + timedelta(minutes=15), NOON + timedelta(minutes=5)

    watermark = watermark_after(NOON - timedelta(hours=1), run.to)
    following = window(watermark=watermark, now=completed_at + timedelta(hours=1))

    assert watermark == run.to < completed_at
    assert following.from_ is not None
    assert following.from_ <= changed_during_the_run < following.to


def test_a_watermark_never_moves_back() -> None:
    later = NOON + timedelta(hours=5)

    assert watermark_after(later, window().to) == later
    assert watermark_after(None, window().to) == window().to


def test_the_lookback_never_moves_the_watermark_itself() -> None:
    """Runs that find nothing to do would otherwise creep back by a lookback each."""
    watermark: datetime | None = NOON
    for _ in range(50):
        watermark = watermark_after(watermark, window(watermark=watermark, now=NOON + SETTLE).to)

    assert watermark == NOON


def test_after_a_long_run_the_next_one_looks_back_as_far_as_it_took() -> None:
    took = timedelta(hours=3)

    assert window(last_took=took).from_ == NOON - timedelta(hours=1) - took


def test_a_clock_that_was_set_back_does_not_turn_the_window_round() -> None:
    run = window(watermark=NOON, now=NOON - timedelta(hours=2))

    assert run == Window(NOON - LOOKBACK, NOON)


def test_an_empty_window_is_a_window_and_its_run_advances_to_its_end() -> None:
    run = window(watermark=NOON - SETTLE, lookback=timedelta(0))

    assert run.is_empty
    assert watermark_after(NOON - SETTLE, run.to) == run.to == NOON - SETTLE
    assert not window().is_empty
    assert not window("full").is_empty


def test_a_window_that_ends_before_it_begins_is_refused_before_a_source_answers_anything() -> None:
    with pytest.raises(ConfigurationError, match="ends before it begins"):
        Window(NOON, NOON - timedelta(seconds=1))


def test_a_window_without_a_time_zone_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="has no time zone"):
        Window(None, NOON.replace(tzinfo=None))
    with pytest.raises(ConfigurationError, match="a window's beginning"):
        Window(NOON.replace(tzinfo=None), NOON)


def test_a_window_cannot_be_changed_once_the_run_has_it() -> None:
    with pytest.raises(FrozenInstanceError):
        window().to = NOON  # type: ignore[misc]


def test_a_window_is_the_same_in_every_request_wherever_it_was_stored() -> None:
    east = timezone(timedelta(hours=9))
    run = Window((NOON - LOOKBACK).astimezone(east), NOON.astimezone(east))

    assert run == Window(NOON - LOOKBACK, NOON)
    assert Window.from_json(run.to_json()) == run
    assert Window.of(*run.micros) == run
    assert (
        Window.from_json(Window(None, NOON).to_json())
        == Window(None, NOON)
        == Window.of(*Window(None, NOON).micros)
    )


def test_a_backfill_reads_what_its_operator_says() -> None:
    day = timedelta(days=1)

    assert backfill_window(NOON - 2 * day, NOON - day, source_now=NOON, settle=SETTLE) == Window(
        NOON - 2 * day, NOON - day
    )
    assert backfill_window(None, None, source_now=NOON, settle=SETTLE) == Window(None, NOON - SETTLE)


def test_a_backfill_into_what_the_source_may_not_show_yet_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="end it at 2026-03-01 11:58:00 UTC or before"):
        backfill_window(None, NOON, source_now=NOON, settle=SETTLE)


def test_a_backfill_that_is_empty_or_inverted_is_refused() -> None:
    earlier = NOON - timedelta(hours=1)
    with pytest.raises(ConfigurationError, match="reads nothing"):
        backfill_window(earlier, earlier, source_now=NOON, settle=SETTLE)
    with pytest.raises(ConfigurationError, match="ends before it begins"):
        backfill_window(NOON, earlier, source_now=NOON, settle=SETTLE)


def test_a_run_without_a_window_of_its_own_says_so() -> None:
    with pytest.raises(ConfigurationError, match="say from when to when"):
        window("backfill")


@given(st.integers(-90, 90), st.floats(0, 30), st.floats(0, 0.999))
def test_the_measured_clock_of_the_source_is_never_ahead_of_it(
    ahead: int, way_back: float, fraction: float
) -> None:
    """The Date of an answer has no fractions and travels; a window must not end in the source's future."""
    shown = NOON + timedelta(seconds=ahead + fraction)  # on the source's clock, when ours shows noon
    answered_at = NOON + timedelta(seconds=way_back)

    measured = skew(shown.replace(microsecond=0), answered_at)

    true = shown + timedelta(seconds=way_back)
    assert source_time(answered_at, measured) <= true
    assert true - source_time(answered_at, measured) <= timedelta(seconds=way_back + 1)


@given(
    gaps=st.lists(st.integers(1, 100_000), min_size=1, max_size=8),
    took=seconds(20_000),
    settle=seconds(600),
    lookback=seconds(3_600),
)
def test_windows_of_consecutive_runs_leave_nothing_between_them(
    gaps: list[int], took: timedelta, settle: timedelta, lookback: timedelta
) -> None:
    windows, watermark, now = list[Window](), None, NOON
    for gap in gaps:
        run = next_window(
            "incremental",
            watermark=watermark,
            source_now=now,
            lookback=lookback,
            settle=settle,
            last_took=took,
        )
        windows.append(run)
        watermark = watermark_after(watermark, run.to)
        now += took + timedelta(seconds=gap)

    assert windows[0].from_ is None
    assert all(
        after.from_ is not None and after.from_ <= before.to <= after.to
        for before, after in pairwise(windows)
    )


@given(
    changed=seconds(4_000),
    lag=seconds(120 + 900),
    ahead=st.integers(-90, 90).map(lambda it: timedelta(seconds=it)),
    every=st.integers(60, 1_500).map(lambda it: timedelta(seconds=it)),
)
def test_a_change_that_becomes_visible_late_is_read_by_a_later_run(
    changed: timedelta, lag: timedelta, ahead: timedelta, every: timedelta
) -> None:
    """As late as settle and lookback together, at any instant, on a clock that is not ours."""
    changed_at = NOON + changed  # on the source's clock
    watermark, ours, found = NOON, NOON, False
    for _ in range(100):
        now = source_time(ours, ahead)
        run = next_window(
            "incremental", watermark=watermark, source_now=now, lookback=LOOKBACK, settle=SETTLE
        )
        visible = changed_at + lag <= now
        found |= run.from_ is not None and visible and run.from_ <= changed_at < run.to
        watermark = watermark_after(watermark, run.to)
        ours += every

    assert found
