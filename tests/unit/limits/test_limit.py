"""The arithmetic of limits, without a database."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepfast import Concurrency, Rate, Stepfast
from stepfast.errors import ConfigurationError
from stepfast.limits.limit import LONGEST_ID, Limit, arrival_after, limit_id, room_in_rate
from stepfast.limits.limit_rows import LimitedStep, Meter, decide_admission

SECOND = 1_000_000
many = settings(max_examples=150, deadline=None, database=None)


def starts(rate: Rate, asked_at: list[int], each_time: int) -> list[int]:
    """When jobs start if so many ask at each of these instants; those without room do not ask again."""
    arrival, found = 0, []
    for now in asked_at:
        started = min(each_time, room_in_rate(now, arrival, rate.gap, rate.tolerance))
        arrival = arrival_after(now, arrival, rate.gap, started)
        found += [now] * started
    return found


@many
@given(
    count=st.integers(1, 60),
    burst=st.one_of(st.none(), st.integers(1, 60)),
    pauses=st.lists(st.integers(0, SECOND // 2), min_size=1, max_size=200),
    each_time=st.integers(1, 80),
)
def test_no_window_of_the_period_has_more_starts_than_the_count(
    count: int, burst: int | None, pauses: list[int], each_time: int
) -> None:
    rate = Rate(count, per="1s", burst=burst and min(burst, count))
    moments, now = [], 1_700_000_000 * SECOND
    for pause in pauses:
        now += pause
        moments.append(now)

    found = starts(rate, moments, each_time)

    for first in found:
        assert sum(first <= it < first + SECOND for it in found) <= count


@many
@given(count=st.integers(1, 1_000), per=st.sampled_from(["100ms", "1s", "1m", "1h"]))
def test_an_even_stream_gets_nine_tenths_of_the_rate_by_default(count: int, per: str) -> None:
    rate = Rate(count, per=per)

    period = {"100ms": SECOND // 10, "1s": SECOND, "1m": 60 * SECOND, "1h": 3_600 * SECOND}[per]
    assert period >= 0.9 * count * (rate.gap - 1)  # a gap is a whole number of microseconds


def test_a_burst_starts_at_once_and_then_one_by_one() -> None:
    rate = Rate(10, per="1s", burst=4)
    now = 1_700_000_000 * SECOND

    assert room_in_rate(now, 0, rate.gap, rate.tolerance) == 4
    after = arrival_after(now, 0, rate.gap, 4)
    assert room_in_rate(now, after, rate.gap, rate.tolerance) == 0
    assert room_in_rate(now + rate.gap, after, rate.gap, rate.tolerance) == 1


def test_who_starts_nothing_moves_nothing() -> None:
    assert arrival_after(50, 7, 10, 0) == 7


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ({"count": 0}, "whole number"),
        ({"count": True}, "a whole number"),
        ({"count": 5, "burst": 6}, "burst"),
        ({"count": 5, "burst": "2"}, "burst='2'.: a whole number between 1 and the count"),
        ({"count": 5, "burst": 1.5}, "a whole number between"),
        ({"count": 5, "burst": True}, "a whole number between"),
        ({"count": 5, "per": "0s"}, "per"),
        ({"count": 5, "per": "often"}, "often"),
        ({"count": 5, "name": ""}, "name"),
    ],
)
def test_a_rate_that_makes_no_sense_is_refused(arguments: dict[str, Any], word: str) -> None:
    with pytest.raises(ConfigurationError, match=word):
        Rate(**arguments)


@pytest.mark.parametrize(
    ("arguments", "word"), [({"count": -1}, "whole number"), ({"count": 1, "by": " "}, "by")]
)
def test_a_concurrency_that_makes_no_sense_is_refused(arguments: dict[str, Any], word: str) -> None:
    with pytest.raises(ConfigurationError, match=word):
        Concurrency(**arguments)


def test_a_limit_by_an_argument_that_the_handler_has_not_is_refused(tmp_path: object) -> None:
    app = Stepfast(f"sqlite:///{tmp_path}/work.db")

    with pytest.raises(ConfigurationError, match="no parameter of that name"):
        app.job(limits=[Concurrency(1, by="customer")])(_handler)


def test_who_shares_a_limit_must_mean_the_same(tmp_path: object) -> None:
    app = Stepfast(f"sqlite:///{tmp_path}/work.db")
    app.job(name="first", limits=[Rate(25, name="source")])(_handler)

    with pytest.raises(ConfigurationError, match="same numbers"):
        app.job(name="second", limits=[Rate(30, name="source")])(_handler)


def test_something_else_is_no_limit(tmp_path: object) -> None:
    app = Stepfast(f"sqlite:///{tmp_path}/work.db")

    with pytest.raises(ConfigurationError, match="Rate"):
        app.job(limits=["5/s"])(_handler)  # type: ignore[list-item]


def test_one_limit_instead_of_a_list_and_none_at_all_are_refused(tmp_path: object) -> None:
    app = Stepfast(f"sqlite:///{tmp_path}/work.db")

    with pytest.raises(ConfigurationError, match="a list of limits"):
        app.job(limits=Concurrency(1))(_handler)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="at least one"):
        app.limit_queue("mail")


def _handler(n: int) -> None: ...


@given(value=st.one_of(st.text(max_size=400), st.integers(), st.none(), st.lists(st.integers(), max_size=3)))
def test_every_value_of_an_argument_has_an_id_that_fits(value: object) -> None:
    found = limit_id(Concurrency(1, by="n"), "kind:work", {"n": value})

    assert len(found) <= LONGEST_ID
    assert found == found.rstrip()


def test_different_values_have_different_ids() -> None:
    values: list[object] = ["a", "a ", "a  ", "A", 1, "x" * 400, "x" * 401, None, [1], [1, 2]]

    found = {limit_id(Concurrency(1, by="n"), "kind:work", {"n": value}) for value in values}

    assert len(found) == len(values)


def test_kinds_count_for_themselves_and_names_are_shared() -> None:
    assert limit_id(Rate(1), "kind:a", None) != limit_id(Rate(1), "kind:b", None)
    assert limit_id(Rate(1, name="x"), "kind:a", None) == limit_id(Rate(1, name="x"), "kind:b", None)
    assert limit_id(Rate(1), "kind:a", None) != limit_id(Concurrency(1), "kind:a", None)


def test_who_finds_one_of_its_limits_full_takes_nothing_of_the_others() -> None:
    few, full = Concurrency(2, name="few"), Concurrency(1, name="full")
    meters = {"few": Meter(few, 2), "full": Meter(full, 1)}
    both = (("few", few), ("full", full))

    answer = decide_admission(
        [LimitedStep("a", both), LimitedStep("b", both), LimitedStep("c", (("few", few),))], meters
    )

    assert answer.admitted == ["a", "c"]
    assert answer.held == {"b": "full"}


@pytest.mark.parametrize(
    "limits",
    [
        [Concurrency(1), Concurrency(3)],
        [Rate(20), Rate(25, burst=1)],
        [Concurrency(1, by="n"), Concurrency(3, by="n")],
        [Rate(1, name="source"), Rate(1, name="source")],
    ],
    ids=["slots", "rates", "by", "named"],
)
def test_two_limits_that_would_be_counted_together_are_refused(limits: list[Any], tmp_path: object) -> None:
    app = Stepfast(f"sqlite:///{tmp_path}/work.db")

    with pytest.raises(ConfigurationError, match="given twice"):
        app.job(limits=limits)(_handler)


def test_a_queue_s_limits_are_checked_together_however_they_are_given(tmp_path: object) -> None:
    app = Stepfast(f"sqlite:///{tmp_path}/work.db")
    app.limit_queue("mail", Concurrency(2))

    with pytest.raises(ConfigurationError, match="given twice"):
        app.limit_queue("mail", Concurrency(3))


def test_rates_over_different_times_and_limits_by_different_arguments_are_different_ones() -> None:
    limits: list[Limit] = [
        Rate(20, per="1s"),
        Rate(500, per="1h"),
        Rate(20, per="1s", by="a"),
        Concurrency(1, by="a"),
        Concurrency(1, by="b"),
    ]

    found = {limit_id(limit, "kind:work", {"a": "x", "b": "x"}) for limit in limits}

    assert len(found) == len(limits)


def test_the_same_time_said_in_other_words_is_the_same_rate() -> None:
    assert limit_id(Rate(5, per="60s"), "kind:work", None) == limit_id(Rate(9, per="1m"), "kind:work", None)
