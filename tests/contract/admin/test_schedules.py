"""`app.schedules`: changes are audited, and arguments are checked where the job is registered."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from stepfast import ArgumentsError, ConfigurationError, Done
from stepfast.errors import NotFoundError
from tests.support import rows
from tests.support.engine import commit_step, register_work, take
from tests.support.schedules import MINUTE, NOON, fire, schedule

if TYPE_CHECKING:
    from stepfast import Stepfast


def test_every_change_is_written_down_with_who_and_why(app: Stepfast) -> None:
    alice = app.schedules.by("alice", reason="she was asked")
    work = register_work(app)

    alice.add("beat", work, every="1h", arguments={"n": 1})
    alice.change("beat", cron="@daily", note="once is enough")
    alice.pause("beat")
    alice.pause("beat")
    alice.resume("beat")
    alice.resume("beat")
    job = alice.trigger("beat")
    alice.remove("beat")

    written = rows.query(app, "SELECT who, what, subject, why, detail FROM stepfast_audit ORDER BY id")
    assert [row["what"] for row in written] == [
        f"schedule.{verb}" for verb in ("add", "change", "pause", "resume", "trigger", "remove")
    ]
    assert {(row["who"], row["subject"]) for row in written} == {("alice", "beat")}
    assert [row["why"] for row in written][:3] == ["she was asked", "once is enough", "she was asked"]
    assert '"when":"@daily"' in written[1]["detail"]
    assert job.id in written[4]["detail"]
    assert '"n"' not in "".join(row["detail"] or "" for row in written)  # never the arguments


def test_a_change_that_is_refused_is_not_written_down(app: Stepfast) -> None:
    work = register_work(app)
    with pytest.raises(ConfigurationError):
        app.schedules.add("beat", work, cron="* * * *")
    with pytest.raises(NotFoundError, match="there is no schedule 'beat'"):
        app.schedules.pause("beat")

    assert rows.count(app, "stepfast_audit") == 0


def test_arguments_are_checked_where_the_job_is_known(app: Stepfast) -> None:
    work = register_work(app)
    with pytest.raises(ArgumentsError, match="unknown argument `m`"):
        app.schedules.add("beat", work, every="1h", arguments={"m": 1})
    with pytest.raises(ArgumentsError, match="unknown argument `m`"):
        app.schedules.add("beat", "work", every="1h", arguments={"m": 1})

    app.schedules.add("beat", "work", every="1h", arguments={"n": 1})
    with pytest.raises(ArgumentsError, match="wrong arguments"):
        app.schedules.change("beat", arguments={"n": "one"})
    app.schedules.add("elsewhere", "another.program", every="1h", arguments={"m": 1})

    assert [it.name for it in app.schedules.all()] == ["beat", "elsewhere"]


def test_a_reset_is_written_down(app: Stepfast) -> None:
    app.schedule("beat", register_work(app), every="1h")
    with app.worker():
        pass
    app.schedules.change("beat", every="2h")

    again = app.schedules.reset("beat", note="as it was")

    assert (again.every_seconds, again.source, again.note) == (3600.0, "code", "as it was")
    (row,) = rows.query(app, "SELECT why FROM stepfast_audit WHERE what = 'schedule.reset'")
    assert row["why"] == "as it was"


def test_a_schedule_is_shown_with_its_next_ticks_on_both_clocks(app: Stepfast) -> None:
    app.schedules.add(
        "nightly", register_work(app), cron="0 2 * * *", tz="America/New_York", arguments={"n": 1}
    )

    detail = app.schedules.show("nightly")

    assert len(detail.ahead) == 5
    assert {f"{it.local:%H:%M}" for it in detail.ahead} == {"02:00"}
    assert all(it.utc == it.local and it.utc.tzinfo == UTC for it in detail.ahead)
    assert (detail.schedule.next_at, detail.arguments) == (detail.ahead[0].utc, {"n": 1})
    assert detail.behind == ()


def test_a_paused_schedule_shows_what_would_be_next(app: Stepfast) -> None:
    app.schedules.add("beat", register_work(app), every="1h")
    app.schedules.pause("beat", "no paper")

    detail = app.schedules.show("beat")

    assert (detail.schedule.state, detail.schedule.note, len(detail.ahead)) == ("paused", "no paper", 5)


def test_what_became_of_its_ticks_is_shown(app: Stepfast) -> None:
    app.schedules.add("beat", register_work(app), every="1m", missed="all")
    app.schedules.add("beat.2", register_work(app), every="1m")  # whose ticks are not mine
    ticks = [it for it in fire(app, rows.now(app) + 2 * MINUTE) if it.schedule == "beat"]
    rows.change(app, "DELETE FROM stepfast_job WHERE id = :id", id=ticks[0].job_id)

    behind = app.schedules.show("beat").behind

    assert [(it.job_id, it.job_state) for it in behind] == [
        (it.job_id, "ready" if it is not ticks[0] else None) for it in reversed(ticks)
    ]


def test_a_tick_that_became_no_job_is_told_from_the_one_that_did(app: Stepfast) -> None:
    schedule(app, overlap="skip")
    (first,) = fire(app, NOON)
    commit_step(app, take(app), Done())
    triggered = app.schedules.trigger("beat")
    rows.change(
        app, "UPDATE stepfast_job SET created_at = created_at - 1000"
    )  # SQLite's clock has milliseconds
    fire(app, NOON + MINUTE)
    fire(app, NOON + 2 * MINUTE)

    assert [(it.job_id, it.skipped) for it in app.schedules.show("beat").behind] == [
        (triggered.id, True),
        (triggered.id, True),
        (first.job_id, False),
    ]


def test_ticks_whose_job_is_forgotten_are_told_apart_by_the_tick_before(app: Stepfast) -> None:
    schedule(app, overlap="skip")
    for minute in range(7):
        fire(app, NOON + minute * MINUTE)
    rows.change(app, "DELETE FROM stepfast_job")

    behind = app.schedules.show("beat").behind

    assert [(it.job_state, it.skipped) for it in behind] == [(None, True)] * 5


def test_a_one_off_is_finished_when_it_has_fired(app: Stepfast) -> None:
    at = datetime(2126, 1, 1, tzinfo=UTC)
    app.schedules.add("party", register_work(app), at=at)
    assert app.schedules.show("party").ahead[0].utc == at

    fire(app, rows.now(app) + 36_600 * rows.DAY)

    detail = app.schedules.show("party")
    assert (detail.schedule.state, detail.schedule.last_at, detail.ahead) == ("finished", at, ())


def test_a_note_keeps_no_secret(app: Stepfast) -> None:
    app.schedules.add("beat", register_work(app), every="1h", note="because password=hunter2")

    assert "hunter2" not in str(app.schedules.show("beat").schedule.note)
