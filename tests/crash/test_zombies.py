"""A worker is paused past its lease, another one takes over, and the first one wakes up: one effect, and it notices."""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING

import pytest

from stepfast.errors import ContentionError
from tests.support import rows

if TYPE_CHECKING:
    from tests.crash.workers import Fleet, WorkerProcess


BRISK = {"stepfast.worker.maintenance.RESCUE_EVERY": 0.5}  # seconds, instead of 2


@pytest.mark.parametrize(("kind", "why"), [("hold", "replaced"), ("hold_in_thread", "LeaseLostError")])
def test_a_zombie_is_told_and_changes_nothing(fleet: Fleet, kind: str, why: str) -> None:
    fleet.enqueue(kind, gate="open")
    zombie = fleet.worker(lease=1)
    first = fleet.wait_for("started")
    pause(fleet, zombie)
    fleet.worker(lease=1, constants=BRISK)
    successor = fleet.wait_for("started", 2)

    zombie.signal(signal.SIGCONT)
    told = fleet.wait_for("told")
    fleet.open("open")
    fleet.wait_until_done()

    assert (told["pid"], told["attempt"], told["why"]) == (first["pid"], 1, why)
    assert [it["pid"] for it in fleet.journal("answered")] == [successor["pid"]]
    assert fleet.effects() == {(f"{kind}-1", 0): 1}
    zombie.says("incarnation.replaced")


def test_the_answer_of_a_zombie_is_refused(fleet: Fleet) -> None:
    fleet.enqueue("hold", gate="open", stubborn=True)
    zombie = fleet.worker(lease=1)
    fleet.wait_for("started")
    pause(fleet, zombie)
    rows.eventually(lambda: _lease_ran_out(fleet))
    launched = time.monotonic()
    fleet.worker(lease=2, constants=BRISK)
    successor = fleet.wait_for("started", 2)

    fleet.open("open-1")  # the zombie finds its work done when it wakes up
    zombie.signal(signal.SIGCONT)
    fleet.wait_for("answered", job="hold-1")
    zombie.says("step.refused")
    before = fleet.effects()
    fleet.open("open-2")
    fleet.wait_until_done()

    assert successor["at"] - launched > 2, "who has just come must watch for a lease before it judges"
    assert not before
    assert fleet.effects() == {("hold-1", 0): 1}
    assert fleet.archived()["hold-1"]["state"] == "done"


def test_a_zombie_that_nobody_replaced_may_still_commit(fleet: Fleet) -> None:
    fleet.enqueue("hold", gate="open")
    sleeper = fleet.worker(lease=1)
    fleet.wait_for("started")
    pause(fleet, sleeper)
    rows.eventually(lambda: _lease_ran_out(fleet))

    fleet.open("open")
    sleeper.signal(signal.SIGCONT)
    fleet.wait_until_done()

    assert fleet.effects() == {("hold-1", 0): 1}
    assert fleet.archived()["hold-1"]["crashes"] == 0


def pause(fleet: Fleet, worker: WorkerProcess) -> None:
    """Send SIGSTOP, but not while it holds SQLite's only write lock, which would stop all others."""
    if fleet.app.database.dialect.name != "sqlite":
        worker.signal(signal.SIGSTOP)
        return

    def stopped_outside_a_transaction() -> bool:
        worker.signal(signal.SIGSTOP)
        connection = fleet.app.database.connect()
        try:
            connection.begin("BEGIN IMMEDIATE")
        except ContentionError:
            worker.signal(signal.SIGCONT)
            return False
        else:
            return True
        finally:
            connection.close()

    rows.eventually(stopped_outside_a_transaction)


def _lease_ran_out(fleet: Fleet) -> bool:
    (row,) = rows.query(fleet.app, "SELECT alive_until FROM stepfast_worker")
    return bool(row["alive_until"] < rows.now(fleet.app))
