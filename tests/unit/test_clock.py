"""Durations and instants: reading, refusing, and converting them."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from uuid import UUID

import pytest

from stepfast.clock import boot_time, duration, instant, micros, moment, new_fence, new_id, new_ids, spoken
from stepfast.errors import ConfigurationError


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("500ms", 0.5),
        ("90s", 90),
        ("10m", 600),
        ("2h", 7200),
        ("1d", 86_400),
        ("1h30m", 5400),
        ("1h 30m", 5400),
        (" 1.5 h ", 5400),
        ("0s", 0),
        (0, 0),
        (2.5, 2.5),
        (timedelta(minutes=3), 180),
    ],
)
def test_a_duration_reads_as_people_write_it(text: Any, seconds: float) -> None:
    assert duration(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize("text", ["", "soon", "10", "10 minutes", "5x", "-5s", "1h,30m", "1e3s", "1h30"])
def test_a_text_that_is_no_duration_is_refused_with_examples(text: str) -> None:
    with pytest.raises(ConfigurationError, match=r"lease: .*'10m'"):
        duration(text, "lease")


@pytest.mark.parametrize("text", ["1" * 5_000, "1s" * 2_500])
def test_a_text_that_is_too_long_is_no_duration_and_is_not_read(text: str) -> None:
    with pytest.raises(
        ConfigurationError, match=r"^lease: a text of 5,000 characters is not a duration; write '500ms'"
    ):
        duration(text, "lease")


@pytest.mark.parametrize("value", [True, None, [], object()])
def test_a_value_that_is_no_duration_is_refused_with_examples(value: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"delay: .*'10m'"):
        duration(value, "delay")


@pytest.mark.parametrize("value", [-1, -0.5, timedelta(seconds=-1)])
def test_a_negative_duration_is_refused(value: Any) -> None:
    with pytest.raises(ConfigurationError, match="negative"):
        duration(value)


@pytest.mark.parametrize("value", [float("inf"), float("nan"), 1e300])
def test_a_number_beyond_all_time_is_refused(value: float) -> None:
    with pytest.raises(ConfigurationError, match="timeout"):
        duration(value, "timeout")


def test_micros_are_exact_for_long_spans() -> None:
    assert micros(timedelta(days=36_500, microseconds=1)) == 36_500 * 86_400 * 1_000_000 + 1


def test_an_instant_survives_the_crossing_to_the_microsecond() -> None:
    at = datetime(2031, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)

    assert moment(instant(at)) == at


def test_an_instant_is_the_same_in_every_time_zone() -> None:
    there = datetime(2024, 7, 1, 12, tzinfo=timezone(timedelta(hours=9)))

    assert instant(there) == instant(datetime(2024, 7, 1, 3, tzinfo=UTC))


def test_an_instant_before_1970_is_negative() -> None:
    assert instant(datetime(1969, 12, 31, 23, 59, 59, tzinfo=UTC)) == -1_000_000


def test_a_naive_datetime_is_refused_because_nobody_knows_what_it_means() -> None:
    with pytest.raises(ConfigurationError, match=r"run_at: .*datetime.now\(UTC\)"):
        instant(datetime(2024, 7, 1))  # noqa: DTZ001 - the point


def test_ids_are_uuids_of_version_seven() -> None:
    found = UUID(new_id())

    assert (found.version, found.variant) == (7, "specified in RFC 4122")


def test_ids_carry_the_time_of_their_making() -> None:
    at = int(new_id().replace("-", "")[:12], 16) / 1000

    assert abs(at - datetime.now(UTC).timestamp()) < 60


def test_ids_sort_in_the_order_of_their_making() -> None:
    ids = [new_id() for _ in range(2000)] + new_ids(2000) + [new_id()]

    assert ids == sorted(ids)
    assert len(set(ids)) == len(ids)


def test_ids_of_many_threads_are_unique_and_each_thread_sees_them_rise() -> None:
    barrier = threading.Barrier(8)

    def make(_: int) -> list[str]:
        barrier.wait(10)
        return [it for _ in range(20) for it in (new_id(), *new_ids(10))]

    with ThreadPoolExecutor(8) as threads:
        batches = list(threads.map(make, range(8)))

    everything = [it for batch in batches for it in batch]
    assert len(set(everything)) == len(everything)
    assert all(batch == sorted(batch) for batch in batches)


def test_ids_do_not_go_back_when_the_clock_does(monkeypatch: pytest.MonkeyPatch) -> None:
    before = new_id()

    monkeypatch.setattr("stepfast.clock.time.time_ns", lambda: 0)

    assert new_id() > before


def test_a_batch_larger_than_a_millisecond_can_hold_keeps_its_order() -> None:
    ids = new_ids(70_000)

    assert ids == sorted(ids)
    assert new_id() > ids[-1]


def test_fences_fit_a_bigint_and_are_never_zero() -> None:
    fences = {new_fence() for _ in range(2000)}

    assert len(fences) == 2000
    assert all(0 < it < 2**63 for it in fences)


def test_boot_time_goes_forwards() -> None:
    assert boot_time() <= boot_time()


@pytest.mark.parametrize(
    ("span", "text"),
    [
        (timedelta(milliseconds=450), "450 ms"),
        (timedelta(seconds=1.5), "1500 ms"),
        (timedelta(seconds=12), "12 s"),
        (timedelta(minutes=3), "3 min"),
        (timedelta(hours=2), "2 h"),
        (timedelta(days=5), "5 d"),
    ],
)
def test_a_span_is_spoken_as_a_person_says_it(span: timedelta, text: str) -> None:
    assert spoken(span) == text
