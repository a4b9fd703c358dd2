"""The nine steps of the lease guide's own test script, one test each, through the public API."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from stepfast import LeaseLostError, Retry, Stepfast
from tests.support import rows

if TYPE_CHECKING:
    from stepfast import Job

LEASE_COLUMNS = {"locked_by", "locked_until", "attempts", "last_error"}


def guide(app: Stepfast) -> Job[..., None]:
    @app.job(name="guide", retry=Retry(attempts=3, first=0))
    def handler(order_id: str) -> None: ...

    return handler


def seen(app: Stepfast) -> rows.Row:
    (row,) = rows.query(app, "SELECT * FROM processing_jobs")
    return row


def test_1_migrations_run(empty_database_url: str) -> None:
    app = Stepfast(empty_database_url)

    first, second = app.migrate(), app.migrate()
    app.close()

    assert first
    assert second == []


def test_2_the_lease_columns_exist(app: Stepfast) -> None:
    guide(app).enqueue(order_id="test-order-1")

    assert set(seen(app)) >= LEASE_COLUMNS


def test_3_jobs_are_created(app: Stepfast) -> None:
    guide(app).enqueue(order_id="test-order-1", key="test-job")

    row = seen(app)
    facts = (row["job_id"], row["order_id"], row["job_type"], row["status"], row["progress"], row["attempts"])
    assert facts == ("test-job", "test-order-1", "guide", "queued", 0, 0)


def test_4_a_lease_is_acquired_by_one(app: Stepfast) -> None:
    guide(app).enqueue(order_id="test-order-1")

    held, nothing = app.acquire("worker-1", 300), app.acquire("worker-2", 300)

    assert held is not None
    assert nothing is None
    row = seen(app)
    assert (row["status"], row["locked_by"], row["attempts"]) == ("processing", "worker-1", 1)


def test_5_a_lease_is_extended_by_its_owner_only(app: Stepfast) -> None:
    guide(app).enqueue(order_id="test-order-1")
    held = app.acquire("worker-1", 1)
    assert held is not None
    before = seen(app)["locked_until"]

    app.extend(held, 600)

    assert seen(app)["locked_until"] > before
    rows.change(app, "UPDATE stepfast_job SET fence = fence + 1")
    with pytest.raises(LeaseLostError):
        app.extend(held, 600)


@pytest.mark.parametrize(("how", "status"), [("done", "done"), ("retry", "queued"), ("failed", "failed")])
def test_6_a_lease_is_released(app: Stepfast, how: str, status: str) -> None:
    guide(app).enqueue(order_id="test-order-1")
    held = app.acquire("worker-1", 300)
    assert held is not None

    app.release(held, how, None if how == "done" else "no answer")  # type: ignore[arg-type]

    row = seen(app)
    assert (row["status"], row["locked_by"]) == (status, None)
    assert (row["last_error"] or "").endswith("no answer") is (how != "done")


def test_7_an_expired_lease_is_reset(app: Stepfast) -> None:
    guide(app).enqueue(order_id="test-order-1")
    app.acquire("worker-1", 300)
    rows.change(app, "UPDATE stepfast_job SET lease_until = 1")

    count = app.operator.reset_leases()

    row = seen(app)
    assert count == 1
    assert (row["status"], row["locked_by"]) == ("queued", None)
    assert row["last_error"] == "Lease expired - worker crashed or timed out"


def test_8_after_three_attempts_it_has_failed_for_good(app: Stepfast) -> None:
    guide(app).enqueue(order_id="test-order-1")

    for _ in range(3):
        held = app.acquire("worker-1", 300)
        assert held is not None
        app.release(held, "retry", "no answer")
        rows.change(app, "UPDATE stepfast_job SET ready_at = 1, state = 'ready'")

    row = seen(app)
    assert app.acquire("worker-1", 300) is None
    assert (row["status"], row["attempts"]) == ("failed", 3)
    assert row["finished_at"] is not None


def test_9_what_was_tried_can_be_cleaned_up(app: Stepfast) -> None:
    guide(app).enqueue(order_id="test-order-1")
    held = app.acquire("worker-1", 300)
    assert held is not None
    app.release(held, "failed", "no answer")

    app.operator.purge_dead_letters()

    assert rows.query(app, "SELECT * FROM processing_jobs") == []
