"""A connection breaks during COMMIT: the fences tell what happened, and every effect is there once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from devtools.proxy import Cut, Proxy, through
from stepfast.database.drivers import open_database
from stepfast.errors import UnreachableError

if TYPE_CHECKING:
    from devtools.server import Server
    from tests.crash.workers import Fleet, WorkerProcess

pytestmark = pytest.mark.only_on("postgresql", "mariadb")

FIRST_WORDS = {"postgresql": b"plan_cache_mode", "mariadb": b"innodb_lock_wait_timeout"}
EFFECT = b"INSERT INTO effect"
TAKE = b"SET state = 'leased'"
ACKNOWLEDGE = b"INSERT INTO stepfast_archive"
QUICK = {"stepfast.worker.maintenance.RESCUE_EVERY": 0.2, "stepfast.worker.maintenance.LEAKED_AFTER": 200_000}
HEARD = 10  # seconds: the work may be done before the proxy has heard the answer to COMMIT
IMPATIENT = {"stepfast.database.drivers.SILENCE_MILLISECONDS": 1_000}

answered = pytest.mark.parametrize("answered", [True, False], ids=["answer lost", "question lost"])


@pytest.fixture
def proxy(server: Server) -> Iterator[Proxy]:
    with Proxy(server.site.port) as proxy:
        yield proxy


def start_behind(proxy: Proxy, fleet: Fleet, constants: Mapping[str, float] | None = None) -> WorkerProcess:
    url = through(fleet.url, proxy.port)
    if url.startswith("postgresql"):
        url += "?pooler=transaction"  # nothing is prepared: statements travel as text
    worker = fleet.worker(url=url, constants=constants)
    worker.says("worker.started")
    return worker


def test_a_connection_that_breaks_while_it_is_opened_is_an_outage(
    proxy: Proxy, database_url: str, database_kind: str
) -> None:
    """It is no error of the caller: the commit of a step may be the first to open a connection."""
    words = FIRST_WORDS[database_kind]
    with closing(open_database(through(database_url, proxy.port))) as database:
        proxy.cut(Cut(after=words, at=words, answered=False))

        with pytest.raises(UnreachableError):
            database.connect()


@answered
def test_a_step_whose_commit_broke_has_its_effect_once(fleet: Fleet, proxy: Proxy, answered: bool) -> None:  # noqa: FBT001 - a fact
    worker = start_behind(proxy, fleet)
    proxy.cut(Cut(after=EFFECT, at=b"COMMIT", answered=answered))

    fleet.enqueue("brief")
    fleet.wait_until_done()

    assert proxy.happened.wait(HEARD)
    assert fleet.effects() == {("brief-1", 0): 1}
    _ran_once_at_no_charge(fleet, "brief-1")
    worker.says("commit.unknown")


@answered
def test_a_continuation_whose_commit_broke_goes_on(fleet: Fleet, proxy: Proxy, answered: bool) -> None:  # noqa: FBT001 - a fact
    worker = start_behind(proxy, fleet)
    proxy.cut(Cut(after=EFFECT, at=b"COMMIT", answered=answered))

    fleet.enqueue("pages", count=3)
    fleet.wait_until_done(5)  # at once: nobody had to find a lost lease

    assert proxy.happened.wait(HEARD)
    assert fleet.effects() == {("pages-1", 0): 1, ("pages-1", 1): 1, ("pages-1", 2): 1}
    assert [it["step"] for it in fleet.journal("started")] == [0, 1, 2]
    worker.says("commit.unknown")


@answered
def test_many_that_are_acknowledged_together_end_once(fleet: Fleet, proxy: Proxy, answered: bool) -> None:  # noqa: FBT001 - a fact
    worker = start_behind(proxy, fleet)
    proxy.cut(Cut(after=ACKNOWLEDGE, at=b"COMMIT", answered=answered))

    ids = fleet.enqueue("plain", 50)
    fleet.wait_until_done()

    assert proxy.happened.wait(HEARD)
    ended = fleet.archived()
    assert {
        job_id: (row["state"], row["crashes"], row["failures"]) for job_id, row in ended.items()
    } == dict.fromkeys(ids, ("done", 0, 0))
    worker.says("commit.unknown")


@answered
def test_a_claim_whose_commit_broke_loses_no_job(fleet: Fleet, proxy: Proxy, answered: bool) -> None:  # noqa: FBT001 - a fact
    start_behind(proxy, fleet, QUICK)
    proxy.cut(Cut(after=TAKE, at=b"COMMIT", answered=answered))

    fleet.enqueue("brief")
    fleet.wait_until_done()

    assert proxy.happened.wait(HEARD)
    assert fleet.effects() == {("brief-1", 0): 1}
    _ran_once_at_no_charge(fleet, "brief-1")


def test_connections_that_fell_silent_are_replaced(fleet: Fleet, proxy: Proxy) -> None:
    """No FIN, no RST: packets vanish. What was open is given up after a while; nothing is lost or doubled."""
    worker = start_behind(proxy, fleet, IMPATIENT)
    fleet.enqueue("hold", gate="open")
    fleet.wait_for("started")

    assert proxy.silence()
    fleet.open("open")
    fleet.wait_until_done(15)

    assert fleet.effects() == {("hold-1", 0): 1}
    _ran_once_at_no_charge(fleet, "hold-1")
    fleet.enqueue("brief")
    fleet.wait_until_done(15)
    assert worker.runs()


def test_a_silent_loss_of_the_answer_is_noticed(fleet: Fleet, proxy: Proxy) -> None:
    """The server has committed; the client waits for an answer that will never come, with nothing left to send."""
    worker = start_behind(proxy, fleet, IMPATIENT)
    proxy.cut(Cut(after=EFFECT, at=b"COMMIT", answered=True, silent=True))

    fleet.enqueue("pages", count=2)
    fleet.wait_until_done(15)

    assert proxy.happened.wait(HEARD)
    worker.says("commit.unknown")  # and not: somebody else found a lease that nobody knew of
    assert "leases.leaked" not in worker.words()
    assert fleet.effects() == {("pages-1", 0): 1, ("pages-1", 1): 1}


@pytest.mark.chaos
def test_a_silent_loss_of_the_commit_is_resolved_when_the_server_ends_the_session(
    fleet: Fleet, proxy: Proxy
) -> None:
    start_behind(proxy, fleet, IMPATIENT)
    proxy.cut(Cut(after=EFFECT, at=b"COMMIT", answered=False, silent=True))

    fleet.enqueue("brief")
    fleet.wait_until_done(40)

    assert proxy.happened.wait(HEARD)
    assert fleet.effects() == {("brief-1", 0): 1}
    _ran_once_at_no_charge(fleet, "brief-1")


def _ran_once_at_no_charge(fleet: Fleet, job_id: str) -> None:
    assert len(fleet.journal("started", job_id)) == 1
    row = fleet.archived()[job_id]
    assert (row["state"], row["crashes"], row["failures"]) == ("done", 0, 0)
