"""Waiting for a result: what it returns, whichever process ran the job, and what waiting costs."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from stepfast import (
    Continue,
    Done,
    JobCancelledError,
    JobFailedError,
    Reject,
    Retry,
    Step,
    StepfastError,
    WaitTimeoutError,
)
from stepfast.database.connection import Connection
from stepfast.errors import NotFoundError, StateError
from stepfast.results import watch as waiting
from stepfast.results.outcome import read_outcomes
from tests.crash.kill_points import UNHARMED, Child
from tests.support import rows
from tests.support.jobs_in_every_state import died, ended, greeting, leased

if TYPE_CHECKING:
    from collections.abc import Callable

    from stepfast import Job, Stepfast

PATIENCE = 20  # seconds; only a test that fails waits so long
LESS_PATIENCE = 10  # still less if a mutation lets them fail


@dataclass
class Invoice:
    number: int
    due: datetime


def invoicing(app: Stepfast) -> Job[..., Invoice]:
    @app.job()
    def invoice(number: int) -> Invoice:
        return Invoice(number, datetime(2030, 1, 1, tzinfo=UTC))

    return invoice


def test_a_job_that_is_done_gives_its_result_as_the_handler_returned_it(app: Stepfast) -> None:
    job = invoicing(app).enqueue(number=7)

    with app.worker():
        outcome = job.wait(PATIENCE)

    assert outcome.result == Invoice(7, datetime(2030, 1, 1, tzinfo=UTC))
    assert (outcome.id, outcome.kind, outcome.state) == (job.id, "invoice", "done")
    assert (outcome.attempts, outcome.error, outcome.ended) == (1, None, True)
    assert outcome.finished_at is not None
    assert outcome.created_at <= outcome.finished_at


def test_a_result_can_be_awaited(app: Stepfast) -> None:
    @app.job()
    async def double(n: int) -> int:
        await asyncio.sleep(0)
        return 2 * n

    async def ask() -> list[int]:
        jobs = double.enqueue_many([{"n": n} for n in range(30)])
        return await asyncio.gather(*(job.result(PATIENCE) for job in jobs))

    with app.worker():
        assert asyncio.run(ask()) == [2 * n for n in range(30)]


def test_the_work_of_another_process_is_seen(app: Stepfast, another_app: Callable[[], Stepfast]) -> None:
    elsewhere = another_app()
    invoicing(elsewhere)
    job = invoicing(app).enqueue(number=1)

    with elsewhere.worker():
        assert job.wait(PATIENCE).result.number == 1


def test_a_job_whose_id_was_kept_is_found_again(app: Stepfast) -> None:
    job_id = invoicing(app).enqueue(number=1).id
    before = app.result_of(job_id)
    with app.worker():
        app.enqueued(job_id).wait(PATIENCE)

    assert (before.state, before.ended, before.finished_at) == ("ready", False, None)
    with pytest.raises(StateError, match="is ready: it has no result yet"):
        _ = before.result
    assert app.result_of(job_id).result.number == 1


def test_a_dead_job_raises_with_what_it_died_of(app: Stepfast) -> None:
    @app.job(retry=Retry(attempts=2, first="1ms"))
    def fail() -> str:
        raise ValueError("no paper")

    job = fail.enqueue()
    with app.worker():
        outcome = job.wait(PATIENCE)

    assert (outcome.state, outcome.attempts) == ("dead", 2)
    with pytest.raises(JobFailedError, match=r"\(fail\) is dead after 2 attempts: ValueError: no paper"):
        _ = outcome.result
    with pytest.raises(JobFailedError, match="no paper"):
        asyncio.run(job.result(PATIENCE))


def test_a_cancelled_job_raises_with_the_reason(app: Stepfast) -> None:
    job = greeting(app).enqueue()
    app.operator.cancel(job.id, "the order was withdrawn")

    with pytest.raises(JobCancelledError, match="the order was withdrawn"):
        _ = job.wait(PATIENCE).result


def test_a_handler_that_returns_nothing_has_the_result_none(app: Stepfast) -> None:
    @app.job()
    def work() -> None: ...

    job = work.enqueue()
    with app.worker():
        assert job.wait(PATIENCE).result is None


def test_the_result_of_the_last_step_is_the_result_of_the_job(app: Stepfast) -> None:
    @app.job()
    def count(step: Step) -> Done | Continue | Reject:
        at = step.cursor or 0
        return Continue(at + 1) if at < 3 else Done({"pages": at})

    job = count.enqueue()
    with app.worker():
        outcome = job.wait(PATIENCE)

    assert (outcome.result, outcome.step) == ({"pages": 3}, 3)


def test_progress_is_part_of_what_became_of_a_job(app: Stepfast) -> None:
    @app.job()
    def work(step: Step) -> None:
        step.progress(40, "nearly half")

    job = work.enqueue()
    with app.worker():
        outcome = job.wait(PATIENCE)

    assert (outcome.progress, outcome.note) == (40, "nearly half")


def test_who_waits_too_long_is_told_in_which_state_the_job_is(app: Stepfast) -> None:
    job = greeting(app).enqueue()

    with pytest.raises(WaitTimeoutError, match=r"is still ready after 0.05 s; it goes on") as late:
        job.wait("50ms")
    assert isinstance(late.value, TimeoutError)
    assert late.value.state == "ready"
    with pytest.raises(WaitTimeoutError):
        asyncio.run(job.result(timedelta(milliseconds=50)))


def test_a_job_that_nobody_knows_is_an_error_at_once(app: Stepfast) -> None:
    with pytest.raises(NotFoundError, match="there is no job nobody: finished jobs are forgotten"):
        app.enqueued("nobody").wait()
    with pytest.raises(NotFoundError):
        asyncio.run(app.enqueued("nobody").result())
    with pytest.raises(NotFoundError):
        app.result_of("nobody")


def test_a_job_that_is_forgotten_while_somebody_waits_is_an_error(app: Stepfast) -> None:
    job = greeting(app).enqueue()

    with ThreadPoolExecutor(1) as thread:
        waits = thread.submit(job.wait, PATIENCE)
        rows.eventually(lambda: waiting.waits_on(app.database)._waiters)
        rows.change(app, "DELETE FROM stepfast_job")

        with pytest.raises(NotFoundError):
            waits.result(PATIENCE)


def test_a_job_in_a_transaction_that_has_not_committed_is_not_there_yet(
    app: Stepfast, another_app: Callable[[], Stepfast]
) -> None:
    with app.transaction() as tx:
        job = greeting(app).enqueue(tx=tx)

        with pytest.raises(NotFoundError, match="exists when that transaction has committed"):
            another_app().enqueued(job.id).wait()


@pytest.mark.only_on("sqlite")
def test_waiting_inside_ones_own_transaction_is_refused_where_it_could_never_end(app: Stepfast) -> None:
    job = greeting(app).enqueue()

    with app.transaction(), pytest.raises(StateError, match="leave the transaction first"):
        job.wait()


@pytest.mark.only_on("postgresql", "mariadb")
def test_waiting_inside_a_transaction_works_where_others_can_write(
    app: Stepfast, another_app: Callable[[], Stepfast]
) -> None:
    elsewhere = another_app()
    invoicing(elsewhere)
    job = invoicing(app).enqueue(number=1)

    with elsewhere.worker(), app.transaction():
        assert job.wait(PATIENCE).result.number == 1


def test_a_handler_may_wait_for_another_job(app: Stepfast) -> None:
    invoice = invoicing(app)

    @app.job()
    async def order() -> int:
        return (await invoice.enqueue(number=5).result(PATIENCE)).number

    job = order.enqueue()
    with app.worker():
        assert job.wait(PATIENCE).result == 5


def test_who_waits_hears_at_once_of_a_job_that_this_process_ended(
    app: Stepfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    _look_once(monkeypatch)
    job = invoicing(app).enqueue(number=1)

    with ThreadPoolExecutor(1) as thread:
        waits = thread.submit(job.wait, LESS_PATIENCE)
        rows.eventually(lambda: any(it.state == "ready" for it in _waiters(app)))
        with app.worker():
            assert waits.result(PATIENCE).result.number == 1


def test_news_that_come_while_the_database_is_asked_are_not_missed(
    app: Stepfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    _look_once(monkeypatch)
    job = greeting(app).enqueue()
    calls: list[int] = []

    def look_and_be_overtaken(*given: Any) -> Any:
        found = read_outcomes(*given)
        calls.append(1)
        if len(calls) == 1:
            threading.Thread(target=end_it).start()
            assert overtaken.wait(PATIENCE)
        return found

    def end_it() -> None:
        app.operator.cancel(job.id)
        waiting.notify_waiting(app.database, [job.id])
        overtaken.set()

    overtaken = threading.Event()
    monkeypatch.setattr(waiting, "read_outcomes", look_and_be_overtaken)

    assert job.wait(LESS_PATIENCE).state == "cancelled"


def _look_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """After the first look, only news bring another one."""
    monkeypatch.setattr(waiting, "WAIT_PAUSE", 3_600.0)
    monkeypatch.setattr(waiting, "LONGEST_PAUSE", 3_600.0)


async def _eventually(look: Callable[[], object]) -> None:
    await asyncio.get_running_loop().run_in_executor(None, rows.eventually, look)


def _waiters(app: Stepfast) -> list[waiting.Waiter]:
    return [it for some in tuple(waiting.waits_on(app.database)._waiters.values()) for it in tuple(some)]


def test_many_who_wait_share_one_thread_and_its_statements(app: Stepfast) -> None:
    greet = greeting(app)
    jobs = greet.enqueue_many([{} for _ in range(300)])
    asked: list[str] = []

    def note(phase: str, text: str) -> None:
        if phase == "before" and "result_expired_at" in text:
            asked.append(text)

    async def wait_for_all() -> list[Any]:
        tasks = [asyncio.create_task(job.result(PATIENCE)) for job in jobs]
        await _eventually(lambda: len(_waiters(app)) == len(jobs) and all(it.state for it in _waiters(app)))
        asked.clear()
        names = [it.name for it in threading.enumerate() if it.name == "stepfast-results"]
        await asyncio.get_running_loop().run_in_executor(None, cancel_all)
        return [names, *await asyncio.gather(*tasks, return_exceptions=True)]

    def cancel_all() -> None:
        rows.change(app, "UPDATE stepfast_job SET fence = 1")
        for job in jobs:
            app.operator.cancel(job.id)

    Connection.watch = staticmethod(note)
    try:
        names, *ends = asyncio.run(wait_for_all())
    finally:
        Connection.watch = None

    assert names == ["stepfast-results"]
    assert {type(it) for it in ends} == {JobCancelledError}
    assert len(asked) < len(jobs), "they asked one by one"


def test_who_stops_waiting_is_forgotten(app: Stepfast) -> None:
    job = greeting(app).enqueue()

    async def lose_patience() -> None:
        task = asyncio.create_task(job.result())
        await _eventually(lambda: _waiters(app))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(lose_patience())
    with pytest.raises(WaitTimeoutError):
        job.wait(0.01)

    assert _waiters(app) == []


def test_the_thread_ends_when_nobody_waits(app: Stepfast, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "LINGER", 0.01)
    greeting(app).enqueue()
    job_id = ended(app)

    app.enqueued(job_id).wait(PATIENCE)

    rows.eventually(lambda: waiting.waits_on(app.database)._thread is None)
    app.enqueued(job_id).wait(PATIENCE)  # and begins again


@pytest.mark.only_on("sqlite")
def test_a_forked_child_waits_with_a_thread_of_its_own(app: Stepfast) -> None:
    greeting(app).enqueue()
    job_id = ended(app)
    app.enqueued(job_id).wait(PATIENCE)  # the parent's thread lingers
    app.database.close()  # SQLite keeps its locks per process

    child = Child(lambda: app.enqueued(job_id).wait(PATIENCE), lambda *_: None)

    assert child.ended() == UNHARMED


def test_closing_the_application_tells_who_waits(another_app: Callable[[], Stepfast]) -> None:
    app = another_app()
    job = greeting(app).enqueue()

    with ThreadPoolExecutor(1) as thread:
        waits = thread.submit(job.wait)
        rows.eventually(lambda: _waiters(app))
        app.close()

        with pytest.raises(StepfastError, match="the application was closed"):
            waits.result(PATIENCE)


def test_a_job_that_dies_and_is_revived_can_be_waited_for_again(app: Stepfast) -> None:
    job = app.enqueued(died(app, greeting(app)))
    assert job.wait(PATIENCE).state == "dead"

    app.operator.retry(job.id)

    with pytest.raises(WaitTimeoutError, match="still ready"):
        job.wait(0.05)
    leased(app)
    with pytest.raises(WaitTimeoutError, match="still leased"):
        job.wait(0.05)


@pytest.mark.only_on("sqlite")
def test_waiting_on_a_thread_that_runs_an_event_loop_is_refused(app: Stepfast) -> None:
    """It would stop everything that runs there, perhaps the very job that is waited for."""
    job = greeting(app).enqueue()

    async def block() -> list[str]:
        said = []
        for act in (lambda: job.wait(1), lambda: list(job.watch(1))):
            with pytest.raises(StateError) as refused:
                act()
            said.append(str(refused.value))
        return said

    assert [it.partition("write: ")[2] for it in asyncio.run(block())] == [
        "await job.result()",
        "async for update in job.watch()",
    ]
