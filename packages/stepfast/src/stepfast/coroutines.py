"""Coroutines driven by hand, and calls of functions that may be plain or async.

A `StartedCoroutine` runs up to its first wait at once, and perhaps that is all of it.

Most handlers, and most requests whose answer is there, never wait: they need no task, no timer and no turn of the event
loop. The others go on when their driver is awaited.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import threading
from asyncio import CancelledError
from collections.abc import Callable, Coroutine, Generator
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from stepfast.threads import in_own_thread

if TYPE_CHECKING:
    from contextvars import Context

T = TypeVar("T")


class StartedCoroutine(Generic[T]):
    """A coroutine that has run up to its first wait. If it `waits`, await the rest; if not, its `answer` is there.

    With a `context` all of it runs there: what it puts into context variables is not seen outside.
    """

    __slots__ = ("_context", "_coroutine", "_future", "answer", "waits")

    answer: T

    def __init__(self, coroutine: Coroutine[Any, Any, T], context: Context | None = None) -> None:
        try:
            self._future: Any = coroutine.send(None) if context is None else context.run(coroutine.send, None)
        except StopIteration as stop:
            self.answer = stop.value
            self.waits = False
        except (Exception, CancelledError):
            raise
        except BaseException as error:
            raise _exit(error) from error
        else:
            self.waits = True
            self._coroutine, self._context = coroutine, context

    def __await__(self) -> Generator[Any, Any, T]:
        """The rest of the coroutine."""
        future = self._future
        try:
            while True:
                try:
                    value = yield future
                except GeneratorExit:
                    self._close()
                    raise
                except BaseException as error:  # noqa: BLE001 - a cancellation belongs to the coroutine
                    future = self._resume(self._coroutine.throw, error)
                else:
                    future = self._resume(self._coroutine.send, value)
        except StopIteration as stop:
            answer: T = stop.value
            return answer

    def _resume(self, step: Callable[[Any], Any], value: Any) -> Any:
        try:
            return step(value) if self._context is None else self._context.run(step, value)
        except (Exception, CancelledError):
            raise
        except BaseException as error:
            raise _exit(error) from error

    def _close(self) -> None:
        if self._context is None:
            self._coroutine.close()
        else:
            self._context.run(self._coroutine.close)


class HandlerExit(Exception):  # noqa: N818 - what happened
    """User code tried to leave with something that is no error: SystemExit, GeneratorExit, KeyboardInterrupt."""


def _exit(error: BaseException) -> HandlerExit:
    """It must not reach the event loop, which would end."""
    return HandlerExit(f"the handler raised {type(error).__name__}")


async def answer_of(function: Callable[..., Any], *arguments: Any) -> Any:
    """What a function answers: an async one is awaited, a plain one has a thread of its own."""
    if inspect.iscoroutinefunction(inspect.unwrap(function)):
        return await function(*arguments)
    answer = await in_own_thread(function, *arguments)
    return await answer if inspect.isawaitable(answer) else answer


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
