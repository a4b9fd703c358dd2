"""A worker inside a program breaks, or is copied by a fork: it does not take the program along, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import importlib
import os
import warnings
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from stepfast.errors import WorkerFailedError
from stepfast.worker import vital
from tests.support import rows
from tests.support.events import hearing, named

if TYPE_CHECKING:
    from stepfast import Job, Stepfast
    from stepfast.worker.worker import Worker

# Constants that are none break the one thread that uses them.
BREAKS = {
    "claimer": "stepfast.worker.claimer.STUCK_AFTER",
    "heartbeat": "stepfast.worker.heartbeat.TICK",
    "event loop": "stepfast.worker.execution.BREATH",
    "commit-batches": "stepfast.worker.committer.LARGEST_BATCH",
}


def break_part(monkeypatch: pytest.MonkeyPatch, part: str) -> None:
    module, _, constant = BREAKS[part].rpartition(".")
    monkeypatch.setattr(importlib.import_module(module), constant, "no number")


def jobs_of(app: Stepfast) -> tuple[Job[..., Any], Job[..., Any]]:
    """One that is soon done, and one that never is."""

    @app.job()
    async def brief() -> None: ...

    @app.job()
    async def hold() -> None:
        await asyncio.Event().wait()

    return brief, hold


def has_stopped(worker: Worker) -> bool:
    return worker.failed and not worker.status().running


@pytest.mark.parametrize("part", BREAKS)
def test_a_worker_of_which_a_part_breaks_gives_everything_back_and_says_so(
    app: Stepfast, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    brief, hold = jobs_of(app)
    held = hold.enqueue().id
    brief.enqueue()
    break_part(monkeypatch, part)

    worker = app.worker(grace=600)
    broke = pytest.raises(WorkerFailedError, match=f"the worker's {part} broke")
    with hearing() as told, broke as raised, worker:
        rows.eventually(lambda: has_stopped(worker))

    assert raised.value is worker.failure
    assert worker.status().problems == worker.problems() == [str(worker.failure)]
    (broken,) = named(told, "worker.broken")
    assert (broken["note"], broken["worker_id"]) == (part, worker.settings.worker_id)
    assert isinstance(broken["error"], TypeError)
    row = rows.live(app, held)
    assert row is not None
    assert (row["state"], row["failures"], row["crashes"]) == ("ready", 0, 0)
    assert rows.count(app, "stepfast_job", "state = 'leased'") == 0
    assert rows.count(app, "stepfast_worker", "state = 'alive'") == 0


def test_the_program_on_whose_loop_a_worker_breaks_hears_of_it(
    app: Stepfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    break_part(monkeypatch, "heartbeat")

    async def program() -> None:
        async with app.worker() as worker:
            while not has_stopped(worker):  # noqa: ASYNC110 - a thread of its own stops it
                await asyncio.sleep(0.01)

    with pytest.raises(WorkerFailedError, match="the worker's heartbeat broke"):
        asyncio.run(program())


def test_an_exception_of_the_program_is_not_hidden_by_that_of_the_worker(
    app: Stepfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    break_part(monkeypatch, "heartbeat")

    def fail_after(worker: Worker) -> None:
        rows.eventually(lambda: has_stopped(worker))
        raise KeyError("mine")

    with pytest.raises(KeyError) as raised, app.worker() as worker:
        fail_after(worker)

    assert any("the worker's heartbeat broke" in note for note in raised.value.__notes__)


def test_a_handler_that_stops_the_event_loop_stops_nothing_else(app: Stepfast) -> None:
    @app.job()
    async def end() -> None:
        asyncio.get_running_loop().stop()
        await asyncio.sleep(0.01)

    job = end.enqueue()

    with app.worker():
        rows.eventually(lambda: rows.state(app, job.id) == "done")


def test_a_duty_that_fails_is_called_again_and_becomes_a_problem_when_that_lasts(
    app: Stepfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It works on rows of all workers: one that it cannot read must not end every process."""
    scheduler = importlib.import_module("stepfast.worker.scheduler")
    monkeypatch.setattr(vital, "LASTING", 0.0)
    monkeypatch.setattr(importlib.import_module("stepfast.worker.periodic"), "FAILED", 0.01)
    brief, _ = jobs_of(app)
    with app.worker() as worker:
        monkeypatch.setattr(scheduler, "next_due", None)  # which cannot be called
        problem = rows.eventually(worker.problems)
        job = brief.enqueue()
        rows.eventually(lambda: rows.state(app, job.id) == "done")
        monkeypatch.undo()
        rows.eventually(lambda: not worker.problems())

    assert problem[0].startswith("scheduler has failed for ")
    assert not worker.failed


# Forks


def test_leaving_the_block_in_a_forked_child_does_nothing(app: Stepfast) -> None:
    """The child has none of the worker's threads: nobody would answer, and the worker is its parent's."""
    brief, _ = jobs_of(app)
    reading, writing = os.pipe()
    child = -1
    try:
        with app.worker() as worker:
            child = fork()
            if child:
                _wait_for(child)
                job = brief.enqueue()
                rows.eventually(lambda: rows.state(app, job.id) == "done")
        if not child:
            _leave_async(worker)
            os.write(writing, f"{worker.status().running} {worker.problems()}".encode())
    finally:
        if not child:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as said:
        assert said.read() == "False ['this worker does not run']"


def fork() -> int:
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", DeprecationWarning
        )  # about the threads, which the child does not need
        return os.fork()


def _leave_async(worker: Worker) -> None:
    """Leave `async with` without an event loop: a coroutine that waits for nothing ends at once."""
    with suppress(StopIteration):
        worker.__aexit__(None, None, None).send(None)


def _wait_for(child: int) -> None:
    """Until the child has ended; one that hangs is killed."""
    try:
        rows.eventually(lambda: os.waitpid(child, os.WNOHANG)[0])
    except BaseException:
        with suppress(ProcessLookupError):
            os.kill(child, 9)
        raise
