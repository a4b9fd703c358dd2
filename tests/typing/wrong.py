"""Calls that are wrong, and are errors on exactly these lines, with exactly these codes. Never run.

mypy takes an ignore that hides nothing for an error, and so does pyright, each with comments of its own: `make types`.
"""

# ruff: noqa: ARG002 - nobody calls these

from __future__ import annotations

from typing import Any

from stepfast import Continue, Done, Feed, Page, Range, Reject, Retry, Snooze, Step, Window
from tests.typing.calls import (
    Order,
    alone,
    app,
    awaited,
    awaited_with_step,
    nothing,
    plain,
    with_step,
)


def arguments() -> None:
    plain.enqueue()  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    plain.enqueue(17)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
    plain.enqueue(order_id=17)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
    plain.enqueue(order="A-17")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    plain.enqueue("A-17", copies="two")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
    plain.enqueue("A-17", 2, 3)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    with_step.enqueue(order="A-17")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
    awaited.enqueue(1, 2)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    awaited.enqueue(left=1)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    awaited_with_step.enqueue(path=b"x")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
    nothing.enqueue("A-17")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]


def the_step_is_the_workers_to_give(step: Step) -> None:
    with_step.enqueue(step, Order("A-17"))  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    alone.enqueue(step)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    alone.enqueue(step=step)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    with_step(Order("A-17"))  # type: ignore[call-arg, arg-type]  # pyright: ignore[reportCallIssue]
    plain(17)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def options() -> None:
    plain.with_options(delay="10m").enqueue(order_id=17)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    plain.with_options(delay="10m").enqueue()  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    plain.with_options(dealy="10m")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    plain.with_options(delay=["10m"])  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    plain.with_options(on_duplicate="ignore")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    plain.enqueue("A-17", delay=["10m"])  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    plain.enqueue(order_id="A-17", on_duplicate="ignore")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]


def many() -> None:
    plain.with_args(order_id=17)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    plain.with_args()  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    plain.enqueue_many([awaited.with_args(left=1, right=2)])  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]
    plain.enqueue_many(["A-17"])  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]
    plain.enqueue_many([{"order_id": "A-17"}], key="a")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


async def awaiting() -> None:
    await plain.enqueue_async()  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    await plain.enqueue_async(order_id=17)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
    await plain.enqueue_async(order="A-17")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    await awaited.enqueue_async(left=1)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    await plain.enqueue_async(order_id="A-17", delay=["10m"])  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
    await plain.enqueue_async(order_id="A-17", on_duplicate="ignore")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
    await plain.with_options(tx=None).enqueue_async(order_id=17)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


async def results() -> None:
    _number: int = await plain.enqueue("A-17").result()  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
    _text: str = awaited.enqueue(left=1, right=2).wait().result  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
    _words: str = await awaited_with_step.enqueue("x").result()  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]


def outcomes() -> None:
    Reject()  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    Snooze(["1m"])  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    Done(1, [])  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    Continue(1, effects=3)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def registering() -> None:
    app.job(retries=3)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    app.job(retry="3")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    app.job(retry=Retry(attempts="5"))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    app.job()(17)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]
    app.schedule("nightly", plain, cron=2)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    app.schedule("nightly", plain.enqueue, cron="@daily")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


class Wrong(Feed):
    name = 17  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]

    async def fetch(self, part: Range, window: Window, /) -> Page:  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]
        return Page([])

    def identify(self, item: Any, /) -> int:  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]
        return 1


def feeds() -> None:
    app.feed(plain)  # type: ignore[type-var]  # pyright: ignore[reportArgumentType]
    Page(17)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
