"""Cron expressions: their ticks, and why a wrong one is refused."""

from __future__ import annotations

from datetime import datetime
from itertools import islice, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepfast.errors import ConfigurationError
from stepfast.schedules.cron import FIELDS, LONGEST, NICKNAMES, Field, parse

wall = datetime.fromisoformat  # what a clock on the wall shows, wherever it hangs
START = wall("2026-11-15 10:07")  # a Sunday


def named(text: str, count: int = 3, start: datetime = START) -> list[str]:
    return [f"{it:%m-%d %H:%M}" for it in islice(parse(text).forwards(start), count)]


@pytest.mark.parametrize(
    ("text", "minutes"),
    [
        ("* * * * *", ["11-15 10:07", "11-15 10:08", "11-15 10:09"]),
        ("*/20 * * * *", ["11-15 10:20", "11-15 10:40", "11-15 11:00"]),
        ("0 2 * * *", ["11-16 02:00", "11-17 02:00", "11-18 02:00"]),
        ("5,50 8-9 * * *", ["11-16 08:05", "11-16 08:50", "11-16 09:05"]),
        ("0 9-17/4 * * *", ["11-15 13:00", "11-15 17:00", "11-16 09:00"]),
        ("0 0 1 * *", ["12-01 00:00", "01-01 00:00", "02-01 00:00"]),
        ("0 0 31 * *", ["12-31 00:00", "01-31 00:00", "03-31 00:00"]),
        ("0 0 * * MON-fri", ["11-16 00:00", "11-17 00:00", "11-18 00:00"]),
        ("0 0 * * 0", ["11-22 00:00", "11-29 00:00", "12-06 00:00"]),
        ("0 0 * * 7", ["11-22 00:00", "11-29 00:00", "12-06 00:00"]),
        ("0 0 * * FRI-SUN", ["11-20 00:00", "11-21 00:00", "11-22 00:00"]),
        ("0 0 * * 5-7", ["11-20 00:00", "11-21 00:00", "11-22 00:00"]),
        ("0 0 24 dec *", ["12-24 00:00", "12-24 00:00", "12-24 00:00"]),
        ("0 0 1 JAN,JUL-SEP *", ["01-01 00:00", "07-01 00:00", "08-01 00:00"]),
        ("  0\t2  * * *  ", ["11-16 02:00", "11-17 02:00", "11-18 02:00"]),
        ("@Hourly", ["11-15 11:00", "11-15 12:00", "11-15 13:00"]),
        ("@weekly", ["11-22 00:00", "11-29 00:00", "12-06 00:00"]),
        ("@yearly", ["01-01 00:00", "01-01 00:00", "01-01 00:00"]),
    ],
)
def test_an_expression_names_these_minutes(text: str, minutes: list[str]) -> None:
    assert named(text) == minutes


def test_where_both_days_are_restricted_one_of_them_is_enough() -> None:
    assert named("0 0 20 * MON", 4) == ["11-16 00:00", "11-20 00:00", "11-23 00:00", "11-30 00:00"]


def test_a_star_with_a_step_does_not_restrict_the_day_as_in_vixie_cron() -> None:
    assert named("0 0 */2 * MON", 3) == ["11-23 00:00", "12-07 00:00", "12-21 00:00"]


def test_the_29th_of_february_is_waited_for() -> None:
    cron = parse("0 0 29 2 *")

    assert next(cron.forwards(START)) == wall("2028-02-29")
    assert next(cron.forwards(wall("2096-03-01"))) == wall("2104-02-29")
    assert next(cron.backwards(START)) == wall("2024-02-29")


def test_the_calendar_has_an_end() -> None:
    assert list(parse("0 0 1 1 *").forwards(wall("9997-06-01"))) == [wall("9998-01-01")]


@pytest.mark.parametrize("nickname", NICKNAMES)
def test_every_nickname_is_understood(nickname: str) -> None:
    assert parse(nickname).minutes == (0,)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "five fields are needed"),
        ("0 2 * *", "not 4"),
        ("0 0 2 * * *", "seconds are not known here, use every='10s'"),
        ("60 * * * *", "minute '60': 60 is outside 0 to 59"),
        ("* 24 * * *", "hour '24': 24 is outside 0 to 23"),
        ("* * 0 * *", "day of the month '0': 0 is outside 1 to 31"),
        ("* * * 13 *", "month '13': 13 is outside 1 to 12"),
        ("* * * * 8", "day of the week '8': 8 is outside 0 to 7"),
        ("* * * * MONDAY", "'MONDAY' is none of 0 to 7, or SUN, MON"),
        ("* * * MON *", "'MON' is none of 1 to 12, or JAN"),
        ("MON * * * *", "minute 'MON': 'MON' is none of 0 to 59"),
        ("1,,2 * * * *", "minute '': use numbers from 0 to 59, *, lists, ranges and steps"),
        ("-5 * * * *", "minute '-5': use numbers"),
        ("5- * * * *", "minute '5-': use numbers"),
        ("* * ? * *", "day of the month '?': use numbers"),
        ("* * L * *", "'L' is none of 1 to 31"),
        ("* * * * 5#2", "day of the week '5#2': use numbers"),
        ("1.5 * * * *", "minute '1.5': use numbers"),
        ("٣ * * * *", "'٣' is none of 0 to 59"),
        ("* 22-5 * * *", "the range runs backwards; write 22-23,0-5"),
        ("* * * * SAT-MON", "the range runs backwards; write 6-7,0-1"),
        ("*-5 * * * *", "a range has a number on both sides"),
        ("5/10 * * * *", "a step needs a range before it; write 5-59/10"),
        ("*/0 * * * *", "a step is a whole number from 1"),
        ("*/x * * * *", "a step is a whole number from 1"),
        ("*/90 * * * *", "a step beyond 59 begins anew with every hour; use every=…"),
        ("0 */24 * * *", "begins anew with every day"),
        ("0 0 30 2 *", "would never fire: no month among 2 has a day 30"),
        ("0 0 31 4,6,9,NOV *", "would never fire: no month among 4,6,9,NOV has a day 31"),
        ("@reboot", "a worker's start is no tick"),
        ("@often", "known are @yearly"),
        ("0 " * 200, "at most 200 fit"),
    ],
)
def test_what_is_wrong_is_said_in_a_sentence(text: str, sentence: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        parse(text)

    assert sentence in str(refused.value)


def test_a_day_that_february_lacks_is_fine_where_a_weekday_is_enough() -> None:
    assert named("0 0 30 2 MON", 1) == ["02-01 00:00"]


def field(of: Field) -> st.SearchStrategy[str]:
    number = st.integers(of.least, of.most)
    pair = st.tuples(number, number).map(sorted)
    return st.one_of(
        st.just("*"),
        st.integers(1, of.most).map(lambda step: f"*/{step}"),
        st.lists(number, min_size=1, max_size=3).map(lambda some: ",".join(map(str, some))),
        pair.map(lambda ends: f"{ends[0]}-{ends[1]}"),
        st.tuples(pair, st.integers(1, of.most)).map(lambda it: f"{it[0][0]}-{it[0][1]}/{it[1]}"),
    )


def _sensible(text: str) -> bool:
    try:
        parse(text)
    except ConfigurationError:
        return False
    return True


expressions = st.tuples(*(field(it) for it in FIELDS)).map(" ".join).filter(_sensible)
starts = st.datetimes(wall("1980-01-01"), wall("2080-01-01"))


@given(expressions, starts)
def test_minutes_come_in_their_order_and_match(text: str, start: datetime) -> None:
    cron = parse(text)
    ahead = list(islice(cron.forwards(start), 20))
    behind = list(islice(cron.backwards(start), 20))

    assert ahead[0] >= start.replace(microsecond=0)
    assert behind[0] <= start
    assert all(a < b for a, b in pairwise(ahead))
    assert all(a > b for a, b in pairwise(behind))
    assert all(cron.matches(it) for it in ahead + behind)
    assert ahead[0] not in behind[1:]


@given(expressions, starts)
def test_going_back_meets_what_came_forwards(text: str, start: datetime) -> None:
    ahead = list(islice(parse(text).forwards(start), 10))

    assert list(islice(parse(text).backwards(ahead[-1]), 10)) == ahead[::-1]


@settings(max_examples=50)
@given(st.text(max_size=LONGEST + 10))
def test_whatever_is_typed_is_refused_in_a_sentence(text: str) -> None:
    with pytest.raises(ConfigurationError, match=r"^cron "):  # chance does not find one of the right form
        parse(text)
