"""The definition of a schedule: which options are allowed, and how others are refused."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from stepfast import ArgumentsError, ConfigurationError, Step, Stepfast
from stepfast.clock import instant
from stepfast.schedules.definition import (
    Definition,
    ScheduleOptions,
    checked_schedule_name,
    define,
    restored,
    stored,
)

if TYPE_CHECKING:
    from pathlib import Path

    from stepfast.jobs.kinds import Kind

NOON = datetime(2026, 11, 15, 12, 0, tzinfo=UTC)


@pytest.fixture
def kind(tmp_path: Path) -> Kind:
    app = Stepfast(f"sqlite:///{tmp_path}/never-opened.db")

    @app.job(queue="mail", priority=5)
    def send(step: Step, to: str, copies: int = 1, at: datetime | None = None) -> None:
        raise AssertionError(f"nobody sends {copies} to {to} at {at} in {step}")

    return send.kind


def test_it_takes_what_is_not_given_from_the_kind(kind: Kind) -> None:
    it = define("send", kind, {"every": "15m", "arguments": {"to": "ada"}})

    assert (it.queue, it.priority, it.tz, it.missed, it.overlap) == ("mail", 5, "UTC", "once", "allow")
    assert (it.cron, it.every, it.once_at) == (None, 900_000_000, None)
    assert json.loads(it.payload) == {"to": "ada"}


def test_it_says_all_that_can_be_said(kind: Kind) -> None:
    it = define(
        "send",
        kind,
        {
            "cron": " 0 2 * * * ",
            "tz": "Europe/Paris",
            "arguments": {"to": "ada", "copies": 2},
            "tick_as": "at",
            "queue": "night",
            "priority": -1,
            "missed": "all",
            "overlap": "skip",
        },
    )

    assert it.when == ("0 2 * * *", None, None, "Europe/Paris")
    assert (it.queue, it.priority, it.missed, it.overlap, it.tick_as) == ("night", -1, "all", "skip", "at")
    assert restored(json.loads(json.dumps(stored(it)))) == it


def test_a_change_keeps_what_is_not_given(kind: Kind) -> None:
    before = define("send", kind, {"at": NOON, "arguments": {"to": "ada"}, "missed": "skip", "tick_as": "at"})

    after = define("send", kind, {"cron": "@daily", "queue": "night", "tick_as": ""}, before)

    assert after.when == ("@daily", None, None, "UTC")
    assert (after.payload, after.missed, after.queue, after.tick_as) == (
        before.payload, "skip", "night", None,
    )  # fmt: skip
    assert define("send", kind, {}, before) == before
    assert before.once_at == instant(NOON)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({}, "exactly one of cron='0 2 * * *', every='15m' and at=datetime"),
        ({"cron": "@daily", "every": "1d"}, "exactly one of"),
        ({"cron": 5}, "cron 5: write a text"),
        ({"cron": "0 0 30 2 *"}, "would never fire"),
        ({"every": "0.5s"}, "every: '0.5s' must lie between 1s and 3660d"),
        ({"every": timedelta(days=5000)}, "must lie between"),
        ({"every": "often"}, "every: 'often' is not a duration"),
        ({"at": NOON.replace(tzinfo=None)}, "has no time zone"),
        ({"at": "tomorrow"}, "is not a datetime"),
        ({"every": "1d", "tz": "Paris"}, "tz 'Paris' is no time zone"),
        ({"every": "1d", "tz": 5}, "tz 5: write an IANA name"),
        ({"every": "1d", "tz": "x" * 61}, "write an IANA name"),
        ({"every": "1d", "missed": "never"}, "missed='never': use 'once', 'all', 'skip'"),
        ({"every": "1d", "overlap": "maybe"}, "overlap='maybe': use 'allow', 'skip'"),
        ({"every": "1d", "queue": "a b"}, "queue 'a b'"),
        ({"crn": "@daily"}, "a schedule has no option 'crn'; there are cron, every, at, tz,"),
        ({"every": "1d", "tick_as": "no name"}, "tick_as='no name': name an argument of the job"),
        ({"every": "1d", "tick_as": 5}, "tick_as=5: name an argument of the job"),
        ({"every": "1d", "priority": 1.5}, "priority 1.5"),
        ({"every": "1d", "arguments": ["ada"]}, "give a mapping from names to values, not list"),
        ({"every": "1d", "arguments": {1: "ada"}}, "give a mapping from names to values"),
        ({"every": "1d", "arguments": {"to": "a", "at": None}, "tick_as": "at"}, "leave it out of arguments"),
    ],
)
def test_what_cannot_work_is_refused_in_words(kind: Kind, given: Any, sentence: str) -> None:
    options: Any = {"arguments": {"to": "ada"}, **given}

    with pytest.raises(ConfigurationError) as refused:
        define("send", kind, options)

    assert sentence in str(refused.value)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"arguments": {}}, "missing required argument `to`"),
        ({"arguments": {"to": "ada", "copies": "two"}}, "wrong arguments"),
        ({"arguments": {"to": "ada", "cc": "bob"}}, "unknown argument `cc`"),
        ({"arguments": {"to": "ada"}, "tick_as": "copies"}, "wrong arguments"),
        ({"arguments": {"to": "ada"}, "tick_as": "when"}, "unknown argument `when`"),
    ],
)
def test_arguments_that_do_not_fit_the_handler_are_refused(kind: Kind, given: Any, sentence: str) -> None:
    options: Any = {"every": "1d", **given}

    with pytest.raises(ArgumentsError) as refused:
        define("send", kind, options)

    assert sentence in str(refused.value)


def test_an_argument_that_the_tick_gives_is_not_missing(kind: Kind) -> None:
    assert define("send", kind, {"every": "1d", "tick_as": "to"}).payload == "{}"


def test_a_kind_that_is_not_known_here_is_believed() -> None:
    it = define("elsewhere", None, {"every": "1d", "arguments": {"any": ["thing", 1]}})

    assert (it.queue, it.priority, it.payload) == ("default", 0, '{"any":["thing",1]}')


@pytest.mark.parametrize("arguments", [{"a": object()}, {"a": "x" * 2_000_000}], ids=["no JSON", "too much"])
def test_arguments_that_no_table_takes_are_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(ArgumentsError):
        define("elsewhere", None, {"every": "1d", "arguments": arguments})


@pytest.mark.parametrize(
    ("name", "sentence"),
    [("", "use 1 to 120"), ("a b", "use 1 to 120"), (7, "use 1 to 120"), ("x" * 101, "at most 100"),
     ("a:b", "use . or / instead")],
)  # fmt: skip
def test_a_name_that_cannot_be_kept_is_refused(name: object, sentence: str) -> None:
    with pytest.raises(ConfigurationError, match=sentence):
        checked_schedule_name(name)


def test_the_tick_is_told_on_the_clock_of_the_schedule() -> None:
    options: ScheduleOptions = {"every": "1h", "tz": "America/New_York", "tick_as": "at"}
    it: Definition = define("elsewhere", None, options)

    assert json.loads(it.arguments_at(instant(NOON))) == {"at": "2026-11-15T07:00:00-05:00"}


def test_two_schedules_of_one_name_are_refused_and_the_same_twice_is_not(tmp_path: Path) -> None:
    app = Stepfast(f"sqlite:///{tmp_path}/never-opened.db")

    @app.job()
    def tidy() -> None: ...

    app.schedule("tidy", tidy, every="1h")
    app.schedule("tidy", tidy, every="60m")

    with pytest.raises(ConfigurationError, match="schedule 'tidy' is declared twice"):
        app.schedule("tidy", tidy, every="2h")
    with pytest.raises(ConfigurationError, match="schedule 'no good name'"):
        app.schedule("no good name", tidy, every="1h")
