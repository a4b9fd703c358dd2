"""Write progress and log lines soon, together, and without making handlers wait."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from holdfast.database.database import persist
from holdfast.errors import DatabaseError
from holdfast.steps.reports import write_reports
from holdfast.telemetry import happened

if TYPE_CHECKING:
    from holdfast.database.database import Database
    from holdfast.steps.step import Report

GATHER: Final = 0.05  # seconds to wait for more of the same before writing
MOST: Final = 10_000  # reports held while the database is away


class Reporter:
    """A thread with a queue; a job whose fence has moved on is told through `replaced`."""

    def __init__(self, database: Database, replaced: Callable[[str, int], None]) -> None:
        self._database = database
        self._replaced = replaced
        self._queue: queue.SimpleQueue[Report | None] = queue.SimpleQueue()
        self._written = threading.Condition()
        self._pending: dict[str, int] = {}
        self._thread = threading.Thread(
            target=self._write_until_stopped, name="holdfast-reports", daemon=True
        )
        self._stopping = threading.Event()

    def start(self) -> None:
        self._thread.start()

    def put(self, report: Report) -> None:
        with self._written:
            self._pending[report.lease.job_id] = self._pending.get(report.lease.job_id, 0) + 1
        self._queue.put(report)

    def flush(self, job_id: str, timeout: float = 5.0) -> None:
        """Wait until what this job said is written: its row leaves with the commit that follows."""
        with self._written:
            if job_id in self._pending:
                self._written.wait_for(lambda: job_id not in self._pending, timeout)

    def says_nothing(self, job_id: str) -> bool:
        return job_id not in self._pending

    def stop(self) -> None:
        self._stopping.set()
        self._queue.put(None)
        self._thread.join(timeout=10)

    def _write_until_stopped(self) -> None:
        while True:
            first = self._queue.get()
            if first is None:
                return
            batch = [first]
            self._stopping.wait(GATHER)
            last = False
            while not self._queue.empty() and len(batch) < MOST:
                item = self._queue.get()
                if item is None:
                    last = True
                    break
                batch.append(item)
            self._write(batch)
            if last:
                return

    def _write(self, batch: list[Report]) -> None:
        try:
            lost = persist(self._database, lambda tx: write_reports(tx, batch))
        except DatabaseError as error:
            happened("reports.dropped", reports=len(batch), error=str(error))
            lost = set()
        fences = {report.lease.job_id: report.lease.fence for report in batch}
        with self._written:
            for report in batch:
                left = self._pending[report.lease.job_id] - 1
                if left:
                    self._pending[report.lease.job_id] = left
                else:
                    del self._pending[report.lease.job_id]
            self._written.notify_all()
        for job_id in lost:
            self._replaced(job_id, fences[job_id])
