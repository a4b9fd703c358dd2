"""Leases by hand, for programs that are not a Stepfast worker: acquire, extend, release.

Such a lease carries a duration of its own; when it runs out the job is taken back like that of a dead
worker, and a crash is charged to it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from stepfast.clock import micros, moment, new_fence
from stepfast.config import WORKER_ID_LENGTH, checked_name
from stepfast.database.statement import sql
from stepfast.errors import ConfigurationError, LeaseLostError
from stepfast.jobs.commit import commit
from stepfast.jobs.lease import MANUAL_OWNER, Lease
from stepfast.jobs.outcome import Again, Bury, Done
from stepfast.jobs.payload import decode
from stepfast.jobs.retry import grouped
from stepfast.telemetry.masking import without_secrets

if TYPE_CHECKING:
    from datetime import datetime, timedelta

    from stepfast.database.connection import Transaction
    from stepfast.jobs.kinds import Kinds
    from stepfast.jobs.retry import Retry


ReleaseAs = Literal["done", "retry", "failed"]

PICK_BY_HAND = sql("""
    SELECT id, kind, queue, priority, ready_at, step, failures, crashes, cursor_json, trace, payload
      FROM stepfast_job {claim_index}
     WHERE queue = :queue AND state = 'ready' AND ready_at <= {now}
       AND NOT EXISTS (SELECT 1 FROM stepfast_queue WHERE id = :queue AND paused_at IS NOT NULL)
     ORDER BY priority DESC, ready_at, id
     LIMIT 1
    {skip_locked}
""")

TAKE_BY_HAND = sql("""
    UPDATE stepfast_job
       SET state = 'leased', owner = :owner, fence = :fence, leased_by = :worker_id,
           leased_at = {now}, lease_until = {now} + :duration, updated_at = {now}
     WHERE id = :id AND state = 'ready'
""")

EXTEND_LEASE = sql("""
    UPDATE stepfast_job SET lease_until = {now} + :duration, updated_at = {now}
     WHERE id = :id AND fence = :fence AND owner = :owner
""")

LEASE_UNTIL = sql("SELECT lease_until FROM stepfast_job WHERE id = :id")


@dataclass(frozen=True)
class ManualLease:
    """A job that this caller owns until `until`, and the fence that proves it."""

    lease: Lease
    worker_id: str
    until: datetime
    kinds: Kinds = field(repr=False, compare=False)  # that this caller knows

    @property
    def job_id(self) -> str:
        return self.lease.job_id

    @property
    def kind(self) -> str:
        return self.lease.kind

    @property
    def attempt(self) -> int:
        return self.lease.attempt

    @property
    def payload(self) -> Any:
        return decode(self.kinds.open(self.kind, self.lease.payload, "payload", self.job_id))


def acquire(
    tx: Transaction, worker_id: str, duration: timedelta, queue: str, kinds: Kinds
) -> ManualLease | None:
    """Take the next ready job of `queue`, or nothing."""
    if not isinstance(worker_id, str):
        raise ConfigurationError(f"worker_id={worker_id!r:.80}: give a text")
    if not 0 < len(worker_id) <= WORKER_ID_LENGTH:
        raise ConfigurationError(f"worker_id: 1 to {WORKER_ID_LENGTH} characters, not {len(worker_id)}")
    _check_duration(duration)
    rows = tx.rows(PICK_BY_HAND, queue=checked_name("queue", queue))
    if not rows:
        return None
    fence = new_fence()
    lease = Lease._make((*rows[0], fence))
    tx.run(
        TAKE_BY_HAND,
        id=lease.job_id,
        owner=MANUAL_OWNER,
        fence=fence,
        worker_id=worker_id,
        duration=micros(duration),
    )
    return ManualLease(lease, worker_id, moment(tx.first(LEASE_UNTIL, id=lease.job_id)), kinds)


def extend(tx: Transaction, held: ManualLease, duration: timedelta) -> ManualLease:
    """Own the job for `duration` from now; raises `LeaseLostError` unless this lease is still the owner."""
    _check_duration(duration)
    mine = {"id": held.job_id, "fence": held.lease.fence}
    if tx.run(EXTEND_LEASE, **mine, owner=MANUAL_OWNER, duration=micros(duration)) != 1:
        raise LeaseLostError(held.job_id, held.lease.fence)
    return replace(held, until=moment(tx.first(LEASE_UNTIL, id=held.job_id)))


def _check_duration(lease: timedelta) -> None:
    if not lease:
        raise ConfigurationError(
            "lease: it would end before the job is yours; give it some time, such as '5m'"
        )


def release(
    tx: Transaction,
    held: ManualLease,
    how: ReleaseAs,
    error: str | None,
    *,
    retry: Retry,
    dice: float,
    result: Any = None,
) -> None:
    """End the lease: the job is done, is tried again, or has failed for good."""
    text = without_secrets(error or "released without a reason")
    failures = held.lease.failures + 1
    if how == "done":
        commit(tx, held.lease, Done(result))
    elif how == "retry" and not retry.exhausted(failures):
        commit(tx, held.lease, Again(retry.delay(failures, dice), text, grouped(text)))
    elif how in {"retry", "failed"}:
        commit(tx, held.lease, Bury(text, grouped(text)))
    else:
        raise ConfigurationError(f"release as {how!r}: use 'done', 'retry' or 'failed'")
