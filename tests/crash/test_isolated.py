"""Processes of isolated handlers end with their worker, however it ends, and with its incarnation."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from devtools.processes import wait_until_gone
from tests.support import rows

if TYPE_CHECKING:
    from tests.crash.workers import Fleet

TARGET = "tests.crash.isolated_jobs:app"
YOUNG = {"stepfast.config.SHORTEST_LIFE": 0.0}


def test_handlers_die_with_a_worker_that_is_killed_with_all_that_they_started(fleet: Fleet) -> None:
    fleet.target = TARGET
    (calm,) = fleet.enqueue("hold_apart", gate="open")
    with fleet.app.transaction() as tx:
        tx.execute(
            "INSERT INTO stepfast_job (id, kind, payload) VALUES ('busy', 'hold_apart', :payload)",
            {"payload": '{"gate": "open", "busy": true}'},
        )
    first = fleet.worker(lease=2)
    started = [fleet.wait_for("started", job=it) for it in (calm, "busy")]

    first.kill()

    assert wait_until_gone([it[whom] for it in started for whom in ("pid", "tool")], 5)
    fleet.open("open")
    fleet.worker(lease=2)
    fleet.wait_until_done()
    assert fleet.effects() == {(calm, 0): 1, ("busy", 0): 1}
    assert {row["crashes"] for row in fleet.archived().values()} == {
        0
    }  # two were on board: nobody is charged


def test_a_worker_of_a_certain_age_starts_again_and_takes_its_processes_along(fleet: Fleet) -> None:
    fleet.target = TARGET
    worker = fleet.worker(lease=2, max_age=0.5, grace=10, constants=YOUNG)
    (before,) = fleet.enqueue("hold_apart", gate="open")
    started = fleet.wait_for("started", job=before)

    worker.says("worker.worn")
    fleet.open("open")  # what runs may end before it goes
    worker.says("worker.recycled")

    assert wait_until_gone([started["pid"], started["tool"]], 5)
    (after,) = fleet.enqueue("plain")
    rows.eventually(lambda: rows.state(fleet.app, after) == "done")
    assert worker.runs()
    ended = fleet.archived()
    assert [(ended[it]["state"], ended[it]["crashes"]) for it in (before, after)] == [("done", 0)] * 2
    assert len(fleet.journal("started", before)) == 1


@pytest.mark.only_on("sqlite")
def test_a_worker_that_has_grown_too_large_starts_again(fleet: Fleet) -> None:
    fleet.target = TARGET
    worker = fleet.worker(lease=2, max_memory="250MB", grace=10)
    (large,) = fleet.enqueue("grow", megabytes=250)

    worker.says("worker.recycled")

    (after,) = fleet.enqueue("plain")
    rows.eventually(lambda: rows.state(fleet.app, after) == "done")
    assert worker.runs()
    assert [worker.words().count(it) for it in ("worker.started", "worker.worn")] == [2, 1]
    assert len(fleet.journal("started", large)) == 1
