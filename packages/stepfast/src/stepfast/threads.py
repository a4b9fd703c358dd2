"""Code that may hang runs on a thread of its own: it holds up no other code, and does not keep the process from ending.

The threads of asyncio.to_thread are few, and are waited for at the end. Starting one of these takes 50 µs.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

T = TypeVar("T")


async def in_own_thread(function: Callable[..., T], *arguments: object) -> T:
    """What the function answers or raises. If the caller stops waiting, the thread goes on and its answer is lost."""
    loop = asyncio.get_running_loop()
    over: asyncio.Future[tuple[list[T], BaseException | None]] = loop.create_future()
    context = contextvars.copy_context()

    def run() -> None:
        answers: list[T] = []
        raised: BaseException | None = None
        try:
            answers.append(context.run(function, *arguments))
        except BaseException as error:  # noqa: BLE001 - raised again in the caller
            raised = error
        with suppress(RuntimeError):  # the loop is closed: the caller is gone
            loop.call_soon_threadsafe(hand_over, answers, raised)

    def hand_over(answers: list[T], raised: BaseException | None) -> None:
        if not over.done():
            over.set_result((answers, raised))

    threading.Thread(target=run, name="stepfast-call", daemon=True).start()
    answers, raised = await over
    if raised is not None:
        raise raised
    return answers[0]
