"""The ways to the end of a job: look, wait, watch."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from stepfast.clock import Duration, duration
from stepfast.errors import StateError, WaitTimeoutError
from stepfast.results.blocking import refuse_in_loop
from stepfast.results.outcome import JobOutcome, look, unknown
from stepfast.results.reading import Reading, reading_of
from stepfast.results.waiting import waiting
from stepfast.results.watching import Watch

if TYPE_CHECKING:
    from datetime import timedelta

    from stepfast.database.connection import Transaction
    from stepfast.database.database import Database
    from stepfast.results.waiting import Waiter
    from stepfast.steps.kinds import Kinds


class App(Protocol):
    """What results need of their application."""

    @property
    def database(self) -> Database: ...
    @property
    def kinds(self) -> Kinds: ...


class Results:
    """How the jobs of one application end."""

    def __init__(self, app: App) -> None:
        self._app = app

    def look(self, job_id: str, tx: Transaction | None = None) -> JobOutcome[Any]:
        """Where the job stands now, or as `tx` sees it."""
        with self._app.database.looking() if tx is None else nullcontext(tx) as looking:
            found = look(looking, [job_id]).get(job_id)
        if found is None:
            raise unknown(job_id)
        return self._readable(found)

    def wait(self, job_id: str, timeout: Duration | None = None) -> JobOutcome[Any]:
        """Block this thread until the job has ended."""
        refuse_in_loop("job.wait()", "await job.result()")
        patience = None if timeout is None else duration(timeout, "timeout")
        waiter = self._waiter(job_id)
        try:
            end = waiter.end.result(None if patience is None else patience.total_seconds())
        except TimeoutError:
            raise _late(waiter, patience) from None
        finally:
            waiting(self._app.database).leave(waiter)
        return self._readable(end)

    async def result(self, job_id: str, timeout: Duration | None = None) -> Any:  # noqa: ASYNC109 - as `wait` has it
        """Let others run until the job has ended; return what it answered. No thread waits with us."""
        import asyncio  # heavy, and not for programs that only enqueue

        patience = None if timeout is None else duration(timeout, "timeout")
        waiter = self._waiter(job_id)
        try:
            async with asyncio.timeout(None if patience is None else patience.total_seconds()):
                end = await asyncio.wrap_future(waiter.end)
        except TimeoutError:
            raise _late(waiter, patience) from None
        finally:
            waiting(self._app.database).leave(waiter)
        return self._readable(end).result

    def watch(self, job_id: str, timeout: Duration | None = None) -> Watch:
        """What happens to the job, from its beginning to its end."""
        patience = None if timeout is None else duration(timeout, "timeout")
        return Watch(self._app.database, job_id, patience, self._reading)

    def _waiter(self, job_id: str) -> Waiter:
        database = self._app.database
        if database.locked_here:
            raise StateError(
                f"waiting for job {job_id} inside a transaction of this thread: SQLite lets nobody else write until "
                "it ends, so no worker could finish the job; leave the transaction first"
            )
        return waiting(database).add(job_id)

    def _readable(self, end: JobOutcome[Any]) -> JobOutcome[Any]:
        return replace(end, reading=self._reading(end.kind))

    def _reading(self, kind: str) -> Reading:
        return reading_of(self._app.kinds, kind)


def _late(waiter: Waiter, patience: timedelta | None) -> Exception:
    assert patience is not None  # noqa: S101 - who has all the time cannot be late
    return WaitTimeoutError(waiter.job_id, waiter.state, patience)
