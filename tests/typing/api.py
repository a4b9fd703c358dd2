"""The public API as a user types it. Checked by mypy --strict, never run."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, assert_never, assert_type

from stepfast import (
    Continue,
    Done,
    Effect,
    JobOutcome,
    JobState,
    PermanentError,
    Reject,
    Retry,
    Snooze,
    Step,
    Stepfast,
    ThrottledError,
    Transaction,
    TransientError,
    Upsert,
    with_retry,
)
from stepfast.notifications.settings import NotificationSettings
from stepfast.notifications.webhook import verify
from stepfast.outbox.messages import StagedMessage
from stepfast.reports import AuditEntry, JobSummary, MessageState, Operator, RunReport
from stepfast.results.watch import Ended, Logged, Progressed, StateChanged
from stepfast.testing import (
    Report,
    StoredJob,
    assert_enqueued,
    assert_not_enqueued,
    clock,
    crash_at,
    drain,
    enqueued,
    inline,
    kill_worker,
)

app = Stepfast("sqlite:///work.db")
default = Stepfast()


@dataclass
class Order:
    id: str
    copies: int = 1


@app.job()
def plain(order_id: str, copies: int = 1) -> str:
    return order_id * copies


@app.job(name="mail.send", queue="mail", priority=3, retry=Retry(attempts=5, first="10s"), timeout="60s")
async def waiting(step: Step, order: Order) -> Done | Continue | Snooze | Reject | None:
    assert_type(step.job_id, str)
    assert_type(step.attempt, int)
    assert_type(step.trace_id, str)
    step.annotate(run_id="r-7", page=3)
    step.progress(33, "step 1 complete")
    step.log("read 17 rows", level="warning")
    step.upsert("ledger", [{"id": order.id, "amount": 1}], key="id")
    step.upsert("ledger", ({"feed": "x", "id": n} for n in range(3)), key=("feed", "id"))
    step.effect(lambda tx: tx.execute("DELETE FROM ledger WHERE id = :id", {"id": order.id}))
    step.effect(Upsert("ledger", ["id"], [{"id": 1}]))
    step.effect(Move("a", "b"))
    if order.copies > 3:
        return Continue({"page": 2}, effects=[Move("a", "b")], delay=timedelta(seconds=5))
    if order.copies > 2:
        return Snooze("10m")
    if order.copies > 1:
        return Reject("too many")
    if order.copies < 0:
        raise PermanentError("never")
    if order.copies == 0:
        raise TransientError("later", delay=timedelta(minutes=1))
    return Done({"sent": True}, effects=[Move("a", "b")])


@app.job(result_ttl="1h")
async def counting() -> int:
    return 1


@app.job(timeout=None)
def with_check(step: Step) -> None:
    step.check()
    step.wait(0.5)
    if step.halted:
        return


class Move:
    """An effect of the user's own."""

    def __init__(self, source: str, target: str) -> None:
        self.source = source
        self.target = target

    def apply(self, tx: Transaction, /) -> None:
        assert_type(
            tx.execute("UPDATE ledger SET amount = amount - 1 WHERE id = :id", {"id": self.source}), int
        )
        for row in tx.query("SELECT * FROM ledger"):
            print(row["id"])  # noqa: T201 - never run
        with tx.savepoint():
            tx.execute_many("INSERT INTO ledger (id) VALUES (:id)", [{"id": self.target}])


effect: Effect = Move("a", "b")


def enqueue() -> None:
    job = plain.enqueue(order_id="A-17")
    assert_type(job.id, str)
    assert_type(job.created, bool)
    plain.enqueue(order_id="A-17", key="k", unique_for="1h", on_duplicate="skip", priority=5, delay="10m")
    plain.enqueue(order_id="A-17", run_at=datetime(2030, 1, 1, tzinfo=UTC), queue="later", id="task-1")
    for stored in plain.enqueue_many([{"order_id": "A"}, {"order_id": "B"}], keys=["a", None], delay=5):
        assert_type(stored.id, str)
    with app.transaction() as tx:
        tx.execute("INSERT INTO ledger (id) VALUES (:id)", {"id": 1})
        waiting.enqueue(order=Order("A-17"), tx=tx)


def call_directly() -> None:
    assert_type(plain("A-17", copies=2), str)
    assert_type(plain(order_id="A-17"), str)


def results() -> None:
    outcome = plain.enqueue(order_id="A-17").wait(timeout="5s")
    assert_type(outcome, JobOutcome[str])
    assert_type(outcome.result, str)
    assert_type(outcome.state, JobState)
    assert_type(app.result_of("job-1"), JobOutcome[Any])
    for update in app.enqueued("job-1").watch(timeout=5):
        match update:
            case Logged(at, level, step, message):
                assert_type(at, datetime)
                assert_type(level + message, str)
                assert_type(step, int)
            case Progressed(percent, note):
                assert_type(percent, int)
                assert_type(note, str | None)
            case StateChanged():
                assert_type(update.state, JobState)
            case Ended(end):
                assert_type(end, JobOutcome[Any])
            case _:
                assert_never(update)


async def results_of_coroutines() -> None:
    assert_type(await plain.enqueue(order_id="A-17").result(timeout=timedelta(seconds=5)), str)
    assert_type(await counting.enqueue().result(), int)
    assert_type(await waiting.enqueue(order=Order("A-17")).result(), Any)
    async for update in app.watch("job-1"):
        assert_type(update, StateChanged | Progressed | Logged | Ended)


def step_in() -> None:
    operator = app.operator.by("alice", reason="the printer is back")
    assert_type(operator, Operator)
    assert_type(operator.retry("job-1"), JobState)
    assert_type(operator.jobs({JobState.DEAD}), list[JobSummary])
    assert_type(operator.audit(), list[AuditEntry])
    assert_type(operator.runs.report("latest"), RunReport)
    for entry in operator.audit(who="alice", since="1d"):
        assert_type(entry.touched, int)


def by_the_clock() -> None:
    app.schedule("nightly", plain, cron="0 2 * * *", tz="Europe/Paris", arguments={"order_id": "A-17"})
    app.schedule("beat", with_check, every="15m", missed="skip", overlap="skip", queue="mail", priority=3)
    app.schedule("party", plain, at=datetime(2030, 1, 1, tzinfo=UTC), tick_as="order_id", missed="all")
    made = app.schedules.add("weekly", "mail.send", cron="@weekly", note="why not")
    assert_type(made.next_at, datetime | None)
    app.schedules.by("alice", reason="asked").change("weekly", every=timedelta(hours=3))
    assert_type(app.schedules.pause("weekly", "no paper"), bool)
    assert_type(app.schedules.resume("weekly"), bool)
    assert_type(app.schedules.trigger("weekly").id, str)
    for tick in app.schedules.show("weekly").ahead:
        assert_type(tick.local, datetime)
    app.schedules.remove("weekly")
    assert_type([it.name for it in app.schedules.all(everyone=True)], list[str])


def by_hand() -> None:
    held = app.acquire("my-worker-1", 300, queue="mail")
    if held is not None:
        held = app.extend(held, timedelta(minutes=5))
        assert_type(held.until, datetime)
        app.release(held, "retry", "out of paper")


def work() -> None:
    with app.worker(queues=["mail"], concurrency=3, lease="10s", renew_at=50, poll_interval="1s") as worker:
        assert_type(worker.status().active_job_ids, list[str])
    worker = app.worker(worker_id="w-1", grace="30s", batch=100, crash_limit=3, retention="7d")
    worker.start()
    worker.stop()


async def work_here() -> None:
    async with app.worker() as worker:
        await asyncio.sleep(1)
        worker.ask_to_stop()


def tell_the_outside(tx: Transaction) -> None:
    assert_type(
        app.send_webhook("https://hooks.example/", data={"n": 1}, type="order.paid", key="k", tx=tx),
        StagedMessage,
    )
    app.alert("disk", "The disk is full", "Buy another.", severity="warning", cooldown="10m", tx=tx)
    assert_type(app.operator.messages(MessageState.DEAD)[0].address, str)
    assert_type(verify(b"{}", {"webhook-id": "m"}, ["whsec_…"]), str)
    Stepfast(notifications=NotificationSettings(webhook_secrets=("whsec_…",), webhook_allow=("10.0.0.0/8",)))


def tell_from_a_step(step: Step) -> None:
    step.send_webhook("https://hooks.example/", data=[1, 2], headers={"X-Shop": "7"})
    step.alert("disk", "The disk is full")


def under_test() -> None:
    report = drain(
        app, queues=["mail"], limit=3, with_scheduled=True, raise_errors=False, concurrency=2, timeout=5
    )
    assert_type(report, Report)
    assert_type(report.done, int)
    assert_type(report.errors, list[BaseException])
    assert_type(report.kinds["plain"].runs[0].job_id, str)
    assert_type(
        assert_enqueued(app, plain, arguments={"order_id": "A-17"}, within="1h", count=1), list[StoredJob]
    )
    assert_not_enqueued(app, "mail.send", queue="mail", priority=3, key="k")
    assert_type(enqueued(app, waiting, ended=True)[0].due_at, datetime)
    with clock(app) as time, inline(app):
        assert_type(time.advance("1h"), datetime)
        time.travel_to(datetime(2030, 1, 1, tzinfo=UTC))
        time.freeze()
    with crash_at(app, "before commit", nth=2) as crash:
        drain(app)
    assert_type(crash.happened, bool)
    kill_worker(app, "after effects", with_scheduled=True)


async def under_async_test() -> None:
    assert_type(await drain(app), Report)


def runs(app: Stepfast) -> None:
    run = app.runs.start("catalogue", "backfill", from_=datetime(2026, 5, 1, tzinfo=UTC), max_rows=100)
    assert_type(run.id, str)
    assert_type(app.runs.plan("catalogue").rows, int | None)
    for reason in app.runs.show("latest").why:
        assert_type(reason.command, str | None)
    for look in app.runs.watch(run.id):
        assert_type(look.seconds_left, float | None)
    alice = app.runs.by("alice", reason="they are back")
    assert_type(alice.retry(run.id, [5, "partition-7"], from_start=True).debts, int)
    assert_type(alice.consolidate(run.id, force=True).partitions, tuple[str, ...])
    assert_type(alice.resume(alice.cancel("catalogue", "wrong account").run.id).run.failed, int)
    assert_type([it.stuck for it in app.runs.partitions(failed=True)], list[bool])
    assert_type([it.feed for it in app.runs.list(active=True)], list[str])


# Tasks from queues


@app.task("summarize", retry=2, timeout="5m", priority=1, result_ttl="1d")
def summarize(filename: str) -> str:
    return filename


@app.task("ingest")
async def ingest(step: Step, filename: str) -> int:
    return len(filename) + step.number


async def call_tasks(step: Step) -> None:
    assert_type(summarize("a.pdf"), str)
    assert_type(await ingest(step, "a.pdf"), int)


# Trying again on the spot


def connect() -> int:
    raise ThrottledError("slow down", retry_after="30s")


async def connect_later() -> int:
    return connect()


async def connected() -> None:
    assert_type(with_retry(connect, attempts=5, delay="100ms"), int)
    assert_type(await with_retry(connect_later, on_retry=lambda error, attempt: (error, attempt)), int)
