"""`with_retry`: try again, here and now, for connections and storage, where waiting a few seconds does no harm.

Inside a step, a call to a source is never repeated like this: the step itself is what is tried again, by one policy,
so that an outage is not met with every attempt times every other.
"""

from __future__ import annotations

import asyncio
import inspect
import math
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, TypeVar, cast, overload

from stepfast.clock import Duration, duration
from stepfast.errors import ConfigurationError, PermanentError

T = TypeVar("T")
OnRetry = Callable[[Exception, int], object]


@overload
def with_retry(
    fn: Callable[[], Awaitable[T]],
    *,
    attempts: int = ...,
    delay: Duration = ...,
    factor: float = ...,
    on_retry: OnRetry | None = ...,
    only: type[Exception] | tuple[type[Exception], ...] = ...,
) -> Awaitable[T]: ...
@overload
def with_retry(
    fn: Callable[[], T],
    *,
    attempts: int = ...,
    delay: Duration = ...,
    factor: float = ...,
    on_retry: OnRetry | None = ...,
    only: type[Exception] | tuple[type[Exception], ...] = ...,
) -> T: ...
def with_retry(
    fn: Callable[[], Any],
    *,
    attempts: int = 3,
    delay: Duration = "1s",
    factor: float = 2.0,
    on_retry: OnRetry | None = None,
    only: type[Exception] | tuple[type[Exception], ...] = Exception,
) -> Any:
    """Call `fn` up to `attempts` times, waiting `delay`, then `factor` times as long, and so on; `await` a coroutine's.

    `on_retry(error, attempt)` is called before each wait with the attempt that failed, from 1. The last error is raised as it is.
    `only`: errors that are worth another try. A `PermanentError` never is.
    """
    waits = list(_waits(attempts, delay, factor))
    if inspect.iscoroutinefunction(inspect.unwrap(fn)):
        return _awaited(fn, waits, on_retry, only)
    for attempt, wait in enumerate(waits, 1):
        try:
            answer = fn()
        except only as error:
            _before_wait(error, attempt, wait, on_retry)
            time.sleep(cast("float", wait))
        else:
            return _awaited(fn, waits, on_retry, only, answer) if inspect.isawaitable(answer) else answer
    raise AssertionError("the last attempt answers or raises")


async def _awaited(
    fn: Callable[[], Awaitable[T]],
    waits: list[float | None],
    on_retry: OnRetry | None,
    only: type[Exception] | tuple[type[Exception], ...],
    first: Awaitable[T] | None = None,
) -> T:
    for attempt, wait in enumerate(waits, 1):
        try:
            return await (first if first is not None and attempt == 1 else fn())
        except only as error:
            _before_wait(error, attempt, wait, on_retry)
            await asyncio.sleep(cast("float", wait))
    raise AssertionError("the last attempt answers or raises")


def _before_wait(error: Exception, attempt: int, wait: float | None, on_retry: OnRetry | None) -> None:
    """Report that there will be another attempt, or raise: this was the last, or none can help."""
    if wait is None or isinstance(error, PermanentError):
        raise error
    if on_retry is not None:
        on_retry(error, attempt)


def _waits(attempts: int, delay: Duration, factor: float) -> Iterator[float | None]:
    """Seconds after each attempt; None after the last."""
    number: object = attempts
    if isinstance(number, bool) or not isinstance(number, int) or number < 1:
        raise ConfigurationError(
            f"with_retry(attempts={attempts!r}): a whole number; something is tried at least once"
        )
    growth: object = factor
    if isinstance(growth, bool) or not isinstance(growth, int | float) or not 1 <= growth < math.inf:
        raise ConfigurationError(f"with_retry(factor={factor!r}): waits must not shrink; use 1 or more")
    wait = duration(delay, "with_retry(delay=…)").total_seconds()
    for _ in range(attempts - 1):
        yield wait
        wait *= factor
    yield None
