"""Real worker processes on one run: many of them, one that is killed, and one that wakes up after it was replaced."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

from stepfast.errors import ContentionError
from tests.crash.feeds import ITEMS, registered
from tests.crash.test_zombies import BRISK, pause
from tests.support import rows
from tests.support.feeds import prepare, target
from tests.support.rows import RUNS, Snapshot
from tests.support.run_facts import begin, check_complete, pages, run_of

if TYPE_CHECKING:
    from stepfast.runs.run import Run
    from tests.crash.workers import Fleet, WorkerProcess
    from tests.support.feeds import Shop

PATIENCE = 60.0
# Which rows were seen is forgotten soon after a run has ended, at any moment.
TABLES = (*(f"stepfast_{it}" for it in RUNS if it != "seen"), "item")


@pytest.fixture
def shop(fleet: Fleet) -> Shop:
    fleet.target = "tests.crash.feeds:app"
    prepare(fleet.app)
    return registered(fleet.app)


def wait_until_completed(fleet: Fleet, run: Run) -> None:
    rows.eventually(lambda: run_of(fleet.app, run.id).state == "completed", PATIENCE)
    fleet.wait_until_done(PATIENCE)


def test_eight_workers_in_four_processes_read_every_page_once(fleet: Fleet, shop: Shop) -> None:
    """One of them is killed with a page in its hands. (F2, F3, F4, T1, T3)"""
    workers = [fleet.worker(concurrency=2, lease=1, constants=BRISK) for _ in range(4)]
    for worker in workers:
        worker.says("worker.started")
    run = begin_held(fleet, "page")

    rows.eventually(lambda: rows.count(fleet.app, "stepfast_page") > 20, PATIENCE)
    holder = int((fleet.folder / "held-page").read_text())
    next(it for it in workers if holder in it.children()).kill()
    wait_until_completed(fleet, run)

    check_complete(fleet.app, run.id, shop)
    assert target(fleet.app) == shop.prices()
    assert run_of(fleet.app, run.id).applied == ITEMS
    assert len({it["worker_id"] for it in pages(fleet.app, run.id)}) > 1


def begin_held(fleet: Fleet, where: str) -> Run:
    """Begin a run whose first worker at this place is held; returns when one is."""
    (fleet.folder / f"hold-{where}").touch()
    run = begin(fleet.app)
    rows.eventually(lambda: fleet.folder.joinpath(f"held-{where}").exists(), PATIENCE)
    rows.eventually(lambda: fleet.folder.joinpath(f"held-{where}").read_text(), PATIENCE)
    return run


def test_a_worker_that_wakes_up_with_a_page_in_its_hands_writes_nothing(fleet: Fleet, shop: Shop) -> None:
    """It was stopped past its lease, another one finished the run; then it goes on where it was. (F4, T3)"""
    zombie, run, before = finished_without(fleet, "page")

    zombie.signal(signal.SIGCONT)
    zombie.says("incarnation.replaced")
    fleet.open("open")
    zombie.says("step.refused")

    check_untouched(fleet, run, before, shop)


@pytest.mark.only_on("postgresql")
def test_a_worker_that_wakes_up_with_rows_in_its_hands_writes_nothing(fleet: Fleet, shop: Shop) -> None:
    """As above, while the worker maps the rows. (F30, T3)"""
    zombie, run, before = finished_without(fleet, "map")

    fleet.open("open")
    zombie.signal(signal.SIGCONT)
    zombie.says("incarnation.replaced")
    zombie.signal(signal.SIGTERM)
    zombie.ended()

    check_untouched(fleet, run, before, shop)


def finished_without(fleet: Fleet, where: str) -> tuple[WorkerProcess, Run, Snapshot]:
    """A run that another worker finished while the first one was stopped in the middle of it."""
    zombie = fleet.worker(lease=1)
    run = begin_held(fleet, where)
    pause_between_transactions(fleet, zombie)
    fleet.worker(lease=1, constants=BRISK)
    wait_until_completed(fleet, run)
    return zombie, run, Snapshot.taken(fleet.app, TABLES)


def pause_between_transactions(fleet: Fleet, worker: WorkerProcess) -> None:
    """It must not hold a job's row: others would have to wait until the server ends its session."""
    if fleet.app.database.dialect.name == "sqlite":
        pause(fleet, worker)
        return

    def stopped_outside_a_transaction() -> bool:
        worker.signal(signal.SIGSTOP)
        try:
            with fleet.app.transaction() as tx:
                tx.query("SELECT id FROM stepfast_job ORDER BY id FOR UPDATE NOWAIT")
        except ContentionError:
            worker.signal(signal.SIGCONT)
            return False
        return True

    rows.eventually(stopped_outside_a_transaction, PATIENCE)


def check_untouched(fleet: Fleet, run: Run, before: Snapshot, shop: Shop) -> None:
    assert Snapshot.taken(fleet.app, TABLES) == before
    check_complete(fleet.app, run.id, shop)
    assert target(fleet.app) == shop.prices()
    assert run_of(fleet.app, run.id).applied == ITEMS
