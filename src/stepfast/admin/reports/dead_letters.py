"""Dead letters: the newest first, or grouped by what killed them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepfast.admin.reports.jobs import ENDED_COLUMNS, JobDetail, JobSummary, show_job, summary
from stepfast.database.statement import sql
from stepfast.errors import NotFoundError
from stepfast.steps.dead_letters import FailureGroup, Filter, asked, failure_groups
from stepfast.steps.job import JobState

if TYPE_CHECKING:
    from stepfast.database.connection import Transaction

NEWEST = sql(f"""
    SELECT {ENDED_COLUMNS} FROM stepfast_archive
     WHERE state = 'dead' AND (:any_kind = 1 OR kind = :kind) AND (:any_queue = 1 OR queue = :queue)
       AND (:any_error = 1 OR error_group = :error_group)
     ORDER BY finished_at DESC, id DESC LIMIT :limit
""")


def list_dead_letters(tx: Transaction, which: Filter | None = None, *, limit: int = 50) -> list[JobSummary]:
    """Dead letters, the latest death first."""
    return tx.all(NEWEST, summary, **asked(which or Filter()), limit=limit)


def show_dead_letter(tx: Transaction, job_id: str) -> JobDetail:
    """Everything about one dead letter."""
    detail = show_job(tx, job_id)
    if detail.job.state is not JobState.DEAD:
        raise NotFoundError(f"job {job_id} is no dead letter, it is {detail.job.state}")
    return detail


__all__ = ["FailureGroup", "Filter", "failure_groups", "list_dead_letters", "show_dead_letter"]
