"""Results expire earlier than the rest of their jobs."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from stepfast import Done, ResultExpiredError
from stepfast.admin.audit import Actor, record
from stepfast.config import WorkerSettings
from stepfast.results.outcome import expire_results
from stepfast.worker import maintenance
from stepfast.worker.maintenance import ResultExpiry
from tests.support import rows
from tests.support.jobs_in_every_state import ended

if TYPE_CHECKING:
    from stepfast import Job, Stepfast


def kind(app: Stepfast, name: str, result_ttl: str | None = None) -> Job[[], int]:
    @app.job(name=name, result_ttl=result_ttl)
    def work() -> int:
        raise AssertionError("nobody should run it")

    return work


def done(app: Stepfast, job: Job[[], int], age: int, result: object = 7) -> str:
    """A job that ended so many microseconds ago."""
    job.enqueue()
    job_id = ended(app, Done(result))
    rows.change(
        app,
        "UPDATE stepfast_archive SET finished_at = finished_at - :age WHERE id = :id",
        age=age,
        id=job_id,
    )
    return job_id


def forget(app: Stepfast, settings: WorkerSettings | None = None) -> None:
    ResultExpiry(app.database, app.kinds, settings or WorkerSettings(), threading.Event()).work()


def test_a_result_is_emptied_after_its_time_and_its_job_stays(app: Stepfast) -> None:
    work = kind(app, "work")
    old, new = done(app, work, 25 * rows.HOUR), done(app, work, 23 * rows.HOUR)

    forget(app)

    row = rows.ended(app, old)
    assert row is not None
    assert (row["state"], row["result"]) == ("done", None)
    assert row["result_expired_at"] == pytest.approx(rows.now(app), abs=5 * rows.SECOND)
    assert app.result_of(new).result == 7
    assert rows.query(app, "SELECT status FROM processing_jobs") == [{"status": "done"}] * 2


def test_reading_an_expired_result_says_when_and_which_setting(app: Stepfast) -> None:
    job_id = done(app, kind(app, "work"), 25 * rows.HOUR)
    forget(app)

    with pytest.raises(
        ResultExpiredError, match=r"was done at .* was removed at .*result_ttl=….*results_kept"
    ) as gone:
        _ = app.enqueued(job_id).wait(5).result

    assert gone.value.job_id == job_id
    assert app.operator.job(job_id).result_expired_at == gone.value.expired_at


def test_a_kind_may_keep_its_results_for_another_time(app: Stepfast) -> None:
    short, usual, long = kind(app, "short", "1h"), kind(app, "usual"), kind(app, "long", "3d")
    ids = [done(app, job, 2 * rows.HOUR) for job in (short, usual, long)]
    older = [done(app, job, 2 * rows.DAY) for job in (usual, long)]

    forget(app)

    expired = [app.result_of(job_id).result_expired_at is not None for job_id in (*ids, *older)]
    assert expired == [True, False, False, True, False]


def test_a_worker_says_how_long_results_are_kept(app: Stepfast) -> None:
    work = kind(app, "work")
    old, new = done(app, work, 2 * rows.HOUR), done(app, work, rows.SECOND)

    forget(app, WorkerSettings(results_kept=timedelta(hours=1)))

    assert app.result_of(old).result_expired_at is not None
    assert app.result_of(new).result == 7


def test_a_worker_expires_nothing_of_kinds_it_does_not_know(app: Stepfast) -> None:
    job_id = done(app, kind(app, "work", "9d"), 5 * rows.DAY)
    app.kinds._kinds.clear()
    kind(app, "another")

    forget(app)

    assert app.result_of(job_id).result == 7


def test_a_job_without_a_result_has_nothing_that_could_expire(app: Stepfast) -> None:
    job_id = done(app, kind(app, "work"), 9 * rows.DAY, None)

    forget(app)

    assert app.result_of(job_id).result is None


def test_results_expire_in_batches_the_oldest_first(app: Stepfast) -> None:
    work = kind(app, "work")
    ids = [done(app, work, age * rows.DAY) for age in (9, 8, 7)]

    with app.transaction() as tx:
        assert expire_results(tx, "work", rows.DAY, 2) == 2

    assert [app.result_of(it).result_expired_at is None for it in ids] == [False, False, True]
    with app.transaction() as tx:
        assert expire_results(tx, "work", rows.DAY, 2) == 1
        assert expire_results(tx, "work", rows.DAY, 2) == 0


def test_a_running_worker_forgets_by_itself(app: Stepfast, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintenance, "PRUNING_EVERY", 0.05)
    job_id = done(app, kind(app, "work"), 25 * rows.HOUR)
    with app.transaction() as tx:
        record(tx, Actor("alice"), "queue.pause", "old")
        record(tx, Actor("alice"), "queue.pause", "new")
    rows.change(app, "UPDATE stepfast_audit SET at = at - :age WHERE subject = 'old'", age=401 * rows.DAY)

    with app.worker():
        rows.eventually(lambda: app.result_of(job_id).result_expired_at)
        rows.eventually(lambda: [it.subject for it in app.operator.audit()] == ["new"])
