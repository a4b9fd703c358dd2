"""`enqueue` has the handler's signature: calls that are right. Checked by mypy --strict and by pyright, never run."""

# ruff: noqa: ARG002 - nobody calls these

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, assert_type

from stepfast import (
    Bounds,
    Continue,
    Cursor,
    Done,
    EnqueuedJob,
    Feed,
    Fixed,
    Job,
    Page,
    Range,
    Reject,
    Snooze,
    Step,
    Stepfast,
    Transaction,
    Window,
)

app = Stepfast("sqlite:///work.db")


@dataclass
class Order:
    id: str
    copies: int = 1


@app.job()
def plain(order_id: str, copies: int = 1) -> str:
    return order_id * copies


@app.job(queue="mail")
def with_step(step: Step, order: Order) -> Done | Continue | Snooze | Reject:
    return Continue({"page": step.number + 1}) if order.copies > 1 else Done("sent")


@app.job()
async def awaited(*, left: int, right: int) -> int:
    return left + right


@app.job(timeout=None)
async def awaited_with_step(step: Step, path: str) -> list[str]:
    step.progress(50)
    return [path]


@app.job()
def alone(step: Step) -> None:
    step.check()


@app.job()
def nothing() -> None: ...


@app.job()
def anything(document: object, *, pages: int = 1) -> None: ...


def with_the_handlers_arguments() -> None:
    assert_type(plain.enqueue(order_id="A-17"), EnqueuedJob[str])
    assert_type(plain.enqueue("A-17", 2), EnqueuedJob[str])
    assert_type(plain.enqueue("A-17", copies=2).id, str)
    with_step.enqueue(order=Order("A-17"))
    with_step.enqueue(Order("A-17"))
    awaited.enqueue(left=1, right=2)
    awaited_with_step.enqueue(path="/tmp/x")  # noqa: S108 - never run
    alone.enqueue()
    nothing.enqueue()
    anything.enqueue(document={"a": 1}, pages=3)


def with_options(tx: Transaction) -> None:
    assert_type(plain.with_options(delay="10m", tx=tx).enqueue(order_id="A-17"), EnqueuedJob[str])
    with_step.with_options(key="A-17", unique_for=timedelta(days=1), on_duplicate="skip").enqueue(
        Order("A-17")
    )
    awaited.with_options(priority=3, queue="later", id="task-1").enqueue(left=1, right=2)
    alone.with_options(delay=5).enqueue()


def with_options_among_the_arguments(tx: Transaction) -> None:
    assert_type(plain.enqueue(order_id="A-17", delay="10m"), EnqueuedJob[str])
    with_step.enqueue(order=Order("A-17"), tx=tx, key="A-17")
    alone.enqueue(priority=3)


def many() -> None:
    prepared = [plain.with_args("A-17"), plain.with_args(order_id="A-18", copies=2)]
    assert_type(plain.enqueue_many(prepared, delay="1h"), list[EnqueuedJob[str]])
    assert_type(plain.enqueue_many([{"order_id": "A-17"}], keys=["a"]), list[EnqueuedJob[str]])
    calls: list[Mapping[str, Any]] = [{"left": 1, "right": 2}]
    awaited.enqueue_many(calls)


async def awaiting(tx: object) -> None:
    assert_type(await plain.with_options(tx=tx).enqueue_async(order_id="A-17"), EnqueuedJob[str])
    assert_type(await plain.enqueue_async(order_id="A-17"), EnqueuedJob[str])
    assert_type(await plain.enqueue_async("A-17", copies=2), EnqueuedJob[str])
    assert_type(await plain.enqueue_async(order_id="A-17", tx=tx), EnqueuedJob[str])
    assert_type(await (await awaited.enqueue_async(left=1, right=2)).result(), int)
    await with_step.enqueue_async(order=Order("A-17"), tx=tx, key="A-17", on_duplicate="replace")
    await alone.enqueue_async()


def called_directly(step: Step) -> None:
    assert_type(plain("A-17"), str)
    assert_type(with_step(step, Order("A-17")), Done | Continue | Snooze | Reject)
    alone(step)


async def results() -> None:
    assert_type(plain.enqueue("A-17").wait().result, str)
    assert_type(await plain.enqueue("A-17").result(), str)
    assert_type(awaited.enqueue(left=1, right=2).wait("5s").result, int)
    assert_type(await awaited.enqueue(left=1, right=2).result(), int)
    assert_type(await awaited_with_step.enqueue("x").result(), list[str])
    assert_type(with_step.enqueue(Order("A-17")).wait().result, Any)  # outcomes say nothing of it
    handle: EnqueuedJob[str] = plain.enqueue("A-17")
    assert_type(await handle.result(timeout=5), str)


def as_an_argument(job: Job[..., Any]) -> None:
    app.schedule("nightly", job, cron="0 2 * * *")


as_an_argument(plain)
as_an_argument(with_step)


class Catalogue(Feed):
    name = "catalogue"
    table, key = "item", "id"
    partitioner = Fixed([Range.of(price=Bounds(0, 10))], domain=Range.of(price=Bounds(0, 10)))

    async def count(self, part: Range, window: Window, /) -> int:
        return 0

    async def fetch(self, part: Range, window: Window, cursor: Cursor, /) -> Page:
        return Page([], next=cursor.offset)

    def identify(self, item: Any, /) -> str:
        return str(item["id"])

    def map(self, item: Any, /) -> dict[str, Any]:
        return {"id": item["id"]}


assert_type(app.feed(Catalogue()), Catalogue)
