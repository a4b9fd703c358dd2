"""The scheduler of a worker: its cost while idle, its events, and what does not stop it."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest

from stepfast.clock import moment
from stepfast.database.connection import Connection
from stepfast.errors import UnreachableError
from stepfast.worker import periodic, scheduler
from stepfast.worker.scheduler import LOOK, SOON, Scheduler
from tests.support import rows
from tests.support.engine import register_work
from tests.support.schedules import MINUTE, NOON, jobs, planned, schedule

if TYPE_CHECKING:
    from stepfast import Stepfast


@pytest.fixture
def executed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every statement from here on."""
    texts: list[str] = []
    monkeypatch.setattr(
        Connection,
        "watch",
        staticmethod(lambda phase, text: texts.append(text) if phase == "before" else None),
    )
    return texts


def test_who_has_nothing_to_fire_looks_with_one_statement(app: Stepfast, executed: list[str]) -> None:
    part = Scheduler(app.database, {})
    pauses = [part.work()]
    schedule(app, now=rows.now(app), every="1d")
    schedule(app, "paused", now=NOON)
    with app.transaction() as tx:
        tx.execute("UPDATE stepfast_schedule SET paused_at = 1 WHERE id = 'paused'")
    executed.clear()

    pauses.append(part.work())

    assert len(executed) == 1
    assert "COMMIT" not in executed
    assert pauses == [LOOK, LOOK]


def test_the_next_look_is_when_something_is_due(app: Stepfast) -> None:
    schedule(app, now=rows.now(app), every="1d")
    rows.change(app, "UPDATE stepfast_schedule SET next_at = :at", at=rows.now(app) + rows.SECOND // 2)

    assert 0 < Scheduler(app.database, {}).work() <= 0.5


def test_what_is_due_is_fired_and_looked_after_at_once(app: Stepfast) -> None:
    schedule(app, now=rows.now(app) - 2 * MINUTE, every="1m")

    assert Scheduler(app.database, {}).work() == SOON
    assert len(jobs(app)) == 1


def test_one_offs_of_long_ago_are_forgotten_now_and_then(app: Stepfast) -> None:
    schedule(app, at=moment(NOON))
    part = Scheduler(app.database, {})
    part.fire(NOON)
    rows.change(app, "UPDATE stepfast_schedule SET last_at = 1")
    part.work()
    assert rows.count(app, "stepfast_schedule") == 1

    part.forget_finished()

    assert rows.count(app, "stepfast_schedule") == 0


def test_what_happened_is_told(app: Stepfast, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "stepfast")
    schedule(app, "late", missed="once")
    schedule(app, "busy", overlap="skip", missed="all")
    app.schedule("declared", register_work(app), every="1h")
    part = Scheduler(app.database, app.declared)

    part.synchronise()
    part.synchronise()
    part.fire(NOON + MINUTE)

    told = [record.getMessage() for record in caplog.records]
    assert [line for line in told if line.startswith("schedule.declared")] == [
        "schedule.declared schedule=declared"
    ]
    assert any(line.startswith("tick.fired schedule=late tick=2026-11-15T12:01:00Z") for line in told)
    assert any(
        line.startswith("ticks.missed schedule=late since=2026-11-15T12:00:00Z note=once") for line in told
    )
    assert any(line.startswith("tick.skipped schedule=busy") and "note=overlapped" in line for line in told)


def test_what_cannot_be_read_here_is_told_once_and_left_to_others(
    app: Stepfast, caplog: pytest.LogCaptureFixture
) -> None:
    schedule(app, "strange", cron="@daily")
    schedule(app, "beat")
    rows.change(app, "UPDATE stepfast_schedule SET tz = 'Mars/Olympus', next_at = 1 WHERE id = 'strange'")
    part = Scheduler(app.database, {})

    for minute in range(3):
        part.fire(NOON + minute * MINUTE)

    assert len(jobs(app)) == 3
    assert planned(app, "strange") == 1
    told = [record for record in caplog.records if record.getMessage().startswith("schedule.unreadable")]
    assert len(told) == 1
    assert "Mars/Olympus" in told[0].getMessage()


def test_a_database_that_goes_away_is_waited_for(
    app: Stepfast, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "stepfast")
    calls: list[str] = []

    def next_due(_: object) -> int | None:
        calls.append("")
        if len(calls) < 3:
            raise UnreachableError("gone")
        if len(calls) == 3:
            raise ZeroDivisionError
        return None

    monkeypatch.setattr(scheduler, "next_due", next_due)
    monkeypatch.setattr(scheduler, "LOOK", 0.01)
    monkeypatch.setattr(periodic, "AWAY", 0.01)
    monkeypatch.setattr(periodic, "FAILED", 0.01)
    part = Scheduler(app.database, {})
    part.start()
    rows.eventually(lambda: len(calls) > 4)
    part.stop()

    told = [record.getMessage() for record in caplog.records]
    assert len([line for line in told if line.startswith("database.lost")]) == 1
    assert len([line for line in told if line.startswith("worker.failed")]) == 1
    assert len([line for line in told if line.startswith("database.recovered")]) == 1
