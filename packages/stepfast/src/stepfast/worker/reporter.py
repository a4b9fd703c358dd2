"""Write progress and log lines soon, together, and without making handlers wait."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Final

from stepfast.database.database import persist
from stepfast.errors import ContentionError, UnreachableError
from stepfast.jobs.dependencies import results_of_parents
from stepfast.jobs.step import Halt, write_reports
from stepfast.telemetry import happened
from stepfast.worker.periodic import NEVER, Periodic

if TYPE_CHECKING:
    from stepfast.database.database import Database
    from stepfast.jobs.lease import Lease
    from stepfast.jobs.step import Report
    from stepfast.worker.leases import Leases


GATHER: Final = 0.05  # seconds to wait for more before writing
MOST: Final = 1_000  # reports of one step held while the database is away; the oldest go first


class Reporter:
    """Holds the reports of running steps until they are written: by its thread, or by the step's own commit."""

    def __init__(self, database: Database, leases: Leases) -> None:
        self._database = database
        self._leases = leases
        self.unwritten: dict[tuple[str, int], list[Report]] = {}  # by job and fence
        self._lock = threading.Lock()
        self.writing = threading.Lock()  # held while reports are between memory and the database
        self._thread = Periodic("reports", last_call=True)
        self._thread.add(self._gather_and_write, first=NEVER)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Write the rest, and no more."""
        self._thread.stop()

    def put(self, report: Report) -> None:
        """Have this report written soon; called by handlers."""
        with self._lock:
            reports = self.unwritten.setdefault((report.lease.job_id, report.lease.fence), [])
            reports.append(report)
            if len(reports) > MOST:
                del reports[0]
        self._thread.wake()

    def results_of_parents(self, job_id: str) -> dict[str, Any]:
        """The results of the jobs that this one comes after."""
        with self._database.looking() as tx:
            return results_of_parents(tx, job_id)

    def take(self, lease: Lease) -> list[Report]:
        """The reports of the step that are not written yet; waits for a write that is under way."""
        with self.writing, self._lock:
            return self.unwritten.pop((lease.job_id, lease.fence), [])

    def _gather_and_write(self) -> float:
        self._thread.stopping.wait(GATHER)
        self._write()
        return NEVER

    def _write(self) -> None:
        with self.writing:
            with self._lock:
                held, self.unwritten = self.unwritten, {}
            reports = [report for of_step in held.values() for report in of_step]
            if not reports:
                return
            try:
                lost = persist(self._database, lambda tx: write_reports(tx, reports))
            except (ContentionError, UnreachableError) as error:
                happened("reports.delayed", reports=len(reports), error=error)
                self._hold_again(held)
                raise
            except Exception as error:  # noqa: BLE001 - one report that cannot be stored must not silence the others
                happened("reports.dropped", reports=len(reports), error=error)
                return
        for job_id, fence in lost:
            self._leases.halt(job_id, fence, Halt.REPLACED)

    def _hold_again(self, held: dict[tuple[str, int], list[Report]]) -> None:
        with self._lock:
            for step, reports in held.items():
                self.unwritten[step] = (reports + self.unwritten.get(step, []))[-MOST:]
