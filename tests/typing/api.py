"""The public API as a user types it. Checked by mypy --strict, never run."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import assert_type

from holdfast import (
    Continue,
    Done,
    Effect,
    Holdfast,
    PermanentError,
    Reject,
    Retry,
    Snooze,
    Step,
    Transaction,
    TransientError,
    Upsert,
)

app = Holdfast("sqlite:///work.db")
default = Holdfast()


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
