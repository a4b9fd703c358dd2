"""Attempts are counted exactly: which failures count, and what happens after the last."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from stepfast import Done, PermanentError, Reject, Retry, Snooze, Step, TransientError
from stepfast.jobs.outcome import Again
from stepfast.worker.maintenance import promote
from tests.support import rows
from tests.support.engine import commit_step, drain, register_work, take

if TYPE_CHECKING:
    from stepfast import Stepfast

AT_ONCE = Retry(first=0)


def test_a_job_that_always_fails_is_tried_three_times_by_default(app: Stepfast) -> None:
    tries: list[int] = []

    @app.job(retry=AT_ONCE)
    def work(step: Step) -> None:
        tries.append(step.attempt)
        raise ValueError(f"try {step.attempt}")

    job = work.enqueue()
    drain(app)

    row = rows.ended(app, job.id)
    assert row is not None
    assert tries == [1, 2, 3]
    assert (row["state"], row["failures"], row["crashes"]) == ("dead", 3, 0)
    assert row["last_error"] == "ValueError: try 3"


def test_a_policy_of_one_attempt_is_one_try(app: Stepfast) -> None:
    tries: list[int] = []

    @app.job(retry=Retry(attempts=1))
    async def work() -> None:
        tries.append(1)
        raise ValueError

    job = work.enqueue()
    drain(app)

    assert tries == [1]
    assert rows.state(app, job.id) == "dead"


def test_a_job_that_succeeds_at_its_last_try_is_done(app: Stepfast) -> None:
    @app.job(retry=AT_ONCE)
    def work(step: Step) -> str:
        if step.attempt < 3:
            raise ValueError
        return "at last"

    job = work.enqueue()
    drain(app)

    row = rows.ended(app, job.id)
    assert row is not None
    assert (row["state"], row["failures"], row["result"]) == ("done", 2, '"at last"')


def test_a_failure_waits_for_the_policys_delay(app: Stepfast) -> None:
    register_work(app).enqueue()
    held = take(app)

    before = rows.now(app)
    commit_step(app, held, Again(timedelta(seconds=90), "error", "error"))

    row = rows.live(app, held.job_id)
    assert row is not None
    assert row["state"] == "scheduled"
    assert before <= row["ready_at"] - 90 * rows.SECOND <= rows.now(app)


def test_a_snooze_costs_no_attempt(app: Stepfast) -> None:
    tries: list[int] = []

    @app.job(retry=Retry(attempts=1))
    def work(step: Step) -> Snooze | Done:
        tries.append(step.attempt)
        return Snooze(0) if len(tries) < 5 else Done()

    job = work.enqueue()
    drain(app)

    row = rows.ended(app, job.id)
    assert row is not None
    assert tries == [1] * 5
    assert (row["state"], row["failures"]) == ("done", 0)


def test_a_transient_error_costs_no_attempt_and_waits_as_it_says(app: Stepfast) -> None:
    @app.job(retry=Retry(attempts=1))
    def work() -> None:
        raise TransientError("429 too many requests", delay=timedelta(minutes=7))

    job = work.enqueue()
    with app.worker():
        row = rows.eventually(lambda: _with_error(app, job.id))

    assert (row["state"], row["failures"]) == ("scheduled", 0)
    assert row["last_error"] == "TransientError: 429 too many requests"
    assert abs(row["ready_at"] - rows.now(app) - 420 * rows.SECOND) < 30 * rows.SECOND


def test_a_rejected_job_is_dead_at_once(app: Stepfast) -> None:
    tries: list[int] = []

    @app.job()
    def work() -> Reject:
        tries.append(1)
        return Reject("order A-17 was deleted; token=abc")

    job = work.enqueue()
    drain(app)

    row = rows.ended(app, job.id)
    assert row is not None
    assert tries == [1]
    assert (row["state"], row["last_error"]) == ("dead", "Rejected: order A-17 was deleted; token=***")


def test_a_permanent_error_is_dead_at_once(app: Stepfast) -> None:
    tries: list[int] = []

    @app.job()
    def work() -> None:
        tries.append(1)
        raise PermanentError("this will never work")

    job = work.enqueue()
    drain(app)

    row = rows.ended(app, job.id)
    assert row is not None
    assert tries == [1]
    assert (row["state"], row["failures"]) == ("dead", 1)


@pytest.mark.usefixtures("ledger")
def test_an_effect_that_raises_is_a_failed_attempt(app: Stepfast) -> None:
    tries: list[int] = []

    @app.job(retry=Retry(attempts=2, first=0))
    def work(step: Step) -> None:
        tries.append(step.attempt)

        def fail(_: object) -> None:
            raise ValueError(f"effect {step.attempt}")

        step.upsert("ledger", [{"id": "a", "amount": 1}], key="id")
        step.effect(fail)

    job = work.enqueue()
    drain(app)

    row = rows.ended(app, job.id)
    assert row is not None
    assert tries == [1, 2]
    assert (row["state"], row["failures"], row["last_error"]) == ("dead", 2, "ValueError: effect 2")
    assert rows.count(app, "ledger") == 0


@pytest.mark.usefixtures("ledger")
def test_a_constraint_that_refuses_an_effect_is_permanent(app: Stepfast) -> None:
    rows.change(app, "INSERT INTO ledger (id, amount) VALUES ('a', 1)")
    tries: list[int] = []

    @app.job()
    def work(step: Step) -> None:
        tries.append(1)
        step.effect(lambda tx: tx.execute("INSERT INTO ledger (id, amount) VALUES ('a', 2)"))

    job = work.enqueue()
    drain(app)

    row = rows.ended(app, job.id)
    assert row is not None
    assert tries == [1]
    assert row["state"] == "dead"
    assert row["last_error"].startswith("ConstraintError: ")


def test_a_result_without_a_json_form_is_a_failed_attempt(app: Stepfast) -> None:
    @app.job(retry=Retry(attempts=1))
    def work() -> object:
        return object()

    job = work.enqueue()
    drain(app)

    row = rows.ended(app, job.id)
    assert row is not None
    assert row["state"] == "dead"
    assert "object has no JSON form" in row["last_error"]


def test_a_cursor_without_a_json_form_is_a_failed_attempt(app: Stepfast) -> None:
    from stepfast import Continue

    @app.job(retry=Retry(attempts=1))
    def work() -> Continue:
        return Continue(object())

    job = work.enqueue()
    drain(app)

    row = rows.ended(app, job.id)
    assert row is not None
    assert row["state"] == "dead"
    assert "object has no JSON form" in row["last_error"]


def test_what_is_due_becomes_ready_in_bounded_batches(app: Stepfast) -> None:
    work = register_work(app)
    due = work.enqueue_many([{"n": n} for n in range(5)], delay="1h")
    later = work.enqueue(delay="1h")
    for job in due:
        rows.change(app, "UPDATE stepfast_job SET ready_at = 1 WHERE id = :id", id=job.id)

    with app.transaction() as tx:
        first = promote(tx, 3)
    with app.transaction() as tx:
        second = promote(tx, 3)

    assert (first, second) == (3, 2)
    assert rows.state(app, later.id) == "scheduled"
    assert rows.count(app, "stepfast_job", "state = 'ready'") == 5


def test_a_worker_runs_what_becomes_due(app: Stepfast) -> None:
    ran: list[int] = []

    @app.job()
    def work() -> None:
        ran.append(1)

    work.enqueue(delay="50ms")
    drain(app)

    assert ran == [1]


def _with_error(app: Stepfast, job_id: str) -> rows.Row | None:
    row = rows.live(app, job_id)
    return row if row and row["last_error"] else None
