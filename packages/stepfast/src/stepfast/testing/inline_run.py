"""`inline()`: jobs run where they are enqueued; the enqueue returns when they have run.

A commit that makes jobs ready wakes the workers of its process; inline mode listens to the same wake-ups. So a job runs
when the transaction that enqueued it has committed, and never if it was rolled back.
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


ANY_READY_JOB = sql(
    "SELECT id FROM stepfast_job WHERE state IN ('ready', 'suspect') AND ready_at <= {now} LIMIT 1"
)


@contextmanager
def inline(app: Stepfast, *, raise_errors: bool = True, timeout: Duration = "30s") -> Iterator[None]:
    """While the block lasts, each call that makes a job ready waits until the job has run.

    What the job itself enqueues runs afterwards, in order. A failing handler raises at the enqueue.
    """
    seconds = duration(timeout, "inline(timeout=…)").total_seconds()
    run = InlineRun(app, Scope((), None, with_scheduled=False, concurrency=1, timeout=seconds), raise_errors)
    database = app.database
    database.listen(run.hear)
    try:
        yield
    finally:
        database.unlisten(run.hear)


class InlineRun:
    """Drains whenever a commit made jobs ready."""

    def __init__(self, app: Stepfast, scope: Scope, raise_errors: bool) -> None:  # noqa: FBT001 - handed through
        self._app = app
        self._scope = scope
        self._raise_errors = raise_errors
        self._turn = threading.Lock()
        self._heard = threading.Event()

    def hear(self, queues: set[str]) -> None:
        """Called after a commit, by the thread that committed."""
        if not queues - {CANCEL}:
            return
        self._heard.set()
        # A call that comes while a drain is under way, from inside it or beside it, leaves its jobs to that drain.
        while self._heard.is_set() and not is_drained(self._app) and self._turn.acquire(blocking=False):
            try:
                self._heard.clear()
                if self._anything_ready():  # jobs that were enqueued inside the last drain have run in it
                    self._drain()
            finally:
                self._turn.release()

    def _anything_ready(self) -> bool:
        with self._app.reading() as tx:
            return bool(tx.rows(ANY_READY_JOB))

    def _drain(self) -> None:
        try:
            Drain(self._app, self._scope).run(raise_errors=self._raise_errors)
        except DatabaseError as error:
            # A DatabaseError would look as if the enqueue had failed, and its caller would try it again.
            raise StepfastError(f"the job was enqueued and failed: {error}") from error
