"""A worker that holds the slots of a limit gets SIGKILL: the slots become free again, and no more than those."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.support import rows

if TYPE_CHECKING:
    from tests.crash.workers import Fleet


def test_the_slots_of_a_killed_worker_go_to_the_next(fleet: Fleet) -> None:
    fleet.enqueue("narrow", 5, gate="open")
    victim = fleet.worker()
    fleet.wait_for("started", 2)
    rows.eventually(lambda: rows.count(fleet.app, "stepfast_job", "state = 'held'") == 3)

    victim.kill()
    fleet.worker()
    fleet.wait_for("started", 4)  # two of the five run now, whichever they are
    running = rows.count(fleet.app, "stepfast_job", "state = 'leased'")
    fleet.open("open")
    fleet.wait_until_done()

    assert running == 2
    assert fleet.effects() == {(f"narrow-{n}", 0): 1 for n in range(1, 6)}
    assert rows.count(fleet.app, "stepfast_slot") == 0
