"""A worker gets SIGKILL: its job runs again soon, and its effect is there once."""

from __future__ import annotations

import time

from tests import rows
from tests.crash.workers import Fleet

PROMISE = 15.0  # seconds from the kill until the job runs again, with default settings


def test_with_default_settings_a_killed_workers_job_runs_again_within_15_seconds(fleet: Fleet) -> None:
    fleet.enqueue("hold", gate="open")
    victim = fleet.worker()
    fleet.wait_for("started")
    survivor = fleet.worker()
    survivor.says("worker.started")

    victim.kill()
    killed = time.monotonic()
    again = fleet.wait_for("started", 2, patience=PROMISE)
    fleet.open("open")
    fleet.wait_until_done()

    print("AGAIN", again["at"] - killed)
    assert again["at"] - killed < PROMISE
    assert fleet.effects() == {("hold-1", 0): 1}
