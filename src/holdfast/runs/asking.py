"""How the engine asks: the functions of a feed, which may be coroutines or plain, and our own database meanwhile."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import threading
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from holdfast.database.database import Database

T = TypeVar("T")


async def answer_of(function: Callable[..., Any], *arguments: Any) -> Any:
    """What a function of the feed answers: a coroutine is awaited, a plain one runs in a thread."""
    if inspect.iscoroutinefunction(inspect.unwrap(function)):
        return await function(*arguments)
    answer = await asyncio.to_thread(function, *arguments)
    return await answer if inspect.isawaitable(answer) else answer


async def look_up(database: Database, look: Callable[..., T], *arguments: Any) -> T:
    """What our own database says. The way to a thread and back takes longer than a read of SQLite's file."""
    if database.dialect.name == "sqlite":
        return look(database, *arguments)
    return await asyncio.to_thread(look, database, *arguments)


def wait_for(work: Coroutine[Any, Any, T]) -> T:
    """Run it to its end from plain code, also where an event loop is running already: then on a thread of its own."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    ended: list[T | BaseException] = []

    def run() -> None:
        try:
            ended.append(asyncio.run(work))
        except BaseException as error:  # noqa: BLE001 - raised again for whoever waits
            ended.append(error)

    thread = threading.Thread(target=contextvars.copy_context().run, args=(run,), name="holdfast-feed")
    thread.start()
    thread.join()
    if isinstance(ended[0], BaseException):
        raise ended[0]
    return ended[0]
