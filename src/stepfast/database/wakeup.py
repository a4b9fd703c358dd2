"""Tell waiting workers that there is work, without paying for it in every enqueue.

On PostgreSQL a NOTIFY in every commit cut concurrent inserts to a third (commits that notify queue up
behind one lock). So a process notifies a queue at most once per `PAUSE`; what falls into the pause is
found by the worker itself, which keeps looking for a little longer than that after each piece of work.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Final

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
    """Send what the transaction's enqueues asked for, as part of it."""
    for queue in sorted(tx.wakes):
        if _due(url, queue):
            tx.run(NOTIFY, queue=queue)


def notify_for_lender(tx: Transaction) -> None:
    """The same in a transaction that somebody else commits, later or never: no other enqueue may rely on it."""
    for queue in sorted(tx.wakes):
        tx.run(NOTIFY, queue=queue)


def _due(url: str, queue: str) -> bool:
    now = time.monotonic()
    with _lock:
        if now - _last.get((url, queue), -1.0) < PAUSE:
            return False
        _last[url, queue] = now
        return True
