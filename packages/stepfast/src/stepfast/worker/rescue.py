"""Find dead workers, take their jobs back, and see to it that suspects run.

Every worker has this duty. Who is dead, and what becomes of the jobs, is decided in `jobs/rescue.py`. Suspects run in
disposable processes that the guardian starts (`worker/guardian.py`), or, where there is no such guardian, one at a time in
this process (`worker/claimer.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from stepfast.clock import boot_time
from stepfast.database.database import persist
from stepfast.jobs.lease import WaitingSuspects, waiting_suspects
from stepfast.jobs.rescue import Rescued, declare_dead, guarded_and_gone, late_workers, rescue
from stepfast.worker.periodic import around

if TYPE_CHECKING:
    from stepfast.config import WorkerSettings
    from stepfast.database.database import Database
    from stepfast.worker.heartbeat import Heartbeat


RESCUE_EVERY: Final = 2.0  # seconds
RESCUE_SOON: Final = 0.5  # seconds, while suspects wait or a worker is late
# Seconds for which a lease must have been seen expired before its worker is declared dead.
LATE_FOR: Final = 0.5
GUARDIANS_TURN: Final = 5.0  # seconds that the guardian of a worker that is gone has to report its death


class Suspects(Protocol):
    """Where suspects run: in processes that our guardian starts, or here, one at a time."""

    def run_suspects(self, waiting: WaitingSuspects) -> None:
        """See to it that so many suspects are run."""


class Rescue:
    """Declare silent workers dead, rescue their jobs, and see to it that suspects are run."""

    def __init__(
        self, database: Database, settings: WorkerSettings, heartbeat: Heartbeat, suspects: Suspects
    ) -> None:
        self._database = database
        self._settings = settings
        self._heartbeat = heartbeat
        self._suspects = suspects
        self._waiting = WaitingSuspects()
        self._gone: dict[
            int, float
        ] = {}  # workers whose guardian will report their death, and since when they are gone
        self._late: dict[tuple[int, int], float] = {}  # late workers, and since when we have seen them late

    def work(self) -> float:
        self.rescue()
        return around(RESCUE_SOON if any(self._waiting) or self._late or self._gone else RESCUE_EVERY)

    def rescue(self) -> Rescued:
        """One look for dead workers; returns what was taken back from them."""
        me, silent, unreported = self._heartbeat.incarnation, self._silent(), self._unreported()
        persist(
            self._database,
            lambda tx: declare_dead(tx, me, trust_clock=bool(silent), only=silent, unreported=unreported),
        )
        total = Rescued()
        while True:
            found = persist(self._database, lambda tx: rescue(tx, self._settings.crash_limit))
            total += found
            if not found.jobs:
                break
        self.look_for_suspects()
        return total

    def look_for_suspects(self) -> None:
        """Have suspects run, if any wait."""
        with self._database.looking() as tx:
            self._waiting = waiting_suspects(tx, list(self._settings.queues))
        self._suspects.run_suspects(self._waiting)

    def _unreported(self) -> set[int]:
        """Workers of this machine that are gone, and whose guardians live and have not reported it for too long."""
        with self._database.looking() as tx:
            found = guarded_and_gone(tx, self._heartbeat.incarnation)
        now = boot_time()
        self._gone = {worker: self._gone.get(worker, now) for worker in found}
        return {worker for worker, since in self._gone.items() if now - since >= GUARDIANS_TURN}

    def _silent(self) -> set[int]:
        """Workers that have been late for a while.

        After the database hung, all workers look late: the living ones get the time to renew first.
        """
        if not self._heartbeat.may_rescue:
            self._late = {}
            return set()
        with self._database.looking() as tx:
            found = late_workers(tx, self._heartbeat.incarnation)
        now = boot_time()
        self._late = {worker: self._late.get(worker, now) for worker in found}
        return {worker[0] for worker, since in self._late.items() if now - since >= LATE_FOR}
