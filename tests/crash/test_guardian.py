"""A guardian and its worker, in every combination of lives and deaths: who renews, who is declared dead, who commits.

No worker of these tests can see the processes of another one, as if each had a machine of its own.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from devtools.processes import wait_until_gone
from devtools.proxy import Proxy, through
from tests.crash.workers import PATIENCE
from tests.support import rows

if TYPE_CHECKING:
    from devtools.server import Server
    from tests.crash.workers import Fleet, WorkerProcess

NEVER = 600  # seconds; a lease that does not run out in a test
SHORT = 2  # seconds
LONGER = 6.0  # seconds; three leases

on_sqlite = pytest.mark.only_on("sqlite")
on_servers = pytest.mark.only_on("postgresql", "mariadb")


def apart(fleet: Fleet, worker: WorkerProcess) -> None:
    """Others see the row of this worker, and nothing of its process."""
    pid = worker.workers()[0]
    change = "UPDATE stepfast_worker SET process = 'elsewhere', guardian = NULL WHERE pid = :pid AND state = 'alive'"
    assert rows.eventually(lambda: rows.change(fleet.app, change, pid=pid), PATIENCE) == 1


def declared_dead(fleet: Fleet) -> int:
    return rows.count(fleet.app, "stepfast_worker", "state = 'dead'")


def keep_interpreter(fleet: Fleet, keeper: WorkerProcess, seconds: float) -> str:
    """Let a handler keep the interpreter of this worker, which nobody else can see; returns the id of the job.

    On SQLite another thread of the worker may just hold the only write lock. Then no other process can write until the
    interpreter is free again, and another job has to show what was asked for.
    """
    for number in range(1, 6):
        (job_id,) = fleet.enqueue("keep_interpreter", 1, number, seconds=seconds)
        fleet.wait_for("started", job=job_id)
        apart(fleet, keeper)
        if not fleet.journal("answered", job_id):
            return job_id
    raise AssertionError("the interpreter was always kept inside of a transaction")


def test_a_worker_whose_interpreter_is_kept_for_three_leases_is_not_declared_dead(fleet: Fleet) -> None:
    keeper = fleet.worker(lease=SHORT)
    job_id = keep_interpreter(fleet, keeper, LONGER)
    fleet.worker(lease=SHORT).says("worker.started")

    fleet.wait_until_done()

    assert "guardian.vouched" in keeper.words()
    assert declared_dead(fleet) == 0
    assert len(fleet.journal("started", job_id)) == 1
    assert fleet.effects()[job_id, 0] == 1
    assert (fleet.archived()[job_id]["crashes"], keeper.runs()) == (0, True)


def test_a_killed_worker_is_known_to_be_dead_at_once_and_its_job_goes_on_elsewhere(fleet: Fleet) -> None:
    fleet.enqueue("hold", gate="open")
    victim = fleet.worker(lease=NEVER)
    fleet.wait_for("started")
    apart(fleet, victim)
    fleet.worker(lease=NEVER).says("worker.started")

    victim.kill_worker()
    fleet.wait_for("started", 2)
    fleet.open("open")
    fleet.wait_until_done()

    assert fleet.effects() == {("hold-1", 0): 1}
    assert fleet.archived()["hold-1"]["crashes"] == 1  # it was the only one that had started


EMBEDDED = """
import time
from tests.crash.jobs import app
with app.worker(lease=600):
    time.sleep(600)
"""


def test_the_death_of_a_program_with_a_worker_in_it_is_reported_by_its_guardian(fleet: Fleet) -> None:
    fleet.enqueue("hold", 2, gate="open")
    program = subprocess.Popen([sys.executable, "-c", EMBEDDED], env=fleet.environment())
    try:
        fleet.wait_for("started", 2)
        rows.eventually(
            lambda: rows.count(fleet.app, "stepfast_worker", "guardian_pid IS NOT NULL"), PATIENCE
        )
    finally:
        program.kill()
        program.wait(PATIENCE)

    rows.eventually(lambda: declared_dead(fleet), PATIENCE)
    rows.eventually(lambda: rows.count(fleet.app, "stepfast_job", "state = 'suspect'") == 2, PATIENCE)


@on_sqlite
def test_a_worker_whose_guardian_dies_while_it_starts_ends_before_it_takes_a_job(fleet: Fleet) -> None:
    fleet.target = "tests.crash.slow_app:app"
    fleet.enqueue("brief")
    worker = fleet.worker()
    rows.eventually((fleet.folder / "importing").exists, PATIENCE)
    (pid,) = worker.workers()

    worker.kill_guardian()
    fleet.open("import")

    assert wait_until_gone([pid], PATIENCE)
    assert not fleet.journal("started")
    fleet.target = "tests.crash.jobs:app"
    fleet.worker()
    fleet.wait_until_done()


def test_a_guardian_starts_another_worker_where_one_died(fleet: Fleet) -> None:
    worker = fleet.worker()
    worker.says("worker.started")

    killed = worker.kill_worker()
    worker.says("worker.ended number=1 code=-9")
    worker.says("worker.started", times=2)

    assert killed not in worker.children()


def test_jobs_whose_steps_had_not_started_are_ready_and_no_suspects(fleet: Fleet) -> None:
    """The worker takes many at once, because those before were fast."""
    victim = fleet.worker(concurrency=2, lease=NEVER)
    victim.says("worker.started")
    fleet.enqueue("plain", 400)
    rows.eventually(lambda: len(fleet.archived()) == 400, PATIENCE)
    fleet.enqueue("hold", 200, gate="open")
    fleet.wait_for("started", 2)

    victim.kill_worker()
    rows.eventually(lambda: declared_dead(fleet), PATIENCE)
    rows.eventually(lambda: not rows.count(fleet.app, "stepfast_job", "state = 'suspect'"), PATIENCE)
    fleet.open("open")
    fleet.wait_until_done(60)

    ended = fleet.archived().values()
    assert {(row["state"], row["crashes"], row["failures"]) for row in ended} == {("done", 0, 0)}
    suspects = [row for row in ended if row["last_error"] is not None]
    assert len(suspects) == 2
    assert set(fleet.effects().values()) == {1}


def test_a_worker_that_is_stopped_is_not_vouched_for(fleet: Fleet) -> None:
    fleet.enqueue("hold", gate="open")
    zombie = fleet.worker(lease=SHORT)
    fleet.wait_for("started")
    apart(fleet, zombie)
    fleet.worker(lease=SHORT).says("worker.started")
    stopped = zombie.workers()[0]

    os.kill(stopped, signal.SIGSTOP)
    fleet.wait_for("started", 2)
    fleet.open("open")
    fleet.wait_until_done()
    os.kill(stopped, signal.SIGCONT)
    zombie.says("incarnation.replaced")

    assert "guardian.vouched" not in zombie.words()
    assert fleet.effects() == {("hold-1", 0): 1}


def test_a_worker_works_on_while_its_guardian_is_stopped_and_its_lease_decides_about_its_death(
    fleet: Fleet,
) -> None:
    fleet.enqueue("hold", gate="open")
    worker = fleet.worker(lease=SHORT)
    fleet.wait_for("started")
    apart(fleet, worker)
    fleet.worker(lease=SHORT).says("worker.started")
    os.kill(worker.pid, signal.SIGSTOP)
    (row,) = rows.query(fleet.app, "SELECT beat_at FROM stepfast_worker WHERE process = 'elsewhere'")
    rows.eventually(
        lambda: rows.count(
            fleet.app, "stepfast_worker", f"process = 'elsewhere' AND beat_at > {row['beat_at']} + 3 * lease"
        ),
        PATIENCE,
    )
    still = len(fleet.journal("started"))

    worker.kill_worker()
    fleet.wait_for("started", 2)
    os.kill(worker.pid, signal.SIGCONT)  # it finds that all has been done
    fleet.open("open")
    fleet.wait_until_done()

    assert still == 1
    assert fleet.effects() == {("hold-1", 0): 1}


def test_a_worker_whose_guardian_is_killed_gives_everything_back_and_ends(fleet: Fleet) -> None:
    fleet.enqueue("hold", 2, gate="open")
    worker = fleet.worker(lease=NEVER)
    fleet.wait_for("started", 2)
    children = worker.children()

    worker.kill_guardian()

    assert wait_until_gone(children, PATIENCE)
    found = rows.query(fleet.app, "SELECT state, crashes, failures, last_error FROM stepfast_job")
    assert found == [{"state": "ready", "crashes": 0, "failures": 0, "last_error": None}] * 2


def test_a_step_past_its_deadline_that_keeps_the_interpreter_is_ended_and_named(fleet: Fleet) -> None:
    fleet.enqueue("hold", gate="open")
    worker = fleet.worker(concurrency=2)
    fleet.wait_for("started")
    fleet.enqueue("keep_interpreter_too_long", seconds=120.0)

    fleet.wait_for("started", 2, job="hold-1")  # beside it, and ready again
    fleet.open("open")
    fleet.wait_until_done()

    late, beside = fleet.archived()["keep_interpreter_too_long-1"], fleet.archived()["hold-1"]
    assert (late["state"], late["failures"], late["crashes"]) == ("dead", 1, 0)
    assert late["last_error"] == "StepTimeout: did not finish within 0.5 s"
    assert (beside["state"], beside["failures"], beside["crashes"], beside["last_error"]) == (
        "done",
        0,
        0,
        None,
    )
    assert "worker.killed" in worker.words()


def test_a_late_step_among_very_fast_ones_is_named(fleet: Fleet) -> None:
    """It starts and keeps the interpreter within one turn of the event loop, between steps that take no time."""
    fleet.enqueue("plain", 300)
    fleet.enqueue("keep_event_loop_too_long", seconds=120.0)
    worker = fleet.worker()

    fleet.wait_until_done()

    late = fleet.archived().pop("keep_event_loop_too_long-1")
    assert (late["state"], late["failures"], late["crashes"]) == ("dead", 1, 0)
    assert late["last_error"] == "StepTimeout: did not finish within 0.5 s"
    others = [row for job_id, row in fleet.archived().items() if job_id != "keep_event_loop_too_long-1"]
    assert {(row["state"], row["failures"], row["crashes"]) for row in others} == {("done", 0, 0)}
    assert "worker.killed" in worker.words()


def test_a_copy_of_the_worker_that_holds_its_sockets_does_not_hide_its_death(fleet: Fleet) -> None:
    fleet.enqueue("leave_a_copy", gate="open")
    victim = fleet.worker(lease=NEVER)
    copy = fleet.wait_for("started")["copy"]
    apart(fleet, victim)
    fleet.worker(lease=NEVER).says("worker.started")

    victim.kill_worker()
    fleet.wait_for("started", 2)
    alive = os.path.exists(f"/proc/{copy}")  # noqa: PTH110 - a look
    fleet.open("open")
    fleet.wait_until_done()

    assert alive
    assert fleet.effects() == {("leave_a_copy-1", 0): 1}


@on_sqlite
def test_the_log_and_the_list_of_workers_show_both_processes(fleet: Fleet) -> None:
    worker = fleet.worker()
    worker.says("worker.started")

    (row,) = fleet.app.operator.workers()

    assert (row.pid, row.guardian_pid) == (worker.workers()[0], worker.pid)
    assert f"pid={row.pid} guardian_pid={worker.pid}" in worker.words()


def test_where_the_guardian_is_stopped_too_the_lease_of_a_kept_interpreter_runs_out(fleet: Fleet) -> None:
    """As before there were guardians; the fence decides who commits."""
    keeper = fleet.worker(lease=SHORT)
    job_id = keep_interpreter(fleet, keeper, 20.0)  # the other worker has to watch for a lease first
    fleet.worker(lease=SHORT).says("worker.started")

    os.kill(keeper.pid, signal.SIGSTOP)
    fleet.wait_for("started", 2, job=job_id)
    fleet.wait_until_done()
    os.kill(keeper.pid, signal.SIGCONT)
    keeper.says("incarnation.replaced")

    assert fleet.effects()[job_id, 0] == 1


@on_servers
def test_a_worker_that_is_cut_off_from_the_database_is_not_vouched_for(fleet: Fleet, server: Server) -> None:
    """Its guardian sees that it lives, and that it answers; others must be able to take its jobs all the same."""
    with Proxy(server.site.port) as proxy:
        _cut_off(fleet, proxy)


def _cut_off(fleet: Fleet, proxy: Proxy) -> None:
    fleet.enqueue("hold", gate="open")
    lonely = fleet.worker(lease=SHORT, url=through(fleet.url, proxy.port))
    fleet.wait_for("started")
    apart(fleet, lonely)
    fleet.worker(lease=SHORT).says("worker.started")

    proxy.pull()
    fleet.wait_for("started", 2)
    fleet.open("open")
    fleet.wait_until_done()
    proxy.plug()
    lonely.says("incarnation.replaced")

    assert "guardian." not in lonely.words()  # it has not even tried
    assert fleet.effects() == {("hold-1", 0): 1}
