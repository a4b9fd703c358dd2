"""What `drain()` does besides running steps: schedules, limits and the relay, on the test's clock."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta

import pytest

from stepfast import Step, Stepfast
from stepfast.limits.limit import Concurrency, Rate
from stepfast.testing import Clock, clock, drain, enqueued
from tests.support import rows
from tests.support.http_receiver import SETTINGS, Answer, HttpReceiver, receiving_http

EVENING = datetime(2031, 3, 1, 18, tzinfo=UTC)


@pytest.fixture
def time(app: Stepfast) -> Iterator[Clock]:
    """Standing still, on an evening."""
    with clock(app) as time:
        time.freeze(EVENING)
        yield time


# Schedules


def nightly_on(app: Stepfast, **options: str) -> list[datetime]:
    ran: list[datetime] = []

    @app.job()
    def nightly(tick: datetime) -> None:
        ran.append(tick)

    app.schedule("nightly", nightly, cron="0 2 * * *", tz="UTC", tick_as="tick", **options)  # type: ignore[arg-type]
    return ran


def test_a_schedule_fires_when_its_time_has_come(app: Stepfast, time: Clock) -> None:
    ran = nightly_on(app)
    drain(app)  # from here on it exists
    assert ran == []

    time.advance("7h")
    assert drain(app).jobs == ()
    time.advance("1h")
    drain(app)
    assert ran == [datetime(2031, 3, 2, 2, tzinfo=UTC)]

    drain(app)
    assert len(ran) == 1


@pytest.mark.parametrize(("missed", "ticks"), [("once", 1), ("all", 3), ("skip", 0)])
def test_ticks_that_were_missed_follow_their_policy(
    app: Stepfast, time: Clock, missed: str, ticks: int
) -> None:
    ran = nightly_on(app, missed=missed)
    drain(app)

    time.advance("3d")
    drain(app)

    assert len(ran) == ticks


def test_to_move_the_clock_for_jobs_is_not_to_run_the_calendar_to_its_end(app: Stepfast, time: Clock) -> None:
    ran = nightly_on(app)
    drain(app)

    report = drain(app, with_scheduled=True)

    assert report.jobs == ()
    assert ran == []
    assert time.now() == EVENING


def test_a_schedule_for_one_moment_fires_once(app: Stepfast, time: Clock) -> None:
    @app.job()
    def work() -> None: ...

    app.schedules.add("party", work, at=EVENING + timedelta(hours=2))
    assert drain(app).jobs == ()

    time.advance("2h")
    assert drain(app).done == 1
    time.advance("1d")
    assert drain(app).jobs == ()


# Limits


def test_a_rate_is_kept_and_the_clock_is_moved_to_it(app: Stepfast, time: Clock) -> None:
    starts: list[datetime] = []

    @app.job(limits=[Rate(1, per="1m")])
    def work() -> None:
        starts.append(time.now())

    work.enqueue_many([{}] * 4)
    assert drain(app).done == 1

    assert drain(app, with_scheduled=True).done == 3
    assert [it - EVENING for it in starts] == [timedelta(minutes=n) for n in range(4)]


def test_jobs_above_a_limit_run_one_after_the_other(app: Stepfast) -> None:
    @app.job(limits=[Concurrency(1)])
    async def work() -> None: ...

    work.enqueue_many([{}] * 5)

    assert drain(app, concurrency=3).done == 5


# What leaves the database


@pytest.fixture
def sender(database_url: str) -> Iterator[Stepfast]:
    with closing(Stepfast(database_url, notifications=SETTINGS)) as app:
        yield app


@pytest.fixture
def receiver() -> Iterator[HttpReceiver]:
    with receiving_http() as receiver:
        yield receiver


def messages(app: Stepfast) -> list[str]:
    return [str(row["state"]) for row in rows.query(app, "SELECT state FROM stepfast_outbox ORDER BY seq")]


def test_nothing_leaves_the_database_unless_it_is_asked_to(sender: Stepfast, receiver: HttpReceiver) -> None:
    @sender.job()
    def work(step: Step) -> None:
        step.send_webhook(receiver.url(), data={"n": 1})

    work.enqueue()
    assert drain(sender).done == 1
    assert messages(sender) == ["waiting"]
    assert receiver.received == []

    drain(sender, relay=True)
    assert messages(sender) == ["sent"]
    assert receiver.bodies == [{"n": 1}]


def test_the_application_keeps_its_own_settings(sender: Stepfast) -> None:
    drain(sender)

    assert sender.notifications == SETTINGS


def test_messages_that_are_tried_again_are_waited_for_by_the_clock(
    sender: Stepfast, receiver: HttpReceiver
) -> None:
    receiver.fail(3)
    for n in range(2):  # the second waits behind the first
        sender.send_webhook(receiver.url(), data={"n": n})

    drain(sender, relay=True)
    assert messages(sender) == ["waiting", "waiting"]
    drain(sender, relay=True, with_scheduled=True)

    assert messages(sender) == ["sent", "sent"]
    assert [it["n"] for it in receiver.bodies] == [0, 0, 0, 0, 1]


def test_a_receiver_that_never_answers_well_ends_in_a_dead_message(
    sender: Stepfast, receiver: HttpReceiver
) -> None:
    receiver.answer = lambda _: Answer(410)
    sender.send_webhook(receiver.url(), data=1)

    drain(sender, relay=True, with_scheduled=True)

    assert messages(sender) == ["dead"]


@pytest.mark.usefixtures("time")
def test_jobs_are_due_by_the_tests_clock(app: Stepfast) -> None:
    @app.job()
    def work() -> None: ...

    work.enqueue(delay="1h")

    (job,) = enqueued(app, work, within="1h")
    assert job.due_at == EVENING + timedelta(hours=1)
    assert enqueued(app, work, within="59m") == []
