"""The heartbeat gets through, and every other transaction of the worker fails: it says so, and keeps no unfinished job."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import pytest

from stepfast import Retry, Step
from stepfast.errors import DatabaseError
from tests.support import rows

if TYPE_CHECKING:
    from stepfast import Stepfast
    from stepfast.database.connection import Connection

ONCE = Retry(attempts=1)
WRITES = ("UPDATE", "INSERT", "DELETE", "WITH")


class Trouble:
    """An error that nobody has classified, on all connections but the heartbeat's."""

    def __init__(self, app: Stepfast, monkeypatch: pytest.MonkeyPatch) -> None:
        self.lasts = threading.Event()
        self.left: int | None = None  # it passes after so many errors
        connect = app.database._connect

        def connected() -> Connection:
            connection = connect()
            if threading.current_thread().name != "stepfast-heartbeat":
                connection.watch = self._meet
            return connection

        monkeypatch.setattr(app.database, "_connect", connected)
        app.database.close()

    def _meet(self, when: str, text: str) -> None:
        if not self.lasts.is_set() or when == "after" or not text.lstrip().startswith(WRITES):
            return
        if threading.current_thread().name.startswith("stepfast-"):  # not the test itself
            if self.left is not None:
                self.left -= 1
                if not self.left:
                    self.lasts.clear()
            raise DatabaseError("the disk says something new")


@pytest.fixture
def trouble(app: Stepfast, monkeypatch: pytest.MonkeyPatch) -> Trouble:
    return Trouble(app, monkeypatch)


def test_jobs_that_are_not_finished_are_given_back_and_the_worker_is_not_healthy(
    app: Stepfast, trouble: Trouble
) -> None:
    began, told = threading.Event(), threading.Event()

    @app.job(retry=ONCE)
    async def wait() -> None:
        began.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            told.set()
            raise

    job = wait.enqueue()
    worker = app.worker(lease="1s", queues=["default"], grace="0s")
    with worker:
        assert began.wait(rows.PATIENCE)
        fence = _row(app, job.id)["fence"]
        wait.enqueue()  # so that the claimer has something to claim
        trouble.lasts.set()
        assert told.wait(rows.PATIENCE)
        given_back = _row(app, job.id)
        problems = worker.problems()
        trouble.lasts.clear()
        rows.eventually(
            lambda: _row(app, job.id)["fence"] not in (fence, given_back["fence"])
        )  # it runs again
        rows.eventually(lambda: worker.problems() == [])

    assert given_back["state"] == "ready"
    assert (given_back["failures"], given_back["crashes"]) == (0, 0)
    assert "transactions have failed" in problems[0]
    assert "the disk says something new" in problems[0]


def test_a_finished_step_waits_until_it_is_written(app: Stepfast, trouble: Trouble) -> None:
    go, runs = threading.Event(), []

    @app.job(retry=ONCE)
    def finish(step: Step) -> str:
        runs.append(step.fence)
        go.wait(rows.PATIENCE)
        step.log("nearly done")
        return "done"

    job = finish.enqueue()
    with app.worker(lease="1s", queues=["default"]) as worker:
        rows.eventually(lambda: runs)
        trouble.lasts.set()
        go.set()
        rows.eventually(worker.problems)
        trouble.lasts.clear()
        rows.eventually(lambda: rows.state(app, job.id) == "done")

    ended = rows.ended(app, job.id)
    assert ended is not None
    assert (ended["failures"], ended["crashes"]) == (0, 0)
    assert len(runs) == 1
    assert "nearly done" in rows.logs(app, job.id)


def test_a_finished_step_whose_first_write_was_refused_is_written_by_the_next_and_does_not_fail(
    app: Stepfast, trouble: Trouble
) -> None:
    go, effects = threading.Event(), []

    @app.job(retry=ONCE)
    def finish(step: Step) -> str:
        step.effect(lambda _tx: effects.append(step.fence))
        go.wait(rows.PATIENCE)
        return "done"

    job = finish.enqueue()
    with app.worker(queues=["default"]):
        rows.eventually(lambda: rows.state(app, job.id) == "leased")
        trouble.left = 1
        trouble.lasts.set()
        go.set()
        rows.eventually(lambda: rows.state(app, job.id) not in {"leased", None})

    assert rows.state(app, job.id) == "done"
    assert not trouble.lasts.is_set()


def _row(app: Stepfast, job_id: str) -> dict[str, Any]:
    row = rows.live(app, job_id)
    assert row is not None
    return row
