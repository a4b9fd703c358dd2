"""Every tick of a schedule becomes one job, whichever worker fires it and whatever happens meanwhile."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Literal, Unpack

import pytest

from stepfast import Done
from stepfast.clock import moment
from stepfast.database.database import persist
from stepfast.errors import ConfigurationError, NotFoundError, StateError
from stepfast.schedules import schedule as changes
from stepfast.schedules import schedule as firing
from stepfast.schedules.definition import BATCH, Definition, ScheduleOptions, define
from stepfast.schedules.schedule import FiredPlan, FiringPlan, TickResult
from tests.support import rows
from tests.support.engine import commit_step, take, together, wait_until_somebody_waits
from tests.support.schedules import MINUTE, NOON, fire, jobs, planned, schedule

if TYPE_CHECKING:
    from stepfast import Stepfast

Apps = Callable[[], "Stepfast"]
EVERYBODY = 20  # schedules that are due at the same moment


def plans(app: Stepfast, now: int) -> list[FiringPlan]:
    """What a firer means to do, before it does it."""
    with app.reading() as tx:
        found, at = firing.due(tx, 100, now)
    return [firing.plan(it, at) for it in found]


def carry_out(app: Stepfast, meant: list[FiringPlan]) -> list[FiredPlan]:
    return persist(app.database, lambda tx: firing.fire(tx, meant))


def revised(**options: Unpack[ScheduleOptions]) -> Callable[[Definition], Definition]:
    return lambda before: define(before.kind, None, options, before)


# A tick becomes a job


def test_a_tick_becomes_a_job_as_the_schedule_says(app: Stepfast) -> None:
    schedule(app, arguments={"n": 7}, queue="mail", priority=3)

    (tick,) = fire(app, NOON)

    assert (tick.schedule, tick.at, tick.result) == ("beat", NOON, TickResult.FIRED)
    job = rows.live(app, tick.job_id)
    assert job is not None
    assert (job["kind"], job["queue"], job["priority"], job["state"]) == ("work", "mail", 3, "ready")
    assert job["payload"] == '{"n":7}'


def test_nothing_fires_before_its_time(app: Stepfast) -> None:
    schedule(app)

    assert fire(app, NOON - 1) == []
    assert jobs(app) == []


def test_a_tick_that_fired_is_behind(app: Stepfast) -> None:
    schedule(app)
    fire(app, NOON)

    assert fire(app, NOON + 5) == []
    assert planned(app) == NOON + MINUTE
    assert [tick.at for tick in fire(app, NOON + MINUTE)] == [NOON + MINUTE]


def test_a_tick_says_which_one_it_is_on_the_clock_of_its_zone(app: Stepfast) -> None:
    schedule(app, cron="0 13 * * *", tz="Europe/Paris", arguments={"n": 1})
    with app.transaction() as tx:
        changes.change(tx, "beat", revised(tick_as="at"), now=NOON - 1)

    fire(app, NOON)

    assert jobs(app) == [{"n": 1, "at": "2026-11-15T13:00:00+01:00"}]


def test_a_one_off_fires_once_and_is_over(app: Stepfast) -> None:
    schedule(app, at=moment(NOON))

    assert [tick.at for tick in fire(app, NOON + 3)] == [NOON]
    assert planned(app) is None
    assert fire(app, NOON + rows.DAY) == []


def test_a_one_off_that_is_long_over_is_forgotten(app: Stepfast) -> None:
    schedule(app, "old", at=moment(NOON))
    schedule(app, "skipped", at=moment(NOON), missed="skip")
    schedule(app, "beating")
    fire(app, NOON + rows.DAY)
    age = rows.now(app) - NOON

    with app.transaction() as tx:
        kept = changes.forget_finished(tx, age + MINUTE)
        gone = changes.forget_finished(tx, age - MINUTE)

    assert (kept, gone) == (0, 2)
    assert planned(app, "beating") is not None


# Whoever fires it


@pytest.mark.parametrize("firers", [2, 8])
def test_many_who_fire_at_the_same_moment_fire_each_tick_once(
    app: Stepfast, another_app: Apps, firers: int
) -> None:
    names = [f"beat-{n:02}" for n in range(EVERYBODY)]
    for name in names:
        schedule(app, name, missed="all")
    others = [another_app() for _ in range(firers)]

    for minute in range(3):
        now = NOON + minute * MINUTE
        answers = together([partial(fire, one, now) for one in others])

        assert Counter(tick.schedule for ticks in answers for tick in ticks) == Counter(names)
        assert fire(app, now) == []

    fired = rows.query(app, "SELECT id FROM stepfast_key")
    assert len(fired) == 3 * EVERYBODY
    assert len(jobs(app)) == 3 * EVERYBODY
    assert {planned(app, name) for name in names} == {NOON + 3 * MINUTE}


def test_of_two_who_mean_to_fire_the_same_tick_one_does(app: Stepfast) -> None:
    schedule(app)
    mine, theirs = plans(app, NOON), plans(app, NOON)

    assert len(carry_out(app, mine)) == 1
    assert carry_out(app, theirs) == []
    assert len(jobs(app)) == 1


@pytest.mark.only_on("postgresql", "mariadb")
def test_nobody_waits_for_a_colleague_who_is_firing(app: Stepfast, another_app: Apps) -> None:
    schedule(app, "mine")
    meant = plans(app, NOON)
    other = another_app()
    with app.transaction() as tx:
        firing.fire(tx, meant)
        schedule(other, "theirs")

        assert [tick.schedule for tick in fire(other, NOON)] == ["theirs"]

    assert len(jobs(app)) == 2


def test_a_firer_that_comes_to_nothing_leaves_the_tick_to_others(app: Stepfast) -> None:
    schedule(app)
    meant = plans(app, NOON)
    with pytest.raises(ZeroDivisionError), app.transaction() as tx:
        assert 1 / (len(firing.fire(tx, meant)) - 1)

    assert jobs(app) == []
    assert len(fire(app, NOON)) == 1


def test_a_schedule_that_cannot_be_read_here_stands_in_nobodys_way(app: Stepfast) -> None:
    schedule(app, "a-broken-one")
    schedule(app, "beat")
    rows.change(
        app,
        "UPDATE stepfast_schedule SET every = NULL, cron = 'of a later version' WHERE id = 'a-broken-one'",
    )

    assert [tick.schedule for tick in fire(app, NOON)] == ["beat"]
    assert planned(app, "a-broken-one") == NOON


# Clocks that are set back


def test_a_clock_that_is_set_back_fires_nothing_twice(app: Stepfast) -> None:
    schedule(app)
    fire(app, NOON)

    assert fire(app, NOON - 10 * MINUTE) == []
    assert fire(app, NOON) == []
    assert len(jobs(app)) == 1


def test_a_plan_that_begins_anew_after_the_clock_was_set_back_fires_nothing_twice(app: Stepfast) -> None:
    schedule(app, missed="all")
    fire(app, NOON + MINUTE)
    with app.transaction() as tx:
        changes.pause(tx, "beat", now=NOON - 5 * MINUTE)
        changes.resume(tx, "beat", now=NOON - MINUTE - 1)
    assert planned(app) == NOON - MINUTE

    again = fire(app, NOON + 2 * MINUTE)

    assert [tick.result for tick in again] == [
        TickResult.FIRED,
        TickResult.REMEMBERED,
        TickResult.REMEMBERED,
        TickResult.FIRED,
    ]
    assert len(jobs(app)) == 4  # from a minute before noon to two minutes after it


# Ticks that nobody was there for


def test_of_missed_ticks_one_job_is_made_as_of_the_latest(app: Stepfast) -> None:
    schedule(app, missed="once")

    assert [tick.at for tick in fire(app, NOON + 60 * MINUTE + 5)] == [NOON + 60 * MINUTE]
    assert planned(app) == NOON + 61 * MINUTE


def test_all_missed_ticks_are_made_up_oldest_first_in_batches(app: Stepfast) -> None:
    schedule(app, missed="all", arguments={"n": 0})
    now = NOON + (BATCH + 9) * MINUTE

    first, second, third = fire(app, now), fire(app, now), fire(app, now)

    assert [tick.at for tick in first + second] == list(range(NOON, now + 1, MINUTE))
    assert (len(first), third) == (BATCH, [])
    assert len(jobs(app)) == BATCH + 10


def test_missed_ticks_are_skipped(app: Stepfast) -> None:
    schedule(app, every="1h", missed="skip")

    assert fire(app, NOON + 90 * MINUTE) == []
    assert planned(app) == NOON + 120 * MINUTE
    assert len(fire(app, NOON + 120 * MINUTE + 5)) == 1


# Overlapping jobs


def test_a_tick_is_skipped_while_the_job_before_it_is_unfinished(app: Stepfast) -> None:
    schedule(app, overlap="skip")
    (first,) = fire(app, NOON)

    (second,) = fire(app, NOON + MINUTE)
    assert (second.result, second.job_id) == (TickResult.OVERLAPPED, first.job_id)

    commit_step(app, take(app), Done())
    (third,) = fire(app, NOON + 2 * MINUTE)
    assert third.result is TickResult.FIRED
    assert len(jobs(app)) == 1


def test_jobs_of_one_schedule_may_overlap(app: Stepfast) -> None:
    schedule(app)
    fire(app, NOON)
    fire(app, NOON + MINUTE)

    assert len(jobs(app)) == 2


# What an operator does


def test_a_paused_schedule_does_not_fire_and_makes_nothing_up(app: Stepfast) -> None:
    schedule(app, missed="all")
    with app.transaction() as tx:
        assert changes.pause(tx, "beat", now=NOON - 1)
        assert not changes.pause(tx, "beat", now=NOON - 1)

    assert fire(app, NOON + 10 * MINUTE) == []
    with app.transaction() as tx:
        assert changes.resume(tx, "beat", now=NOON + 10 * MINUTE)
        assert not changes.resume(tx, "beat", now=NOON + 10 * MINUTE)
    assert fire(app, NOON + 10 * MINUTE) == []
    assert [tick.at for tick in fire(app, NOON + 11 * MINUTE)] == [NOON + 11 * MINUTE]


@pytest.mark.parametrize(("missed", "count"), [("once", 1), ("all", 1), ("skip", 0)])
def test_a_one_off_whose_time_passed_in_a_pause_is_judged_when_it_goes_on(
    app: Stepfast, missed: Literal["once", "all", "skip"], count: int
) -> None:
    schedule(app, at=moment(NOON), missed=missed)
    with app.transaction() as tx:
        changes.pause(tx, "beat", now=NOON - 1)
        changes.resume(tx, "beat", now=NOON + rows.HOUR)

    assert len(fire(app, NOON + rows.HOUR)) == count
    assert planned(app) is None


def test_a_schedule_that_is_paused_after_somebody_meant_to_fire_it_does_not_fire(app: Stepfast) -> None:
    schedule(app)
    meant = plans(app, NOON)
    with app.transaction() as tx:
        changes.pause(tx, "beat", now=NOON)

    assert carry_out(app, meant) == []
    assert jobs(app) == []


def test_a_schedule_that_was_changed_after_somebody_meant_to_fire_it_fires_as_it_is_now(
    app: Stepfast,
) -> None:
    schedule(app, arguments={"n": 1})
    meant = plans(app, NOON)
    with app.transaction() as tx:
        changes.change(tx, "beat", revised(arguments={"n": 2}), now=NOON)

    assert carry_out(app, meant) == []
    assert len(fire(app, NOON)) == 1
    assert jobs(app) == [{"n": 2}]


@pytest.mark.only_on("postgresql", "mariadb")
def test_a_pause_waits_for_a_tick_that_is_being_fired(app: Stepfast, another_app: Apps) -> None:
    schedule(app)
    meant, other = plans(app, NOON), another_app()

    def pause() -> None:
        persist(other.database, lambda tx: changes.pause(tx, "beat", now=NOON))

    thread = threading.Thread(target=pause)
    with app.transaction() as tx:
        firing.fire(tx, meant)
        thread.start()
        wait_until_somebody_waits(app)
    thread.join(20)

    assert len(jobs(app)) == 1
    assert planned(app) == NOON + MINUTE  # not what the pause saw before it had to wait
    assert fire(app, NOON + MINUTE) == []


@pytest.mark.only_on("postgresql", "mariadb")
def test_nobody_waits_for_a_change_that_is_under_way(app: Stepfast, another_app: Apps) -> None:
    schedule(app)
    other = another_app()
    with app.transaction() as tx:
        changes.pause(tx, "beat", now=NOON)

        assert fire(other, NOON) == []

    assert jobs(app) == []


def test_a_change_of_the_ticks_is_a_new_plan(app: Stepfast) -> None:
    schedule(app)

    with app.transaction() as tx:
        changes.change(tx, "beat", revised(cron="30 14 * * *"), now=NOON + 5)
    assert planned(app) == NOON + 150 * MINUTE
    with app.transaction() as tx:
        changes.change(tx, "beat", revised(tz="Europe/Paris"), now=NOON + 5)
    assert planned(app) == NOON + 90 * MINUTE


def test_a_change_of_anything_else_keeps_the_plan(app: Stepfast) -> None:
    schedule(app)

    with app.transaction() as tx:
        changes.change(tx, "beat", revised(queue="mail", priority=4, missed="skip"), now=NOON + 10 * MINUTE)

    assert planned(app) == NOON


def test_a_trigger_is_one_more_job_and_leaves_the_plan_alone(app: Stepfast) -> None:
    schedule(app, arguments={"n": 3})

    with app.transaction() as tx:
        job = changes.trigger(tx, "beat", now=NOON - 30)

    assert job.created
    assert jobs(app) == [{"n": 3}]
    assert planned(app) == NOON
    assert [tick.result for tick in fire(app, NOON)] == [TickResult.FIRED]


def test_a_paused_schedule_can_be_triggered(app: Stepfast) -> None:
    schedule(app)
    with app.transaction() as tx:
        changes.pause(tx, "beat")
        assert changes.trigger(tx, "beat").created


def test_a_trigger_does_not_overlap_where_that_was_ruled_out(app: Stepfast) -> None:
    schedule(app, overlap="skip")
    (tick,) = fire(app, NOON)

    with pytest.raises(StateError, match=f"its job {tick.job_id} is unfinished"), app.transaction() as tx:
        changes.trigger(tx, "beat")


def test_a_schedule_that_was_removed_is_gone_and_its_name_is_free(app: Stepfast) -> None:
    schedule(app)
    fire(app, NOON)
    with app.transaction() as tx:
        changes.remove(tx, "beat")

    assert fire(app, NOON + MINUTE) == []
    with pytest.raises(NotFoundError, match="there is no schedule 'beat'"), app.transaction() as tx:
        changes.remove(tx, "beat")
    schedule(app, now=NOON - 1)
    assert [tick.result for tick in fire(app, NOON)] == [TickResult.REMEMBERED]


def test_a_name_that_is_taken_is_refused(app: Stepfast) -> None:
    schedule(app)

    with pytest.raises(StateError, match="exists already"):
        schedule(app)


def test_of_many_who_add_the_same_name_one_does(another_app: Apps) -> None:
    others = [another_app() for _ in range(4)]

    answers = together([partial(schedule, one) for one in others])

    assert Counter(type(it).__name__ for it in answers) == {"Schedule": 1, "StateError": 3}


def test_a_time_that_has_passed_is_refused(app: Stepfast) -> None:
    with pytest.raises(ConfigurationError, match="has passed; enqueue the job instead"):
        schedule(app, at=moment(NOON), now=NOON)
    schedule(app)
    with (
        pytest.raises(ConfigurationError, match="has passed"),
        app.transaction() as tx,
    ):
        changes.change(tx, "beat", revised(at=datetime(2020, 1, 1, tzinfo=UTC)))
