"""A worker in this process runs handlers, cancels them when it must, and stops in good order."""

from __future__ import annotations

import asyncio
import contextvars
import json
import logging
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from stepfast import Continue, Done, Retry, Step, StepCancelled
from stepfast.admin import jobs as actions
from stepfast.admin import workers as worker_actions
from stepfast.database.connection import Connection, Transaction
from stepfast.errors import ContentionError, LeaseLostError, StepfastError, UnreachableError
from stepfast.process_identity import this_process
from tests.support import rows
from tests.support.engine import claim, drain, rescue_all

if TYPE_CHECKING:
    from stepfast import Stepfast

PATIENCE = 15.0
ONCE = Retry(attempts=1)


def cancel(app: Stepfast, job_id: str) -> None:
    with app.transaction() as tx:
        actions.cancel(tx, job_id)


def pause(app: Stepfast, queue: str = "default") -> None:
    with app.transaction() as tx:
        worker_actions.pause_queue(tx, queue)


def resume(app: Stepfast, queue: str = "default") -> None:
    with app.transaction() as tx:
        worker_actions.resume_queue(tx, queue)


def result_of(app: Stepfast, job_id: str) -> Any:
    row = rows.ended(app, job_id)
    assert row is not None
    assert row["state"] == "done", row["last_error"]
    return json.loads(row["result"]) if row["result"] is not None else None


# Handlers


def test_plain_and_async_handlers_give_results(app: Stepfast) -> None:
    @app.job()
    def plain(n: int) -> int:
        return n + 1

    @app.job()
    async def waiting(step: Step, n: int) -> Done:
        await asyncio.sleep(0)
        return Done({"job": step.job_id, "n": n})

    @app.job()
    async def silent() -> None: ...

    jobs = [plain.enqueue(n=1), waiting.enqueue(n=2), silent.enqueue()]
    drain(app)

    assert [result_of(app, job.id) for job in jobs] == [2, {"job": jobs[1].id, "n": 2}, None]


def test_a_handler_knows_where_it_stands(app: Stepfast) -> None:
    @app.job(queue="mail")
    def look(step: Step) -> list[Any] | Continue:
        if step.cursor is None:
            return Continue({"page": 2})
        return [step.kind, step.queue, step.number, step.attempt, step.cursor, step.idempotency_key]

    job = look.enqueue()
    drain(app)

    assert result_of(app, job.id) == ["look", "mail", 1, 1, {"page": 2}, f"{job.id}:1"]


def test_one_worker_runs_a_hundred_jobs_in_their_order(app: Stepfast) -> None:
    order: list[int] = []

    @app.job()
    def work(n: int) -> None:
        order.append(n)

    for n in range(50):
        work.enqueue(n=n)
    work.enqueue_many([{"n": n} for n in range(50, 100)])
    drain(app, concurrency=1)

    assert order == list(range(100))


def test_three_run_at_once_and_no_more(app: Stepfast) -> None:
    together = threading.Barrier(4)
    most: list[int] = []
    active: set[int] = set()

    @app.job()
    def work(n: int) -> None:
        active.add(n)
        most.append(len(active))
        if n < 3:
            together.wait(PATIENCE)
        active.discard(n)

    work.enqueue_many([{"n": n} for n in range(5)])
    with app.worker(concurrency=3) as worker:
        rows.eventually(lambda: worker.status().active_jobs == 3)
        assert worker.status().active_jobs == 3
        together.wait(PATIENCE)
        rows.eventually(lambda: rows.count(app, "stepfast_job") == 0)

    assert max(most) == 3


def test_a_star_means_all_queues(app: Stepfast) -> None:
    job = app.job(name="send", queue="mail")(lambda: "sent").enqueue()

    with app.worker(queues="*") as worker:
        rows.eventually(lambda: rows.state(app, job.id) == "done")
        shown = worker.status().queues

    assert list(shown) == ["*"]


def test_two_workers_run_every_job_once(app: Stepfast, another_app: Callable[[], Stepfast]) -> None:
    ran: list[int] = []
    apps = [app, another_app()]

    for one in apps:

        @one.job(name="work")
        def work(n: int) -> None:
            ran.append(n)

    apps[0].worker()
    with apps[0].worker(), apps[1].worker():
        apps[0].kinds.get("work")
        work.enqueue_many([{"n": n} for n in range(300)])
        rows.eventually(lambda: rows.count(app, "stepfast_job") == 0)

    assert sorted(ran) == list(range(300))
    assert rows.count(app, "stepfast_archive", "state = 'done' AND failures = 0 AND crashes = 0") == 300


def test_a_worker_runs_on_the_loop_it_is_entered_on(app: Stepfast) -> None:
    @app.job()
    async def work() -> bool:
        return asyncio.get_running_loop() is home[0]

    home: list[asyncio.AbstractEventLoop] = []
    job = work.enqueue()

    async def live() -> None:
        home.append(asyncio.get_running_loop())
        async with app.worker():
            await asyncio.to_thread(rows.eventually, lambda: rows.state(app, job.id) == "done")

    asyncio.run(live())

    assert result_of(app, job.id) is True


def test_context_variables_do_not_leak_between_jobs(app: Stepfast) -> None:
    tenant: contextvars.ContextVar[str] = contextvars.ContextVar("tenant", default="nobody")

    @app.job()
    def plain(name: str) -> str:
        before = tenant.get()
        tenant.set(name)
        return before

    @app.job()
    async def waiting(name: str) -> str:
        before = tenant.get()
        tenant.set(name)
        await asyncio.sleep(0)
        return before

    jobs = [job.enqueue(name=name) for name in ("a", "b", "c") for job in (plain, waiting)]
    drain(app, concurrency=1)

    assert {result_of(app, job.id) for job in jobs} == {"nobody"}


def test_a_worker_takes_only_from_its_queues(app: Stepfast) -> None:
    @app.job()
    def work() -> None: ...

    theirs = work.enqueue(queue="b")
    mine = work.enqueue(queue="a")
    with app.worker(queues=["a"]):
        rows.eventually(lambda: rows.state(app, mine.id) == "done")

    assert rows.state(app, theirs.id) == "ready"


def test_a_busy_queue_does_not_starve_another(app: Stepfast) -> None:
    relieved = threading.Event()

    @app.job(queue="busy")
    async def again() -> None:
        if not relieved.is_set():
            again.enqueue()

    @app.job(queue="calm")
    def once() -> None:
        relieved.set()

    again.enqueue()
    with app.worker(concurrency=2):
        rows.eventually(lambda: rows.count(app, "stepfast_archive") > 5)
        rows.change(
            app, "INSERT INTO stepfast_job (id, kind, queue, payload) VALUES ('calm', 'once', 'calm', '{}')"
        )
        came = relieved.wait(PATIENCE)
        relieved.set()

    assert came


# What does not fit


def test_an_unknown_kind_is_put_back_uncharged_and_the_worker_goes_on(app: Stepfast) -> None:
    @app.job()
    def known() -> None: ...

    rows.change(app, "INSERT INTO stepfast_job (id, kind, payload) VALUES ('x', 'unheard_of', '{}')")
    with app.worker():
        row = rows.eventually(lambda: _live_with_error(app, "x"))
        job = known.enqueue()
        rows.eventually(lambda: rows.state(app, job.id) == "done")

    assert (row["state"], row["failures"], row["crashes"], row["owner"]) == ("scheduled", 0, 0, None)
    assert "no handler for kind 'unheard_of'" in row["last_error"]
    assert "known" in row["last_error"]
    assert "deploy" in row["last_error"]


@pytest.mark.parametrize("payload", ['{"n": "seven"}', '{"m": 7}', "{}", "[7]", "null"])
def test_a_payload_that_does_not_fit_is_a_dead_letter_and_the_worker_goes_on(
    app: Stepfast, payload: str
) -> None:
    @app.job()
    def work(n: int) -> None: ...

    rows.change(
        app, "INSERT INTO stepfast_job (id, kind, payload) VALUES ('x', 'work', :payload)", payload=payload
    )
    with app.worker():
        rows.eventually(lambda: rows.state(app, "x") == "dead")
        job = work.enqueue(n=1)
        rows.eventually(lambda: rows.state(app, job.id) == "done")

    row = rows.ended(app, "x")
    assert row is not None
    assert row["last_error"].startswith("ArgumentsError: work: wrong arguments")


@pytest.mark.parametrize("is_async", [False, True], ids=["plain", "async"])
def test_a_handler_that_wants_to_end_the_process_only_fails(
    app: Stepfast,
    is_async: bool,  # noqa: FBT001 - a parameter
) -> None:
    if is_async:

        @app.job(name="leave", retry=ONCE)
        async def leave() -> None:
            raise SystemExit(3)
    else:

        @app.job(name="leave", retry=ONCE)
        def leave_plainly() -> None:
            raise SystemExit(3)

    @app.job()
    async def work() -> None: ...

    rows.change(app, "INSERT INTO stepfast_job (id, kind, payload) VALUES ('x', 'leave', '{}')")
    with app.worker():
        rows.eventually(lambda: rows.state(app, "x") == "dead")
        job = work.enqueue()
        rows.eventually(lambda: rows.state(app, job.id) == "done")


# While it runs


def test_progress_and_log_are_visible_while_the_step_runs(app: Stepfast) -> None:
    go_on = threading.Event()

    @app.job()
    def work(step: Step) -> None:
        step.progress(33.3, "step 1 complete")
        step.log("read 17 rows")
        assert go_on.wait(PATIENCE)
        step.progress(100, "all steps complete")

    job = work.enqueue()
    with app.worker(worker_id="w-1"):
        row = rows.eventually(lambda: _live_with_progress(app, job.id))
        lines = rows.eventually(lambda: rows.logs(app, job.id))
        (seen,) = rows.query(app, "SELECT * FROM processing_jobs WHERE id = :id", id=job.id)
        go_on.set()
        rows.eventually(lambda: rows.state(app, job.id) == "done")

    assert (row["progress"], row["progress_note"], lines) == (33, "step 1 complete", ["read 17 rows"])
    assert (seen["status"], seen["progress"], seen["locked_by"], seen["attempts"]) == (
        "processing",
        33,
        "w-1",
        1,
    )
    ended = rows.ended(app, job.id)
    assert ended is not None
    assert (ended["progress"], ended["progress_note"]) == (100, "all steps complete")


def test_the_last_words_of_a_step_are_kept(app: Stepfast) -> None:
    @app.job(retry=ONCE)
    def work(step: Step, how: str) -> None:
        step.log(f"about to {how}")
        if how == "raise":
            raise ValueError
        if how == "fail in an effect":
            step.effect(lambda tx: tx.execute("INSERT INTO no_such_table VALUES (1)"))

    hows = ["return", "raise", "fail in an effect"]
    jobs = [work.enqueue(how=how) for how in hows]
    drain(app)

    assert [rows.logs(app, job.id)[:1] for job in jobs] == [[f"about to {how}"] for how in hows]


def test_the_log_of_a_failure_holds_its_traceback(app: Stepfast) -> None:
    @app.job(retry=ONCE)
    def work() -> None:
        raise ValueError("broken in a certain line; password=hunter2")

    job = work.enqueue()
    drain(app)

    (line,) = rows.logs(app, job.id)
    assert line.startswith("ValueError: broken in a certain line")
    assert "test_worker.py" in line
    assert "hunter2" not in line


def test_a_log_line_of_any_length_and_script_is_stored(app: Stepfast) -> None:
    @app.job()
    def work(step: Step) -> None:
        step.log("🙂" * 9000, level="a very long level")
        step.progress(1, "🙂" * 600)

    job = work.enqueue()
    drain(app)

    assert result_of(app, job.id) is None
    (line,) = rows.logs(app, job.id)
    assert set(line) == {"🙂"}


def test_characters_that_no_database_takes_fail_no_job(app: Stepfast) -> None:
    strange = "NUL \0 and half a character \udc80"

    @app.job(retry=ONCE)
    def work(step: Step, how: str) -> None:
        step.log(strange)
        step.progress(5, strange)
        if how == "raise":
            raise ValueError(strange)

    good, bad = work.enqueue(how="return"), work.enqueue(how="raise")
    drain(app)

    spelled = r"NUL \0 and half a character \udc80"
    row = rows.ended(app, bad.id)
    assert row is not None
    assert result_of(app, good.id) is None
    assert row["last_error"] == f"ValueError: {spelled}"
    assert (row["progress"], row["progress_note"]) == (5, spelled)
    assert rows.logs(app, good.id) == [spelled]
    assert rows.logs(app, bad.id)[0] == spelled


# Being stopped


def test_an_async_handler_that_takes_too_long_is_interrupted(app: Stepfast) -> None:
    unwound: list[str] = []

    @app.job(timeout="50ms", retry=ONCE)
    async def work() -> None:
        try:
            await asyncio.sleep(PATIENCE)
        finally:
            unwound.append("cleaned up")

    job = work.enqueue()
    drain(app)

    row = rows.ended(app, job.id)
    assert row is not None
    assert unwound == ["cleaned up"]
    assert (row["state"], row["failures"]) == ("dead", 1)
    assert row["last_error"] == "StepTimeout: did not finish within 0.05 s"


def test_a_plain_handler_that_takes_too_long_is_told(app: Stepfast) -> None:
    told: list[str] = []

    @app.job(timeout="50ms", retry=ONCE)
    def work(step: Step) -> None:
        try:
            step.wait(PATIENCE)
        except StepCancelled as error:
            told.append(str(error))
            raise

    job = work.enqueue()
    drain(app)

    row = rows.ended(app, job.id)
    assert row is not None
    assert told == [f"job {job.id}: timed out"]
    assert row["last_error"] == "StepTimeout: did not finish within 0.05 s"


def test_a_timeout_is_a_failure_like_others(app: Stepfast) -> None:
    tries: list[int] = []

    @app.job(timeout="50ms", retry=Retry(attempts=2, first=0))
    async def work(step: Step) -> str:
        tries.append(step.attempt)
        if step.attempt == 1:
            await asyncio.sleep(PATIENCE)
        return "second try"

    job = work.enqueue()
    drain(app)

    assert (tries, result_of(app, job.id)) == ([1, 2], "second try")


def finish_late(step: Step) -> str:
    while step.halted is None:
        time.sleep(0.005)
    step.effect(lambda tx: tx.execute("INSERT INTO ledger (id, amount) VALUES ('late', 1)"))
    return "late, but whole"


async def finish_cancelled(step: Step) -> str:
    try:
        await asyncio.sleep(rows.PATIENCE)
    except asyncio.CancelledError:
        step.effect(lambda tx: tx.execute("INSERT INTO ledger (id, amount) VALUES ('late', 1)"))
        return "late, but whole"
    raise AssertionError("nobody asked it to stop")


@pytest.mark.usefixtures("ledger")
@pytest.mark.parametrize("handler", [finish_late, finish_cancelled])
def test_what_a_handler_answers_soon_after_its_timeout_counts(
    app: Stepfast, monkeypatch: pytest.MonkeyPatch, handler: Callable[[Step], Any]
) -> None:
    """A timeout asks the step to stop. Work that is whole all the same is kept: doing it again would not be better."""
    monkeypatch.setattr("stepfast.worker.leases.UNWIND", rows.PATIENCE)
    job = app.job(timeout="50ms", retry=ONCE)(handler).enqueue()

    drain(app)

    row = rows.ended(app, job.id)
    assert row is not None
    assert (row["state"], row["failures"], row["last_error"]) == ("done", 0, None)
    assert result_of(app, job.id) == "late, but whole"
    assert rows.count(app, "ledger") == 1


def test_an_error_of_its_own_soon_after_the_timeout_is_the_error_of_the_step(
    app: Stepfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stepfast.worker.leases.UNWIND", rows.PATIENCE)

    @app.job(timeout="50ms", retry=ONCE)
    def work(step: Step) -> None:
        while step.halted is None:
            time.sleep(0.005)
        raise ValueError("the file is half written")

    job = work.enqueue()
    drain(app)

    row = rows.ended(app, job.id)
    assert row is not None
    assert (row["state"], row["last_error"]) == ("dead", "ValueError: the file is half written")


def test_a_handler_that_ignores_its_timeout_fails_and_its_slot_is_lost(
    app: Stepfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stepfast.worker.leases.UNWIND", 0.05)
    go_on = threading.Event()
    late: list[str] = []

    @app.job(timeout="50ms", retry=ONCE)
    def deaf() -> None:
        go_on.wait(PATIENCE)
        late.append("returned")

    job = deaf.enqueue()
    with app.worker(concurrency=2, lease="1s") as worker:
        rows.eventually(lambda: rows.state(app, job.id) == "dead")
        lost = worker.status().lost_slots
        go_on.set()
        rows.eventually(lambda: worker.status().lost_slots == 0)

    assert lost == 1
    assert late == ["returned"]
    assert rows.state(app, job.id) == "dead"


def test_cancelling_interrupts_an_async_handler(app: Stepfast) -> None:
    started = threading.Event()
    ends: list[str] = []

    @app.job()
    async def work() -> None:
        started.set()
        try:
            await asyncio.sleep(PATIENCE)
        except asyncio.CancelledError:
            ends.append("cancelled")
            raise

    job = work.enqueue()
    with app.worker():
        assert started.wait(PATIENCE)
        cancel(app, job.id)
        rows.eventually(lambda: rows.state(app, job.id) == "cancelled", 5)

    assert ends == ["cancelled"]


def test_cancelling_reaches_a_plain_handler(app: Stepfast) -> None:
    started = threading.Event()
    ends: list[Any] = []

    @app.job()
    def work(step: Step) -> None:
        started.set()
        try:
            while True:
                step.wait(0.01)
        except StepCancelled as error:
            ends.append((str(error), step.halted))
            raise

    job = work.enqueue()
    with app.worker():
        assert started.wait(PATIENCE)
        cancel(app, job.id)
        rows.eventually(lambda: rows.state(app, job.id) == "cancelled", 5)

    row = rows.ended(app, job.id)
    assert row is not None
    assert ends == [(f"job {job.id}: cancelled", "cancelled")]
    assert row["failures"] == 0


def test_a_cancelled_step_leaves_no_effects(app: Stepfast, ledger: None) -> None:
    del ledger
    started = threading.Event()

    @app.job()
    def work(step: Step) -> None:
        step.upsert("ledger", [{"id": "a", "amount": 1}], key="id")
        started.set()
        step.wait(PATIENCE)

    job = work.enqueue()
    with app.worker():
        assert started.wait(PATIENCE)
        cancel(app, job.id)
        rows.eventually(lambda: rows.state(app, job.id) == "cancelled", 5)

    assert rows.count(app, "ledger") == 0


def test_being_replaced_reaches_an_async_handler(app: Stepfast) -> None:
    started, ended = threading.Event(), threading.Event()

    @app.job()
    async def work() -> None:
        started.set()
        try:
            await asyncio.sleep(PATIENCE)
        finally:
            ended.set()

    job = work.enqueue()
    with app.worker(lease="1s"):
        assert started.wait(PATIENCE)
        rows.change(app, "UPDATE stepfast_job SET fence = 7")
        assert ended.wait(5)

    row = rows.live(app, job.id)
    assert row is not None
    assert (row["state"], row["fence"], row["failures"]) == ("leased", 7, 0)


def test_being_replaced_reaches_a_plain_handler_at_its_next_word(app: Stepfast) -> None:
    started, told = threading.Event(), threading.Event()

    @app.job()
    def work(step: Step) -> None:
        started.set()
        try:
            while True:
                step.progress(50)
                step.wait(0.05)
        except LeaseLostError:
            told.set()
            raise

    work.enqueue()
    with app.worker():
        assert started.wait(PATIENCE)
        rows.change(app, "UPDATE stepfast_job SET fence = 7, progress = 3")
        assert told.wait(5)

    assert rows.query(app, "SELECT fence, progress FROM stepfast_job") == [{"fence": 7, "progress": 3}]


def test_a_worker_that_was_declared_dead_tells_its_handlers_and_comes_back(app: Stepfast) -> None:
    started, told = threading.Event(), threading.Event()

    @app.job()
    async def work() -> None:
        if started.is_set():
            return
        started.set()
        try:
            await asyncio.sleep(PATIENCE)
        finally:
            told.set()

    job = work.enqueue()
    with app.worker(lease="1s"):
        assert started.wait(PATIENCE)
        rows.change(app, "UPDATE stepfast_worker SET state = 'dead', ended_at = 1")
        assert told.wait(5)
        rows.eventually(lambda: rows.state(app, job.id) == "done")

    found = rows.query(app, "SELECT state FROM stepfast_worker ORDER BY state")
    assert [row["state"] for row in found] == ["dead", "stopped"]


# Leaving


@pytest.mark.parametrize("is_async", [False, True], ids=["plain", "async"])
def test_a_worker_that_stops_gives_back_what_it_cannot_finish(app: Stepfast, is_async: bool) -> None:  # noqa: FBT001 - a parameter
    started = threading.Event()

    if is_async:

        @app.job(name="work")
        async def work() -> None:
            started.set()
            await asyncio.sleep(PATIENCE)
    else:

        @app.job(name="work")
        def work_plainly(step: Step) -> None:
            started.set()
            step.wait(PATIENCE)

    rows.change(app, "INSERT INTO stepfast_job (id, kind, payload) VALUES ('x', 'work', '{}')")
    with app.worker(grace="50ms"):
        assert started.wait(PATIENCE)

    row = rows.live(app, "x")
    assert row is not None
    assert (row["state"], row["failures"], row["crashes"], row["owner"]) == ("ready", 0, 0, None)
    (seen,) = rows.query(app, "SELECT * FROM processing_jobs WHERE id = 'x'")
    assert (seen["status"], seen["attempts"], seen["locked_by"], seen["locked_until"]) == (
        "queued",
        0,
        None,
        None,
    )
    assert rows.query(app, "SELECT state FROM stepfast_worker") == [{"state": "stopped"}]


def test_a_worker_that_stops_lets_its_steps_finish(app: Stepfast, caplog: pytest.LogCaptureFixture) -> None:
    started, go_on = threading.Event(), threading.Event()

    @app.job()
    def work() -> str:
        started.set()
        assert go_on.wait(PATIENCE)
        return "finished"

    job, waiting = work.enqueue(), work.enqueue()
    with caplog.at_level(logging.INFO, "stepfast"):
        worker = app.worker(concurrency=1)
        worker.start()
        assert started.wait(PATIENCE)
        leaving = threading.Thread(target=worker.stop)
        leaving.start()
        rows.eventually(lambda: "worker.stopping" in caplog.text)
        go_on.set()
        leaving.join()

    assert result_of(app, job.id) == "finished"
    assert rows.state(app, waiting.id) == "ready"


def test_leaving_the_block_after_a_polite_ask_keeps_the_grace(app: Stepfast) -> None:
    started, go_on = threading.Event(), threading.Event()

    @app.job()
    def work() -> str:
        started.set()
        assert go_on.wait(PATIENCE)
        return "finished"

    job = work.enqueue()
    with app.worker(grace="1h") as worker:
        assert started.wait(PATIENCE)
        worker.ask_to_stop()
        threading.Timer(0.05, go_on.set).start()

    assert result_of(app, job.id) == "finished"


def test_a_worker_is_started_once(app: Stepfast) -> None:
    worker = app.worker()
    worker.start()

    with pytest.raises(StepfastError, match="was started before; make a new one"):
        worker.start()

    assert worker.status().running
    assert worker.stop(timeout=PATIENCE)


def test_a_second_ask_gives_back_at_once(app: Stepfast) -> None:
    started, go_on = threading.Event(), threading.Event()

    @app.job()
    def work(step: Step) -> None:
        started.set()
        step.wait(PATIENCE)

    job = work.enqueue()
    worker = app.worker(grace="1h")
    worker.start()
    assert started.wait(PATIENCE)
    worker.ask_to_stop()
    assert worker.stop(at_once=True, timeout=PATIENCE)
    go_on.set()

    assert rows.state(app, job.id) == "ready"


def test_a_stopping_worker_keeps_no_chain(app: Stepfast) -> None:
    started = threading.Event()

    @app.job()
    def walk(step: Step) -> Continue:
        started.set()
        return Continue(step.number + 1)

    job = walk.enqueue()
    with app.worker():
        assert started.wait(PATIENCE)

    assert rows.state(app, job.id) == "ready"


def test_a_worker_says_what_it_is_and_does(app: Stepfast) -> None:
    go_on = threading.Event()

    @app.job()
    def work() -> None:
        assert go_on.wait(PATIENCE)

    jobs = sorted(job.id for job in work.enqueue_many([{}, {}]))
    worker = app.worker(concurrency=3, lease="30s", worker_id="w-1", queues="default, mail")
    before = worker.status()
    with worker:
        during = rows.eventually(lambda: _busy(worker, 2))
        go_on.set()
    after = worker.status()

    assert (before.running, during.running, after.running) == (False, True, False)
    assert (during.worker_id, during.concurrency, during.lease_seconds) == ("w-1", 3, 30.0)
    assert (during.active_jobs, during.active_job_ids, during.queues) == (2, jobs, ["default", "mail"])
    assert (after.active_jobs, after.active_job_ids) == (0, [])


def test_the_workers_row_shows_what_it_is_and_does(app: Stepfast) -> None:
    go_on = threading.Event()

    @app.job()
    def work() -> None:
        assert go_on.wait(PATIENCE)

    job = work.enqueue()
    with app.worker(concurrency=3, lease="1s", renew_at=10, worker_id="w-1"):
        (row,) = rows.eventually(lambda: rows.query(app, "SELECT * FROM stepfast_worker WHERE active = 1"))
        go_on.set()

    assert (row["worker_id"], row["state"], row["concurrency"], row["active_ids"]) == (
        "w-1",
        "alive",
        3,
        job.id,
    )
    assert (row["pid"], row["process"], row["lease"]) == (os.getpid(), this_process(), rows.SECOND)


def test_a_long_job_runs_once_and_its_lease_moves(app: Stepfast) -> None:
    go_on = threading.Event()
    tries: list[int] = []

    @app.job()
    def work(step: Step) -> None:
        tries.append(step.attempt)
        assert go_on.wait(PATIENCE)

    job = work.enqueue()
    with app.worker(lease="1s", renew_at=25):
        (first,) = rows.eventually(lambda: rows.query(app, "SELECT alive_until AS at FROM stepfast_worker"))
        rows.eventually(
            lambda: rows.query(
                app, f"SELECT 1 AS x FROM stepfast_worker WHERE alive_until > {first['at']} + 600000"
            )
        )
        go_on.set()
        rows.eventually(lambda: rows.state(app, job.id) == "done")

    assert tries == [1]


def test_a_worker_cannot_be_started_twice(app: Stepfast) -> None:
    with app.worker() as worker, pytest.raises(StepfastError, match="make a new one"):
        worker.start()


def test_two_workers_have_different_ids(app: Stepfast) -> None:
    assert app.worker().settings.worker_id != app.worker().settings.worker_id


# Queues and chains


def test_a_paused_queue_is_not_worked_and_a_resumed_one_is(app: Stepfast) -> None:
    @app.job()
    def work() -> None: ...

    pause(app)
    waiting, other = work.enqueue(), work.enqueue(queue="other")
    with app.worker():
        rows.eventually(lambda: rows.state(app, other.id) == "done")
        assert rows.state(app, waiting.id) == "ready"
        resume(app)
        rows.eventually(lambda: rows.state(app, waiting.id) == "done")


def test_a_chain_of_continuations_stays_for_some_steps_and_then_gives_way(
    app: Stepfast, caplog: pytest.LogCaptureFixture
) -> None:
    numbers: list[int] = []

    @app.job()
    async def walk(step: Step) -> Continue | None:
        numbers.append(step.number)
        return Continue(step.number + 1) if step.number < 44 else None

    with caplog.at_level(logging.DEBUG, "stepfast"):
        walk.enqueue()
        drain(app)

    claims = [it for it in caplog.records if it.message.startswith("jobs.claimed queue=default jobs=1 ")]
    assert numbers == list(range(45))
    assert 3 <= len(claims) < 20


def test_a_chain_with_effects_writes_each_page_once(app: Stepfast, ledger: None) -> None:
    del ledger

    @app.job()
    def walk(step: Step) -> Continue | None:
        step.effect(
            lambda tx: tx.execute(
                "INSERT INTO ledger (id, amount) VALUES (:id, 1)", {"id": f"page {step.number}"}
            )
        )
        return Continue({"page": step.number + 1}) if step.number < 24 else None

    job = walk.enqueue()
    drain(app)

    assert rows.state(app, job.id) == "done"
    assert rows.count(app, "ledger") == 25


def test_pausing_the_queue_stops_a_chain(app: Stepfast) -> None:
    started, enough = threading.Event(), threading.Event()

    @app.job()
    async def walk(step: Step) -> Continue | None:
        started.set()
        return None if enough.is_set() else Continue(step.number + 1)

    job = walk.enqueue()
    with app.worker():
        assert started.wait(PATIENCE)
        pause(app)
        rows.eventually(lambda: rows.state(app, job.id) == "ready", 5)
        enough.set()
        resume(app)
        rows.eventually(lambda: rows.state(app, job.id) == "done")


def test_cancelling_stops_a_chain(app: Stepfast) -> None:
    started = threading.Event()

    @app.job()
    async def walk(step: Step) -> Continue:
        started.set()
        return Continue(step.number + 1)

    job = walk.enqueue()
    with app.worker():
        assert started.wait(PATIENCE)
        cancel(app, job.id)
        rows.eventually(lambda: rows.state(app, job.id) == "cancelled", 5)


def test_more_urgent_work_interrupts_a_chain(app: Stepfast) -> None:
    started, came = threading.Event(), threading.Event()

    @app.job()
    async def walk(step: Step) -> Continue | None:
        started.set()
        return None if came.is_set() else Continue(step.number + 1)

    @app.job(priority=5)
    async def urgent() -> None:
        came.set()

    walk.enqueue()
    with app.worker(concurrency=1):
        assert started.wait(PATIENCE)
        urgent.enqueue()
        assert came.wait(5)
        rows.eventually(lambda: rows.count(app, "stepfast_job") == 0)


# Commits that meet trouble


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("how", ["done with an effect", "done", "continue", "retry"])
def test_a_broken_commit_is_resolved_by_the_fences(
    app: Stepfast, ledger: None, monkeypatch: pytest.MonkeyPatch, when: str, how: str
) -> None:
    """Whether the server heard the COMMIT or not: every step ran once, every effect is there once."""
    del ledger
    rows.change(app, "INSERT INTO ledger (id, amount) VALUES ('effects', 0)")
    runs: list[tuple[int, int]] = []
    broken: list[str] = []

    @app.job(retry=Retry(attempts=2, first=0))
    def work(step: Step) -> Continue | None:
        runs.append((step.number, step.attempt))
        if how == "retry" and step.attempt == 1:
            raise ValueError
        if how != "done":
            step.effect(lambda tx: tx.execute("UPDATE ledger SET amount = amount + 1"))
        return Continue(1) if how == "continue" and step.number == 0 else None

    def cut(moment: str, text: str) -> None:
        settling = threading.current_thread().name.startswith(("stepfast-commit", "stepfast-settle"))
        if (moment, text) == (when, "COMMIT") and settling and not broken:
            broken.append(text)
            raise UnreachableError("the line went dead")

    job = work.enqueue()
    monkeypatch.setattr(Connection, "watch", staticmethod(cut))
    drain(app)
    monkeypatch.undo()

    expected = {
        "done with an effect": [(0, 1)],
        "done": [(0, 1)],
        "continue": [(0, 1), (1, 1)],
        "retry": [(0, 1), (0, 2)],
    }
    effects = {"done with an effect": 1, "done": 0, "continue": 2, "retry": 1}
    assert broken == ["COMMIT"]
    assert runs == expected[how]
    assert rows.query(app, "SELECT amount FROM ledger") == [{"amount": effects[how]}]
    assert rows.state(app, job.id) == "done"


@pytest.mark.parametrize("trouble", [ContentionError, UnreachableError])
def test_trouble_of_the_database_applies_the_effects_again_and_charges_nobody(
    app: Stepfast, ledger: None, trouble: type[Exception]
) -> None:
    del ledger
    runs: list[int] = []
    applied: list[int] = []

    @app.job(retry=ONCE)
    def work(step: Step) -> None:
        runs.append(step.attempt)

        def effect(tx: Transaction) -> None:
            tx.execute("INSERT INTO ledger (id, amount) VALUES ('a', 1)")
            applied.append(1)
            if len(applied) < 3:
                raise trouble("not now")

        step.effect(effect)

    job = work.enqueue()
    drain(app)

    row = rows.ended(app, job.id)
    assert row is not None
    assert (runs, applied) == ([1], [1, 1, 1])
    assert (row["state"], row["failures"]) == ("done", 0)
    assert rows.count(app, "ledger") == 1


def test_a_step_that_was_replaced_before_its_commit_leaves_nothing(app: Stepfast, ledger: None) -> None:
    del ledger
    started, go_on = threading.Event(), threading.Event()

    @app.job()
    def work(step: Step) -> str:
        step.upsert("ledger", [{"id": "a", "amount": 1}], key="id")
        started.set()
        assert go_on.wait(PATIENCE)
        return "too late"

    job = work.enqueue()
    with app.worker():
        assert started.wait(PATIENCE)
        rows.change(app, "UPDATE stepfast_job SET fence = 7")
        go_on.set()

    assert rows.state(app, job.id) == "leased"
    assert rows.count(app, "ledger") == 0


# What others left behind


def test_what_a_dead_process_left_is_taken_back_at_the_start_and_counted(
    app: Stepfast, caplog: pytest.LogCaptureFixture
) -> None:
    machine = this_process().partition("/")[0]
    if not machine:
        pytest.skip("this system does not tell which boot it is")

    @app.job()
    def work(step: Step) -> int:
        return step.attempt

    job = work.enqueue()
    rows.add_worker(app, 11)
    rows.change(app, "UPDATE stepfast_worker SET process = :process", process=f"{machine}/{os.getpid()}/1")
    rows.change(app, "UPDATE stepfast_job SET state = 'leased', owner = 11, fence = 5")

    with caplog.at_level(logging.INFO, "stepfast"):
        drain(app)

    assert "Reset 1 expired leases on startup" in caplog.text
    assert result_of(app, job.id) == 2


def test_suspects_run_alone(app: Stepfast) -> None:
    active: set[int] = set()
    crowds: list[int] = []

    @app.job()
    async def work(n: int) -> None:
        active.add(n)
        if n < 3:
            crowds.append(len(active))
        await asyncio.sleep(0.01)
        active.discard(n)

    work.enqueue_many([{"n": n} for n in range(3)])
    rows.add_worker(app, 11, alive_for=-rows.SECOND)
    claim(app, 11, limit=3)
    assert rescue_all(app).jobs == 3
    work.enqueue_many([{"n": n} for n in range(3, 40)])
    drain(app)

    assert crowds == [1, 1, 1]
    assert rows.count(app, "stepfast_archive", "state = 'done'") == 40


def _live_with_error(app: Stepfast, job_id: str) -> rows.Row | None:
    row = rows.live(app, job_id)
    return row if row and row["last_error"] else None


def _live_with_progress(app: Stepfast, job_id: str) -> rows.Row | None:
    row = rows.live(app, job_id)
    return row if row and row["progress"] else None


def _busy(worker: Any, jobs: int) -> Any:
    status = worker.status()
    return status if status.active_jobs == jobs else None


@pytest.mark.only_on("sqlite")
def test_an_embedded_worker_has_a_guardian_and_gets_another_one_if_that_dies(app: Stepfast) -> None:
    with app.worker(lease="2s") as worker:
        first = rows.eventually(lambda: app.operator.workers()[0].guardian_pid)
        os.kill(first, signal.SIGKILL)
        second = rows.eventually(
            lambda: pid if (pid := app.operator.workers()[0].guardian_pid) != first else None
        )
        assert worker.status().problems == []

    assert second is not None
    rows.eventually(lambda: not Path(f"/proc/{second}").exists())  # it ends with its worker
    assert app.operator.workers() == []


@pytest.mark.only_on("sqlite")
def test_a_worker_without_a_guardian_works(app: Stepfast, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPFAST_GUARDIAN", "off")
    done = threading.Event()

    @app.job()
    def work() -> None:
        done.set()

    with app.worker(lease="1s"):
        work.enqueue()
        assert done.wait(20)
        beats = app.operator.workers()[0].beat_at
        rows.eventually(
            lambda: app.operator.workers()[0].beat_at > beats
        )  # more than one look for a guardian
        (row,) = app.operator.workers()

    assert row.guardian_pid is None
