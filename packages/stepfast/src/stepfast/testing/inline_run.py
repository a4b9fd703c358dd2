"""Run jobs where they are enqueued: the enqueue returns when they have run, through the real path.

What commits ready work in this process tells the workers of this process; inline mode listens there. So a job runs
when the transaction that asked for it has committed, and never if it was rolled back.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

from stepfast.clock import Duration, duration
from stepfast.database.statement import sql
from stepfast.database.wakeup import CANCEL
from stepfast.errors import DatabaseError, StepfastError
from stepfast.testing.draining import Drain, Scope, is_drained

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stepfast.app import Stepfast


READY = sql("SELECT id FROM stepfast_job WHERE state IN ('ready', 'suspect') AND ready_at <= {now} LIMIT 1")


@contextmanager
def inline(app: Stepfast, *, raise_errors: bool = True, timeout: Duration = "30s") -> Iterator[None]:
    """While the block lasts, whoever makes a job ready waits until it has run.

    What the job itself enqueues runs afterwards, in order. A failing handler raises at the enqueue.
    """
    seconds = duration(timeout, "inline(timeout=…)").total_seconds()
    mode = Inline(app, Scope((), None, with_scheduled=False, concurrency=1, timeout=seconds), raise_errors)
    database = app.database
    database.listen(mode.hear)
    try:
        yield
    finally:
        database.unlisten(mode.hear)


class Inline:
    """Drains whenever it hears of ready work."""

    def __init__(self, app: Stepfast, scope: Scope, raise_errors: bool) -> None:  # noqa: FBT001 - handed through
        self._app = app
        self._scope = scope
        self._raise_errors = raise_errors
        self._turn = threading.Lock()
        self._heard = threading.Event()

    def hear(self, queues: set[str]) -> None:
        """Called by who committed, after the commit."""
        if not queues - {CANCEL}:
            return
        self._heard.set()
        # Whoever comes while a drain is under way is inside it, or beside it: that drain goes on.
        while self._heard.is_set() and not is_drained(self._app) and self._turn.acquire(blocking=False):
            try:
                self._heard.clear()
                if self._anything_ready():  # what was enqueued inside the last drain has run in it
                    self._drain()
            finally:
                self._turn.release()

    def _anything_ready(self) -> bool:
        with self._app.reading() as tx:
            return bool(tx.rows(READY))

    def _drain(self) -> None:
        try:
            Drain(self._app, self._scope).run(raise_errors=self._raise_errors)
        except DatabaseError as error:
            # As it is, it would look as if the enqueue had failed, and whoever enqueued would try it again.
            raise StepfastError(f"the job was enqueued and failed: {error}") from error
