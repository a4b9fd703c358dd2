"""`clock()` moves the time of one application: all of its statements see it, others do not."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from stepfast import Continue, DuplicateKeyError, Retry, Snooze, Step, Stepfast, TransientError
from stepfast.clock import micros, moment
from stepfast.database.dialects import Shift
from stepfast.database.drivers import open_database, sqlite_path
from stepfast.database.lending import accept
from stepfast.database.migrate import migrate
from stepfast.errors import ConfigurationError
from stepfast.jobs.keys import forget_expired_keys
from stepfast.testing import clock, drain, enqueued
from stepfast.testing.test_clock import Clock
from stepfast.worker.maintenance import prune
from tests.support import rows

HOUR = timedelta(hours=1)
MOMENT = timedelta(seconds=20)  # more than any of these tests takes


def real_now(app: Stepfast) -> datetime:
    """As another application sees it."""
    with closing(Stepfast(app.database.url)) as other:
        return moment(rows.now(other))


def ahead(app: Stepfast) -> int:
    """How many hours the application's clock is ahead of the real one."""
    return round((moment(rows.now(app)) - real_now(app)) / HOUR)


# Moving


def test_time_passes_as_it_is_told(app: Stepfast) -> None:
    with clock(app) as time:
        before = time.now()

        after = time.advance("1h")

        assert HOUR <= after - before < HOUR + MOMENT
        assert ahead(app) == 1
    assert ahead(app) == 0


def test_steps_of_time_add_up(app: Stepfast) -> None:
    with clock(app) as time:
        before = time.now()
        time.advance("1h")
        time.advance(timedelta(minutes=30))
        time.advance(1800)

        assert 2 * HOUR <= time.now() - before < 2 * HOUR + MOMENT


@pytest.mark.parametrize("there", [datetime(2031, 3, 30, 1, tzinfo=UTC), datetime(1999, 12, 31, tzinfo=UTC)])
def test_it_can_be_any_time(app: Stepfast, there: datetime) -> None:
    with clock(app) as time:
        time.travel_to(there)

        assert timedelta(0) <= time.now() - there < MOMENT


def test_a_frozen_time_stands_still_until_it_is_moved(app: Stepfast) -> None:
    with clock(app) as time:
        frozen = time.freeze()
        assert time.now() == time.now() == frozen

        assert time.advance("1d") == frozen + timedelta(days=1) == time.now()
        assert time.travel_to(frozen) == frozen == time.now()

        time.resume()
        assert time.now() >= frozen
        before = rows.now(app)
        rows.eventually(lambda: rows.now(app) > before)


def test_it_can_be_frozen_at_any_time(app: Stepfast) -> None:
    there = datetime(2031, 3, 30, 1, tzinfo=UTC)
    with clock(app) as time:
        assert time.freeze(there) == there == time.now()


def test_to_resume_a_running_time_changes_nothing(app: Stepfast) -> None:
    with clock(app) as time:
        later = time.advance("1h")

        assert timedelta(0) <= time.resume() - later < MOMENT


def test_clocks_can_be_nested(app: Stepfast) -> None:
    with clock(app) as outer:
        outer.advance("1h")
        with clock(app) as inner:
            inner.advance("1h")
            assert ahead(app) == 2
        assert ahead(app) == 1


@pytest.mark.parametrize("wrong", ["yesterday", -5, None])
def test_a_span_that_is_none_is_refused(app: Stepfast, wrong: Any) -> None:
    with clock(app) as time, pytest.raises(ConfigurationError, match="advance"):
        time.advance(wrong)


def test_a_time_without_a_zone_is_refused(app: Stepfast) -> None:
    with clock(app) as time, pytest.raises(ConfigurationError, match=r"travel_to.*time zone"):
        time.travel_to(datetime(2030, 1, 1))  # noqa: DTZ001 - that is the point


def test_another_application_on_the_same_database_keeps_its_time(
    app: Stepfast, another_app: Callable[[], Stepfast]
) -> None:
    other = another_app()
    with clock(app) as time:
        time.advance("1d")

        assert abs(moment(rows.now(other)) - real_now(app)) < MOMENT


# Who sees it


def test_a_delay_is_over_when_it_is(app: Stepfast) -> None:
    @app.job()
    def work() -> None: ...

    work.enqueue(delay="1h")
    with clock(app) as time:
        time.advance("59m")
        assert drain(app).done == 0

        time.advance("1m")
        assert drain(app).done == 1


def test_a_job_for_a_certain_time_runs_then(app: Stepfast) -> None:
    @app.job()
    def work() -> None: ...

    new_year = datetime(2031, 1, 1, tzinfo=UTC)
    work.enqueue(run_at=new_year)
    with clock(app) as time:
        time.travel_to(new_year - timedelta(minutes=1))
        assert drain(app).done == 0

        time.travel_to(new_year)
        assert drain(app).done == 1


def test_retries_wait_as_long_as_their_policy_says(app: Stepfast) -> None:
    @app.job(retry=Retry(attempts=3, first="1h", factor=4.0, longest="1d"))
    def work(step: Step) -> None:
        raise ValueError(f"attempt {step.attempt}")

    job = work.enqueue()
    with clock(app) as time:
        time.freeze()
        waits = []
        for _ in range(3):
            report = drain(app, raise_errors=False)
            waits.append(report.job(job.id).due_at - time.now())
            time.advance("6h")

        assert report.dead == 1
    first, second, _ = waits
    assert HOUR / 2 <= first <= HOUR
    assert 2 * HOUR <= second <= 4 * HOUR


@pytest.mark.parametrize("how", ["snooze", "continue", "throttle"])
def test_a_handler_that_asks_for_time_gets_it(app: Stepfast, how: str) -> None:
    asked: list[str] = []

    @app.job()
    def work() -> Snooze | Continue | None:
        if asked:
            return None
        asked.append(how)
        match how:
            case "snooze":
                return Snooze("10m")
            case "continue":
                return Continue(1, delay="10m")
            case _:
                raise TransientError("busy", delay="10m")

    work.enqueue()
    with clock(app) as time:
        drain(app, raise_errors=False)
        time.advance("9m")
        assert drain(app).done == 0

        time.advance("1m")
        assert drain(app).done == 1


def test_a_key_is_free_again_when_its_time_is_over(app: Stepfast) -> None:
    @app.job()
    def work() -> None: ...

    work.enqueue(key="daily", unique_for="1d")
    drain(app)
    with clock(app) as time:
        time.advance("23h")
        with pytest.raises(DuplicateKeyError):
            work.enqueue(key="daily", unique_for="1d")

        time.advance("1h")
        assert work.enqueue(key="daily", unique_for="1d").created


def test_an_id_is_forgotten_when_its_time_is_over(app: Stepfast) -> None:
    @app.job()
    def work() -> None: ...

    work.enqueue(id="task-1")
    drain(app)
    with clock(app) as time:
        time.advance("16d")

        with app.transaction() as tx:
            assert forget_expired_keys(tx, 10) == 1


def test_finished_jobs_are_forgotten_after_their_retention(app: Stepfast) -> None:
    @app.job()
    def work() -> None: ...

    def forgotten() -> int:
        with app.transaction() as tx:
            return prune(tx, micros(timedelta(days=7)))

    work.enqueue()
    drain(app)
    with clock(app) as time:
        time.advance("6d")
        assert forgotten() == 0

        time.advance("2d")
        assert forgotten() == 1


def test_a_lease_by_hand_runs_out(app: Stepfast) -> None:
    @app.job()
    def work() -> None: ...

    work.enqueue()
    app.acquire("me", "5m")
    with clock(app) as time:
        time.advance("4m")
        assert drain(app).jobs == ()

        time.advance("2m")
        assert drain(app).done == 1


def test_operators_see_it(app: Stepfast) -> None:
    @app.job()
    def work() -> None: ...

    with clock(app) as time:
        time.travel_to(datetime(2031, 1, 1, tzinfo=UTC))
        job = work.enqueue()
        drain(app)

        detail = app.operator.job(job.id).job
        assert detail.created_at.year == 2031
        assert detail.finished_at is not None
        assert detail.finished_at.year == 2031


@pytest.mark.only_on("sqlite")
def test_a_connection_that_was_lent_sees_it(app: Stepfast) -> None:
    @app.job()
    def work() -> None: ...

    with closing(sqlite3.connect(sqlite_path(app.database.url))) as mine, clock(app) as time:
        time.travel_to(datetime(2031, 1, 1, tzinfo=UTC))
        work.enqueue(tx=mine)
        mine.commit()

    assert enqueued(app)[0].created_at.year == 2031


@pytest.mark.only_on("postgresql", "mariadb")
def test_a_connection_of_a_driver_that_was_lent_sees_it(app: Stepfast) -> None:
    @app.job()
    def work() -> None: ...

    mine = app.database.connect()
    with clock(app) as time:
        time.travel_to(datetime(2031, 1, 1, tzinfo=UTC))
        mine.execute("BEGIN")
        work.enqueue(tx=mine.raw)
        mine.execute("COMMIT")
    mine.close()

    assert enqueued(app)[0].created_at.year == 2031


def test_the_defaults_of_columns_outlive_it(empty_database_url: str) -> None:
    """Tables that are made while a test's clock stands still must not stand still for ever."""
    with closing(open_database(empty_database_url)) as database:
        database.shift_clock(Shift(frozen_at=1))
        migrate(database)
        database.shift_clock(None)
        app = Stepfast(database=database)
        rows.change(app, "INSERT INTO stepfast_job (id, kind, payload) VALUES ('a', 'work', '{}')")

        assert abs(enqueued(app)[0].created_at - real_now(app)) < MOMENT


# Workers


def test_a_worker_that_lives_survives_a_jump(app: Stepfast) -> None:
    """Its heartbeat would have renewed all the while: it must not be declared dead for skipped time."""

    @app.job()
    def work() -> None: ...

    with app.worker(lease="2s") as worker, clock(app) as time:
        time.advance("1h")

        assert [it.running for it in app.operator.workers()] == [True]
        assert app.operator.reset_leases() == 0
        work.enqueue()
        rows.eventually(lambda: rows.count(app, "stepfast_job") == 0)
        assert worker.status().running
        assert rows.count(app, "stepfast_worker", "state = 'dead'") == 0


def test_a_jump_back_leaves_workers_alive_too(app: Stepfast) -> None:
    with app.worker():
        with clock(app) as time:
            time.advance("30d")

        assert [it.running for it in app.operator.workers()] == [True]
        assert app.operator.workers()[0].alive_until < real_now(app) + MOMENT


def test_a_worker_on_another_machine_dies_of_it(app: Stepfast) -> None:
    @app.job()
    def work() -> None: ...

    job = work.enqueue()
    rows.add_worker(app, 4711, alive_for=10 * rows.SECOND)
    rows.change(
        app, "UPDATE stepfast_job SET state = 'leased', owner = 4711, fence = 9 WHERE id = :id", id=job.id
    )
    with clock(app) as time:
        assert drain(app).jobs == ()

        time.advance("11s")
        assert drain(app).done == 1


def test_without_a_test_nothing_is_different(app: Stepfast) -> None:
    before = app.database.dialect
    with clock(app) as time:
        time.advance("1h")
        assert app.database.dialect is not before
        assert lend_dialect(app) is app.database.dialect

    assert app.database.dialect is before
    assert app.database.shift is None


def lend_dialect(app: Stepfast) -> object:
    """The dialect of a transaction on a connection that was lent."""
    connection = app.database.connect()
    connection.execute("BEGIN")
    try:
        return accept(connection.raw, app.database).dialect
    finally:
        connection.execute("ROLLBACK")
        connection.close()


def test_a_clock_belongs_to_its_application(app: Stepfast) -> None:
    with clock(app) as time:
        assert isinstance(time, Clock)
        time.advance("1h")
        assert app.database.shift is not None
