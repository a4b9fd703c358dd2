"""In the process of an isolated handler: what it logs goes to the worker, whose program knows what to do with it."""

from __future__ import annotations

import logging
import queue
import sys
from collections.abc import Callable
from logging.handlers import QueueHandler
from typing import Any, Final

from stepfast.telemetry.logs import ConsoleFormatter, Lines
from stepfast.worker.isolated_wire import Logged

_LONGEST: Final = 1_000  # characters of what stands for an object
_DEEPEST: Final = 10  # levels of a document
# Without their classes, which the worker may not know: an enumeration may be a text or a number, too.
_PLAIN: Final[tuple[tuple[type, Callable[[Any], Any]], ...]] = (
    (str, str.__str__),
    (int, int.__int__),
    (float, float.__float__),
)


class _Forward(QueueHandler):
    def __init__(self, tell: Callable[[tuple[Any, ...]], None]) -> None:
        super().__init__(queue.SimpleQueue())
        self._tell = tell

    def enqueue(self, record: logging.LogRecord) -> None:
        self._tell(Logged({name: data(it) for name, it in vars(record).items()}))


def forward_logs(levels: dict[str, int], tell: Callable[[tuple[Any, ...]], None]) -> None:
    for name, it in logging.root.manager.loggerDict.items():
        if isinstance(it, logging.Logger):
            it.handlers.clear()  # those of the worker's process write it; here it would be written twice
            it.propagate = True
            it.setLevel(levels.get(name, logging.NOTSET))
    for name, level in levels.items():
        logging.getLogger(name or None).setLevel(level)
    logging.root.handlers[:] = [_Forward(tell)]


def print_logs() -> None:
    """Where nobody listens any more."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(ConsoleFormatter(Lines()))  # structlog would have to be imported in every copy
    logging.root.handlers[:] = [handler]


def data(value: Any, depth: int = 0) -> Any:
    """A value that any process can read; of an object that is none, what it says of itself."""
    if value is None or isinstance(value, bool):
        return value
    for kind, plain in _PLAIN:
        if isinstance(value, kind):
            return plain(value)
    if isinstance(value, dict) and depth < _DEEPEST:
        return {data(name, _DEEPEST): data(it, depth + 1) for name, it in value.items()}
    if isinstance(value, list | tuple) and depth < _DEEPEST:
        return [data(it, depth + 1) for it in value]
    try:
        return repr(value)[:_LONGEST]
    except Exception:  # noqa: BLE001 - its own: it must not cost the line
        return f"<{type(value).__name__}>"
