"""Write progress and log lines soon, together, and without making handlers wait."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Final

from stepfast.database.database import persist
from stepfast.errors import ContentionError, UnreachableError
from stepfast.jobs.dependencies import results_of_parents
from stepfast.jobs.step import write_reports
from stepfast.telemetry import happened

if TYPE_CHECKING:
    from collections.abc import Callable

    from stepfast.database.database import Database
    from stepfast.jobs.lease import Lease
    from stepfast.jobs.step import Report


GATHER: Final = 0.05  # seconds to wait for more before writing
MOST: Final = 1_000  # lines of one step held while the database is away; the oldest go first


class Reporter:
    """Holds what running steps said until it is written: by its thread, or by the step's own commit."""

    def __init__(self, database: Database, replaced: Callable[[str, int], None]) -> None:
        self._database = database
        self._replaced = replaced
        self._said: dict[tuple[str, int], list[Report]] = {}  # by job and fence
        self._lock = threading.Lock()
        self._writing = threading.Lock()  # held while lines are between memory and the database
        self._something = threading.Event()
        self._stop = threading.Event()
        self._thread = threading.Thread(
            target=self._write_until_stopped, name="stepfast-reports", daemon=True
        )

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._something.set()
        self._thread.join(timeout=10)

    def put(self, report: Report) -> None:
        with self._lock:
            lines = self._said.setdefault((report.lease.job_id, report.lease.fence), [])
            lines.append(report)
            if len(lines) > MOST:
                del lines[0]
        self._something.set()

    def results_of_parents(self, job_id: str) -> dict[str, Any]:
        """What the jobs that this one comes after have answered."""
        with self._database.looking() as tx:
            return results_of_parents(tx, job_id)

    def has(self, lease: Lease) -> bool:
        """Whether the step's last words are not written yet; such a step commits alone, with them."""
        return (lease.job_id, lease.fence) in self._said or self._writing.locked()

    def take(self, lease: Lease) -> list[Report]:
        """What the step said and nobody wrote yet; waits for a write that is under way."""
        with self._writing, self._lock:
            return self._said.pop((lease.job_id, lease.fence), [])

    def _write_until_stopped(self) -> None:
        while not self._stop.is_set():
            self._something.wait()
            self._stop.wait(GATHER)
            self._something.clear()
            self._write()

    def _write(self) -> None:
        with self._writing:
            with self._lock:
                said, self._said = self._said, {}
            reports = [report for lines in said.values() for report in lines]
            if not reports:
                return
            try:
                lost = persist(self._database, lambda tx: write_reports(tx, reports))
            except (ContentionError, UnreachableError) as error:
                happened("reports.delayed", reports=len(reports), error=error)
                with self._lock:
                    for whose, lines in said.items():
                        self._said[whose] = (lines + self._said.get(whose, []))[-MOST:]
                self._stop.wait(1.0)
                self._something.set()
                return
            except Exception as error:  # noqa: BLE001 - one line that cannot be stored must not silence the others
                happened("reports.dropped", reports=len(reports), error=error)
                return
        for job_id, fence in lost:
            self._replaced(job_id, fence)
