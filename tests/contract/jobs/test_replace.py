"""A job that is replaced while it runs, and claimed again by the same worker: two steps of one job side by side."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

import pytest

from stepfast import Continue, Done, Step
from stepfast.jobs.step import Halt, Report
from stepfast.worker.reporter import Reporter
from tests.support import rows
from tests.support.engine import register_work
from tests.support.single_threaded_worker import GroupCommittingWorker, NotedLeases

if TYPE_CHECKING:
    from stepfast import Stepfast
    from stepfast.jobs.lease import Lease

PATIENCE = 15.0


def twice(app: Stepfast, worker: GroupCommittingWorker) -> tuple[Lease, Lease]:
    """The lease of the old payload, and that of the new one."""
    work = register_work(app)
    work.enqueue(n=1, key="k")
    (old,) = worker.take(1)
    work.enqueue(n=2, key="k", on_duplicate="replace")
    (new,) = worker.take(1)
    assert (old.job_id, old.fence != new.fence) == (new.job_id, True)
    return old, new


@pytest.mark.parametrize("is_async", [False, True], ids=["plain", "async"])
def test_the_old_step_is_stopped_while_the_new_one_runs(app: Stepfast, is_async: bool) -> None:  # noqa: FBT001 - a parameter
    began, stopped = threading.Event(), threading.Event()
    runs = []

    def plain(step: Step, payload: str) -> str:
        runs.append(payload)
        if payload == "new":
            assert stopped.wait(PATIENCE)
            return payload
        began.set()
        try:
            step.wait(PATIENCE)
        except BaseException:
            stopped.set()
            raise
        return payload

    async def awaited(payload: str) -> str:
        runs.append(payload)
        if payload == "new":
            assert await asyncio.to_thread(stopped.wait, PATIENCE)
            return payload
        began.set()
        try:
            await asyncio.sleep(PATIENCE)
        except BaseException:
            stopped.set()
            raise
        return payload

    work = app.job()(awaited) if is_async else app.job()(plain)
    job = work.enqueue(payload="old", key="k")
    with app.worker(lease="1s"):
        assert began.wait(PATIENCE)
        work.enqueue(payload="new", key="k", on_duplicate="replace")
        assert stopped.wait(5)
        rows.eventually(lambda: rows.state(app, job.id) == "done")

    row = rows.ended(app, job.id)
    assert row is not None
    assert (row["result"], runs) == ('"new"', ["old", "new"])


def test_the_old_answer_is_not_taken_for_the_new_one(app: Stepfast) -> None:
    worker = GroupCommittingWorker(app)
    old, new = twice(app, worker)

    worker.committer._commit_batch([worker.end(new, Done("new")), worker.end(old, Done("old"))])

    row = rows.ended(app, new.job_id)
    assert row is not None
    assert (row["state"], row["result"]) == ("done", '"new"')
    assert sorted(worker.ended) == sorted([old, new])


def test_what_the_new_step_says_is_kept_although_the_old_one_ends_with_it(app: Stepfast) -> None:
    worker = GroupCommittingWorker(app)
    old, new = twice(app, worker)
    worker.say(new, "the new one")
    worker.say(old, "the old one")

    worker.commit_group([worker.end(new, Continue(2)), worker.end(old, Continue(1))])

    assert rows.logs(app, new.job_id) == ["the new one"]
    assert [it.step for it in worker.take_continued()] == [new.step + 1]


def test_only_the_old_step_is_told_that_its_words_are_not_written(app: Stepfast) -> None:
    old, new = twice(app, GroupCommittingWorker(app))
    told: list[tuple[str, int]] = []

    class Heard(NotedLeases):
        def halt(self, job_id: str, fence: int, why: Halt) -> None:
            assert why is Halt.REPLACED
            told.append((job_id, fence))

    reporter = Reporter(app.database, Heard(app))
    for lease in (old, new):
        reporter.put(Report(lease, None, None, "info", f"step {lease.step}"))
        reporter.put(Report(lease, 10 * lease.step, None, None, None))

    reporter._write()

    assert told == [(old.job_id, old.fence)]
    assert rows.logs(app, new.job_id) == [f"step {new.step}"]
