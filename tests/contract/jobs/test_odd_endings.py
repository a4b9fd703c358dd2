"""Whatever a handler returns, raises or attaches, at most its own job fails, with a reason; the worker goes on."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn
from unittest.mock import MagicMock

import pytest

from stepfast import Done, Retry, Step
from tests.support import rows
from tests.support.engine import drain, rescue_all, take

if TYPE_CHECKING:
    from stepfast import Stepfast

ONCE = Retry(attempts=1)
PATIENCE = 15.0


class UnreadableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


def nested() -> list[Any]:
    deep: list[Any] = []
    for _ in range(5_000):
        deep = [deep]
    return deep


def give_up(error: BaseException) -> Callable[[Any], NoReturn]:
    def effect(_: Any) -> NoReturn:
        raise error

    return effect


RAISED = [
    StopIteration("ends"),
    UnreadableError(),
    GeneratorExit("leaves"),
    BaseException("anything"),
    SystemExit(3),
]
ANSWERED = [nested(), MagicMock(), object(), Done(1, effects="no effect")]  # type: ignore[arg-type]
ATTACHED = [UnreadableError(), SystemExit(3), StopIteration("ends")]


def fate(app: Stepfast, job_id: str) -> str:
    row = rows.ended(app, job_id)
    assert row is not None
    return f"{row['state']}: {row['last_error']}"


@pytest.mark.parametrize("error", RAISED, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("is_async", [True, False], ids=["async", "plain"])
def test_whatever_a_handler_raises_is_its_failure(
    app: Stepfast,
    error: BaseException,
    is_async: bool,  # noqa: FBT001 - a parameter
) -> None:
    @app.job(name="odd", retry=ONCE)
    async def odd_async() -> None:
        raise error

    def odd_plain() -> None:
        raise error

    other = app.job(name="other")(lambda: None)
    odd = odd_async if is_async else app.job(name="odd-plain", retry=ONCE)(odd_plain)
    jobs = odd.enqueue(), other.enqueue()
    drain(app)

    assert fate(app, jobs[0].id).startswith("dead: ")
    assert fate(app, jobs[1].id).startswith("done")


@pytest.mark.parametrize("answer", ANSWERED, ids=lambda answer: type(answer).__name__)
@pytest.mark.parametrize("is_async", [True, False], ids=["async", "plain"])
def test_an_answer_that_cannot_be_kept_is_a_failure(app: Stepfast, answer: Any, is_async: bool) -> None:  # noqa: FBT001 - a parameter
    @app.job(name="odd", retry=ONCE)
    async def odd_async() -> Any:
        return answer

    odd = odd_async if is_async else app.job(name="odd-plain", retry=ONCE)(lambda: answer)
    job = odd.enqueue()
    others = app.job(name="other")(lambda: None).enqueue_many([{}] * 20)
    drain(app)

    assert fate(app, job.id).startswith("dead: ")
    assert {fate(app, it.id)[:4] for it in others} == {"done"}


@pytest.mark.parametrize("error", ATTACHED, ids=lambda error: type(error).__name__)
def test_whatever_an_effect_raises_is_a_failed_attempt(app: Stepfast, error: BaseException) -> None:
    @app.job(retry=ONCE)
    def odd(step: Step) -> None:
        step.log("before")
        step.effect(give_up(error))

    job = odd.enqueue()
    drain(app)

    assert fate(app, job.id).startswith("dead: ")
    assert rows.logs(app, job.id)[0] == "before"


@pytest.mark.usefixtures("ledger")
def test_a_function_is_an_effect_also_when_it_comes_with_the_answer(app: Stepfast) -> None:
    @app.job()
    def work() -> Done:
        return Done(1, effects=[lambda tx: tx.execute("INSERT INTO ledger (id, amount) VALUES ('a', 1)")])

    work.enqueue()
    drain(app)

    assert rows.count(app, "ledger") == 1


def test_reports_of_odd_types_are_written_as_text(app: Stepfast) -> None:
    @app.job(retry=ONCE)
    def work(step: Step) -> None:
        step.progress(10, b"abc")  # type: ignore[arg-type]
        step.log("line", level=("x",))  # type: ignore[arg-type]

    job = work.enqueue()
    drain(app)

    row = rows.ended(app, job.id)
    assert row is not None
    assert (row["state"], row["progress_note"]) == ("done", "b'abc'")


def test_a_handler_that_swallowed_its_cancellation_leaves_none_for_the_next(app: Stepfast) -> None:
    import asyncio

    counts: list[int] = []

    @app.job(timeout=0.05)
    async def stubborn() -> str:
        try:
            await asyncio.sleep(PATIENCE)
        except asyncio.CancelledError:
            return "stayed"
        return "slept"

    @app.job()
    async def after() -> None:
        task = asyncio.current_task()
        assert task is not None
        counts.append(task.cancelling())
        await asyncio.sleep(0)

    with app.worker(concurrency=1):
        first, second = stubborn.enqueue(), after.enqueue()
        rows.eventually(lambda: rows.ended(app, first.id) and rows.ended(app, second.id))

    assert counts == [0]


def test_a_worker_that_never_started_is_stopped(app: Stepfast) -> None:
    assert app.worker().stop(timeout=1)


def test_a_stop_that_runs_out_of_time_lets_the_handlers_go_on(app: Stepfast) -> None:
    import asyncio

    started, go_on = threading.Event(), threading.Event()

    @app.job()
    async def work() -> str:
        started.set()
        await asyncio.get_running_loop().run_in_executor(None, go_on.wait, PATIENCE)
        return "finished"

    job = work.enqueue()
    worker = app.worker(grace="1h")
    worker.start()
    assert started.wait(PATIENCE)

    assert not worker.stop(timeout=0.05)
    go_on.set()
    assert worker.stop(timeout=PATIENCE)

    assert fate(app, job.id).startswith("done")


def test_suspects_of_a_paused_or_foreign_queue_leave_a_worker_alone(app: Stepfast) -> None:
    """No worker here may claim them, so it must not empty itself for them."""
    from stepfast.admin.workers import pause_queue

    hold = threading.Event()

    @app.job()
    def slow() -> None:
        assert hold.wait(PATIENCE)

    @app.job()
    def quick() -> None: ...

    foreign, paused = quick.enqueue(queue="elsewhere"), quick.enqueue(queue="paused")
    for owner, queue in ((11, "elsewhere"), (22, "paused")):
        rows.add_worker(app, owner, alive_for=-rows.SECOND)
        take(app, owner, queue)
    assert rescue_all(app).jobs == 2
    with app.transaction() as tx:
        pause_queue(tx, "paused")

    with app.worker(queues=["default", "paused"]):
        slow.enqueue()
        rows.eventually(lambda: rows.count(app, "stepfast_job", "state = 'leased'"))
        began = time.monotonic()
        job = quick.enqueue()
        rows.eventually(lambda: rows.ended(app, job.id))
        took = time.monotonic() - began
        hold.set()

    assert took < PATIENCE / 2
    assert [rows.state(app, it.id) for it in (foreign, paused)] == ["suspect", "suspect"]
