"""The events that a worker reports, and the metrics that a scrape shows."""

from __future__ import annotations

import asyncio
import threading
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
from prometheus_client import CollectorRegistry

from stepfast import Continue, DuplicateKeyError, Reject, Retry, Snooze, Step, Stepfast
from stepfast.admin import statistics as gauges
from stepfast.errors import UnreachableError
from stepfast.jobs import lease
from stepfast.telemetry.metrics import MOST_VALUES
from stepfast.transports.contract import Delivery
from stepfast.transports.dead_messages import keep_dead_message
from stepfast.worker import claimer
from stepfast.worker import heartbeat as incarnation
from stepfast.worker import metrics as scrape
from stepfast.worker import worker as status
from tests.support import rows
from tests.support.engine import ALICE, claim, drain, register_work, rescue_all, take
from tests.support.events import hearing, named
from tests.support.isolated_jobs import crashes, register
from tests.support.jobs_in_every_state import died, greeting, leased

if TYPE_CHECKING:
    from collections.abc import Callable

    from stepfast.telemetry import Fact


# Events


@pytest.mark.parametrize(
    ("on_duplicate", "event"), [("skip", "duplicate.skipped"), ("replace", "duplicate.replaced")]
)
def test_a_duplicate_is_told_of_without_its_key(app: Stepfast, on_duplicate: Any, event: str) -> None:
    work = register_work(app)
    first = work.enqueue(key="ada@example.com")

    with hearing() as told:
        work.enqueue(key="ada@example.com", on_duplicate=on_duplicate)
        work.enqueue_many([{}, {}], keys=["ada@example.com", "bob@example.com"], on_duplicate=on_duplicate)

    assert told == [(event, {"job_id": first.id, "kind": "work", "queue": "default"})] * 2


def test_a_refused_duplicate_is_told_of_too(app: Stepfast) -> None:
    work = register_work(app)
    first = work.enqueue(key="one")

    with hearing() as told, pytest.raises(DuplicateKeyError):
        work.enqueue(key="one")

    assert told == [("duplicate.refused", {"job_id": first.id, "kind": "work", "queue": "default"})]


def test_the_same_id_again_is_a_skipped_duplicate(app: Stepfast) -> None:
    work = register_work(app)
    work.enqueue(id="order-17")

    with hearing() as told:
        work.enqueue(id="order-17")

    assert told == [("duplicate.skipped", {"job_id": "order-17", "kind": "work", "queue": "default"})]


def test_a_step_that_lost_its_fence_is_told_of_as_refused(app: Stepfast) -> None:
    running, go_on = threading.Event(), threading.Event()

    @app.job()
    def work() -> None:
        running.set()
        go_on.wait(20)

    job_id = work.enqueue().id
    with hearing() as told, app.worker(worker_id="w-1"):
        running.wait(20)
        rows.change(app, "UPDATE stepfast_job SET fence = 5 WHERE id = :id", id=job_id)
        go_on.set()
        rows.eventually(lambda: named(told, "step.refused"))

    (refused,) = named(told, "step.refused")
    assert (refused["job_id"], refused["kind"], refused["queue"]) == (job_id, "work", "default")
    assert refused["trace_id"] == job_id.replace("-", "")
    assert named(told, "jobs.acknowledged") == []


def test_a_step_that_is_given_back_at_a_stop_is_refused_by_nobody(app: Stepfast) -> None:
    running = threading.Event()

    @app.job()
    async def work() -> None:
        running.set()
        await asyncio.sleep(60)

    work.enqueue()
    with hearing() as told, app.worker() as worker:
        running.wait(20)
        worker.stop(at_once=True)

    assert named(told, "worker.stopped")[0]["given_back"] == 1
    assert named(told, "step.refused") == []
    assert rows.count(app, "stepfast_job", "state = 'ready'") == 1


def test_a_rescue_tells_who_died_what_was_taken_back_and_what_was_charged(app: Stepfast) -> None:
    work = register_work(app)
    work.enqueue()
    rows.add_worker(app, ALICE, worker_id="alice", alive_for=-rows.HOUR)
    job = take(app)
    rows.change(app, "UPDATE stepfast_job SET crashes = 2 WHERE id = :id", id=job.job_id)

    with hearing() as told:
        rescue_all(app)

    assert told == [
        ("worker.declared-dead", {"dead_worker_id": "alice", "incarnation": ALICE}),
        (
            "job.died",
            {
                "job_id": job.job_id,
                "kind": "work",
                "queue": "default",
                "trace_id": job.job_id.replace("-", ""),
                "error": "killed its worker 3 times",
            },
        ),
        ("jobs.rescued", {"dead_worker_id": "alice", "jobs": 1, "died": 1, "charged": 1}),
    ]


def test_neighbours_of_a_dead_worker_are_not_charged(app: Stepfast) -> None:
    register_work(app).enqueue_many([{}] * 3)
    rows.add_worker(app, ALICE, worker_id="alice", alive_for=-rows.HOUR)
    claim(app, limit=3)

    with hearing() as told:
        rescue_all(app)

    assert named(told, "jobs.rescued") == [{"dead_worker_id": "alice", "jobs": 3, "died": 0, "charged": 0}]


def test_a_batch_is_told_once_for_each_kind_with_its_times(app: Stepfast) -> None:
    @app.job()
    async def add(n: int) -> int:
        return n

    @app.job()
    async def nap() -> None:
        await asyncio.sleep(0.05)

    add.enqueue_many([{"n": n} for n in range(20)])
    nap.enqueue()
    with hearing() as told:
        drain(app)
        rows.eventually(lambda: named(told, "worker.stopped"))

    told_of: dict[str, list[dict[str, Fact]]] = {"add": [], "nap": []}
    for facts in named(told, "jobs.acknowledged"):
        told_of[str(facts["kind"])].append(facts)
    assert sum(_number(it["jobs"]) for it in told_of["add"]) == 20
    assert sum(len(_samples(it["held_s"])) for it in told_of["add"]) == 20
    (slow,) = told_of["nap"]
    (took,), (held,) = _samples(slow["took_s"]), _samples(slow["held_s"])
    assert 0.05 <= took <= held < 20
    waits = [seconds for it in named(told, "jobs.claimed") for seconds in _samples(it["waited_s"])]
    assert len(waits) == 21
    assert 0 <= min(waits) <= max(waits) < 20


def _number(fact: Fact) -> int:
    assert isinstance(fact, int)
    return fact


def _samples(fact: Fact) -> list[float]:
    assert isinstance(fact, list)
    return fact


def test_the_time_that_a_job_waited_is_the_databases(app: Stepfast) -> None:
    work = register_work(app)
    job_id = work.enqueue().id
    rows.change(
        app,
        "UPDATE stepfast_job SET ready_at = :at WHERE id = :id",
        at=rows.now(app) - 7 * rows.SECOND,
        id=job_id,
    )

    with hearing() as told:
        drain(app)

    (waited,) = [seconds for it in named(told, "jobs.claimed") for seconds in _samples(it["waited_s"])]
    assert 7 <= waited < 27


def test_every_ending_of_a_step_is_told_with_its_outcome(app: Stepfast) -> None:
    snoozed: set[str] = set()

    @app.job(retry=Retry(attempts=2, first="1ms"))
    async def work(step: Step, how: str) -> object:
        step.annotate(run_id="r-7", partition_id="p-1")
        match how, step.number, step.attempt:
            case "continue", 0, _:
                return Continue(1)
            case "fail", _, 1:
                raise ValueError("no")
            case "reject", _, _:
                return Reject("never")
            case "snooze", _, _ if step.job_id not in snoozed:
                snoozed.add(step.job_id)
                return Snooze(0)
        return None

    for how in ("continue", "fail", "reject", "snooze"):
        work.enqueue(how=how)
    with hearing() as told:
        drain(app, worker_id="w-1")

    outcomes = sorted(str(it["outcome"]) for it in named(told, "step.committed"))
    assert [it for it in outcomes if it != "done"] == ["continued", "snoozed"]
    (failed,), (died_of,) = named(told, "step.failed"), named(told, "job.died")
    assert (failed["error_type"], failed["error"], failed["attempt"]) == ("ValueError", "no", 1)
    assert (failed["run_id"], failed["partition_id"], failed["worker_id"]) == ("r-7", "p-1", "w-1")
    assert (died_of["error_type"], died_of["error"]) == ("Rejected", "never")
    assert isinstance(died_of["took_s"], float)


# Problems


def test_a_heartbeat_that_fails_is_told_of_and_a_problem_until_it_is_back(
    app: Stepfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    silent = threading.Event()
    renew = incarnation.stay_alive

    def stay_alive(*arguments: Any) -> int:
        if silent.is_set():
            raise UnreachableError("no route to postgresql://me:hunter2@db")
        return renew(*arguments)

    monkeypatch.setattr(incarnation, "stay_alive", stay_alive)
    with hearing() as told, app.worker(lease="1s", worker_id="w-1") as worker:
        assert worker.status().problems == []
        silent.set()
        (problem,) = rows.eventually(lambda: worker.status().problems)
        silent.clear()
        rows.eventually(lambda: named(told, "heartbeat.recovered"))
        rows.eventually(lambda: not worker.status().problems)

    assert problem.startswith("the heartbeat has not reached the database for ")
    assert len(named(told, "heartbeat.failed")) == 1
    (recovered,) = named(told, "heartbeat.recovered")
    assert recovered["worker_id"] == "w-1"
    assert isinstance(recovered["silent_s"], float)
    assert worker.status().problems == ["this worker does not run"]


def test_an_outage_is_told_of_at_its_beginning_and_its_end(
    app: Stepfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    away = threading.Event()

    def claim_if_there(*arguments: Any) -> Any:
        if away.is_set():
            raise UnreachableError("no route")
        return lease.claim(*arguments)

    monkeypatch.setattr(claimer, "claim", claim_if_there)
    away.set()
    register_work(app).enqueue()
    with hearing() as told, app.worker(worker_id="w-1", queues=["default"]):
        rows.eventually(lambda: named(told, "database.lost"))
        away.clear()
        rows.eventually(lambda: named(told, "database.recovered"))

    (lost,) = named(told, "database.lost")
    assert (lost["worker_id"], lost["note"]) == ("w-1", "claiming waits")
    assert named(told, "database.recovered") == [{"worker_id": "w-1", "note": "claiming goes on"}]


@pytest.mark.only_on("sqlite")
def test_a_handler_that_blocks_the_event_loop_is_a_problem(
    app: Stepfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = threading.Event()

    @app.job()
    async def block() -> None:
        go_on.wait(20)

    monkeypatch.setattr(status, "SILENT", 0.3)
    block.enqueue()
    with app.worker(lease="1s") as worker:
        (problem,) = rows.eventually(lambda: worker.status().problems)
        go_on.set()
        rows.eventually(lambda: not worker.status().problems)

    assert problem.startswith("the event loop has not answered for ")


# A scrape


def shown(app_or_collector: Any) -> dict[tuple[str, tuple[str, ...]], float]:
    """What a scrape shows, by name and the values of its labels."""
    registry = CollectorRegistry()
    registry.register(app_or_collector)
    return {
        (sample.name, tuple(sample.labels.values())): sample.value
        for family in registry.collect()
        for sample in family.samples
    }


def test_a_scrape_shows_how_full_the_database_is(app: Stepfast) -> None:
    greet, mail = greeting(app), greeting(app, name="mail", queue="mail")
    greet.enqueue_many([{}] * 3)
    leased(app)
    oldest = greet.enqueue(delay="1h").id
    died(app, mail)
    mail.enqueue()
    rows.change(app, "UPDATE stepfast_job SET ready_at = ready_at - 60000000 WHERE queue = 'mail'")
    app.operator.pause("mail")
    app.send_webhook("https://127.0.0.1:1/", data=None)
    rows.add_worker(app, ALICE, worker_id="silent", alive_for=-rows.HOUR)
    letter = Delivery(id="m-1", body="{}", queue="work-items", attempt=5, held_until=datetime.now(UTC))
    with app.transaction() as tx:
        keep_dead_message(tx, letter, transport="service-bus", address="service-bus://", reason="bad")

    found = shown(app.metrics())

    depth = {
        labels: value for (name, labels), value in found.items() if name == "stepfast_queue_depth" and value
    }
    assert depth == {
        ("default", "ready"): 2,
        ("default", "leased"): 1,
        ("default", "scheduled"): 1,
        ("mail", "ready"): 1,
    }
    assert 60 <= found["stepfast_queue_oldest_ready_seconds", ("mail",)] < 80
    assert found["stepfast_queue_oldest_ready_seconds", ("default",)] < 20
    assert found["stepfast_dead_letters", ("mail",)] == 1
    assert found["stepfast_dead_letters", ("default",)] == 0
    assert found["stepfast_dead_messages", ("service-bus", "work-items")] == 1
    assert found["stepfast_queue_paused", ("mail",)] == 1
    assert found["stepfast_queue_paused", ("default",)] == 0
    assert found["stepfast_workers_alive", ()] == 2
    assert found["stepfast_outbox_messages", ("waiting",)] == 1
    assert found["stepfast_database_up", ()] == 1
    assert oldest


@pytest.mark.only_on("sqlite")
def test_a_scrape_of_an_empty_database_shows_noughts(app: Stepfast) -> None:
    found = shown(app.metrics())

    assert found["stepfast_workers_alive", ()] == 0
    assert found["stepfast_outbox_messages", ("dead",)] == 0
    assert found["stepfast_outbox_oldest_seconds", ()] == 0


@pytest.mark.only_on("sqlite")
def test_queues_without_number_are_shown_as_others(app: Stepfast) -> None:
    work = register_work(app)
    for n in range(MOST_VALUES + 5):
        work.enqueue(queue=f"queue-{n:03}")

    found = shown(app.metrics())

    assert found["stepfast_queue_depth", ("other", "ready")] == 5
    assert len({labels[0] for name, labels in found if name == "stepfast_queue_depth"}) == MOST_VALUES + 1


def test_a_scrape_counts_what_this_process_did(app: Stepfast) -> None:
    @app.job(name="counted")
    async def counted() -> None: ...

    collector = app.metrics()
    before = shown(collector).get(("stepfast_jobs_total", ("counted", "done")), 0)
    counted.enqueue_many([{}] * 7)
    drain(app)

    assert shown(collector)["stepfast_jobs_total", ("counted", "done")] - before == 7


def test_crashes_of_isolated_steps_are_told_of_and_counted(app: Stepfast) -> None:
    crash = register(app, crashes, name="crashing", retry=Retry(first=0))
    collector = app.metrics()
    counted = ("stepfast_isolated_crashes_total", ("crashing",))
    before = shown(collector).get(counted, 0)
    job = crash.enqueue(how="exit")

    with hearing() as told, app.worker(crash_limit=2, worker_id="w-1"):
        rows.eventually(lambda: rows.ended(app, job.id))

    first, second = named(told, "step.crashed")
    assert {str(it["error"]) for it in (first, second)} == {"its process ended with exit code 3"}
    assert (first["job_id"], first["kind"], first["worker_id"]) == (job.id, "crashing", "w-1")
    assert shown(collector)[counted] - before == 2


def test_a_scrape_during_an_outage_shows_the_outage(app: Stepfast, monkeypatch: pytest.MonkeyPatch) -> None:
    collector = app.metrics()
    assert shown(collector)["stepfast_workers_alive", ()] == 0

    monkeypatch.setattr(scrape, "FRESH", 0.0)
    monkeypatch.setattr(scrape, "read_gauges", _raise(UnreachableError("no route")))
    rows.eventually(lambda: shown(collector)["stepfast_database_up", ()] == 0)
    found = shown(collector)

    assert ("stepfast_heartbeat_failures_total", ()) in found
    assert not [name for name, _ in found if name.startswith("stepfast_queue_")]


def _raise(error: Exception) -> Callable[..., Any]:
    def raise_it(*_: Any) -> Any:
        raise error

    return raise_it


@pytest.mark.only_on("sqlite")
def test_a_scrape_does_not_wait_for_a_database_that_hangs(
    app: Stepfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = threading.Event()
    looks: list[float] = []

    def hang(_: Any) -> Any:
        looks.append(time.monotonic())
        go_on.wait(20)
        raise UnreachableError("at last")

    monkeypatch.setattr(scrape, "PATIENCE", 0.1)
    monkeypatch.setattr(scrape, "read_gauges", hang)
    collector = app.metrics()
    begun = time.monotonic()
    for _ in range(3):
        assert shown(collector)["stepfast_database_up", ()] == 0

    assert time.monotonic() - begun < 5
    assert len(looks) == 1, "one look at a time"
    go_on.set()


@pytest.mark.only_on("sqlite")
def test_a_look_that_takes_long_is_repeated_rarely(app: Stepfast, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = 0

    def slowly(tx: Any) -> Any:
        nonlocal looks
        looks += 1
        time.sleep(0.2)
        return gauges.read_gauges(tx)

    monkeypatch.setattr(scrape, "FRESH", 0.0)
    monkeypatch.setattr(scrape, "read_gauges", slowly)
    collector = app.metrics()
    for _ in range(5):
        assert shown(collector)["stepfast_database_up", ()] == 1

    assert looks == 1


@pytest.mark.only_on("sqlite")
def test_a_program_may_ask_for_its_metrics_while_the_database_is_away() -> None:
    collector = Stepfast("postgresql://me@127.0.0.1:1/nowhere").metrics()

    assert shown(collector)["stepfast_database_up", ()] == 0
