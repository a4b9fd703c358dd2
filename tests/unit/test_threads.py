"""Calls that may hang run in threads of their own."""

from __future__ import annotations

import asyncio
import threading
from contextvars import ContextVar
from typing import NoReturn

import pytest

from stepfast.threads import in_own_thread

WHO: ContextVar[str] = ContextVar("WHO", default="nobody")


def test_it_answers_in_the_context_of_the_caller_and_on_a_thread_that_nobody_joins() -> None:
    async def ask() -> tuple[str, bool]:
        WHO.set("the caller")
        return await in_own_thread(lambda: (WHO.get(), threading.current_thread().daemon))

    assert asyncio.run(ask()) == ("the caller", True)


@pytest.mark.parametrize(
    ("raised", "met"), [(KeyError("x"), KeyError), (StopIteration(), RuntimeError)], ids=["error", "stop"]
)
def test_it_raises_what_the_function_raises(raised: Exception, met: type[Exception]) -> None:
    def fail() -> NoReturn:
        raise raised

    with pytest.raises(met):
        asyncio.run(in_own_thread(fail))


def test_who_stops_waiting_leaves_the_thread_behind_and_a_hundred_that_hang_hold_up_nobody() -> None:
    release = threading.Event()

    async def ask() -> str:
        waiting = [asyncio.ensure_future(in_own_thread(release.wait, 60)) for _ in range(100)]
        await asyncio.sleep(0)
        for it in waiting[:50]:
            it.cancel()
        answer = await in_own_thread(str, "at once")
        assert not any(it.done() for it in waiting[50:])
        release.set()
        assert await asyncio.gather(*waiting[50:]) == [True] * 50
        return answer

    assert asyncio.run(ask()) == "at once"
