"""Write progress and log lines soon, together, and without making handlers wait.

A handler that writes lines faster than the database takes them has to wait after all, so that none is lost. Only while
the database is away do the oldest lines make room for new ones; the job's log then says how many are missing. Of
progress the newest is all that counts, so it is never dropped.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any, Final

from stepfast.database.database import persist
from stepfast.errors import ContentionError, UnknownCommitError, UnreachableError
from stepfast.jobs.dependencies import results_of_parents
from stepfast.jobs.kinds import Kinds
from stepfast.jobs.step import Halt, Report, newest, write_reports
from stepfast.telemetry import happened
from stepfast.worker.periodic import NEVER, Periodic

if TYPE_CHECKING:
    from stepfast.database.database import Database
    from stepfast.jobs.lease import Lease
    from stepfast.worker.leases import Leases
    from stepfast.worker.vital import VitalParts


GATHER: Final = 0.05  # seconds to wait for more before writing
FULL: Final = 5_000  # lines of one step that are not written yet: its handler waits for them to be
PATIENCE: Final = 5.0  # seconds that it waits; then the database counts as away
AT_ONCE: Final = 1_000  # lines in one transaction

StepKey = tuple[str, int]  # job and fence


class Unwritten:
    """What a step has reported and nobody has written: its lines, its newest progress, and how many lines were dropped."""

    __slots__ = ("dropped", "lines", "progress")

    def __init__(self) -> None:
        self.lines: deque[Report] = deque()
        self.progress: Report | None = None
        self.dropped = 0  # lines that stood before the first one here

    def add(self, report: Report) -> None:
        if report.message is None:
            self.progress = newest(self.progress, report)
        else:
            self.lines.append(report)

    def follow(self, later: Unwritten) -> None:
        """Take in what was reported after all this."""
        self.lines.extend(later.lines)
        if later.progress is not None:
            self.progress = newest(self.progress, later.progress)
        self.dropped += later.dropped

    def shorten(self, most: int) -> None:
        """Drop the oldest lines above this number."""
        while len(self.lines) > most:
            self.lines.popleft()
            self.dropped += 1

    def split(self, most: int) -> Unwritten:
        """Remove the first `most` lines, and the progress if these are all; returns what was removed."""
        first = Unwritten()
        first.dropped, self.dropped = self.dropped, 0
        while self.lines and len(first.lines) < most:
            first.lines.append(self.lines.popleft())
        if not self.lines:
            first.progress, self.progress = self.progress, None
        return first

    def reports(self) -> list[Report]:
        """In the order of writing. A line stands for those that were dropped."""
        progress = [] if self.progress is None else [self.progress]
        if not self.dropped:
            return [*self.lines, *progress]
        missing = f"{self.dropped} lines are missing here: the database was away when they were written"
        return [Report(self.lines[0].lease, None, None, "warning", missing), *self.lines, *progress]


class Reporter:
    """Holds the reports of running steps until they are written: by its thread, or by the step's own commit."""

    def __init__(
        self,
        database: Database,
        leases: Leases,
        vital: VitalParts | None = None,
        kinds: Kinds | None = None,
    ) -> None:
        self._database = database
        self._kinds = Kinds() if kinds is None else kinds
        self._leases = leases
        self.unwritten: dict[StepKey, Unwritten] = {}
        self._lock = threading.Lock()
        self._written = threading.Condition(self._lock)  # reports were written, or could not be
        self._full = threading.Event()  # a handler waits: write now
        self._away = False  # the database, as far as the last write tells
        self.writing = threading.Lock()  # held while reports are between memory and the database
        self._thread = Periodic("reports", last_call=True, vital=vital)
        self._thread.add(self._gather_and_write, first=NEVER)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Write the rest, and no more."""
        self._full.set()
        self._thread.stop()

    def put(self, report: Report) -> None:
        """Have this report written soon; called by handlers."""
        held = report.lease.job_id, report.lease.fence
        with self._lock:
            unwritten = self.unwritten.get(held)
            if unwritten is None:
                unwritten = self.unwritten[held] = Unwritten()
            unwritten.add(report)
            full = len(unwritten.lines) > FULL
        self._thread.wake()
        if full:
            self._make_room(held)

    def _make_room(self, held: StepKey) -> None:
        """Wait until the lines of this step are written; while the database is away, drop the oldest ones."""
        if self._database.locked_here:
            return  # the caller's own transaction keeps us from writing
        self._full.set()
        deadline = time.monotonic() + PATIENCE
        with self._written:
            while (unwritten := self.unwritten.get(held)) is not None and len(unwritten.lines) > FULL:
                away = self._away or self._thread.stopping.is_set()
                if away or not self._written.wait(deadline - time.monotonic()):
                    self._away = True
                    unwritten.shorten(FULL)

    def results_of_parents(self, job_id: str) -> dict[str, Any]:
        """The results of the jobs that this one comes after."""
        with self._database.looking() as tx:
            return results_of_parents(tx, job_id, self._kinds)

    def take(self, lease: Lease) -> list[Report]:
        """The reports of the step that are not written yet; waits for a write that is under way."""
        with self.writing, self._written:
            taken = self.unwritten.pop((lease.job_id, lease.fence), None)
            self._written.notify_all()
        if taken is None:
            return []
        _report_dropped(lease.job_id, taken)
        return taken.reports()

    def _gather_and_write(self) -> float:
        self._full.wait(GATHER)
        self._full.clear()
        self._write()
        return NEVER

    def _write(self) -> None:
        lost: set[StepKey] = set()
        with self.writing:
            with self._lock:
                held, self.unwritten = self.unwritten, {}
            try:
                while held:
                    batch = _split(held)
                    try:
                        lost |= self._write_batch(batch)
                    finally:
                        _put_before(batch, held)
            except (ContentionError, UnreachableError) as error:
                self._hold_again(held, error)
                raise
            with self._written:
                self._away = False
                self._written.notify_all()
        for job_id, fence in lost:
            self._leases.halt(job_id, fence, Halt.REPLACED)

    def _write_batch(self, batch: dict[StepKey, Unwritten]) -> set[StepKey]:
        """Write these, and remove from the batch what is written or dropped; returns the steps that were replaced."""
        reports = [report for unwritten in batch.values() for report in unwritten.reports()]
        try:
            lost = persist(self._database, lambda tx: write_reports(tx, reports))
        except (ContentionError, UnreachableError):
            raise
        except UnknownCommitError as error:  # to write them again might be to write them twice
            happened("reports.dropped", reports=len(reports), error=error)
            lost = set()
        except Exception as error:  # noqa: BLE001 - one report that cannot be stored must not silence the others
            if len(batch) > 1:
                lost = set()
                for held in list(batch):
                    alone = {held: batch.pop(held)}
                    try:
                        lost |= self._write_batch(alone)
                    finally:
                        batch.update(alone)
                return lost
            ((job_id, _),) = batch
            happened("reports.dropped", reports=len(reports), job_id=job_id, error=error)
            lost = set()
        for (job_id, _), unwritten in batch.items():
            _report_dropped(job_id, unwritten)
        batch.clear()
        return lost

    def _hold_again(self, held: dict[StepKey, Unwritten], error: Exception) -> None:
        count = sum(len(unwritten.reports()) for unwritten in held.values())
        happened("reports.delayed", reports=count, error=error)
        with self._written:
            for step, unwritten in held.items():
                if (later := self.unwritten.get(step)) is not None:
                    unwritten.follow(later)
                unwritten.shorten(FULL)
                self.unwritten[step] = unwritten
            self._away = True
            self._written.notify_all()


def _split(held: dict[StepKey, Unwritten]) -> dict[StepKey, Unwritten]:
    """Remove the reports of the next transaction; returns them."""
    batch: dict[StepKey, Unwritten] = {}
    room = AT_ONCE
    for step in list(held):
        if room <= 0:
            break
        batch[step] = held[step].split(room)
        room -= max(1, len(batch[step].lines))
        if not held[step].lines:
            del held[step]
    return batch


def _put_before(batch: dict[StepKey, Unwritten], held: dict[StepKey, Unwritten]) -> None:
    """Put reports that could not be written back to their place: before what comes after them."""
    for step, unwritten in batch.items():
        if (rest := held.get(step)) is not None:
            unwritten.follow(rest)
        held[step] = unwritten


def _report_dropped(job_id: str, unwritten: Unwritten) -> None:
    if unwritten.dropped:
        happened(
            "reports.dropped",
            reports=unwritten.dropped,
            job_id=job_id,
            error="the database was away for long",
        )
