"""Wake waiting workers when there is work, without paying for it in every enqueue.

On PostgreSQL a NOTIFY in every commit cut concurrent inserts to a third (commits that notify queue up
behind one lock). So a process notifies a queue at most once per `PAUSE`; what falls into the pause is
found by the worker itself, which keeps looking for a little longer than that after each piece of work.
"""

from __future__ import annotations

import ctypes
import os
import selectors
import socket
import threading
import time
from typing import TYPE_CHECKING, Final, Self

from stepfast.database.statement import sql

if TYPE_CHECKING:
    from stepfast.database.connection import Transaction


CHANNEL: Final = "stepfast"
CANCEL: Final = "!cancel"  # a payload that is no queue: look for jobs that are asked to stop
OUTBOX: Final = "!outbox"  # ... and this one: something was staged to be sent
MESSAGES: Final = "!messages"  # ... and this one: a message was sent to a queue in the database
PAUSE: Final = 0.010

NOTIFY = sql("SELECT pg_notify('stepfast', :queue)")

_lock: Final = threading.Lock()
_last: Final[dict[tuple[str, str], float]] = {}


def notify(tx: Transaction, url: str) -> None:
    """NOTIFY the queues that got ready work in this transaction, as part of it."""
    for queue in sorted(tx.wakes):
        if _due(url, queue):
            tx.run(NOTIFY, queue=queue)


def notify_for_lender(tx: Transaction) -> None:
    """Like `notify` without the pause, for a transaction that its lender commits later or never: no other may rely on it."""
    for queue in sorted(tx.wakes):
        tx.run(NOTIFY, queue=queue)


def _due(url: str, queue: str) -> bool:
    now = time.monotonic()
    with _lock:
        if now - _last.get((url, queue), -1.0) < PAUSE:
            return False
        _last[url, queue] = now
        return True


# On Linux a worker on SQLite sleeps until another process writes to the file.

IN_MODIFY: Final = 0x2


class FileWatch:
    """Waits for writes to one file. Raises `OSError` where the system cannot tell."""

    def __init__(self, path: str) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        if not hasattr(libc, "inotify_init1"):
            raise OSError("no inotify here")
        self._descriptor: int = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        watched = libc.inotify_add_watch(self._descriptor, os.fsencode(path), IN_MODIFY)
        if self._descriptor < 0 or watched < 0:
            raise OSError(ctypes.get_errno(), f"cannot watch {path}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)

    def wait(self, bell: socket.socket) -> bool:
        """Sleep until the file is written to (True), or until the bell is rung (False)."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._descriptor, selectors.EVENT_READ)
            selector.register(bell, selectors.EVENT_READ)
            ready = {key.fd for key, _ in selector.select()}
        if self._descriptor in ready:
            os.read(self._descriptor, 65_536)
        return bell.fileno() not in ready
