"""Once a minute, a look at a part of those who wait for others: nobody waits for what has ended."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from stepfast.database.database import persist
from stepfast.steps.stranded import BEGINNING, stranded, tell
from stepfast.telemetry import happened

if TYPE_CHECKING:
    from stepfast.database.database import Database

BATCH: Final = 1_000  # edges of one look


class StrandedJobs:
    """Walks along the open edges, a batch at a time, and begins again at the end."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._place = BEGINNING

    def look(self) -> int:
        """Look at the next batch; returns how many parents had ended without telling."""
        with self._database.looking() as tx:
            found, self._place = stranded(tx, self._place, BATCH)
        late = persist(self._database, lambda tx: tell(tx, found)) if found else 0
        if late:
            happened("dependants.found", jobs=late)
        return late
