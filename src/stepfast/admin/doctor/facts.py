"""What our own tables say, gathered once for all judgements."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from stepfast.admin.reports.leases import count_leases
from stepfast.admin.reports.queues import QueueReport, list_queues
from stepfast.admin.reports.workers import WorkerReport, list_workers
from stepfast.database.statement import sql
from stepfast.steps.dead_letters import FailureGroup, failure_groups

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepfast.database.connection import Transaction

OVERDUE = sql("""
    SELECT count(*), COALESCE(max({now} - ready_at), 0) FROM stepfast_job WHERE state = 'scheduled' AND ready_at <= {now}
""")

SUSPECTS = sql("SELECT COALESCE(max({now} - ready_at), 0) FROM stepfast_job WHERE state = 'suspect'")

# What a worker writes when it meets a kind it has no handler for; the job is put back without a charge.
UNKNOWN_KINDS = sql("""
    SELECT kind, count(*) FROM stepfast_job
     WHERE state IN ('ready', 'scheduled') AND error_group LIKE 'UnknownKindError%' GROUP BY kind ORDER BY kind
""")

# Jobs that wait for one that only an operator can bring back, and one of those.
WAIT_FOR_THE_DEAD = sql("""
    SELECT count(DISTINCT d.child_id), min(d.parent_id)
      FROM stepfast_archive a JOIN stepfast_dependency d ON d.parent_id = a.id
     WHERE a.state IN ('dead', 'cancelled') AND d.state = 'open'
""")


@dataclass(frozen=True, kw_only=True)
class Facts:
    workers: Sequence[WorkerReport] = ()
    queues: Sequence[QueueReport] = ()
    leases: int = 0
    expired_leases: int = 0
    overdue: int = 0  # scheduled jobs whose time has come
    overdue_seconds: float = 0.0
    suspect_seconds: float = 0.0  # how long the longest has been waiting
    unknown_kinds: Sequence[tuple[str, int]] = ()
    dead: Sequence[FailureGroup] = ()
    wait_for_dead: int = 0  # jobs that come after one that died or was cancelled, and wait
    dead_parent: str | None = None  # one that they wait for

    @property
    def running(self) -> list[WorkerReport]:
        return [worker for worker in self.workers if worker.running]

    @property
    def open_queues(self) -> list[QueueReport]:
        return [queue for queue in self.queues if queue.paused_at is None]

    @property
    def waiting(self) -> int:
        """Jobs that somebody should take now."""
        return sum(queue.ready + queue.suspect + queue.held for queue in self.open_queues) + self.overdue


def gather(tx: Transaction) -> Facts:
    leases, expired = count_leases(tx)
    overdue, overdue_age = tx.rows(OVERDUE)[0]
    wait_for_dead, dead_parent = tx.rows(WAIT_FOR_THE_DEAD)[0]
    return Facts(
        workers=list_workers(tx),
        queues=list_queues(tx),
        leases=leases,
        expired_leases=expired,
        overdue=int(overdue),
        overdue_seconds=int(overdue_age) / 1e6,
        suspect_seconds=int(tx.first(SUSPECTS)) / 1e6,
        unknown_kinds=[(str(kind), int(count)) for kind, count in tx.rows(UNKNOWN_KINDS)],
        dead=failure_groups(tx, limit=1_000),
        wait_for_dead=int(wait_for_dead),
        dead_parent=dead_parent,
    )
