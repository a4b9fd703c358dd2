"""Cancel jobs: those that wait end at once, those that run are asked to stop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from stepfast.clock import new_fence
from stepfast.database.statement import sql
from stepfast.database.wakeup import CANCEL
from stepfast.jobs.archive import end_jobs
from stepfast.jobs.retry import LONGEST_ERROR
from stepfast.jobs.state import JobState
from stepfast.telemetry.masking import without_secrets

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepfast.database.connection import Transaction


CANCELLED_GROUP: Final = "Cancelled"

LOCK_JOBS_TO_CANCEL = sql("SELECT id, state FROM stepfast_job WHERE id {any_of:ids} ORDER BY id {for_update}")

# A new fence, so that an earlier owner does not take this ending for its own.
CANCEL_WAITING = sql("""
    UPDATE stepfast_job SET fence = :fence, error_group = :error_group, last_error = :reason, updated_at = {now}
     WHERE id {any_of:ids} AND state IN ('scheduled', 'ready', 'suspect', 'held', 'waiting')
""")

ASK_TO_STOP = sql("""
    UPDATE stepfast_job SET cancel_at = COALESCE(cancel_at, {now}), updated_at = {now}
     WHERE id {any_of:ids} AND state = 'leased'
""")

LOG_CANCELLATION = sql("""
    INSERT INTO stepfast_log (job_id, at, level, step, message)
    SELECT id, {now}, 'warning', step, :message FROM stepfast_job WHERE id {any_of:ids}
""")


class Stopped(NamedTuple):
    """Which jobs ended, and which were asked to; those that had ended before are in neither."""

    ended: list[str]
    asked: list[str]


def cancel_jobs(tx: Transaction, ids: Sequence[str], reason: str) -> Stopped:
    """End the waiting ones of these jobs, and ask the leased ones to stop. Their rows are locked in the order of ids."""
    if not ids:
        return Stopped([], [])
    text = without_secrets(reason)[:LONGEST_ERROR]
    found = [(str(row[0]), str(row[1])) for row in tx.rows(LOCK_JOBS_TO_CANCEL, ids=list(ids))]
    waiting = [job_id for job_id, state in found if state != JobState.LEASED]
    leased = [job_id for job_id, state in found if state == JobState.LEASED]
    if waiting:
        tx.run(CANCEL_WAITING, ids=waiting, fence=new_fence(), error_group=CANCELLED_GROUP, reason=text)
        end_jobs(tx, waiting, JobState.CANCELLED.value)
    if leased:
        tx.run(ASK_TO_STOP, ids=leased)
        tx.run(LOG_CANCELLATION, ids=leased, message=text)
        tx.wakes.add(CANCEL)
    return Stopped(waiting, leased)
