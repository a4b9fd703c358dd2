"""The database goes away and comes back: no attempt is charged, nothing runs twice, no worker needs a restart."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from devtools.server import Server
from stepfast import Stepfast
from stepfast.errors import SchemaError
from tests.crash.conftest import fleet_on
from tests.crash.workers import ROOT, WorkerProcess
from tests.support import rows
from tests.support.databases import ENGINES, memory

if TYPE_CHECKING:
    from tests.crash.workers import Fleet

pytestmark = pytest.mark.only_on("postgresql", "mariadb")

LEASE = 1.5


@pytest.fixture
def own_server(database_kind: str) -> Iterator[Server]:
    """Not the one that other tests use."""
    with Server(ENGINES[database_kind], memory()) as server:
        yield server


@pytest.fixture
def fleet(own_server: Server, tmp_path: Path) -> Iterator[Fleet]:
    own_server.create_database("work")
    with closing(Stepfast(own_server.url("work"))) as app:
        app.migrate()
        yield from fleet_on(app, tmp_path, own_server.url("work"))


def test_three_outages_longer_than_the_lease_charge_nobody_and_repeat_nothing(
    fleet: Fleet, own_server: Server
) -> None:
    fleet.enqueue("hold", 2, gate="open")  # run through all of them
    workers = [fleet.worker(lease=LEASE, concurrency=3) for _ in range(2)]
    fleet.wait_for("started", 2)
    fleet.enqueue("pages", 4, count=18, seconds=0.2)
    for outage in (1, 2, 3):
        fleet.wait_for("started", len(fleet.journal("started")) + 4)  # steps are being committed
        own_server.stop()
        time.sleep(LEASE + 0.5)  # the outage
        own_server.start()
        for worker in workers:
            worker.says("heartbeat.recovered", times=outage)
    fleet.app.database.close()  # our own connections
    fleet.open("open")
    fleet.wait_until_done()

    _each_step_ran_once(fleet, {"hold-1": 1, "hold-2": 1} | {f"pages-{n}": 18 for n in range(1, 5)})
    assert all(worker.runs() and "declared-dead" not in worker.words() for worker in workers)


def test_a_worker_that_is_told_to_stop_during_an_outage_does_not_wait_for_its_end(
    fleet: Fleet, own_server: Server
) -> None:
    (job,) = fleet.enqueue("hold", gate="open")
    worker = fleet.worker(lease=LEASE, grace=1)
    fleet.wait_for("started")
    own_server.stop()
    worker.says("heartbeat.failed")
    fleet.open("open")  # its answer has nobody to be told to
    worker.says("database.lost")

    worker.signal(signal.SIGTERM)

    assert worker.ended() == 0
    own_server.start()
    fleet.app.database.close()  # our own connections
    fleet.worker(lease=LEASE)
    fleet.wait_until_done()
    assert fleet.effects()[job, 0] == 1


def test_a_killed_server_loses_nothing_that_was_committed(fleet: Fleet, own_server: Server) -> None:
    fleet.enqueue("pages", 4, count=15, seconds=0.05)
    fleet.enqueue("brief", 30)
    workers = [fleet.worker(lease=LEASE) for _ in range(2)]
    for worker in workers:
        worker.says("worker.started")
    fleet.wait_for("started", 20)

    own_server.kill()
    own_server.start()
    fleet.app.database.close()  # our own connections
    fleet.wait_until_done()

    _each_step_ran_once(
        fleet, {f"pages-{n}": 15 for n in range(1, 5)} | {f"brief-{n}": 1 for n in range(1, 31)}
    )
    assert all(worker.runs() for worker in workers)


def test_a_server_that_hangs_longer_than_the_lease_makes_nobody_look_dead(
    fleet: Fleet, own_server: Server
) -> None:
    """A worker that was looking for dead ones when it began must not believe the answer."""
    restless = {
        "stepfast.worker.maintenance.RESCUE_EVERY": 0.001,
        "stepfast.worker.maintenance.PROMOTION_EVERY": 0.001,
    }
    fleet.enqueue("hold", 2, gate="open")
    workers = [fleet.worker(lease=1, concurrency=1, constants=restless) for _ in range(2)]
    fleet.wait_for("started", 2)
    time.sleep(1.2)  # they have watched for a lease: now they may judge
    for _ in range(3):
        own_server.pause()
        time.sleep(1.2)  # the outage
        own_server.cont()
        _wait_until_all_have_renewed(fleet)
    fleet.open("open")
    fleet.wait_until_done()

    _each_step_ran_once(fleet, {"hold-1": 1, "hold-2": 1})
    assert all(worker.runs() and "declared-dead" not in worker.words() for worker in workers)


@pytest.mark.parametrize("processes", [1, 2])
def test_a_worker_that_starts_without_its_database_comes_up_when_the_database_does(
    fleet: Fleet, own_server: Server, processes: int
) -> None:
    fleet.enqueue("brief", 3)
    own_server.stop()
    worker = fleet.worker(lease=LEASE, processes=processes)
    worker.says("the start of the worker waits", times=processes)

    own_server.start()
    fleet.app.database.close()  # our own connections
    fleet.wait_until_done()

    worker.says("worker.started", times=processes)
    assert worker.words().count("the start of the worker waits") == processes
    assert "Traceback" not in worker.words()
    worker.signal(signal.SIGTERM)
    assert worker.ended() == 0
    assert fleet.effects() == {(f"brief-{n}", 0): 1 for n in range(1, 4)}


def test_a_worker_that_waits_for_its_database_can_be_stopped(fleet: Fleet, own_server: Server) -> None:
    own_server.stop()
    worker = fleet.worker()
    worker.says("the start of the worker waits")

    worker.signal(signal.SIGTERM)

    assert worker.ended() == 0
    own_server.start()


def test_a_worker_whose_database_comes_without_tables_ends_with_a_sentence(
    fleet: Fleet, own_server: Server
) -> None:
    own_server.create_database("without")
    own_server.stop()
    worker = fleet.worker(url=own_server.url("without"))
    worker.says("the start of the worker waits")

    own_server.start()

    assert worker.ended() == 1
    assert "stepfast: the database has no Stepfast tables; run `stepfast migrate` once\n" in worker.words()
    assert worker.words().count("stepfast: the database") == 1  # nobody starts it again
    assert "Traceback" not in worker.words()


def test_a_worker_that_may_not_use_its_database_ends_at_once(fleet: Fleet, own_server: Server) -> None:
    worker = fleet.worker(url=own_server.url("nowhere"))

    assert worker.ended() == 1
    assert "stepfast: cannot reach " in worker.words()
    assert "Traceback" not in worker.words()
    assert own_server.site.password not in worker.words()


def test_a_worker_of_tasks_that_starts_without_its_database_comes_up(
    fleet: Fleet, own_server: Server, tmp_path: Path
) -> None:
    own_server.stop()
    environment = {
        **os.environ,
        "STEPFAST_DATABASE_URL": own_server.url("work"),
        "STEPFAST_TRANSPORT": "database://",
        "STEPFAST_WEBHOOK_SECRETS": "none",
    }
    program = [sys.executable, "-m", "stepfast", "tasks", "work", "tests.crash.tasks:app"]
    worker = WorkerProcess(program, environment, tmp_path / "tasks.log")
    fleet.workers.append(worker)
    worker.says("the start of the worker waits")

    own_server.start()
    fleet.app.database.close()  # our own connections
    worker.says("intake.started")
    send = [sys.executable, "-m", "stepfast", "tasks", "send", "greet"]
    subprocess.run(send, cwd=ROOT, env=environment, check=True, capture_output=True)
    rows.eventually(lambda: len(fleet.archived()) == 1, 60)
    worker.signal(signal.SIGTERM)

    assert worker.ended() == 0
    assert worker.words().count("the start of the worker waits") == 1
    assert "Traceback" not in worker.words()


def test_an_embedded_worker_comes_up_in_the_background(own_server: Server) -> None:
    """It does not hold up the program around it."""
    own_server.create_database("work")
    with closing(Stepfast(own_server.url("work"))) as app:
        app.migrate()

        @app.job()
        async def brief() -> None: ...

        job = brief.enqueue()
        app.database.close()
        own_server.stop()
        with app.worker() as worker:
            before = worker.status()
            own_server.start()
            rows.eventually(lambda: worker.status().running, 60)
            rows.eventually(lambda: rows.state(app, job.id) == "done", 60)
        assert not before.running
        assert before.problems[0].startswith("the database has not answered since this worker was started")


def test_an_embedded_worker_whose_database_comes_without_tables_says_so_in_the_end(
    own_server: Server,
) -> None:
    own_server.create_database("without")
    own_server.stop()
    with closing(Stepfast(own_server.url("without"))) as app:
        worker = app.worker()
        worker.start()
        own_server.start()
        rows.eventually(lambda: worker.failed, 60)
        with pytest.raises(SchemaError, match="has no Stepfast tables"):
            worker.__exit__(None, None, None)
        assert worker.status().problems == [str(worker.failure)]


def _wait_until_all_have_renewed(fleet: Fleet) -> None:
    now = rows.now(fleet.app)
    rows.eventually(
        lambda: not rows.count(fleet.app, "stepfast_worker", f"state = 'alive' AND beat_at < {now}")
    )


def _each_step_ran_once(fleet: Fleet, steps: dict[str, int]) -> None:
    once = Counter((job_id, number) for job_id, count in steps.items() for number in range(count))
    ended = fleet.archived()
    assert {job_id: row["state"] for job_id, row in ended.items()} == dict.fromkeys(steps, "done")
    assert {(row["crashes"], row["failures"]) for row in ended.values()} == {(0, 0)}
    assert Counter((it["job"], it["step"]) for it in fleet.journal("started")) == once
    assert fleet.effects() == once
