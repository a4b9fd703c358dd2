"""Calls of a feed's functions, which may be plain or async, and of our own database between them."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import threading
from typing import TYPE_CHECKING, Any, TypeVar

from stepfast.threads import in_own_thread

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from stepfast.database.database import Database


T = TypeVar("T")


async def answer_of(function: Callable[..., Any], *arguments: Any) -> Any:
    """What a function of the feed answers: an async one is awaited, a plain one has a thread of its own."""
    if inspect.iscoroutinefunction(inspect.unwrap(function)):
        return await function(*arguments)
    answer = await in_own_thread(function, *arguments)
    return await answer if inspect.isawaitable(answer) else answer


async def look_up(database: Database, look: Callable[..., T], *arguments: Any) -> T:
    """What `look` reads in our own database: on another thread, except that SQLite's file is read faster than that."""
    if database.dialect.name == "sqlite":
        return look(database, *arguments)
    return await asyncio.to_thread(look, database, *arguments)


def wait_for(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end from plain code; where an event loop is running already, on a thread of its own."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    ended: list[T | BaseException] = []

    def run() -> None:
        try:
            ended.append(asyncio.run(work))
        except BaseException as error:  # noqa: BLE001 - raised again for the caller
            ended.append(error)

    thread = threading.Thread(target=contextvars.copy_context().run, args=(run,), name="stepfast-feed")
    thread.start()
    thread.join()
    if isinstance(ended[0], BaseException):
        raise ended[0]
    return ended[0]
