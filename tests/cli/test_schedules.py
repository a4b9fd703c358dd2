"""`stepfast schedules`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from stepfast.schedules.definition import define
from stepfast.schedules.schedule import synchronise
from stepfast.worker.scheduler import fire_due
from tests.support import rows

if TYPE_CHECKING:
    from stepfast import Stepfast
    from tests.support.command_line import Cli

FIELDS = {
    "name", "state", "when", "kind", "queue", "priority", "cron", "every_seconds", "at", "tz", "missed", "overlap",
    "tick_as", "next_at", "last_at", "paused_at", "removed_at", "source", "declared", "note", "changed_at",
}  # fmt: skip


def test_a_schedule_is_added_listed_and_shown(cli: Cli) -> None:
    said = cli(
        "schedules", "add", "nightly", "--kind", "greet", "--cron", "0 2 * * *", "--tz", "Europe/Paris",
        "--arguments", '{"name": "Ada"}', "--queue", "mail", "--priority", "3", "--missed", "all",
        "--overlap", "skip", "--tick-as", "at", "--reason", "she asked", "--by", "alice",
    )  # fmt: skip
    assert said.startswith("schedule nightly is added; next: 20")

    (listed,) = cli.json("schedules", "list")
    assert set(listed) == FIELDS
    assert (listed["state"], listed["when"], listed["tz"]) == ("active", "0 2 * * *", "Europe/Paris")
    assert (listed["queue"], listed["priority"], listed["missed"]) == ("mail", 3, "all")
    assert (listed["overlap"], listed["tick_as"], listed["source"]) == ("skip", "at", "operator")
    assert (listed["note"], listed["declared"], listed["last_at"]) == ("she asked", False, None)

    shown = cli.json("schedules", "show", "nightly")
    assert set(shown) == FIELDS | {"arguments", "ahead", "behind"}
    assert shown["arguments"] == {"name": "Ada"}
    assert len(shown["ahead"]) == 5
    assert all("T02:00:00+0" in it["local"] for it in shown["ahead"])
    assert shown["ahead"][0]["utc"] == shown["next_at"]

    assert "nightly" in cli("schedules", "list")
    text = cli("schedules", "show", "nightly")
    assert "next (Europe/Paris)" in text
    assert "02:00:00 +0" in text


def test_no_schedules_is_advice(cli: Cli) -> None:
    assert cli("schedules", "list").startswith("no schedules: declare one with app.schedule(…)")


def test_a_beat_and_a_one_off_are_added(cli: Cli) -> None:
    beat = cli.json("schedules", "add", "beat", "--kind", "greet", "--every", "15m")
    party = cli.json(
        "schedules", "add", "party", "--kind", "greet", "--at", "2126-12-24T18:00", "--tz", "Europe/Paris"
    )
    exact = cli.json("schedules", "add", "exact", "--kind", "greet", "--at", "2126-12-24T18:00+03:00")

    assert (beat["every_seconds"], beat["when"], beat["next_at"][16:]) == (900.0, "every 15m", ":00Z")
    assert (party["at"], party["next_at"]) == ("2126-12-24T17:00:00Z",) * 2
    assert party["when"] == "once, 2126-12-24 17:00:00 UTC"
    assert exact["at"] == "2126-12-24T15:00:00Z"


def test_what_became_of_the_last_ticks_is_shown(cli: Cli, app: Stepfast) -> None:
    cli("schedules", "add", "beat", "--kind", "greet", "--every", "1m", "--missed", "all")
    ticks = fire_due(app.database, rows.now(app) + 3 * 60 * rows.SECOND)

    shown = cli.json("schedules", "show", "beat")

    assert len(ticks) >= 3
    assert [it["job_id"] for it in shown["behind"]] == [tick.job_id for tick in reversed(ticks)][:5]
    assert {it["job_state"] for it in shown["behind"]} == {"ready"}
    assert ticks[-1].job_id in cli("schedules", "show", "beat")


def test_a_tick_that_was_skipped_says_so(cli: Cli, app: Stepfast) -> None:
    cli(
        "schedules", "add", "beat", "--kind", "greet", "--every", "1m", "--missed", "all", "--overlap", "skip"
    )
    first, second, *_ = fire_due(app.database, rows.now(app) + 2 * 60 * rows.SECOND)
    assert first.job_id == second.job_id

    *later, oldest = cli.json("schedules", "show", "beat")["behind"]
    assert {it["skipped"] for it in later} == {True}
    assert (oldest["skipped"], oldest["job_state"]) == (False, "ready")
    lines = cli("schedules", "show", "beat").splitlines()
    told = [line.split()[-1] for line in lines if first.job_id in line]
    assert told == ["skipped"] * len(later) + ["ready"]


def test_a_schedule_is_changed_and_keeps_the_rest(cli: Cli) -> None:
    cli("schedules", "add", "beat", "--kind", "greet", "--cron", "@daily", "--missed", "skip")

    changed = cli.json("schedules", "change", "beat", "--cron", "30 4 * * *", "--reason", "after the backup")

    assert (changed["cron"], changed["missed"], changed["note"]) == ("30 4 * * *", "skip", "after the backup")
    assert changed["next_at"][11:] == "04:30:00Z"
    said = cli("schedules", "change", "beat", "--tz", "America/New_York")
    assert said.startswith("schedule beat is changed; next: ")
    once = cli.json("schedules", "change", "beat", "--at", "2126-07-01T12:00")
    assert once["at"] == "2126-07-01T16:00:00Z"  # on the clocks that it has
    assert "nothing to change" in cli("schedules", "change", "beat", code=2)


def test_a_schedule_is_paused_resumed_triggered_and_removed(cli: Cli, app: Stepfast) -> None:
    cli("schedules", "add", "beat", "--kind", "greet", "--every", "1h", "--arguments", '{"name": "Ada"}')

    assert cli("schedules", "pause", "beat", "--reason", "stocktaking") == "schedule beat is paused\n"
    assert cli("schedules", "pause", "beat") == "schedule beat was already paused\n"
    assert cli.json("schedules", "list")[0]["state"] == "paused"
    resumed = cli.json("schedules", "resume", "beat")
    assert (resumed["paused"], resumed["changed"]) == (False, True)
    assert cli("schedules", "resume", "beat") == "schedule beat was not paused\n"
    cli("schedules", "pause", "beat")
    assert cli("schedules", "resume", "beat").startswith("schedule beat goes on; next: 20")

    triggered = cli.json("schedules", "trigger", "beat")
    job = rows.live(app, triggered["job_id"])
    assert job is not None
    assert (job["kind"], job["payload"]) == ("greet", '{"name":"Ada"}')
    assert "is triggered: job" in cli("schedules", "trigger", "beat")

    assert cli("schedules", "remove", "beat") == "schedule beat is removed\n"
    assert "there is no schedule 'beat'" in cli("schedules", "show", "beat", code=1)


def test_what_the_code_declares_is_removed_and_reset(cli: Cli, app: Stepfast) -> None:
    with app.transaction() as tx:
        synchronise(tx, {"nightly": define("greet", None, {"cron": "@daily"})})
    cli("schedules", "change", "nightly", "--cron", "@hourly")

    assert cli.json("schedules", "remove", "nightly") == {"schedule": "nightly", "removed": True}
    assert cli.json("schedules", "list") == []
    assert [it["state"] for it in cli.json("schedules", "list", "--all")] == ["removed"]
    assert cli("schedules", "reset", "nightly").startswith(
        "schedule nightly is as the code declares it; next:"
    )
    (listed,) = cli.json("schedules", "list")
    assert (listed["cron"], listed["source"], listed["declared"]) == ("@daily", "code", True)


@pytest.mark.only_on("sqlite")
@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (("--cron", "61 * * * *"), 2, "61 is outside 0 to 59"),
        (("--cron", "@daily", "--every", "1h"), 2, "exactly one of"),
        ((), 2, "exactly one of"),
        (("--every", "often"), 2, "is not a duration"),
        (("--cron", "@daily", "--tz", "Europe/Pariss"), 2, "did you mean 'Europe/Paris'?"),
        (("--at", "2001-01-01T00:00"), 1, "has passed"),
        (("--at", "tomorrow"), 2, "is no time"),
        (("--at", "2126-01-01T00:00", "--tz", "Europe/Pariss"), 2, "did you mean 'Europe/Paris'?"),
        (("--every", "1h", "--arguments", "{name: 1}"), 2, "is no JSON"),
        (("--every", "1h", "--arguments", "[1]"), 2, "give a mapping"),
        (("--every", "1h", "--missed", "never"), 2, "missed='never': use 'once', 'all', 'skip'"),
    ],
)
def test_what_cannot_work_is_refused_in_a_sentence(
    cli: Cli, words: tuple[str, ...], code: int, sentence: str
) -> None:
    assert sentence in " ".join(cli("schedules", "add", "x", "--kind", "greet", *words, code=code).split())
    assert cli.json("schedules", "list") == []


@pytest.mark.only_on("sqlite")
def test_a_change_that_cannot_work_is_refused_in_a_sentence(cli: Cli) -> None:
    cli("schedules", "add", "beat", "--kind", "greet", "--cron", "@daily")

    for words in (("--missed", "never"), ("--cron", "61 * * * *"), ("--tz", "Mars"), ("--every", "often")):
        cli("schedules", "change", "beat", *words, code=2)
    assert cli.json("schedules", "change", "beat", "--missed", "skip")["cron"] == "@daily"


@pytest.mark.only_on("sqlite")
def test_a_name_that_is_taken_is_refused(cli: Cli) -> None:
    cli("schedules", "add", "beat", "--kind", "greet", "--every", "1h")

    assert "exists already" in cli("schedules", "add", "beat", "--kind", "greet", "--every", "1h", code=1)
