"""How the engine asks: the functions of a feed, which may be coroutines or plain, and our own database meanwhile."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import threading
from collections.abc import Callable, Coroutine, Generator
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from stepfast.threads import in_own_thread

if TYPE_CHECKING:
    from stepfast.database.database import Database


T = TypeVar("T")


async def answer_of(function: Callable[..., Any], *arguments: Any) -> Any:
    """What a function of the feed answers: a coroutine is awaited, a plain one has a thread of its own."""
    if inspect.iscoroutinefunction(inspect.unwrap(function)):
        return await function(*arguments)
    answer = await in_own_thread(function, *arguments)
    return await answer if inspect.isawaitable(answer) else answer


async def look_up(database: Database, look: Callable[..., T], *arguments: Any) -> T:
    """What our own database says. The way to a thread and back takes longer than a read of SQLite's file."""
    if database.dialect.name == "sqlite":
        return look(database, *arguments)
    return await asyncio.to_thread(look, database, *arguments)


class Begun(Generic[T]):
    """A coroutine that has run up to its first wait. One that never waits has its `answer` already."""

    __slots__ = ("_future", "_work", "answer", "waits")

    answer: T

    def __init__(self, work: Coroutine[Any, Any, T]) -> None:
        try:
            self._future: Any = work.send(None)
        except StopIteration as stop:
            self.answer = stop.value
            self.waits = False
        else:
            self._work = work
            self.waits = True

    def __await__(self) -> Generator[Any, Any, T]:
        """The rest of it."""
        future = self._future
        while True:
            try:
                given = yield future
            except GeneratorExit:
                self._work.close()
                raise
            except BaseException as error:  # noqa: BLE001 - a cancellation belongs to the coroutine
                resume: Callable[[Any], Any] = self._work.throw
                given = error
            else:
                resume = self._work.send
            try:
                future = resume(given)
            except StopIteration as stop:
                answer: T = stop.value
                return answer


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

    thread = threading.Thread(target=contextvars.copy_context().run, args=(run,), name="stepfast-feed")
    thread.start()
    thread.join()
    if isinstance(ended[0], BaseException):
        raise ended[0]
    return ended[0]
