"""A worker gets SIGKILL: its job soon runs again, and its effect is there once."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from stepfast.config import WorkerSettings
from tests.support import rows

if TYPE_CHECKING:
    from tests.crash.workers import Fleet, WorkerProcess

PROMISE = 15.0  # seconds from the kill until the job runs again, with default settings


def test_with_default_settings_a_killed_workers_job_runs_again_within_15_seconds(fleet: Fleet) -> None:
    fleet.enqueue("hold", gate="open")
    victim = fleet.worker()
    fleet.wait_for("started")
    fleet.worker().says("worker.started")

    victim.kill()
    killed = time.monotonic()
    again = fleet.wait_for("started", 2, patience=PROMISE)
    fleet.open("open")
    fleet.wait_until_done()

    assert again["at"] - killed < PROMISE
    assert fleet.effects() == {("hold-1", 0): 1}


def test_a_worker_that_starts_after_the_kill_takes_over_as_well(fleet: Fleet) -> None:
    fleet.enqueue("hold", gate="open")
    victim = fleet.worker()
    fleet.wait_for("started")

    victim.kill()
    killed = time.monotonic()
    successor = fleet.worker()
    again = fleet.wait_for("started", 2, patience=PROMISE)
    fleet.open("open")
    fleet.wait_until_done()

    assert again["at"] - killed < PROMISE
    assert "Reset 1 expired leases on startup" in successor.words()
    assert fleet.effects() == {("hold-1", 0): 1}


def test_where_nobody_can_see_the_process_its_lease_decides(fleet: Fleet) -> None:
    fleet.enqueue("hold", gate="open")
    victim = fleet.worker(lease=1)
    fleet.wait_for("started")
    fleet.worker(lease=1).says("worker.started")

    _kill_on_another_machine(fleet, victim)
    fleet.wait_for("started", 2, patience=PROMISE)
    fleet.open("open")
    fleet.wait_until_done()

    assert fleet.effects() == {("hold-1", 0): 1}
    assert fleet.archived()["hold-1"]["crashes"] == 1


def test_the_default_lease_and_all_that_follows_it_take_less_than_15_seconds(fleet: Fleet) -> None:
    """The test does not wait: after the kill, the rest of the lease is taken from the worker's row."""
    fleet.enqueue("hold", gate="open")
    victim = fleet.worker()
    fleet.wait_for("started")
    survivor = fleet.worker(lease=1)  # it must have watched for one lease of its own
    survivor.says("worker.started")

    _kill_on_another_machine(fleet, victim)
    (row,) = rows.query(
        fleet.app, "SELECT alive_until, lease FROM stepfast_worker WHERE process = 'elsewhere'"
    )
    left = row["alive_until"] - rows.now(fleet.app)
    rows.change(fleet.app, "UPDATE stepfast_worker SET alive_until = 1 WHERE process = 'elsewhere'")
    ran_out = time.monotonic()
    again = fleet.wait_for("started", 2, patience=PROMISE)
    fleet.open("open")

    assert row["lease"] == WorkerSettings.lease.total_seconds() * rows.SECOND
    assert 0 < left <= row["lease"]
    longest = row["lease"] / rows.SECOND  # it might have renewed in the very moment of its death
    assert longest + again["at"] - ran_out < PROMISE


def _kill_on_another_machine(fleet: Fleet, victim: WorkerProcess) -> None:
    """As seen from here: no process of that name exists, and none is known to be gone."""
    matched = rows.change(
        fleet.app,
        "UPDATE stepfast_worker SET process = 'elsewhere' WHERE pid = :pid",
        pid=victim.workers()[0],
    )
    assert matched == 1
    victim.kill()
