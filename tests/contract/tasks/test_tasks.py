"""A task becomes one job however often it is sent, and every end of it is reported by a webhook."""

from __future__ import annotations

import json
import os
import threading
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

from stepfast import Continue, PermanentError, Reject, Retry, Snooze, Step, Stepfast, Wait
from stepfast.admin.tasks import show_task
from stepfast.database.database import persist
from stepfast.errors import StepfastError
from stepfast.jobs.end_webhook import TaskTimeoutError
from stepfast.jobs.rescue import declare_dead, rescue
from stepfast.tasks.envelope import TaskRefusedError, read
from stepfast.tasks.receiver import ReceivedEnd, latest_end, save
from stepfast.tasks.single_task import SingleTask, run_single_task
from stepfast.tasks.store import (
    Origin,
    StoredMessage,
    TaskJob,
    accept_task,
    forget_old_tasks,
    give_up_task,
    payload_digest,
    read_task,
    refuse_message,
    resend_end,
    store_messages,
    task_ends,
    why_unsent,
)
from stepfast.telemetry import trace_id_of
from stepfast.testing import drain
from stepfast.transports.contract import Delivery
from tests.crash.table_dump import ALL_TABLES
from tests.support import rows
from tests.support.events import hearing, named

if TYPE_CHECKING:
    from collections.abc import Callable

HERE = Origin("south", "memory", "m-1")
URL = "https://front.example/hook"
TABLES = [it for it in ALL_TABLES if it.startswith("stepfast_")]


def asked(task_type: str, task_id: str = "t-1", /, *, url: str | None = URL, **payload: Any) -> str:
    return json.dumps({"task_id": task_id, "task_type": task_type, "payload": payload, "webhook_url": url})


def accepted(app: Stepfast, text: str, origin: Origin = HERE) -> TaskJob:
    return persist(app.database, lambda tx: accept_task(tx, origin, read(text)))


def told(app: Stepfast) -> list[Any]:
    found = rows.query(app, "SELECT body FROM stepfast_outbox ORDER BY seq")
    return [json.loads(row["body"]) for row in found]


# One job


def test_a_task_becomes_a_job_of_its_clients_queue(app: Stepfast) -> None:
    @app.task("greet")
    async def greet(name: str) -> str:
        return f"Hello {name}"

    job = accepted(app, asked("greet", name="Ann"))
    drain(app)

    assert job.created
    row = rows.ended(app, job.job_id)
    assert row is not None
    assert (row["queue"], row["kind"], row["result"]) == ("south-tasks", "task.greet", '"Hello Ann"')


def test_the_same_task_before_during_and_after_its_end_is_done_once(app: Stepfast) -> None:
    runs: list[str] = []
    seen: list[TaskJob] = []

    @app.task("once")
    def once() -> None:
        runs.append("ran")
        seen.append(accepted(app, asked("once")))

    first = accepted(app, asked("once"))
    seen.append(accepted(app, asked("once")))
    drain(app)
    seen.append(accepted(app, asked("once")))
    rows.change(app, "DELETE FROM stepfast_archive")  # as its retention does
    seen.append(accepted(app, asked("once")))
    drain(app)

    assert runs == ["ran"]
    assert seen == [TaskJob(first.job_id, created=False)] * 4


def stored(app: Stepfast, *texts: str) -> list[StoredMessage]:
    """Messages as an intake stores them, one after the other."""
    found: list[StoredMessage] = []
    for number, text in enumerate(texts):
        delivery = Delivery(id=f"m-{number}", body=text, queue="q", attempt=1, held_until=datetime.now(UTC))
        found += store_messages(app.database, app.kinds, HERE, [delivery], None) or []
    return found


def greeting(app: Stepfast) -> None:
    @app.task("greet")
    def greet(name: str = "") -> str:
        return f"Hello {name}"

    @app.task("shout")
    def shout(name: str = "") -> str:
        return name.upper()


def test_a_known_id_with_another_payload_is_refused_and_not_taken_for_a_repeat(app: Stepfast) -> None:
    greeting(app)

    with hearing() as events:
        first, repeated, other = stored(
            app, asked("greet", name="Ann"), asked("greet", name="Ann"), asked("greet", name="Ben")
        )
        for message in (first, repeated, other):
            message.report("q", "m")
    drain(app)

    assert repeated == replace(first, created=False)
    assert "'t-1' was used before, for a task with another payload" in str(other.refused)
    assert f"(job {first.job_id})" in str(other.refused)
    assert [name for name, _ in events if name.startswith("task.")] == [
        "task.accepted",
        "task.repeated",
        "task.refused",
    ]
    letter = rows.ended(app, other.job_id)
    assert letter is not None
    assert (letter["kind"], letter["state"]) == ("refused-task", "dead")
    assert [(it["task_id"], it["status"], it["result"]) for it in told(app)] == [
        ("t-1", "completed", "Hello Ann")
    ]


def test_a_known_id_with_another_type_is_refused_also_when_its_job_is_gone(app: Stepfast) -> None:
    greeting(app)
    stored(app, asked("greet", name="Ann"))
    drain(app)
    rows.change(app, "DELETE FROM stepfast_archive")  # as its retention does

    (other,) = stored(app, asked("shout", name="Ann"))

    assert "'t-1' was used before, for a task of type 'greet'" in str(other.refused)


def test_a_payload_that_is_written_differently_is_the_same(app: Stepfast) -> None:
    greeting(app)
    texts = [
        '{"task_id": "t-1", "task_type": "greet", "payload": {"name": "\\u00e9", "n": 1.50, "x": {"a": 1, "b": 2}}}',
        '{"payload":{"x":{"b":2,"a":1},"n":1.5,"name":"é"},"task_type":"greet","task_id":"t-1","webhook_url":null}',
    ]

    first, again = stored(app, *texts)

    assert again == replace(first, created=False)


def test_a_refused_repeat_that_an_operator_retries_is_refused_again(app: Stepfast) -> None:
    greeting(app)
    _, other = stored(app, asked("greet", name="Ann"), asked("greet", name="Ben"))
    drain(app)

    app.operator.retry(other.job_id)
    drain(app, raise_errors=False)

    letter = rows.ended(app, other.job_id)
    assert letter is not None
    assert letter["state"] == "dead"
    assert "was used before" in letter["last_error"]


def test_payloads_of_an_encrypted_application_are_told_apart_and_cannot_be_guessed(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = (f"a key that nobody can guess number {n}: {'xqzjvw'[n:]}" for n in (1, 2))
    monkeypatch.setenv("STEPFAST_SECRET_KEY", old)
    with closing(Stepfast(database_url, encrypted=True)) as app:
        greeting(app)
        first, again, other = stored(
            app, asked("greet", name="Ann"), asked("greet", name="Ann"), asked("greet", name="Ben")
        )
        monkeypatch.setenv("STEPFAST_SECRET_KEY", f"{new},{old}")
        (after_rotation,) = stored(app, asked("greet", name="Ben"))
        (kept,) = rows.query(app, "SELECT digest FROM stepfast_task WHERE id = :id", id=first.job_id)

    assert again == replace(first, created=False)
    assert other.refused is not None
    assert after_rotation == replace(first, created=False)  # digests of two keys cannot be compared
    assert kept["digest"] != payload_digest('{"name": "Ann"}', None)


@pytest.mark.parametrize("name", ["Diagnostic-Id", "traceparent"])
def test_the_trace_that_a_message_names_beside_its_body_goes_on(app: Stepfast, name: str) -> None:
    greeting(app)
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    own = trace.replace("0af", "1af")
    bodies = {
        "t-1": asked("greet", "t-1"),
        "t-2": json.dumps(json.loads(asked("greet", "t-2")) | {"traceparent": own}),
        "t-3": asked("nobody", "t-3"),
    }

    for task_id, body in bodies.items():
        delivery = Delivery(
            id=task_id,
            body=body,
            queue="q",
            attempt=1,
            held_until=datetime.now(UTC),
            properties={name: trace},
        )
        store_messages(app.database, app.kinds, HERE, [delivery], None)
    drain(app)

    found = rows.query(
        app, "SELECT task_id, trace FROM stepfast_task JOIN stepfast_archive USING (id) ORDER BY task_id"
    )
    assert {row["task_id"]: row["trace"] for row in found} == {"t-1": trace, "t-2": own, "t-3": trace}


def test_the_webhook_of_a_failed_task_without_a_sender_has_the_trace_of_its_job(app: Stepfast) -> None:
    @app.task("fail", retry=Retry(attempts=1))
    def fail() -> None:
        raise ValueError("no")

    job = accepted(app, asked("fail"))
    drain(app, raise_errors=False)

    (message,) = rows.query(app, "SELECT trace FROM stepfast_outbox")
    assert trace_id_of("", message["trace"]) == job.job_id.replace("-", "")


def test_two_who_store_the_same_task_at_once_store_one_job(
    app: Stepfast, another_app: Callable[[], Stepfast]
) -> None:
    apps, start = [another_app() for _ in range(4)], threading.Barrier(4)
    found: list[TaskJob] = []

    def race(mine: Stepfast) -> None:
        start.wait()
        found.append(accepted(mine, asked("any")))

    threads = [threading.Thread(target=race, args=(it,)) for it in apps]
    for it in threads:
        it.start()
    for it in threads:
        it.join()

    assert len({it.job_id for it in found}) == 1
    assert sorted(it.created for it in found) == [False, False, False, True]
    assert rows.count(app, "stepfast_job") == 1


def test_clients_do_not_share_ids(app: Stepfast) -> None:
    south = accepted(app, asked("any"))
    north = accepted(app, asked("any"), Origin("north", "memory"))

    assert north.created
    assert north.job_id != south.job_id


def test_a_task_is_forgotten_with_its_id_but_not_while_somebody_may_revive_it(app: Stepfast) -> None:
    done, dead = accepted(app, asked("any", "1")), accepted(app, asked("any", "2"))
    rows.change(app, "UPDATE stepfast_task SET until_at = 1")
    rows.change(app, "DELETE FROM stepfast_job WHERE id = :id", id=done.job_id)

    persist(app.database, lambda tx: forget_old_tasks(tx, 10))

    assert [row["id"] for row in rows.query(app, "SELECT id FROM stepfast_task")] == [dead.job_id]


# Handlers


def test_the_fields_of_the_payload_are_arguments_and_others_are_left_out(app: Stepfast) -> None:
    @app.task("add")
    def add(step: Step, left: int, right: int = 10) -> list[Any]:
        return [left + right, step.kind]

    job = accepted(app, asked("add", left=1, unknown="x"))
    drain(app)

    assert app.result_of(job.job_id).result == [11, "task.add"]


def test_a_handler_may_take_the_whole_payload(app: Stepfast) -> None:
    @app.task("whole")
    def whole(payload: dict[str, Any]) -> list[str]:
        return sorted(payload)

    job = accepted(app, asked("whole", a=1, b=2))
    drain(app)

    assert app.result_of(job.job_id).result == ["a", "b"]


def test_a_handler_stays_a_function_that_a_test_may_call(app: Stepfast) -> None:
    @app.task("twice")
    def twice(n: int) -> int:
        return 2 * n

    assert twice(4) == 8


# Its end


def test_a_task_that_is_done_is_told_with_its_result(app: Stepfast) -> None:
    @app.task("sum")
    def add(n: int) -> dict[str, int]:
        return {"sum": n + 1}

    accepted(app, asked("sum", n=1))
    drain(app)

    (body,) = told(app)
    assert (body["task_id"], body["status"], body["result"]) == ("t-1", "completed", {"sum": 2})
    assert (body["task_type"], body["client_id"], body["attempts"]) == ("sum", "south", 1)


def test_tasks_that_are_claimed_and_end_together_are_each_told_of(app: Stepfast) -> None:
    failing(app)

    @app.task("quick")
    def quick() -> None: ...

    for n in range(4):
        accepted(app, asked("quick" if n % 2 else "permanent", f"t-{n}"))
    drain(app, concurrency=4, raise_errors=False)

    assert sorted((it["task_id"], it["status"]) for it in told(app)) == [
        ("t-0", "failed"),
        ("t-1", "completed"),
        ("t-2", "failed"),
        ("t-3", "completed"),
    ]


def test_a_task_of_many_steps_is_told_of_once(app: Stepfast) -> None:
    @app.task("steps")
    def steps(step: Step) -> Any:
        return "end" if step.number == 2 else Continue(step.number)

    accepted(app, asked("steps"))
    drain(app)

    assert [it["result"] for it in told(app)] == ["end"]


def test_a_task_that_waits_is_told_of_when_it_has_ended(app: Stepfast) -> None:
    @app.task("signed")
    def signed(step: Step) -> Any:
        if step.cursor is None:
            return Wait("signature", timeout="1h", cursor=1)
        return step.event.payload if step.event else Snooze("1h")

    accepted(app, asked("signed"))
    drain(app)
    assert told(app) == []

    app.events.send("signature", "by Ann")
    drain(app)

    assert [(it["status"], it["result"]) for it in told(app)] == [("completed", "by Ann")]


def test_a_result_that_no_webhook_carries_stays_in_the_database(app: Stepfast) -> None:
    @app.task("large")
    def large() -> str:
        return "x" * 300_000

    job = accepted(app, asked("large"))
    drain(app)

    (body,) = told(app)
    assert (body["status"], body["result"]) == ("completed", None)
    assert "300,002 bytes" in body["result_omitted"]
    assert len(app.result_of(job.job_id).result) == 300_000


def failing(app: Stepfast) -> None:
    @app.task("fails", retry=Retry(attempts=2, first=0))
    def fails() -> None:
        raise ValueError("the scanner is on fire, token=hunter2")

    @app.task("permanent")
    def permanent() -> None:
        raise PermanentError("never")

    @app.task("rejects")
    def rejects() -> Reject:
        return Reject("not this one")

    @app.task("unstorable")
    def unstorable() -> object:
        return object()

    @app.task("slow", timeout="50ms", retry=Retry(attempts=1))
    async def slow() -> None:
        import asyncio

        await asyncio.sleep(30)

    @app.task("typed")
    def typed(n: int) -> int:
        return n


@pytest.mark.parametrize(
    ("task_type", "kind", "message", "cause"),
    [
        ("fails", "ValueError", "the scanner is on fire, token=***", "error"),
        ("permanent", "PermanentError", "never", "error"),
        ("rejects", "Rejected", "not this one", "rejected"),
        ("unstorable", "AnswerError", "the result cannot be stored as JSON", "error"),
        ("slow", "StepTimeout", "did not finish within 0.05 s", "timeout"),
        ("typed", "ArgumentsError", "task.typed: wrong arguments: missing required argument `n`", "refused"),
    ],
)
def test_a_task_that_fails_is_told_with_the_errors_type_and_message(
    app: Stepfast, task_type: str, kind: str, message: str, cause: str
) -> None:
    failing(app)
    accepted(app, asked(task_type))

    drain(app, raise_errors=False, with_scheduled=True)

    (body,) = told(app)
    assert (body["task_id"], body["status"]) == ("t-1", "failed")
    assert (body["error"]["type"], body["error"]["cause"]) == (kind, cause)
    assert body["error"]["message"].startswith(message)
    assert "result" not in body


def test_a_task_that_kills_its_workers_is_told_of(app: Stepfast) -> None:
    job = accepted(app, asked("any"))
    rows.add_worker(app, 7, alive_for=-rows.HOUR)
    rows.change(app, "UPDATE stepfast_job SET state = 'leased', owner = 7, fence = 5, crashes = 2")
    persist(app.database, lambda tx: declare_dead(tx, 0, trust_clock=True))

    persist(app.database, lambda tx: rescue(tx, 3))

    assert rows.state(app, job.job_id) == "dead"
    assert [(it["status"], it["error"]["type"]) for it in told(app)] == [("failed", "WorkerCrashed")]


def test_a_task_that_an_operator_cancels_is_told_of(app: Stepfast) -> None:
    job = accepted(app, asked("any"))

    app.operator.cancel(job.job_id)

    assert [(it["status"], it["error"]["cause"]) for it in told(app)] == [("failed", "cancelled")]


def test_a_task_that_is_cancelled_while_it_runs_is_told_of(app: Stepfast) -> None:
    @app.task("cancelled")
    def cancelled(step: Step) -> None:
        app.operator.cancel(step.job_id)
        step.wait(30)

    accepted(app, asked("cancelled"))
    drain(app, raise_errors=False)

    assert [(it["status"], it["error"]["cause"]) for it in told(app)] == [("failed", "cancelled")]


def test_what_goes_wrong_with_a_task_is_reported_under_the_id_that_its_sender_knows(app: Stepfast) -> None:
    tries: list[str] = []

    @app.task("flaky", retry=Retry(attempts=2, first="1ms"))
    def flaky(name: str) -> None:
        tries.append(name)
        raise ValueError(f"no {name}")

    @app.job(retry=Retry(attempts=1))
    def plain() -> None:
        raise ValueError("no task")

    job = accepted(app, asked("flaky", "order-7", name="Ann"))
    plain.enqueue()
    with hearing() as heard:
        drain(app, raise_errors=False)

    (failed,) = named(heard, "step.failed")
    assert (failed["job_id"], failed["task_id"]) == (job.job_id, "order-7")
    died = {it["job_id"]: it["task_id"] for it in named(heard, "job.died")}
    assert died.pop(job.job_id) == "order-7"
    assert list(died.values()) == [None]
    assert len(tries) == 2


def test_a_task_that_is_stopped_is_reported_under_its_id(app: Stepfast) -> None:
    started = threading.Event()

    @app.task("long")
    def long(step: Step) -> None:
        started.set()
        while True:
            step.check()

    job = accepted(app, asked("long", "order-8"))
    with hearing() as heard, app.worker(queues=["south-tasks"]):
        assert started.wait(10)
        app.operator.cancel(job.job_id)
        rows.eventually(lambda: rows.ended(app, job.job_id))

    (cancelled,) = named(heard, "job.cancelled")
    assert cancelled["task_id"] == "order-8"


def test_a_task_without_time_is_given_up_where_it_waits(app: Stepfast) -> None:
    from datetime import timedelta

    job = accepted(app, asked("any"))

    late = TaskTimeoutError(timedelta(seconds=5))
    assert persist(app.database, lambda tx: give_up_task(tx, job.job_id, late))

    assert not persist(app.database, lambda tx: give_up_task(tx, job.job_id, late))
    (body,) = told(app)
    assert body["error"] == {
        "type": "TaskTimeoutError",
        "message": "did not finish within 5 s, with all its tries",
        "cause": "timeout",
    }


def test_a_task_that_somebody_runs_is_not_given_up_behind_his_back(app: Stepfast) -> None:
    found: list[bool] = []

    @app.task("busy")
    def busy(step: Step) -> None:
        found.append(
            persist(app.database, lambda tx: give_up_task(tx, step.job_id, TaskRefusedError("says a test")))
        )

    accepted(app, asked("busy"))
    drain(app)

    assert found == [False]
    assert [it["status"] for it in told(app)] == ["completed"]


def test_each_end_is_told_of_once_and_a_second_life_has_an_end_of_its_own(app: Stepfast) -> None:
    works: list[bool] = []

    @app.task("later", retry=Retry(attempts=1))
    def later() -> str:
        if not works:
            raise ValueError("not yet")
        return "now"

    job = accepted(app, asked("later"))
    drain(app, raise_errors=False)
    works.append(True)
    app.operator.retry(job.job_id)
    drain(app)

    assert [it["status"] for it in told(app)] == ["failed", "completed"]


def test_who_asked_for_no_webhook_gets_none(app: Stepfast) -> None:
    failing(app)
    accepted(app, asked("permanent", url=None))
    drain(app, raise_errors=False)

    assert told(app) == []


def test_an_end_whose_commit_fails_is_told_of_by_nobody(app: Stepfast) -> None:
    @app.task("halfway", retry=Retry(attempts=1))
    def halfway(step: Step) -> str:
        step.effect(lambda tx: tx.execute("INSERT INTO no_such_table VALUES (1)"))
        return "done"

    accepted(app, asked("halfway"))
    drain(app, raise_errors=False)

    assert [it["status"] for it in told(app)] == ["failed"]


def test_an_end_can_be_told_again_under_the_same_id(app: Stepfast) -> None:
    @app.task("sum")
    def add(n: int) -> int:
        return n

    job = accepted(app, asked("sum", n=1))
    drain(app)
    rows.change(app, "UPDATE stepfast_outbox SET state = 'sent', ended_at = 1, attempts = 1")
    with app.database.reading() as tx:
        end = task_ends(tx, [job.job_id])[job.job_id]
    assert end.settled

    persist(app.database, lambda tx: resend_end(tx, end))
    persist(app.database, lambda tx: resend_end(tx, end))

    assert [(row["state"], row["attempts"]) for row in rows.query(app, "SELECT * FROM stepfast_outbox")] == [
        ("waiting", 0)
    ]
    rows.change(app, "DELETE FROM stepfast_outbox")  # as its retention does
    persist(app.database, lambda tx: resend_end(tx, end))
    assert [it["result"] for it in told(app)] == [1]


def told_again(app: Stepfast, job_id: str) -> Any:
    """The webhook that reports an end again after its first one was pruned."""
    rows.change(app, "DELETE FROM stepfast_outbox")
    with app.database.reading() as tx:
        end = task_ends(tx, [job_id])[job_id]
    persist(app.database, lambda tx: resend_end(tx, end))
    return told(app)[0]


def test_a_result_that_was_emptied_is_told_of_with_the_time_of_its_end(app: Stepfast) -> None:
    @app.task("sum")
    def add(n: int) -> int:
        return n

    job = accepted(app, asked("sum", n=1))
    drain(app)
    emptied = "UPDATE stepfast_archive SET finished_at = 1000000, result = NULL, result_expired_at = 2000000"
    rows.change(app, emptied)

    found = told_again(app, job.job_id)
    assert (found["status"], found["result"], found["finished_at"]) == (
        "completed",
        None,
        "1970-01-01T00:00:01.000Z",
    )
    assert "kept for its time" in found["result_omitted"]


def test_the_end_of_an_encrypted_task_is_told_again_as_it_was(
    app: Stepfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STEPFAST_SECRET_KEY", "a key that nobody can guess: 40 and more characters")
    sealing = Stepfast(database=app.database, encrypted=True)

    @sealing.task("charge")
    def charge(card: str) -> dict[str, str]:
        return {"charged": card}

    task = read_task(asked("charge", card="4111-1111"), sealing.kinds)
    job = persist(app.database, lambda tx: accept_task(tx, HERE, task))
    drain(sealing)

    assert told_again(app, job.job_id)["result"] == {"charged": "4111-1111"}
    monkeypatch.setenv("STEPFAST_SECRET_KEY", "another one, and the first is gone: 40 and more characters")
    found = told_again(app, job.job_id)
    assert (found["status"], found["result"]) == ("completed", None)
    assert "encrypted" in found["result_omitted"]


def test_a_task_whose_end_is_no_longer_kept_is_not_done_again_and_says_so(
    app: Stepfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("signal.signal", lambda *_: None)
    runs: list[str] = []

    @app.task("once")
    def once() -> None:
        runs.append("ran")

    accepted(app, asked("once"))
    drain(app)
    rows.change(app, "DELETE FROM stepfast_archive")  # as its retention does

    with pytest.raises(StepfastError, match="t-1: it ended before, and its job is no longer kept"):
        run_single_task(app, SingleTask(text=asked("once"), client=HERE.client), lambda _: None)
    assert runs == ["ran"]


def test_clients_do_not_see_what_is_told_of_each_others_tasks(app: Stepfast) -> None:
    for client in ("alpha", "beta"):
        accepted(app, asked("any"), Origin(client, "memory"))
        heard = {"task_id": "t-1", "status": "completed", "client_id": client}
        end = ReceivedEnd.read(f"w-{client}", json.dumps(heard).encode(), heard)
        persist(app.database, lambda tx, end=end: save(tx, end))  # type: ignore[misc]

    with app.reading() as tx:
        found = show_task(tx, "t-1", client="alpha")
        newest = latest_end(tx, "t-1", client="alpha")
    assert (found.task.client, [it.id for it in found.received]) == ("alpha", ["w-alpha"])
    assert newest is not None
    assert newest.webhook_id == "w-alpha"


def ended(app: Stepfast, *task_ids: str, url: str = URL) -> list[str]:
    """The jobs of tasks that are done one after the other, each with a webhook that waits."""
    made = []

    @app.task("ok")
    def ok() -> None: ...

    for task_id in task_ids:
        made.append(accepted(app, asked("ok", task_id, url=url)).job_id)
        drain(app)  # tasks that are done side by side end in any order, and so do their webhooks stand
    return made


def unsent(app: Stepfast, job_id: str) -> str | None:
    with app.database.reading() as tx:
        return why_unsent(tx, job_id)


def test_a_webhook_that_waits_for_others_to_the_same_address_says_so(app: Stepfast) -> None:
    app.send_webhook("https://elsewhere.example/", data=1)  # in a line of its own
    for n in range(2):
        app.send_webhook(URL, data=n)
    first, second = ended(app, "t-1", "t-2")

    assert unsent(app, first) == "its webhook stands behind 2 others to the same address"
    rows.change(
        app,
        "UPDATE stepfast_outbox SET last_error = 'HTTP 503', attempts = 4 WHERE seq = (SELECT min(seq) FROM (SELECT seq FROM stepfast_outbox WHERE address = :url) line)",
        url=URL,
    )
    assert unsent(app, second) == (
        "its webhook stands behind 3 others to the same address, the first of which failed: HTTP 503"
    )


def test_a_webhook_that_is_the_first_of_its_line_says_what_became_of_it(app: Stepfast) -> None:
    app.send_webhook(URL, data=1)
    (job_id,) = ended(app, "t-1")
    end = "WHERE job_id IS NOT NULL"

    assert unsent(app, job_id) == "its webhook stands behind 1 other to the same address"
    rows.change(app, "UPDATE stepfast_outbox SET state = 'sent', ended_at = 1 WHERE job_id IS NULL")
    assert unsent(app, job_id) == "there was no time for it"
    rows.change(app, f"UPDATE stepfast_outbox SET last_error = 'HTTP 500' {end}")
    assert unsent(app, job_id) == "HTTP 500"
    app.send_webhook(URL, data=2)  # behind it: that is no matter of ours
    assert unsent(app, job_id) == "HTTP 500"
    rows.change(app, f"UPDATE stepfast_outbox SET state = 'sent', ended_at = 1 {end}")
    assert unsent(app, job_id) is None


def test_a_webhook_that_was_given_up_waits_for_nobody(app: Stepfast) -> None:
    app.send_webhook(URL, data=1)
    (job_id,) = ended(app, "t-1")
    rows.change(
        app,
        "UPDATE stepfast_outbox SET state = 'dead', ended_at = 1, last_error = 'HTTP 410' WHERE job_id IS NOT NULL",
    )

    assert unsent(app, job_id) == "HTTP 410"


# What is no task


def refused(app: Stepfast, text: str, message_id: str = "m-1") -> TaskJob:
    try:
        read(text)
    except TaskRefusedError as error:
        why = error
    return persist(
        app.database,
        lambda tx: refuse_message(tx, Origin("south", "memory", message_id), text, why, app.kinds),
    )


def test_what_is_no_task_is_a_dead_letter_with_the_reason(app: Stepfast) -> None:
    job = refused(app, "garbage")

    (letter,) = app.operator.dead_letters()
    assert letter.id == job.job_id
    assert "no JSON" in (letter.last_error or "")


def test_the_same_message_is_refused_once(app: Stepfast) -> None:
    assert refused(app, "garbage").created
    assert not refused(app, "garbage").created
    assert refused(app, "garbage", "m-2").created
    assert len(app.operator.dead_letters()) == 2


def test_who_can_be_told_of_a_refusal_is_told(app: Stepfast) -> None:
    refused(app, json.dumps({"task_id": "t-9", "payload": 1, "webhook_url": URL}))

    (body,) = told(app)
    assert (body["task_id"], body["error"]["cause"]) == ("t-9", "refused")
    assert "payload is no object" in body["error"]["message"]


def test_a_task_that_is_right_comes_after_one_that_was_refused(app: Stepfast) -> None:
    refused(app, json.dumps({"task_id": "t-1", "payload": 1, "webhook_url": URL}))

    assert accepted(app, asked("any")).created


def test_a_wrong_message_says_nothing_about_a_task_of_the_same_id(app: Stepfast) -> None:
    accepted(app, asked("any"))

    refused(app, json.dumps({"task_id": "t-1", "payload": 1, "webhook_url": URL}))

    assert told(app) == []


def test_a_refused_message_becomes_its_task_when_newer_code_understands_it(app: Stepfast) -> None:
    text = asked("newer", n=3)
    why = TaskRefusedError("no handler", task_id="t-1", task_type="newer", webhook_url=URL)
    job = persist(app.database, lambda tx: refuse_message(tx, HERE, text, why, app.kinds))

    @app.task("newer")
    def newer(n: int) -> int:
        return n

    app.operator.retry(job.job_id)
    drain(app)

    assert [it["status"] for it in told(app)] == ["failed", "completed"]
    assert rows.state(app, job.job_id) == "done"


def test_a_refused_message_that_is_tried_again_too_early_is_refused_again(app: Stepfast) -> None:
    @app.task("other")
    def other() -> None: ...

    job = refused(app, "garbage")
    app.operator.retry(job.job_id)
    drain(app, raise_errors=False)

    assert rows.state(app, job.job_id) == "dead"


def test_the_environment_shortens_timeouts_and_sets_retries(
    app: Stepfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(os.environ, "WORKER_TASK_TIMEOUT", "90")
    monkeypatch.setitem(os.environ, "WORKER_MAX_RETRIES", "4")

    @app.task("long", timeout="1h")
    def long() -> None: ...

    @app.task("short", timeout="5s", retry=Retry(attempts=1))
    def short() -> None: ...

    kinds = [app.kinds.get(f"task.{it}") for it in ("long", "short")]
    assert [it.timeout.total_seconds() for it in kinds if it.timeout] == [90, 5]
    assert [it.retry.attempts for it in kinds] == [5, 1]


def test_the_id_of_a_message_may_be_as_long_as_its_sender_likes(app: Stepfast) -> None:
    @app.task("good")
    def good() -> None: ...

    accepted(app, asked("good"), Origin("south", "memory", "m" * 300))
    refused(app, "garbage", "m" * 300)

    found = rows.query(app, "SELECT message_id FROM stepfast_task")
    assert [row["message_id"] for row in found] == ["m" * 200] * 2


# Encrypted


def test_tasks_of_an_encrypted_application_are_stored_sealed(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STEPFAST_SECRET_KEY", "a key that nobody can guess: 40 and more characters")
    seen: list[str] = []
    with closing(Stepfast(database_url, encrypted=True)) as app:

        @app.task("charge")
        def charge(card: str) -> str:
            seen.append(card)
            return card

        task = read_task(asked("charge", url=None, card="4111-1111"), app.kinds)
        job = persist(app.database, lambda tx: accept_task(tx, HERE, task))
        refused(app, '{"task_id": "t-2", "task_type": 3, "payload": {"card": "4111-1111"}}')
        drain(app)

        assert seen == ["4111-1111"]
        assert app.result_of(job.job_id).result == "4111-1111"
        assert [it for it in TABLES if "4111-1111" in str(rows.query(app, f"SELECT * FROM {it}"))] == []
