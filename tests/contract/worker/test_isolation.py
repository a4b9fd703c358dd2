"""An isolated handler behaves like one in the worker's process, and can harm no other step."""

from __future__ import annotations

import json
import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import date
from typing import TYPE_CHECKING, Any

import pytest

from devtools.processes import wait_until_gone
from stepfast import Retry, Stepfast
from stepfast.admin import jobs as actions
from stepfast.errors import ConfigurationError
from stepfast.worker.isolation import pool
from stepfast.worker.isolation import step as isolated_step
from stepfast.worker.isolation.protocol import Answered, Failed, SentDone, SentStop
from tests.support import isolated_jobs as jobs
from tests.support import isolated_shop, rows
from tests.support.engine import drain
from tests.support.isolated_jobs import register

if TYPE_CHECKING:
    from pathlib import Path

ONCE = Retry(attempts=1)
SOON = 0.2  # seconds, instead of those that a handler gets to clean up


def result_of(app: Stepfast, job_id: str) -> Any:
    row = rows.ended(app, job_id)
    assert row is not None
    assert row["state"] == "done", row["last_error"]
    return json.loads(row["result"])


def first_line(app: Stepfast, job_id: str) -> str:
    """Wait for the first line of the job's log."""
    return rows.eventually(lambda: rows.logs(app, job_id))[0]


def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isolated_step, "UNWIND", SOON)
    monkeypatch.setattr(isolated_step, "LAST_UNWIND", SOON)


def cancel(app: Stepfast, job_id: str) -> None:
    with app.transaction() as tx:
        actions.cancel(tx, job_id)


# As at home


@pytest.mark.usefixtures("ledger")
def test_arguments_results_cursors_and_effects_travel(app: Stepfast) -> None:
    walk = register(app, jobs.plain, name="walk")
    wait = register(app, jobs.waiting)

    walked = walk.enqueue(day=date(2024, 2, 29), amount=5)
    waited = wait.enqueue(text="é")
    drain(app, concurrency=1)

    day, first, second, number, thread = result_of(app, walked.id)
    assert (day, number, thread) == ("2024-02-29", 1, "MainThread")
    found = result_of(app, waited.id)
    assert (found["text"], found["attempt"], found["trace"]) == ("é", 1, waited.id.replace("-", ""))
    assert {first, second, found["pid"]} == {first}, "one process is used for all of them"
    assert first != os.getpid()
    booked = {row["id"]: row["amount"] for row in rows.query(app, "SELECT * FROM ledger")}
    assert booked == {"upserted": 5, "called": 5, "é": 7}


@pytest.mark.usefixtures("ledger")
def test_a_declared_effect_travels_with_its_types(app: Stepfast) -> None:
    job = register(app, jobs.books).enqueue()

    drain(app)

    assert rows.state(app, job.id) == "done"
    assert [row["amount"] for row in rows.query(app, "SELECT * FROM ledger")] == [10]


@pytest.mark.only_on("sqlite")
@pytest.mark.parametrize(
    ("how", "told"),
    [
        ("effect", "Evil is not declared as an effect"),
        ("function", "system is not declared as an effect"),
        ("message", "has sent what is no message"),
    ],
)
def test_a_handler_runs_no_code_in_its_worker(app: Stepfast, tmp_path: Path, how: str, told: str) -> None:
    traces = tmp_path / "traces"
    job = register(app, jobs.attacks, retry=ONCE).enqueue(how=how, path=str(traces))

    with app.worker():
        rows.eventually(lambda: rows.state(app, job.id) == "dead")

    assert not traces.exists()
    assert told in (rows.ended(app, job.id) or {})["last_error"]


@pytest.mark.only_on("sqlite")
def test_a_handler_runs_as_the_user_of_its_worker(app: Stepfast) -> None:
    """So isolation is no sandbox: it may read what its worker may read."""
    job = register(app, jobs.user).enqueue()

    drain(app)

    assert result_of(app, job.id) == os.geteuid()


@pytest.mark.only_on("sqlite")
def test_a_process_gets_the_variables_that_its_job_names_and_no_others(
    app: Stepfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("STEPFAST_SECRET_KEY", "STEPFAST_DATABASE_URL", "AZURE_KEY", "LANGUAGE_MODEL_KEY", "WANTED"):
        monkeypatch.setenv(name, "a value that nobody can guess or so")
    every = register(app, jobs.environment, name="every").enqueue()
    few = register(app, jobs.environment, name="few", env=["WANTED"], encrypted=True).enqueue()

    drain(app)

    assert {"STEPFAST_SECRET_KEY", "AZURE_KEY", "WANTED"} <= set(result_of(app, every.id))
    got = set(few.wait(timeout=5).result)
    assert {"WANTED", "PATH"} <= got
    assert not {"STEPFAST_SECRET_KEY", "STEPFAST_DATABASE_URL", "AZURE_KEY", "LANGUAGE_MODEL_KEY"} & got


@pytest.mark.only_on("sqlite")
def test_a_process_without_the_database_cannot_enqueue(app: Stepfast) -> None:
    parent = register(app, jobs.pid).enqueue()
    job = register(app, jobs.total, env=[], retry=ONCE).enqueue(after=parent)

    drain(app)

    assert "add STEPFAST_DATABASE_URL to env" in (rows.ended(app, job.id) or {})["last_error"]


@pytest.mark.only_on("sqlite")
def test_what_a_handler_says_is_known_while_it_runs(
    app: Stepfast, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    job = register(app, jobs.talkative).enqueue(gate=str(tmp_path / "gate"))

    with app.worker():
        assert first_line(app, job.id) == "so far"
        row = rows.eventually(lambda: (it := rows.live(app, job.id)) and it["progress"] and it)
        assert (row["progress"], row["progress_note"]) == (40, "half")
        (record,) = rows.eventually(lambda: [it for it in caplog.records if it.name == "shop.isolated"])
        assert record.process is not None
        assert record.process != os.getpid()
        os.kill(record.process, signal.SIGTERM)  # as systems do that stop a service: the worker decides
        (tmp_path / "gate").touch()
        rows.eventually(lambda: rows.ended(app, job.id))

    assert (record.getMessage(), record.levelname, vars(record)["shelf"]) == (
        "careful with this",
        "WARNING",
        4,
    )


def test_failures_mean_what_they_mean_at_home(app: Stepfast) -> None:
    fail = register(app, jobs.fails, retry=Retry(attempts=2, first="1h"))
    leave = register(app, jobs.exits, retry=ONCE)

    ids = {
        how: fail.enqueue(how=how).id
        for how in ("transient", "snooze", "odd", "exit", "permanent", "reject", "effect", "result")
    }
    left = leave.enqueue().id
    with app.worker(concurrency=1):
        rows.eventually(lambda: rows.state(app, left) == "dead")

    later = {how: rows.live(app, ids[how]) for how in ("transient", "snooze", "odd", "exit")}
    assert {how: row and (row["state"], row["failures"], row["crashes"]) for how, row in later.items()} == {
        "transient": ("scheduled", 0, 0),
        "snooze": ("scheduled", 0, 0),
        "odd": ("scheduled", 1, 0),
        "exit": ("scheduled", 1, 0),
    }
    assert later["odd"] is not None
    assert later["odd"]["last_error"] == "OddError: odd: 7"
    assert "in fails" in "".join(rows.logs(app, ids["odd"])), "the traceback is in the job's log"
    dead = {
        how: str((rows.ended(app, ids[how]) or {})["last_error"])
        for how in ("permanent", "reject", "effect", "result")
    }
    assert dead["permanent"] == "PermanentError: never"
    assert dead["reject"] == "Rejected: no such parcel"
    assert "function at the top of a module" in dead["effect"]
    assert "cannot be stored as JSON" in dead["result"]
    assert (rows.ended(app, left) or {})["last_error"] == "HandlerExit: the handler raised SystemExit"


@pytest.mark.only_on("sqlite")
@pytest.mark.usefixtures("ledger")
def test_what_is_encrypted_is_read_in_the_process_and_stays_encrypted(
    app: Stepfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STEPFAST_SECRET_KEY", "a key that nobody can guess or so we hope")
    job = register(app, jobs.plain, encrypted=True).enqueue(day=date(2024, 2, 29))

    drain(app)

    assert job.wait(timeout=5).result[0] == "2024-02-29"
    row = rows.ended(app, job.id)
    assert row is not None
    assert [it for it in ("payload", "cursor_json", "result") if "2024-02-29" in row[it]] == []


@pytest.mark.only_on("sqlite")
def test_arguments_that_do_not_fit_are_refused_by_the_process(app: Stepfast) -> None:
    register(app, jobs.greedy)
    with app.transaction() as tx:
        tx.execute(
            "INSERT INTO stepfast_job (id, kind, payload) VALUES ('wrong', 'greedy', '{\"megabytes\": \"x\"}')"
        )

    drain(app)

    row = rows.ended(app, "wrong")
    assert row is not None
    assert (row["state"], str(row["last_error"]).partition(":")[0]) == ("dead", "ArgumentsError")


@contextmanager
def shop_on(app: Stepfast) -> Iterator[Stepfast]:
    before = isolated_shop.app.use(app.database)
    try:
        yield isolated_shop.app
    finally:
        isolated_shop.app.use(before)


def test_an_application_works_on_the_workers_database(app: Stepfast) -> None:
    with shop_on(app) as shop:
        packed = isolated_shop.pack.enqueue(parcel="p-1")
        drain(shop)

    sent = result_of(app, packed.id)
    assert result_of(app, sent) == "p-1"
    row = rows.ended(app, sent)
    assert row is not None
    assert row["trace"].split("-")[1] == packed.id.replace("-", ""), "it belongs to the step that enqueued it"


@pytest.mark.only_on("sqlite")
def test_a_log_line_travels_whatever_is_said_with_it(app: Stepfast, caplog: pytest.LogCaptureFixture) -> None:
    register(app, jobs.logs_everything).enqueue()

    drain(app)

    (record,) = [vars(it) for it in caplog.records if it.name == "shop.isolated"]
    assert (record["shade"], type(record["shade"]), record["o"]) == ("red", str, "<Odd>")
    assert record["document"]["f"].startswith("<function logs_everything.<locals>.<lambda>")
    assert record["document"]["n"] == [1, "<Odd>"]


# Copies of a process that a handler makes


@pytest.mark.only_on("sqlite")
@pytest.mark.parametrize("how", ["answers", "raises", "exits"])
def test_a_copy_that_comes_back_from_its_handler_answers_for_nobody(
    app: Stepfast, tmp_path: Path, how: str
) -> None:
    late, gate = tmp_path / "late", tmp_path / "gate"
    first = register(app, jobs.splits).enqueue(gate=str(late), how=how)
    second = register(app, jobs.waits_for).enqueue(gate=str(gate))

    with app.worker(concurrency=1):
        first_line(app, second.id)  # it runs where the first has run
        late.touch()
        assert wait_until_gone([result_of(app, first.id)], 5)
        gate.touch()
        rows.eventually(lambda: rows.ended(app, second.id))

    assert result_of(app, second.id) > 0


@pytest.mark.only_on("sqlite")
def test_a_copy_ends_with_the_exit_code_that_it_gives(app: Stepfast) -> None:
    job = register(app, jobs.counts_copies).enqueue(codes=[0, 3])

    drain(app)

    assert result_of(app, job.id) == [0, 3]


@pytest.mark.only_on("sqlite")
def test_a_handler_may_use_a_pool_of_copies(app: Stepfast) -> None:
    job = register(app, jobs.pooled).enqueue(numbers=[-1, -2, -3])

    drain(app)

    assert result_of(app, job.id) == [1, 2, 3]


@pytest.mark.only_on("sqlite")
def test_an_answer_to_another_step_is_nobodys(app: Stepfast, monkeypatch: pytest.MonkeyPatch) -> None:
    stale: list[Any] = [
        Answered(-1, SentDone('"of another"'), None, 1),
        Failed(-1, SentStop("x"), "x", interrupted=False, held=1),
    ]
    receive = pool.HandlerProcess.receive
    monkeypatch.setattr(
        pool.HandlerProcess,
        "receive",
        lambda it, until: stale.pop() if it.ready and stale else receive(it, until),
    )
    job = register(app, jobs.pid).enqueue()

    drain(app)

    assert stale == []
    assert result_of(app, job.id) != "of another"


# Its end


def test_a_step_that_ignores_its_timeout_is_killed_with_all_that_it_started(
    app: Stepfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    impatient(monkeypatch)
    late = register(app, jobs.deaf, timeout=0.5, retry=ONCE).enqueue()

    with app.worker() as worker:
        pids = [int(it) for it in first_line(app, late.id).split()]
        row = rows.eventually(lambda: rows.ended(app, late.id))
        assert worker.status().lost_slots == 0

    assert (row["state"], row["failures"], row["crashes"]) == ("dead", 1, 0)
    assert row["last_error"] == "StepTimeout: did not finish within 0.5 s"
    assert wait_until_gone(pids, 5)


@pytest.mark.only_on("sqlite")
@pytest.mark.parametrize("handler", [jobs.polite, jobs.patient])
def test_a_handler_that_listens_cleans_up_when_its_time_is_over(
    app: Stepfast, handler: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    late = register(app, handler, timeout=0.2, retry=ONCE).enqueue()
    again = register(app, jobs.pid).enqueue()

    drain(app, concurrency=1)

    row = rows.ended(app, late.id)
    assert row is not None
    assert (row["failures"], row["last_error"]) == (1, "StepTimeout: did not finish within 0.2 s")
    assert "cleaned up" in caplog.messages
    assert result_of(app, again.id) == int(first_line(app, late.id)), "nobody had to be killed"


@pytest.mark.only_on("sqlite")
def test_what_an_isolated_handler_answers_soon_after_its_timeout_counts(
    app: Stepfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(isolated_step, "UNWIND", rows.PATIENCE)
    monkeypatch.setattr("stepfast.worker.leases.UNWIND", rows.PATIENCE)
    late = register(app, jobs.finish_late, timeout=0.2, retry=ONCE).enqueue()

    drain(app)

    assert (rows.state(app, late.id), result_of(app, late.id)) == ("done", "late, but whole")


@pytest.mark.only_on("sqlite")
@pytest.mark.parametrize("handler", [jobs.polite, jobs.deaf])
def test_a_cancelled_step_ends_whether_it_listens_or_not(
    app: Stepfast, handler: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    impatient(monkeypatch)
    job = register(app, handler).enqueue()

    with app.worker():
        first_line(app, job.id)
        cancel(app, job.id)
        rows.eventually(lambda: rows.state(app, job.id) == "cancelled")


@pytest.mark.only_on("sqlite")
@pytest.mark.parametrize("handler", [jobs.polite, jobs.deaf])
def test_a_worker_that_stops_gives_the_step_back_and_leaves_nobody_behind(
    app: Stepfast, handler: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    impatient(monkeypatch)
    job = register(app, handler).enqueue()

    with app.worker() as worker:
        pids = [int(it) for it in first_line(app, job.id).split()]
        assert worker.stop(at_once=True, timeout=10)

    row = rows.live(app, job.id)
    assert row is not None
    assert (row["state"], row["failures"], row["crashes"]) == ("ready", 0, 0)
    assert wait_until_gone(pids, 5)


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("how", "fate"),
    [
        ("exit", "ended with exit code 3"),
        ("segfault", "was killed by SIGSEGV"),
        ("kill", "was killed by SIGKILL (nobody here did: perhaps the system ran out of memory)"),
        ("abandon", "ended with exit code 5"),
    ],
)
def test_a_crash_is_the_jobs_own(app: Stepfast, how: str, fate: str) -> None:
    gate = threading.Event()

    @app.job()
    def neighbour() -> bool:
        return gate.wait(rows.PATIENCE)

    beside = neighbour.enqueue()
    job = register(app, jobs.crashes, retry=Retry(attempts=1, first=0)).enqueue(how=how)
    with app.worker(crash_limit=2):
        row = rows.eventually(lambda: rows.ended(app, job.id))
        gate.set()
        untouched = rows.eventually(lambda: rows.ended(app, beside.id))

    assert (row["state"], row["failures"], row["crashes"]) == ("dead", 0, 2)
    assert row["last_error"] == f"StepCrashed: its process {fate}; it crashed 2 times"
    assert rows.logs(app, job.id) == [f"its process {fate}"] * 2
    assert (untouched["state"], untouched["crashes"]) == ("done", 0)


@pytest.mark.only_on("sqlite")
def test_a_step_holds_no_more_memory_than_it_may(app: Stepfast) -> None:
    greedy = register(app, jobs.greedy, memory="300MB", retry=ONCE)
    tiny = app.job(name="tiny", isolation="process", memory="1MB", retry=ONCE)(jobs.pid)

    too_much, enough, never = greedy.enqueue(megabytes=400), greedy.enqueue(megabytes=100), tiny.enqueue()
    drain(app, concurrency=1)

    row = rows.ended(app, too_much.id)
    assert row is not None
    assert str(row["last_error"]).startswith(
        "MemoryLimitError: wanted more memory than its limit of 300 MB; it held "
    )
    assert (row["state"], row["crashes"]) == ("dead", 0)
    assert result_of(app, enough.id) == 100
    assert "before its handler begins" in (rows.ended(app, never.id) or {})["last_error"]


# The processes


@pytest.mark.only_on("sqlite")
def test_a_process_is_replaced_after_so_many_steps(app: Stepfast, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "MOST_STEPS", 3)
    asked = register(app, jobs.pid).enqueue_many([{}] * 7)

    drain(app, concurrency=1)

    pids = [result_of(app, it.id) for it in asked]
    assert [pids.count(it) for it in dict.fromkeys(pids)] == [3, 3, 1]


@pytest.mark.only_on("sqlite")
def test_a_process_that_has_grown_is_replaced(app: Stepfast, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "GROWTH", 0.5)
    asked = register(app, jobs.pid).enqueue_many([{}] * 4)

    drain(app, concurrency=1)

    pids = [result_of(app, it.id) for it in asked]
    assert [pids.count(it) for it in dict.fromkeys(pids)] == [2, 2]


@pytest.mark.only_on("sqlite")
def test_idle_processes_end_but_for_one(
    app: Stepfast, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "IDLE", 0.0)
    gate = str(tmp_path / "gate")
    talk = register(app, jobs.talkative)
    asked = talk.enqueue_many([{"gate": gate}] * 2)

    with app.worker(lease="1s") as worker:
        for it in asked:
            first_line(app, it.id)
        (tmp_path / "gate").touch()
        rows.eventually(lambda: len(worker._isolated._idle) == 1 and not worker._isolated._busy)


@pytest.mark.only_on("sqlite")
def test_a_process_that_dies_while_it_rests_is_nobodys_crash(app: Stepfast) -> None:
    work = register(app, jobs.pid, retry=Retry(first=0))

    with app.worker() as worker:
        first = work.enqueue()
        rows.eventually(lambda: rows.ended(app, first.id))
        (resting,) = rows.eventually(lambda: worker._isolated._idle)
        os.kill(result_of(app, first.id), signal.SIGKILL)
        rows.eventually(lambda: resting.gone)
        second = work.enqueue()
        row = rows.eventually(lambda: rows.ended(app, second.id))

    assert (row["state"], row["crashes"]) == ("done", 0)
    assert result_of(app, second.id) != result_of(app, first.id)
    assert rows.logs(app, second.id) == []


@pytest.mark.only_on("sqlite")
def test_an_embedded_worker_cannot_be_recycled(app: Stepfast) -> None:
    with pytest.raises(ConfigurationError, match="`stepfast worker`"):
        app.worker(max_memory="1GB")
