"""The end of jobs that no commit of their own ends: moved to the archive, and told to those who wait for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepfast.database.statement import sql
from stepfast.steps.archive import archive
from stepfast.steps.dependants import parents_ended

if TYPE_CHECKING:
    from stepfast.database.connection import Transaction

AWAITED = sql("SELECT id FROM stepfast_job WHERE id {any_of:ids} AND has_dependants = 1")


def end_jobs(tx: Transaction, ids: list[str], state: str) -> None:
    """Move jobs whose rows the caller has locked, and let go or end whoever waits for them."""
    awaited = [str(row[0]) for row in tx.rows(AWAITED, ids=ids)]
    archive(tx, ids, state)
    if awaited:
        parents_ended(tx, awaited, state)
