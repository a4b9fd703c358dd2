"""`inline()` runs jobs after the commit that enqueued them, before the enqueue returns."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

import pytest

from stepfast import Continue, Retry, Step, Stepfast
from stepfast.errors import ContentionError, StepfastError
from stepfast.testing import drain, enqueued, inline
from tests.support import rows

if TYPE_CHECKING:
    from stepfast import Transaction

ONCE = Retry(attempts=1)


class Declined(Exception):  # noqa: N818 - a user's own word
    """What a user's handler raises."""


def test_a_job_has_run_when_its_enqueue_returns(app: Stepfast) -> None:
    seen: list[int] = []

    @app.job()
    def work(n: int) -> None:
        seen.append(n)

    with inline(app):
        work.enqueue(n=1)
        assert seen == [1]
        work.enqueue_many([{"n": 2}, {"n": 3}])
        assert seen == [1, 2, 3]

    work.enqueue(n=4)
    assert seen == [1, 2, 3]


@pytest.mark.usefixtures("ledger")
def test_it_runs_through_the_real_path(app: Stepfast) -> None:
    @app.job()
    async def work(step: Step) -> Continue | int:
        step.upsert("ledger", [{"id": str(step.number), "amount": step.number}], key="id")
        return Continue(step.number + 1) if step.number < 2 else step.number

    with inline(app):
        job = work.enqueue()

    assert rows.count(app, "ledger") == 3
    assert app.operator.job(job.id).result == 2


def test_inside_a_transaction_it_runs_after_the_commit(app: Stepfast) -> None:
    seen: list[str] = []

    @app.job()
    def work() -> None:
        seen.append("ran")

    with inline(app):
        with app.transaction() as tx:
            work.enqueue(tx=tx)
            seen.append("enqueued")
        assert seen == ["enqueued", "ran"]


def test_what_was_rolled_back_never_runs(app: Stepfast) -> None:
    seen: list[str] = []

    @app.job()
    def work() -> None:
        seen.append("ran")

    def change_of_mind(tx: Transaction) -> None:
        work.enqueue(tx=tx)
        raise Declined("no")

    with inline(app), pytest.raises(Declined), app.transaction() as tx:
        change_of_mind(tx)

    assert seen == []


def test_what_a_job_enqueues_runs_afterwards_and_in_order(app: Stepfast) -> None:
    seen: list[str] = []
    inside: list[str] = []

    @app.job()
    def child(name: str) -> None:
        seen.append(name)

    @app.job()
    def parent(step: Step) -> None:
        seen.append("parent begins")
        child.enqueue(name="first")
        child.enqueue(name="second")
        step.effect(lambda tx: child.enqueue(name="with its commit", tx=tx))
        inside.append(threading.current_thread().name)
        seen.append("parent ends")

    with inline(app):
        parent.enqueue()

    assert seen == ["parent begins", "parent ends", "first", "second", "with its commit"]


def test_a_failing_handler_raises_at_the_enqueue_with_the_jobs_id(app: Stepfast) -> None:
    @app.job(retry=ONCE)
    def work() -> None:
        raise Declined("no money")

    with inline(app):
        with pytest.raises(Declined, match="no money") as caught:
            work.enqueue()
        (dead,) = app.operator.dead_letters()

    assert any(dead.id in note for note in caught.value.__notes__)


def test_a_failing_handler_raises_at_the_end_of_the_transaction(app: Stepfast) -> None:
    @app.job(retry=ONCE)
    def work() -> None:
        raise Declined("no money")

    with inline(app):
        with pytest.raises(Declined), app.transaction() as tx:
            work.enqueue(tx=tx)

        assert len(app.operator.dead_letters()) == 1  # the transaction is committed all the same


def test_a_failure_can_be_left_alone(app: Stepfast) -> None:
    @app.job(retry=ONCE)
    def work() -> None:
        raise Declined("no money")

    with inline(app, raise_errors=False):
        work.enqueue()

    assert len(app.operator.dead_letters()) == 1


def test_a_handler_that_meets_a_deadlock_is_not_enqueued_again(app: Stepfast) -> None:
    """An enqueue repeats its own transaction after a deadlock; this deadlock is the job's."""
    seen: list[int] = []

    @app.job(retry=ONCE)
    def work() -> None:
        seen.append(1)
        raise ContentionError("somebody else's deadlock")

    with inline(app), pytest.raises(StepfastError, match="somebody else's deadlock"):
        work.enqueue()

    assert seen == [1]
    assert rows.count(app, "stepfast_archive") == 1


def test_what_is_for_later_waits(app: Stepfast) -> None:
    @app.job(retry=Retry(attempts=2, first="1h"))
    def work(step: Step) -> None:
        if step.attempt == 1:
            raise Declined("not yet")

    with inline(app):
        work.enqueue(delay="1h")
        with pytest.raises(Declined):
            work.enqueue()

    assert [it.state for it in enqueued(app)] == ["scheduled", "scheduled"]


def test_an_operators_retry_runs_at_once(app: Stepfast) -> None:
    fixed: list[bool] = []

    @app.job(retry=ONCE)
    def work() -> None:
        if not fixed:
            raise Declined("broken")

    job = work.enqueue()
    drain(app, raise_errors=False)
    with inline(app):
        fixed.append(True)
        app.operator.retry(job.id)

    assert rows.state(app, job.id) == "done"


def test_a_drain_inside_it_runs_everything_itself(app: Stepfast) -> None:
    @app.job()
    def child() -> None: ...

    @app.job()
    def parent() -> None:
        child.enqueue()

    with inline(app):
        parent.enqueue(delay="1h")
        report = drain(app, with_scheduled=True)

    assert {name: it.done for name, it in report.kinds.items()} == {"parent": 1, "child": 1}
    assert rows.count(app, "stepfast_worker") == 1


def test_it_works_inside_an_event_loop(app: Stepfast) -> None:
    seen: list[int] = []

    @app.job()
    async def work(n: int) -> None:
        await asyncio.sleep(0)
        seen.append(n)

    async def test() -> None:
        with inline(app):
            work.enqueue(n=1)
            assert seen == [1]

    asyncio.run(test())


def test_threads_that_enqueue_side_by_side_lose_nothing(app: Stepfast) -> None:
    seen: list[int] = []

    @app.job()
    def work(n: int) -> None:
        seen.append(n)

    with inline(app):
        threads = [threading.Thread(target=lambda n=n: work.enqueue(n=n)) for n in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        rows.eventually(lambda: len(seen) == 6)

    assert sorted(seen) == list(range(6))
    assert rows.count(app, "stepfast_job") == 0
