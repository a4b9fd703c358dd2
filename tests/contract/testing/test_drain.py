"""`drain()` runs jobs with the real worker until none is ready, and reports what it did."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import threading
import time
import warnings
from typing import TYPE_CHECKING

import pytest

from stepfast import (
    Continue,
    Done,
    PermanentError,
    Reject,
    Retry,
    Snooze,
    Step,
    StepCancelled,
    Stepfast,
    TransientError,
    Upsert,
)
from stepfast.errors import ConfigurationError, StepfastError
from stepfast.testing import Report, clock, drain, draining, enqueued
from tests.support import rows

if TYPE_CHECKING:
    from stepfast import Transaction

ONCE = Retry(attempts=1)
LATER = Retry(attempts=3, first="1h")


class Declined(Exception):  # noqa: N818 - a user's own word
    """What a user's handler raises."""


def states(app: Stepfast) -> list[str]:
    return [it.state for it in enqueued(app, ended=True)]


# What is run


def test_everything_that_is_ready_is_run_and_reported(app: Stepfast) -> None:
    @app.job()
    def plain(n: int) -> int:
        return n

    @app.job()
    async def waiting() -> None:
        await asyncio.sleep(0)

    plain.enqueue_many([{"n": n} for n in range(5)])
    waiting.enqueue()
    report = drain(app)

    assert (report.done, report.failed, report.dead, report.waiting) == (6, 0, 0, 0)
    assert report.of("plain").done == 5
    assert {name: it.done for name, it in report.kinds.items()} == {"plain": 5, "waiting": 1}
    assert sorted(it.answer for it in report.of("plain").runs) == [0, 1, 2, 3, 4]
    assert str(report) == "6 done"
    assert rows.count(app, "stepfast_job") == 0


def test_with_nothing_to_do_it_returns(app: Stepfast) -> None:
    report = drain(app)

    assert report.jobs == ()
    assert str(report) == "nothing to do"


def test_what_was_done_before_is_not_reported_again(app: Stepfast) -> None:
    @app.job()
    def work(n: int) -> None: ...

    work.enqueue(n=1)
    drain(app)
    with clock(app) as time:
        time.freeze()
        work.enqueue(n=2)
        drain(app)
        job = work.enqueue(n=3)

        assert [it.id for it in drain(app).jobs] == [job.id]


def test_what_a_job_enqueues_is_run_too(app: Stepfast) -> None:
    @app.job(queue="leaves")
    def leaf() -> None: ...

    @app.job()
    def branch(step: Step) -> None:
        leaf.enqueue()
        step.effect(lambda tx: leaf.enqueue(tx=tx))

    @app.job()
    def tree() -> None:
        branch.enqueue()
        branch.enqueue()

    tree.enqueue()
    report = drain(app)

    assert {name: it.done for name, it in report.kinds.items()} == {"tree": 1, "branch": 2, "leaf": 4}


def test_a_slow_job_is_waited_for(app: Stepfast) -> None:
    @app.job()
    def child() -> None: ...

    @app.job()
    def slow(step: Step) -> None:
        step.wait(0.1)
        child.enqueue()

    slow.enqueue()

    assert drain(app).done == 2


def test_steps_run_in_the_order_of_their_queue(app: Stepfast) -> None:
    seen: list[int] = []

    @app.job()
    def note(n: int) -> None:
        seen.append(n)

    for n, priority in enumerate([0, 5, 0, 9]):
        note.enqueue(n=n, priority=priority)
    drain(app)

    assert seen == [3, 1, 0, 2]


def test_every_page_of_a_job_is_a_run(app: Stepfast) -> None:
    @app.job()
    def pages(step: Step) -> Continue | Done:
        page = step.cursor or 0
        return Continue(page + 1) if page < 4 else Done(page)

    pages.enqueue()
    report = drain(app)

    assert (report.done, report.continued, len(report.runs)) == (1, 4, 5)
    assert [it.step for it in report.runs] == [0, 1, 2, 3, 4]


def test_other_queues_are_left_alone(app: Stepfast) -> None:
    @app.job()
    def work() -> None: ...

    work.enqueue(queue="mail")
    work.enqueue(queue="slow")
    report = drain(app, queues="mail")

    assert report.done == 1
    assert [it.queue for it in enqueued(app)] == ["slow"]


def test_a_paused_queue_is_left_alone(app: Stepfast) -> None:
    @app.job()
    def work() -> None: ...

    work.enqueue()
    app.operator.pause("default")

    assert drain(app).jobs == ()
    app.operator.resume("default")
    assert drain(app).done == 1


def test_what_is_for_later_is_left_alone(app: Stepfast) -> None:
    @app.job()
    def work() -> None: ...

    work.enqueue(delay="1h")

    assert drain(app).jobs == ()
    assert states(app) == ["scheduled"]


def test_jobs_that_wait_for_each_other_need_room(app: Stepfast) -> None:
    meeting = threading.Barrier(2)

    @app.job()
    def meet() -> None:
        meeting.wait(10)

    meet.enqueue_many([{}, {}])

    assert drain(app, concurrency=2).done == 2


def test_it_runs_the_step_with_everything_a_worker_gives_it(app: Stepfast) -> None:
    @app.job(queue="mail")
    def look(step: Step, n: int) -> Done:
        step.progress(50, "half")
        step.log("looked")
        return Done([step.kind, step.queue, step.number, step.attempt, n])

    job = look.enqueue(n=7)
    drain(app)

    detail = app.operator.job(job.id)
    assert detail.result == ["look", "mail", 0, 1, 7]
    assert [line.message for line in detail.logs] == ["looked"]
    assert (detail.job.progress, detail.job.progress_note) == (50, "half")


@pytest.mark.usefixtures("ledger")
def test_effects_are_committed_with_their_step(app: Stepfast) -> None:
    @app.job()
    def book(step: Step) -> Done:
        step.upsert("ledger", [{"id": "a", "amount": 1}], key="id")
        step.effect(lambda tx: tx.execute("INSERT INTO ledger VALUES ('b', 2)"))
        return Done(effects=[Upsert("ledger", ["id"], [{"id": "c", "amount": 3}])])

    book.enqueue()
    drain(app)

    found = rows.query(app, "SELECT id, amount FROM ledger ORDER BY id")
    assert [(it["id"], it["amount"]) for it in found] == [("a", 1), ("b", 2), ("c", 3)]


def test_a_job_whose_worker_died_is_run_again(app: Stepfast) -> None:
    @app.job()
    def work() -> None: ...

    job = work.enqueue()
    rows.add_worker(app, 4711, alive_for=-rows.SECOND)
    rows.change(
        app, "UPDATE stepfast_job SET state = 'leased', owner = 4711, fence = 9 WHERE id = :id", id=job.id
    )

    report = drain(app)

    assert report.done == 1
    assert report.job(job.id).crashes == 1


def test_a_lease_that_is_in_force_is_respected(app: Stepfast) -> None:
    @app.job()
    def work() -> None: ...

    work.enqueue()
    held = app.acquire("me", "1h")

    assert held is not None
    assert drain(app).jobs == ()
    assert states(app) == ["leased"]


# How failures are told


def test_a_failure_is_raised_with_its_own_exception_and_the_jobs_name(app: Stepfast) -> None:
    @app.job(retry=LATER)
    def charge(amount: int) -> None:
        raise Declined(f"{amount} is too much")

    job = charge.enqueue(amount=9)
    with pytest.raises(Declined, match="9 is too much") as caught:
        drain(app)

    assert any(job.id in note and "charge" in note for note in caught.value.__notes__)
    assert "charge" in [frame.name for frame in caught.traceback]
    assert caught.value.__context__ is None
    assert states(app) == ["scheduled"]


def test_a_failure_can_be_left_to_the_report(app: Stepfast) -> None:
    @app.job(retry=ONCE)
    async def charge() -> None:
        raise Declined("no")

    charge.enqueue()
    report = drain(app, raise_errors=False)

    assert (report.done, report.failed, report.dead) == (0, 1, 1)
    assert [type(it) for it in report.errors] == [Declined]
    assert report.jobs[0].error == "Declined: no"


def test_others_are_run_before_a_failure_is_raised(app: Stepfast) -> None:
    @app.job(retry=ONCE)
    def work(n: int) -> None:
        if n % 2:
            raise Declined(str(n))

    work.enqueue_many([{"n": n} for n in range(6)])
    with pytest.raises(Declined) as caught:
        drain(app)

    assert sorted(states(app)) == ["dead"] * 3 + ["done"] * 3
    assert any("2 other jobs failed" in note for note in caught.value.__notes__)


def test_a_job_that_recovered_is_no_failure(app: Stepfast) -> None:
    @app.job(retry=LATER)
    def work(step: Step) -> None:
        if step.attempt < 3:
            raise Declined("not yet")

    work.enqueue()
    report = drain(app, with_scheduled=True)

    assert (report.done, report.failed, len(report.runs)) == (1, 2, 3)


@pytest.mark.usefixtures("ledger")
@pytest.mark.parametrize("how", ["function", "object", "outcome"])
def test_what_an_effect_raises_is_raised(app: Stepfast, how: str) -> None:
    def refuse(tx: Transaction) -> None:
        tx.execute("INSERT INTO ledger VALUES ('a', 1)")
        raise Declined("the effect")

    class Refuse:
        def apply(self, tx: Transaction, /) -> None:
            refuse(tx)

    @app.job(retry=ONCE)
    def work(step: Step) -> Done:
        match how:
            case "function":
                step.effect(refuse)
            case "object":
                step.effect(Refuse())
            case _:
                return Done(effects=[refuse])
        return Done()

    work.enqueue()
    with pytest.raises(Declined, match="the effect"):
        drain(app)

    assert rows.count(app, "ledger") == 0
    assert states(app) == ["dead"]


@pytest.mark.usefixtures("ledger")
def test_a_constraint_that_refuses_a_row_is_raised(app: Stepfast) -> None:
    @app.job()
    def work(step: Step) -> None:
        step.upsert("ledger", [{"id": "a", "amount": None}], key="id")

    work.enqueue()
    with pytest.raises(StepfastError, match=r"(?i)null"):
        drain(app)

    assert states(app) == ["dead"]


def test_a_timeout_is_a_failure(app: Stepfast) -> None:
    @app.job(retry=ONCE, timeout="50ms")
    async def slow() -> None:
        await asyncio.sleep(60)

    slow.enqueue()
    with pytest.raises(StepfastError, match=r"slow.*did not finish within 0.05 s"):
        drain(app)


def test_an_answer_that_cannot_be_stored_is_a_failure(app: Stepfast) -> None:
    @app.job()
    def work() -> object:
        return object()

    work.enqueue()
    with pytest.raises(StepfastError, match="AnswerError"):
        drain(app)


def test_a_kind_that_nobody_knows_is_a_failure(app: Stepfast, database_url: str) -> None:
    newer = Stepfast(database_url)

    @newer.job()
    def tomorrow() -> None: ...

    tomorrow.enqueue()
    newer.close()
    with pytest.raises(StepfastError, match="no handler for kind 'tomorrow'"):
        drain(app, with_scheduled=True)


def test_arguments_that_do_not_fit_are_a_failure(app: Stepfast) -> None:
    @app.job()
    def work(n: int) -> None: ...

    job = work.enqueue(n=1)
    rows.change(app, "UPDATE stepfast_job SET payload = '{}' WHERE id = :id", id=job.id)
    with pytest.raises(StepfastError, match="missing required argument"):
        drain(app)


@pytest.mark.parametrize(
    "answer",
    [Reject("never"), Snooze("1h"), Continue(1, delay="1h"), Done(1)],
    ids=lambda it: type(it).__name__,
)
def test_an_answer_is_no_failure(app: Stepfast, answer: Done | Continue | Snooze | Reject) -> None:
    @app.job()
    def work() -> Done | Continue | Snooze | Reject:
        return answer

    work.enqueue()
    report = drain(app)

    assert report.failed == 0
    assert report.dead == isinstance(answer, Reject)
    assert report.waiting == isinstance(answer, Snooze | Continue)
    assert report.snoozed == isinstance(answer, Snooze)


@pytest.mark.parametrize(
    "error", [PermanentError("never"), TransientError("later")], ids=lambda it: type(it).__name__
)
def test_errors_that_cost_no_attempt_are_raised_too(app: Stepfast, error: Exception) -> None:
    @app.job()
    def work() -> None:
        raise error

    work.enqueue()
    with pytest.raises(type(error)):
        drain(app)


def test_a_cancelled_job_is_no_failure(app: Stepfast) -> None:
    @app.job()
    def work() -> None:
        raise StepCancelled("on purpose")

    work.enqueue()
    report = drain(app)

    assert report.cancelled == 1


# Time


def test_the_clock_is_moved_to_what_is_due_next(app: Stepfast) -> None:
    naps = ["1d"]

    @app.job(retry=LATER)
    def work(step: Step) -> Snooze | Continue | None:
        if naps:
            return Snooze(naps.pop())
        if step.number == 0:
            return Continue(1, delay="1d")
        if step.attempt == 1:
            raise Declined("try again in an hour")
        return None

    work.enqueue(delay="7d")
    began = time.monotonic()
    report = drain(app, with_scheduled=True)

    assert time.monotonic() - began < 20
    assert (report.done, report.snoozed, report.failed, report.continued) == (1, 1, 1, 1)


def test_the_clock_is_back_afterwards_unless_the_test_has_moved_it(app: Stepfast) -> None:
    @app.job()
    def work() -> None: ...

    before = rows.now(app)
    work.enqueue(delay="1h")
    drain(app, with_scheduled=True)
    assert rows.now(app) - before < rows.HOUR

    with clock(app) as time:
        work.enqueue(delay="1h")
        drain(app, with_scheduled=True)
        assert rows.now(app) - before >= rows.HOUR
        assert time.now().timestamp() * 1_000_000 - before >= rows.HOUR
    assert rows.now(app) - before < rows.HOUR


def test_a_job_that_snoozes_for_ever_is_told(app: Stepfast, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draining, "MOST_JUMPS", 5)

    @app.job()
    def never() -> Snooze:
        return Snooze("1h")

    never.enqueue()
    with pytest.raises(TimeoutError, match="snooze for ever"):
        drain(app, with_scheduled=True)


def test_a_job_that_does_not_end_is_told(app: Stepfast) -> None:
    @app.job()
    def stuck(step: Step) -> None:
        step.wait(60)

    job = stuck.enqueue()
    with pytest.raises(TimeoutError, match=job.id):
        drain(app, timeout="200ms")

    assert states(app) == ["ready"]  # given back unharmed


# Limits


def test_no_more_steps_are_run_than_wanted(app: Stepfast) -> None:
    seen: list[int | None] = []

    @app.job()
    def pages(step: Step) -> Continue | None:
        seen.append(step.cursor)
        return Continue((step.cursor or 0) + 1) if len(seen) < 5 else None

    job = pages.enqueue()
    for expected in ([None], [None, 1, 2]):
        report = drain(app, limit=1 if len(expected) == 1 else 2)
        assert seen == expected
        assert report.waiting == 1
        found = rows.live(app, job.id)
        assert found is not None
        assert (found["state"], found["failures"], found["crashes"]) == ("ready", 0, 0)

    assert drain(app).done == 1
    assert seen == [None, 1, 2, 3, 4]


def test_of_many_jobs_only_as_many_begin_as_wanted(app: Stepfast) -> None:
    seen: list[int] = []

    @app.job()
    async def work(n: int) -> None:
        seen.append(n)

    work.enqueue_many([{"n": n} for n in range(20)])
    report = drain(app, limit=7, concurrency=3)

    assert len(seen) == report.done == 7
    assert states(app).count("ready") == 13
    assert drain(app).done == 13


def test_a_limit_of_nothing_is_refused(app: Stepfast) -> None:
    with pytest.raises(ConfigurationError, match="at least one"):
        drain(app, limit=0)


# In an event loop


def test_in_an_async_test_it_is_awaited_and_handlers_run_on_its_loop(app: Stepfast) -> None:
    loops: list[object] = []

    @app.job()
    async def work() -> None:
        loops.append(asyncio.get_running_loop())

    async def test() -> Report:
        work.enqueue()
        loops.append(asyncio.get_running_loop())
        return await drain(app)

    report = asyncio.run(test())

    assert report.done == 1
    assert loops[0] is loops[1]


def test_in_an_async_test_a_failure_is_raised_at_the_await(app: Stepfast) -> None:
    @app.job(retry=ONCE)
    async def work() -> None:
        raise Declined("no")

    async def test() -> None:
        work.enqueue()
        with pytest.raises(Declined):
            await drain(app)

    asyncio.run(test())


def test_whoever_forgets_to_await_is_told(app: Stepfast) -> None:
    async def test() -> None:
        pending = drain(app)
        with pytest.raises(StepfastError, match="await drain"):
            assert pending.done
        await pending

    asyncio.run(test())


@pytest.mark.only_on("sqlite")
def test_whoever_was_told_is_not_warned_as_well(app: Stepfast) -> None:
    async def touch() -> None:
        pending = drain(app)
        with pytest.raises(StepfastError, match="await drain"):
            assert pending.done

    def forget() -> None:
        async def alone() -> None:
            drain(app)

        asyncio.run(alone())
        gc.collect()

    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        asyncio.run(touch())
        gc.collect()
    assert [str(it.message) for it in heard if "never awaited" in str(it.message)] == []
    with pytest.warns(RuntimeWarning, match="never awaited"):
        forget()


def test_outside_an_event_loop_it_may_be_awaited_all_the_same(app: Stepfast) -> None:
    @app.job()
    def work() -> None: ...

    work.enqueue()
    report = drain(app)

    async def await_it() -> Report:
        return await report

    assert asyncio.run(await_it()) is report


# The same way as in production


def test_nothing_is_left_behind(app: Stepfast) -> None:
    @app.job()
    def work() -> None: ...

    before = set(threading.enumerate())
    work.enqueue()
    drain(app)

    assert set(threading.enumerate()) <= before
    assert rows.count(app, "stepfast_worker", "state <> 'stopped'") == 0


def test_a_kind_that_is_registered_meanwhile_is_known(app: Stepfast) -> None:
    """A module may be imported by a handler."""

    @app.job()
    def first() -> None:
        @app.job()
        def second() -> None: ...

        second.enqueue()

    first.enqueue()

    assert {name: it.done for name, it in drain(app).kinds.items()} == {"first": 1, "second": 1}


def test_the_application_keeps_its_own_handlers(app: Stepfast) -> None:
    @app.job()
    def work() -> None: ...

    handler = app.kinds.get("work").handler
    work.enqueue()
    drain(app)

    assert app.kinds.get("work").handler is handler


def test_context_variables_do_not_leak_between_jobs(app: Stepfast) -> None:
    variable = contextvars.ContextVar("variable", default=0)

    @app.job()
    async def work() -> int:
        before = variable.get()
        variable.set(before + 1)
        return before

    work.enqueue_many([{}, {}, {}])

    assert [it.answer for it in drain(app).runs] == [0, 0, 0]


@pytest.mark.only_on("sqlite")
def test_a_drain_is_short(app: Stepfast) -> None:
    @app.job()
    def work() -> None: ...

    def took() -> float:
        work.enqueue_many([{}, {}, {}])
        began = time.perf_counter()
        assert drain(app).done == 3
        return time.perf_counter() - began

    assert min(took() for _ in range(10)) < 0.1
