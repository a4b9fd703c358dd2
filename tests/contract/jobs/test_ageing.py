"""Jobs that wait long behind more urgent ones rise in priority until they run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from stepfast.errors import ConfigurationError
from stepfast.jobs.lease import raise_overdue
from tests.support import rows
from tests.support.engine import claim, register_work, take

if TYPE_CHECKING:
    from stepfast import Stepfast

MINUTE = 60 * rows.SECOND


def let_rise(app: Stepfast, after: int = MINUTE, limit: int = 500) -> int:
    with app.transaction() as tx:
        return raise_overdue(tx, "default", after, limit)


def wait(app: Stepfast, seconds: int) -> None:
    """Make all jobs look as if they had waited this much longer."""
    span = seconds * rows.SECOND
    rows.change(
        app, "UPDATE stepfast_job SET ready_at = ready_at - :span, updated_at = updated_at - :span", span=span
    )


def priority(app: Stepfast, job_id: str) -> int:
    row = rows.live(app, job_id)
    assert row is not None
    return int(row["priority"])


def test_who_waited_long_behind_more_urgent_work_rises_by_one(app: Stepfast) -> None:
    low = register_work(app).enqueue(priority=0)
    high = register_work(app).enqueue(priority=3)
    wait(app, 61)

    assert let_rise(app) == 1

    assert (priority(app, low.id), priority(app, high.id)) == (1, 3)


def test_nobody_rises_before_its_time_or_twice_at_once(app: Stepfast) -> None:
    low = register_work(app).enqueue(priority=0)
    middle = register_work(app).enqueue(priority=1)
    register_work(app).enqueue(priority=9)

    assert let_rise(app) == 0
    wait(app, 61)
    assert let_rise(app) == 2
    assert let_rise(app) == 0

    assert (priority(app, low.id), priority(app, middle.id)) == (1, 2)


def test_in_a_queue_of_one_priority_nothing_is_written(app: Stepfast) -> None:
    register_work(app).enqueue_many([{"n": n} for n in range(5)])
    wait(app, 3_600)

    assert let_rise(app) == 0


def test_it_rises_until_it_is_claimed_before_newer_ones_of_the_higher_priority(app: Stepfast) -> None:
    work = register_work(app)
    old = work.enqueue(priority=0)
    for _ in range(3):
        work.enqueue(priority=3)
        wait(app, 61)
        let_rise(app)

    newer = work.enqueue(priority=3)

    assert take(app).job_id == old.id
    assert newer.id in {it.job_id for it in claim(app, limit=10)}


def test_a_long_queue_rises_in_batches_the_oldest_first(app: Stepfast) -> None:
    oldest = [it.id for it in register_work(app).enqueue_many([{"n": n} for n in range(10)])]
    register_work(app).enqueue(priority=1)
    wait(app, 61)

    assert let_rise(app, limit=4) == 4

    assert [priority(app, it) for it in oldest] == [1] * 4 + [0] * 6


def test_other_queues_and_running_jobs_are_left_alone(app: Stepfast) -> None:
    other = register_work(app).enqueue(priority=0, queue="other")
    runs = register_work(app).enqueue(priority=0)
    take(app)
    register_work(app).enqueue(priority=5)
    wait(app, 61)

    assert let_rise(app) == 0
    assert (priority(app, other.id), priority(app, runs.id)) == (0, 0)


def test_a_worker_lets_rise_whoever_waits_behind_others(app: Stepfast) -> None:
    low = register_work(app).enqueue(priority=0, queue="paused")
    register_work(app).enqueue(priority=3, queue="paused")
    wait(app, 61)

    with app.worker(ageing="1m", queues="other"):
        rows.eventually(lambda: priority(app, low.id) == 1)


def test_ageing_below_a_second_is_refused(app: Stepfast) -> None:
    with pytest.raises(ConfigurationError, match="ageing"):
        app.worker(ageing="100ms")
