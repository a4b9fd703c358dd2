"""What a failover, a standby and a hanging server look like to a worker: nothing is charged, doubled, or held for ever."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from devtools.server import USER, Server
from stepfast import Stepfast
from stepfast.admin.doctor.examination import examine
from stepfast.admin.doctor.finding import Level
from tests.crash.conftest import fleet_on
from tests.support import rows
from tests.support.databases import ENGINES, memory

if TYPE_CHECKING:
    from tests.crash.workers import Fleet

pytestmark = pytest.mark.only_on("postgresql", "mariadb")

LEASE = 1.5
READ_ONLY = "read-only"  # in the words of both servers
IMPATIENT = {
    "stepfast.worker.statement_watchdog.SHORTEST": LEASE,
    "stepfast.database.drivers.CONNECT_SECONDS": 2,
}


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


def _url_of_plain_user(fleet: Fleet, server: Server) -> str:
    """MariaDB lets administrators write to a read-only server."""
    if fleet.app.database.dialect.name == "postgresql":
        return fleet.url
    _say(
        fleet.app,
        f"CREATE USER plain IDENTIFIED BY '{server.site.password}'",
        "GRANT ALL ON work.* TO plain",
    )
    return fleet.url.replace(f"//{USER}:", "//plain:")


def _say(app: Stepfast, *statements: str) -> None:
    with closing(app.database.connect()) as connection:
        for statement in statements:
            connection.execute(statement)


def _set_read_only(fleet: Fleet, *, on: bool) -> None:
    """Let the server refuse the writes of all sessions, or take them again."""
    if fleet.app.database.dialect.name == "mariadb":
        _say(fleet.app, f"SET GLOBAL read_only = {int(on)}")
    else:
        value = "SET default_transaction_read_only = on" if on else "RESET default_transaction_read_only"
        _say(fleet.app, f"ALTER SYSTEM {value}", "SELECT pg_reload_conf()")
    fleet.app.database.close()  # our own connections


def _each_ran_once(fleet: Fleet, *jobs: str) -> None:
    ended = fleet.archived()
    assert {job: ended[job]["state"] for job in jobs} == dict.fromkeys(jobs, "done")
    assert {(ended[job]["crashes"], ended[job]["failures"]) for job in jobs} == {(0, 0)}
    assert Counter(it["job"] for it in fleet.journal("started")) == dict.fromkeys(jobs, 1)
    assert fleet.effects() == {(job, 0): 1 for job in jobs}


@pytest.mark.only_on("postgresql")
def test_a_worker_that_reconnected_to_a_standby_finds_the_primary_again(fleet: Fleet) -> None:
    """Its new sessions may only read for as long as they live, as those to a former primary."""
    worker = fleet.worker(lease=LEASE)
    fleet.enqueue("hold", 3, gate="open")
    fleet.wait_for("started", 3)

    _say(
        fleet.app,
        "ALTER DATABASE work SET default_transaction_read_only = on",
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = 'work' AND pid <> pg_backend_pid()",
    )
    fleet.open("open")  # what was answered must be written
    worker.says(READ_ONLY)
    fleet.app.database.close()
    _say(
        fleet.app,
        "SET default_transaction_read_only = off",
        "ALTER DATABASE work RESET default_transaction_read_only",
    )
    fleet.app.database.close()
    fleet.wait_until_done()

    _each_ran_once(fleet, "hold-1", "hold-2", "hold-3")


def test_steps_that_finish_while_the_server_takes_no_writes_wait_for_it(
    fleet: Fleet, own_server: Server
) -> None:
    worker = fleet.worker(lease=LEASE, url=_url_of_plain_user(fleet, own_server))
    fleet.enqueue("hold", 2, gate="open")
    fleet.wait_for("started", 2)

    _set_read_only(fleet, on=True)
    fleet.open("open")
    fleet.wait_for("answered", 2)
    worker.says(READ_ONLY)
    worker.says("heartbeat.failed")
    _set_read_only(fleet, on=False)
    fleet.wait_until_done()

    _each_ran_once(fleet, "hold-1", "hold-2")
    assert "worker.failed" not in worker.words()
    assert "reports.dropped" not in worker.words()


def test_a_handler_that_meets_an_outage_of_our_database_is_not_charged(
    fleet: Fleet, own_server: Server
) -> None:
    """It has one attempt only."""
    fleet.worker(lease=LEASE)
    fleet.enqueue("enqueue_plain", gate="open")
    fleet.wait_for("started")

    own_server.stop()
    fleet.open("open")
    fleet.wait_for("outage")
    own_server.start()
    fleet.app.database.close()
    fleet.wait_until_done()

    ended = fleet.archived()["enqueue_plain-1"]
    assert (ended["state"], ended["failures"], ended["crashes"]) == ("done", 0, 0)


def test_a_worker_gives_up_on_a_server_that_hangs(fleet: Fleet, own_server: Server) -> None:
    """Its kernel acknowledges every packet: only the worker itself can know that no answer comes."""
    worker = fleet.worker(lease=LEASE, constants=IMPATIENT)
    fleet.enqueue("hold", gate="open")
    fleet.wait_for("started")
    rows.eventually(lambda: rows.count(fleet.app, "stepfast_worker", "beat_at > started_at"))

    own_server.pause()
    try:
        worker.says("heartbeat.failed")  # while it hangs
    finally:
        own_server.cont()
    worker.says("heartbeat.recovered")
    fleet.open("open")
    fleet.wait_until_done()

    assert fleet.effects() == {("hold-1", 0): 1}


@pytest.mark.only_on("postgresql")
def test_commits_that_wait_for_a_standby_are_reported_and_waited_for(fleet: Fleet) -> None:
    worker = fleet.worker(lease=LEASE, constants=IMPATIENT)
    fleet.enqueue("hold", gate="open")
    fleet.wait_for("started")
    _say(fleet.app, "ALTER SYSTEM SET synchronous_standby_names = 'nobody'", "SELECT pg_reload_conf()")
    fleet.open("open")

    worker.says("commit.hangs")
    rows.eventually(lambda: _waiting_commits(fleet.app) > 0)
    found = [it for it in examine(fleet.app.database) if it.level is not Level.OK]
    _say(fleet.app, "ALTER SYSTEM RESET synchronous_standby_names", "SELECT pg_reload_conf()")
    worker.says("commit.answered")
    fleet.wait_until_done()

    assert "synchronous standby" in worker.words()
    (replication,) = (it for it in found if it.name == "replication")
    assert replication.level is Level.FAIL
    advice = " ".join(str(it.cure) for it in found)
    assert "pg_terminate_backend" not in advice
    assert "leases reset" not in advice
    _each_ran_once(fleet, "hold-1")


def _waiting_commits(app: Stepfast) -> int:
    return rows.count(
        app,
        "pg_stat_activity",
        "wait_event = 'SyncRep' AND state_change < clock_timestamp() - interval '2 seconds'",
    )
