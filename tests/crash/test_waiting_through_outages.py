"""Waiting for a job, or watching it, survives an outage of the database."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from devtools.server import Server
from stepfast import Stepfast, WaitTimeoutError
from stepfast.jobs.outcome import Done
from stepfast.results import watch as waiting
from stepfast.results.watch import Ended, Logged
from tests.support import rows
from tests.support.databases import ENGINES, memory
from tests.support.jobs_in_every_state import ended

if TYPE_CHECKING:
    from stepfast import Job
    from stepfast.results.watch import Update

pytestmark = pytest.mark.only_on("postgresql", "mariadb")

PATIENCE = 60


@pytest.fixture
def own_server(database_kind: str) -> Iterator[Server]:
    """Not the one that other tests use."""
    with Server(ENGINES[database_kind], memory()) as server:
        server.create_database("work")
        yield server


@pytest.fixture
def app(own_server: Server) -> Iterator[Stepfast]:
    with closing(Stepfast(own_server.url("work"))) as app:
        app.migrate()
        yield app


def answering(app: Stepfast) -> Job[[], int]:
    @app.job()
    def answer() -> int:
        raise AssertionError("nobody should run it")

    return answer


def restart(app: Stepfast, server: Server) -> None:
    server.stop()
    rows.eventually(lambda: waiting.waits_on(app.database)._failing)
    server.start()
    app.database.close()  # our own connections


def test_who_waits_outlives_a_restart_of_the_database(app: Stepfast, own_server: Server) -> None:
    job = answering(app).enqueue()

    with ThreadPoolExecutor(2) as threads:
        waits = threads.submit(job.wait, PATIENCE)
        awaits = threads.submit(lambda: asyncio.run(app.enqueued(job.id).result(PATIENCE)))
        rows.eventually(lambda: len(waiting.waits_on(app.database)._waiters.get(job.id, ())) == 2)
        restart(app, own_server)
        ended(app, Done(7))

        assert waits.result(PATIENCE).result == 7
        assert awaits.result(PATIENCE) == 7


def test_a_wait_that_ends_during_an_outage_says_so(app: Stepfast, own_server: Server) -> None:
    job = answering(app).enqueue()
    own_server.stop()

    with pytest.raises(WaitTimeoutError, match="could not be looked at: the database is away"):
        job.wait(0.3)

    own_server.start()


def test_who_watches_misses_and_repeats_nothing_although_the_database_restarts(
    app: Stepfast, own_server: Server
) -> None:
    job = answering(app).enqueue()
    seen: list[Update] = []

    def say(*messages: str) -> None:
        for message in messages:
            rows.change(
                app,
                "INSERT INTO stepfast_log (job_id, at, level, step, message) VALUES (:id, 1, 'info', 0, :message)",
                id=job.id,
                message=message,
            )

    def watch() -> None:
        for update in job.watch(PATIENCE):
            seen.append(update)  # noqa: PERF402 - looked at while it grows

    def messages() -> list[str]:
        return [it.message for it in tuple(seen) if isinstance(it, Logged)]

    say("one", "two")
    with ThreadPoolExecutor(2) as threads:
        watches = threads.submit(watch)
        waits = threads.submit(job.wait, PATIENCE)
        rows.eventually(lambda: len(messages()) == 2 and waiting.waits_on(app.database)._waiters)
        restart(app, own_server)
        say("three")
        ended(app, Done(7))
        waits.result(PATIENCE)
        watches.result(PATIENCE)

    assert messages() == ["one", "two", "three"]
    assert isinstance(seen[-1], Ended)
