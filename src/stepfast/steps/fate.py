"""What became of a commit whose answer was lost: the fences know."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import TYPE_CHECKING

from stepfast.database.statement import sql

if TYPE_CHECKING:
    from stepfast.database.connection import Transaction
    from stepfast.steps.lease import Lease

LIVE_FENCES = sql("""
    SELECT id, fence, COALESCE(committed_fence, 0) FROM stepfast_job WHERE id {any_of:ids} ORDER BY id {for_update}
""")
ARCHIVED_FENCES = sql("SELECT id, COALESCE(committed_fence, 0) FROM stepfast_archive WHERE id {any_of:ids}")


class Fate(StrEnum):
    """What became of a commit whose answer was lost."""

    COMMITTED = "committed"
    OPEN = "open"  # the fence is still ours: it did not happen, and may be tried again
    SUPERSEDED = "superseded"  # somebody else has the step: write nothing


def fates(tx: Transaction, leases: Sequence[Lease]) -> dict[str, Fate]:
    """Look at the fences. The lock waits for a ghost session that may still be committing."""
    ids = [lease.job_id for lease in leases]
    live = {row[0]: (row[1], row[2]) for row in tx.rows(LIVE_FENCES, ids=ids)}
    archived = {row[0]: row[1] for row in tx.rows(ARCHIVED_FENCES, ids=ids)}
    found = {}
    for lease in leases:
        fence, committed = live.get(lease.job_id, (None, None))
        if fence == lease.fence:
            found[lease.job_id] = Fate.OPEN
        elif lease.fence in (committed, archived.get(lease.job_id)):
            found[lease.job_id] = Fate.COMMITTED
        else:
            found[lease.job_id] = Fate.SUPERSEDED
    return found
