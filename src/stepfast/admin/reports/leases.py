"""Leases: who holds which job, and until when it is believed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from stepfast.admin.rows import reader
from stepfast.database.statement import sql
from stepfast.steps.lease import MANUAL_OWNER

if TYPE_CHECKING:
    from datetime import datetime

    from stepfast.database.connection import Transaction


@dataclass(frozen=True)
class LeaseReport:
    job_id: str
    kind: str
    queue: str
    step: int
    attempts: int
    progress: int
    locked_by: str | None
    incarnation: int | None  # of the worker that holds it; None for a lease by hand
    leased_at: datetime | None
    locked_until: datetime | None
    expired: bool  # `reset_leases` would take it back
    cancel_at: datetime | None  # when somebody asked the job to stop


# A worker's leases end with its word: when it is silent for too long, was declared dead, or left. A lease by hand
# has an end of its own.
_EXPIRED = """
    CASE WHEN j.owner = :manual THEN CASE WHEN j.lease_until < {now} THEN 1 ELSE 0 END
         WHEN w.state = 'alive' AND w.alive_until >= {now} THEN 0 ELSE 1 END
"""

LEASES = sql(f"""
    SELECT j.id, j.kind, j.queue, j.step, j.failures + j.crashes + 1, j.progress, COALESCE(j.leased_by, w.worker_id),
           CASE WHEN j.owner <> :manual THEN j.owner END, j.leased_at, COALESCE(j.lease_until, w.alive_until), {_EXPIRED}, j.cancel_at
      FROM stepfast_job j LEFT JOIN stepfast_worker w ON w.incarnation = j.owner
     WHERE j.state = 'leased' AND (:all_of_them = 1 OR {_EXPIRED} = :expired)
     ORDER BY j.leased_at, j.id LIMIT :limit
""")

COUNT = sql(f"""
    SELECT COALESCE(sum(1 - {_EXPIRED}), 0), COALESCE(sum({_EXPIRED}), 0)
      FROM stepfast_job j LEFT JOIN stepfast_worker w ON w.incarnation = j.owner
     WHERE j.state = 'leased'
""")


def list_leases(tx: Transaction, *, expired: bool | None = None, limit: int = 200) -> list[LeaseReport]:
    """Leases, the longest held first: all, only the `expired`, or only those in force."""
    asked = {"all_of_them": int(expired is None), "expired": int(expired or False)}
    return tx.all(LEASES, reader(LeaseReport, expired=bool), **asked, manual=MANUAL_OWNER, limit=limit)


def count_leases(tx: Transaction) -> tuple[int, int]:
    """How many are in force, and how many have expired."""
    in_force, expired = tx.rows(COUNT, manual=MANUAL_OWNER)[0]
    return int(in_force), int(expired)
