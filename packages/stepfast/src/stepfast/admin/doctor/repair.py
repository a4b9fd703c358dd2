"""`stepfast doctor --repair`: what can be repaired without a decision of the operator's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepfast.admin.audit import Command
from stepfast.admin.doctor.finding import Finding, ok
from stepfast.admin.doctor.work import STRANDED
from stepfast.clock import counted
from stepfast.jobs.dependencies import find_stranded, release_stranded
from stepfast.telemetry import happened

if TYPE_CHECKING:
    from collections.abc import Collection

    from stepfast.admin.audit import Actor
    from stepfast.database.connection import Transaction
    from stepfast.database.database import Database


BATCH = 1_000  # jobs whose dependants are released in one transaction


def repair(database: Database, findings: Collection[Finding], *, by: Actor | None = None) -> list[Finding]:
    """Repair what these findings name; returns what was done."""
    if not any(finding.name == STRANDED for finding in findings):
        return []
    released = release_stranded_jobs(database, by=by)
    return [
        ok("repair", f"decided about the jobs that waited for {counted(released, 'job')} which had ended")
    ]


def release_stranded_jobs(database: Database, *, by: Actor | None = None) -> int:
    """Release or fail jobs whose parents ended without them, as `on_dead` says; returns the number of parents."""
    with database.reading() as tx:
        parents = find_stranded(tx)
    command = Command(database, by, "dependants.release", "stranded")
    total = 0
    for start in range(0, len(parents), BATCH):
        batch = parents[start : start + BATCH]

        def release(tx: Transaction, batch: list[str] = batch) -> tuple[int, int | None]:
            released = release_stranded(tx, batch)
            return released, released or None

        total += command.run(release)
    command.end()
    if total:
        happened("dependants.found", jobs=total)
    return total
