"""Schedules that the code declares are stored by workers; an operator's change wins until it is reset."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Unpack

import pytest

from stepfast.clock import moment
from stepfast.errors import NotFoundError, StateError
from stepfast.schedules import schedule as changes
from stepfast.schedules.definition import Definition, ScheduleOptions, define
from stepfast.schedules.schedule import Schedule, get, reset, schedules, synchronise
from tests.support import rows
from tests.support.engine import register_work, together
from tests.support.schedules import MINUTE, NOON, fire, jobs, planned

if TYPE_CHECKING:
    from stepfast import Stepfast

Apps = Callable[[], "Stepfast"]
LATER = NOON + 30 * MINUTE + 1


def code(app: Stepfast, now: int = NOON, **options: Unpack[ScheduleOptions]) -> list[str]:
    """A worker starts whose code declares this; returns which schedules follow it now."""
    return declare(app, define("work", register_work(app).kind, options), now)


def declare(app: Stepfast, definition: Definition, now: int = NOON) -> list[str]:
    with app.transaction() as tx:
        return synchronise(tx, {"nightly": definition}, now=now)


def operator(app: Stepfast, now: int = NOON + 1, **options: Unpack[ScheduleOptions]) -> None:
    with app.transaction() as tx:
        changes.change(tx, "nightly", lambda before: define("work", None, options, before), now=now)


def row(app: Stepfast) -> Schedule:
    with app.reading() as tx:
        return get(tx, "nightly")


def test_a_worker_writes_down_what_its_code_declares(app: Stepfast) -> None:
    assert code(app, cron="0 2 * * *", arguments={"n": 2}) == ["nightly"]

    it = row(app)
    assert (it.source, it.definition.cron, it.definition.payload) == ("code", "0 2 * * *", '{"n":2}')
    assert it.next_at == NOON + 14 * rows.HOUR
    assert code(app, cron="0 2 * * *", arguments={"n": 2}) == []
    assert row(app) == it


def test_the_row_follows_the_code(app: Stepfast) -> None:
    code(app, every="1h", arguments={"n": 1})

    assert code(app, LATER, every="1h", arguments={"n": 2}) == ["nightly"]
    assert (row(app).definition.payload, planned(app, "nightly")) == ('{"n":2}', NOON + rows.HOUR)

    assert code(app, LATER, every="45m", arguments={"n": 2}) == ["nightly"]
    assert planned(app, "nightly") == NOON + 45 * MINUTE


def test_what_an_operator_changed_wins_over_the_code(app: Stepfast) -> None:
    code(app, every="1h")
    operator(app, every="2h")

    assert code(app, every="1h") == []
    assert code(app, every="3h") == []

    assert (row(app).source, row(app).definition.every) == ("operator", 2 * rows.HOUR)


def test_a_reset_brings_back_what_the_code_says_now(app: Stepfast) -> None:
    code(app, every="1h")
    operator(app, every="2h")
    code(app, every="30m")

    with app.transaction() as tx:
        reset(tx, "nightly", now=LATER)

    assert (row(app).source, row(app).definition.every) == ("code", 30 * MINUTE)
    assert planned(app, "nightly") == NOON + rows.HOUR
    assert code(app, every="15m") == ["nightly"]


def test_a_pause_wins_over_the_code(app: Stepfast) -> None:
    code(app, every="1h")
    with app.transaction() as tx:
        changes.pause(tx, "nightly", now=NOON)

    code(app, every="15m")

    assert row(app).paused_at == NOON
    assert fire(app, LATER) == []
    with app.transaction() as tx:
        reset(tx, "nightly", now=LATER)
    assert (row(app).paused_at, planned(app, "nightly")) == (None, NOON + 45 * MINUTE)


def test_what_an_operator_removed_stays_away(app: Stepfast) -> None:
    code(app, every="1h")
    with app.transaction() as tx:
        changes.remove(tx, "nightly", now=NOON)

    assert code(app, every="1h") == []
    assert code(app, every="15m") == []

    assert fire(app, NOON + rows.DAY) == []
    with app.reading() as tx:
        assert schedules(tx) == []
        assert [it.name for it in schedules(tx, everyone=True)] == ["nightly"]
    with pytest.raises(NotFoundError), app.transaction() as tx:
        changes.trigger(tx, "nightly")
    with app.transaction() as tx:
        reset(tx, "nightly", now=LATER)
    assert (row(app).definition.every, planned(app, "nightly")) == (15 * MINUTE, NOON + 45 * MINUTE)


def test_a_name_that_was_removed_may_be_taken_at_run_time_and_still_be_reset(app: Stepfast) -> None:
    code(app, every="1h")
    with app.transaction() as tx:
        changes.remove(tx, "nightly", now=NOON)
        changes.add(tx, "nightly", define("work", None, {"every": "5m"}), now=NOON)

    assert (row(app).source, row(app).removed_at, planned(app, "nightly")) == (
        "operator",
        None,
        NOON + 5 * MINUTE,
    )
    with app.transaction() as tx:
        assert reset(tx, "nightly", now=NOON).definition.every == rows.HOUR


def test_what_no_code_declares_cannot_be_reset(app: Stepfast) -> None:
    with app.transaction() as tx:
        changes.add(tx, "mine", define("work", None, {"every": "5m"}))

    with pytest.raises(StateError, match="declared by no code"), app.transaction() as tx:
        reset(tx, "mine")
    with pytest.raises(NotFoundError), app.transaction() as tx:
        reset(tx, "nobody's")


def test_a_declared_name_that_an_operator_took_first_is_the_operators(app: Stepfast) -> None:
    with app.transaction() as tx:
        changes.add(tx, "nightly", define("work", None, {"every": "5m"}), now=NOON)

    assert code(app, every="1h") == []
    assert row(app).definition.every == 5 * MINUTE
    with app.transaction() as tx:
        assert reset(tx, "nightly", now=NOON).definition.every == rows.HOUR


def test_a_declared_one_off_fires_once_however_often_workers_start(app: Stepfast) -> None:
    at = moment(NOON)
    for _ in range(2):
        code(app, NOON + 5, at=at)
        fire(app, NOON + 10)
    with app.transaction() as tx:
        changes.pause(tx, "nightly")
        reset(tx, "nightly")
        changes.remove(tx, "nightly")
        reset(tx, "nightly")
    fire(app, NOON + 20)

    assert len(jobs(app)) == 1
    assert planned(app, "nightly") is None


def test_a_declared_one_off_that_is_over_is_not_forgotten(app: Stepfast) -> None:
    code(app, NOON, at=moment(NOON))
    fire(app, NOON)

    with app.transaction() as tx:
        assert changes.forget_finished(tx, -rows.DAY) == 0  # of whatever age

    assert row(app).last_at == NOON


def test_many_workers_that_start_at_once_write_down_one_row(app: Stepfast, another_app: Apps) -> None:
    others = [another_app() for _ in range(8)]

    answers = together([partial(code, one, every="1h") for one in others])

    assert sorted(answers) == [[]] * 7 + [["nightly"]]
    assert rows.count(app, "stepfast_schedule") == 1


def test_a_worker_that_starts_fires_what_its_code_declares(app: Stepfast) -> None:
    started: list[datetime] = []

    @app.job()
    def beat(at: datetime) -> None:
        started.append(at)

    app.schedule("beat", beat, every="1s", tick_as="at")
    with app.worker():
        rows.eventually(lambda: len(started) >= 2)

    assert started == sorted(set(started))
    assert all(at.microsecond == 0 for at in started)
    assert rows.count(app, "stepfast_key", "id LIKE 'schedule:beat:%'") >= 2


def test_a_worker_fires_what_was_added_while_it_runs(app: Stepfast) -> None:
    calls: list[int] = []

    @app.job()
    def beat(n: int) -> None:
        calls.append(n)

    with app.worker():
        app.schedules.add("beat", beat, every="1s", arguments={"n": 5})
        rows.eventually(lambda: calls)

    assert calls[0] == 5
