"""Write until the database has answered: deadlocks and outages are waited out, lost answers are decided."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepfast.database.dialects import Whose
from stepfast.errors import (
    ContentionError,
    DatabaseError,
    LeaseLostError,
    UnknownCommitError,
    UnreachableError,
)
from stepfast.steps.fate import Fate, fates
from stepfast.telemetry import happened
from stepfast.worker.patience import Pause

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

    from stepfast.database.connection import Transaction
    from stepfast.database.database import Database
    from stepfast.steps.lease import Lease

    Write = Callable[[Transaction, list[Lease]], list[str]]  # returns the jobs whose steps it has ended


class PatientWriter:
    """Ends steps in transactions that are tried as often as it takes."""

    def __init__(self, database: Database, *, healthy: Callable[[], bool], hurry: threading.Event) -> None:
        self._database = database
        self._healthy = healthy  # whether the heartbeat gets through
        self._hurry = hurry

    def write(
        self,
        leases: list[Lease],
        write: Write,
        *,
        whose: Whose = Whose.OURS,
        quiet: bool = False,  # what was to be given back has been taken: nothing is refused
    ) -> set[str]:
        """Write until the database has answered for each of these steps; returns the jobs that were still ours.

        Deadlocks and outages are waited out: effects are applied again, the handler is not run again, and no
        attempt is charged. A COMMIT whose answer was lost is decided by the fences.
        """
        written: set[str] = set()
        open_leases = list(leases)
        pause = Pause(self._hurry)
        while open_leases:
            try:
                with self._database.transaction(whose) as tx:
                    mine = write(tx, open_leases)
                written.update(mine)
                pause.over()
                break
            except LeaseLostError:
                break
            except UnknownCommitError as error:
                happened("commit.unknown", jobs=len(open_leases))
                found = self._fates(open_leases)
                written.update(job_id for job_id, fate in found.items() if fate is Fate.COMMITTED)
                open_leases = [lease for lease in open_leases if found[lease.job_id] is Fate.OPEN]
                if open_leases and not pause.after(error):
                    return written
            except (ContentionError, UnreachableError) as error:
                if pause.in_vain(error, healthy=self._healthy()):
                    raise DatabaseError(
                        f"the database ends the connection whenever this is written: {error}"
                    ) from error
                if not pause.after(error):
                    return written  # nobody was refused: we stopped waiting
        for lease in leases if len(written) < len(leases) else ():
            if lease.job_id not in written and not quiet:
                happened("step.refused", lease, fence=lease.fence)
        return written

    def _fates(self, leases: list[Lease]) -> dict[str, Fate]:
        pause = Pause(self._hurry)
        while True:
            try:
                with self._database.transaction(Whose.OURS) as tx:
                    return fates(tx, leases)
            except (ContentionError, UnreachableError) as error:
                if not pause.after(error):
                    return {lease.job_id: Fate.SUPERSEDED for lease in leases}
