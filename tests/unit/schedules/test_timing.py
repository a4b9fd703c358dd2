"""When schedules tick: time zones with clock changes, intervals, one-offs."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from stepfast.clock import instant, moment
from stepfast.errors import ConfigurationError
from stepfast.schedules.cron import Calendar, Every, Once, Timing, parse, zone

MINUTE = 60_000_000
HOUR = 60 * MINUTE
PARIS, NEW_YORK, LORD_HOWE = "Europe/Paris", "America/New_York", "Australia/Lord_Howe"
ZONES = [PARIS, NEW_YORK, LORD_HOWE, "Antarctica/Troll", "Africa/Casablanca", "Pacific/Apia", "Asia/Kolkata"]


def calendar(text: str, where: str) -> Calendar:
    return Calendar(parse(text), zone(where))


def ticks(timing: Timing, start: datetime, count: int) -> list[int]:
    found: list[int] = []
    at: int | None = instant(start)
    while len(found) < count:
        at = timing.next_after(at) if at is not None else None
        assert at is not None
        found.append(at)
    return found


def shown(text: str, where: str, start: str, count: int) -> list[str]:
    """The next ticks after a moment of UTC, as local clocks show them."""
    found = ticks(calendar(text, where), datetime.fromisoformat(start).replace(tzinfo=UTC), count)
    return [f"{moment(at).astimezone(zone(where)):%m-%d %H:%M%z}" for at in found]


# Clocks that jump forwards


@pytest.mark.parametrize(
    ("where", "start", "text", "local"),
    [
        (PARIS, "2026-03-28", "30 2 * * *", ["03-28 02:30+0100", "03-29 03:00+0200", "03-30 02:30+0200"]),
        (PARIS, "2026-03-28", "0 2 * * *", ["03-28 02:00+0100", "03-29 03:00+0200", "03-30 02:00+0200"]),
        (PARIS, "2026-03-28", "0 3 * * *", ["03-28 03:00+0100", "03-29 03:00+0200", "03-30 03:00+0200"]),
        (NEW_YORK, "2026-03-07T12:00", "30 2 * * *", ["03-08 03:00-0400", "03-09 02:30-0400"]),
        (LORD_HOWE, "2026-10-03", "15 2 * * *", ["10-04 02:30+1100", "10-05 02:15+1100"]),
        (LORD_HOWE, "2026-10-03", "45 2 * * *", ["10-04 02:45+1100", "10-05 02:45+1100"]),
        ("Pacific/Apia", "2011-12-29T20:00", "0 9 * * *", ["12-31 00:00+1400", "12-31 09:00+1400"]),
    ],
)
def test_a_time_that_the_clock_jumps_over_ticks_once_when_it_has_jumped(
    where: str, start: str, text: str, local: list[str]
) -> None:
    assert shown(text, where, start, len(local)) == local


def test_many_times_that_the_clock_jumps_over_are_one_tick() -> None:
    assert shown("*/10 2 * * *", PARIS, "2026-03-29", 2) == ["03-29 03:00+0200", "03-30 02:00+0200"]
    assert shown("0 2,3 * * *", PARIS, "2026-03-29", 2) == ["03-29 03:00+0200", "03-30 02:00+0200"]


def test_every_hour_makes_nothing_up_when_the_clock_jumps() -> None:
    assert shown("30 * * * *", PARIS, "2026-03-29T00:00", 3) == [
        "03-29 01:30+0100",
        "03-29 03:30+0200",
        "03-29 04:30+0200",
    ]
    # Half an hour: the clock never shows 02:00 on that day, and the ticks are 90 minutes apart.
    assert shown("0 * * * *", LORD_HOWE, "2026-10-03T14:00", 2) == ["10-04 01:00+1030", "10-04 03:00+1100"]


# Clocks that jump backwards


@pytest.mark.parametrize(
    ("where", "start", "text", "local"),
    [
        (PARIS, "2026-10-24", "30 2 * * *", ["10-24 02:30+0200", "10-25 02:30+0200", "10-26 02:30+0100"]),
        (PARIS, "2026-10-24T12:00", "0 3 * * *", ["10-25 03:00+0100", "10-26 03:00+0100"]),
        (PARIS, "2026-10-24T12:00", "*/30 1-2 * * *", ["10-25 01:00+0200", "10-25 01:30+0200", "10-25 02:00+0200",
                                                       "10-25 02:30+0200", "10-26 01:00+0100"]),
        (NEW_YORK, "2026-10-31T12:00", "30 1 * * *", ["11-01 01:30-0400", "11-02 01:30-0500"]),
        (LORD_HOWE, "2026-04-04", "45 1 * * *", ["04-05 01:45+1100", "04-06 01:45+1030"]),
        (LORD_HOWE, "2026-04-04", "15 2 * * *", ["04-05 02:15+1030", "04-06 02:15+1030"]),
    ],
)  # fmt: skip
def test_a_time_that_the_clock_shows_twice_ticks_the_first_time(
    where: str, start: str, text: str, local: list[str]
) -> None:
    assert shown(text, where, start, len(local)) == local


@pytest.mark.parametrize("text", ["30 * * * *", "30 0-23 * * *"])
def test_every_hour_means_the_hours_that_pass(text: str) -> None:
    assert shown(text, PARIS, "2026-10-24T23:00", 4) == [
        "10-25 01:30+0200",
        "10-25 02:30+0200",
        "10-25 02:30+0100",
        "10-25 03:30+0100",
    ]
    assert shown("45 * * * *", LORD_HOWE, "2026-04-04T14:00", 3) == [
        "04-05 01:45+1100",
        "04-05 01:45+1030",
        "04-05 02:45+1030",
    ]


@pytest.mark.parametrize("where", ZONES)
@pytest.mark.parametrize("text", ["* * * * *", "*/15 * * * *"])
def test_what_ticks_all_the_time_is_steady_through_a_year(where: str, text: str) -> None:
    beat = (1 if text.startswith("* ") else 15) * MINUTE
    timing = calendar(text, where)
    start = instant(datetime(2026, 1, 1, tzinfo=UTC))

    for hours in range(0, 365 * 24, 1 if text.startswith("*/") else 7):
        at = start + hours * HOUR
        assert timing.next_after(at) == at + beat
        assert timing.latest(at + 1) == at


# Properties


expressions = st.sampled_from(
    [
        "* * * * *",
        "*/7 * * * *",
        "0,30 * * * *",
        "45 * * * SUN",
        "30 2 * * *",
        "*/10 1-3 * * *",
        "15 2 * * 0",
        "0 0 * * *",
        "59 23 * * *",
        "0 */2 * * *",
        "30 1,2,3 29 3,10 *",
        "* 2 1-7 * SUN",
        "*/20 0-23/3 */2 * *",
    ]
)
zones = st.sampled_from(ZONES)
jumps = [
    "2026-03-29T01:00Z", "2026-10-25T01:00Z",  # Paris
    "2026-03-08T07:00Z", "2026-11-01T06:00Z",  # New York
    "2026-04-04T15:00Z", "2026-10-03T15:30Z",  # Lord Howe
    "2011-12-30T10:00Z",  # Apia loses a day
]  # fmt: skip
near_jumps = st.builds(
    lambda jump, minutes: instant(datetime.fromisoformat(jump)) + minutes * MINUTE,
    st.sampled_from(jumps),
    st.integers(-600, 600),
)
anywhere = st.integers(instant(datetime(1990, 1, 1, tzinfo=UTC)), instant(datetime(2040, 1, 1, tzinfo=UTC)))
moments = st.one_of(near_jumps, anywhere)


def scanned(text: str, where: str, start: int, minutes: int) -> list[int]:
    """The rule of ticks, computed minute by minute: what the clock shows, repeats, and skips."""
    cron, here = parse(text), zone(where)
    found = []
    first = start // MINUTE * MINUTE
    before = moment(first - MINUTE).astimezone(here).replace(tzinfo=None)
    for at in range(first, first + minutes * MINUTE, MINUTE):
        local = moment(at).astimezone(here)
        wall = local.replace(tzinfo=None, fold=0)
        if cron.every_hour:
            tick = cron.matches(wall)
        else:
            jumped = int((wall - before.replace(fold=0)) / timedelta(minutes=1))
            over = [wall - timedelta(minutes=n) for n in range(1, max(jumped, 1))]
            tick = (cron.matches(wall) and not local.fold) or any(map(cron.matches, over))
        if tick and at > start:
            found.append(at)
        before = wall
    return found


@settings(max_examples=100, deadline=None)
@given(expressions, zones, moments)
def test_ticks_are_those_that_a_scan_over_the_minutes_finds(text: str, where: str, start: int) -> None:
    timing, minutes = calendar(text, where), 1_000
    expected = scanned(text, where, start, minutes)
    found, at = [], timing.next_after(start)
    while at is not None and at < start // MINUTE * MINUTE + minutes * MINUTE:
        found.append(at)
        at = timing.next_after(at)

    assert found == expected


@settings(max_examples=150, deadline=None)
@given(expressions, zones, moments)
@example("* * * * *", LORD_HOWE, instant(datetime(2026, 4, 4, 15, 10, tzinfo=UTC)))
def test_forwards_and_backwards_agree(text: str, where: str, start: int) -> None:
    timing = calendar(text, where)
    following, latest = timing.next_after(start), timing.latest(start)
    assert following is not None
    assert latest is not None

    assert latest <= start < following
    assert timing.latest(following) == following
    assert timing.latest(following - 1) == latest
    assert timing.next_after(latest - 1) == latest
    assert timing.next_after(latest) == following


@settings(max_examples=50, deadline=None)
@given(expressions, zones, moments)
def test_ticks_always_go_on(text: str, where: str, start: int) -> None:
    found = ticks(calendar(text, where), moment(start), 30)

    assert all(a < b for a, b in pairwise(found))


# Beats and one-offs


def test_a_beat_is_counted_from_1970_and_does_not_drift() -> None:
    every = Every(15 * MINUTE)
    at = instant(datetime(2026, 11, 15, 10, 7, 3, tzinfo=UTC))

    assert moment(every.next_after(at) or 0) == datetime(2026, 11, 15, 10, 15, tzinfo=UTC)
    assert moment(every.latest(at) or 0) == datetime(2026, 11, 15, 10, 0, tzinfo=UTC)
    assert every.latest(every.next_after(at) or 0) == every.next_after(at)


def test_a_one_off_ticks_once() -> None:
    once = Once(1_000)

    assert [once.next_after(at) for at in (0, 999, 1_000, 2_000)] == [1_000, 1_000, None, None]
    assert [once.latest(at) for at in (0, 999, 1_000, 2_000)] == [None, None, 1_000, 1_000]


# Names of time zones


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("Europe/Pariss", "did you mean 'Europe/Paris'?"),
        ("nowhere at all", "write an IANA name such as 'Europe/Paris'"),
        ("Europe", "is no time zone"),
        ("../../etc/passwd", "is no time zone"),
        ("+02:00", "is no time zone"),
        ("\0", "is no time zone"),
    ],
)
def test_a_time_zone_that_is_none_is_refused_in_words(name: str, sentence: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        zone(name)

    assert sentence in str(refused.value)


def test_where_no_time_zones_are_known_the_cure_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zoneinfo.available_timezones", set)

    with pytest.raises(ConfigurationError, match="pip install tzdata"):
        zone("Mars/Olympus")


def test_utc_needs_no_data() -> None:
    assert zone("UTC") is UTC
