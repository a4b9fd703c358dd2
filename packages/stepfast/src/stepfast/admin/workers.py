"""Workers, the leases that they hold, and the queues that they serve. Pause and resume queues; reset expired leases."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from stepfast.admin.audit import Actor, Command, actor_or_default, record
from stepfast.admin.rows import now, reader
from stepfast.config import WorkerSettings
from stepfast.database.statement import sql
from stepfast.errors import ConfigurationError
from stepfast.jobs.lease import MANUAL_OWNER, queues_with_work
from stepfast.jobs.rescue import Rescued, declare_dead, rescue

if TYPE_CHECKING:
    from datetime import datetime

    from stepfast.database.connection import Transaction
    from stepfast.database.database import Database


LONGEST_NAME: Final = 128
LONGEST_NOTE: Final = 500
NO_INCARNATION: Final = 0  # this process has none that must be spared


# Workers


@dataclass(frozen=True)
class WorkerReport:
    """One incarnation of a worker process, as its last heartbeat described it."""

    worker_id: str
    running: bool  # alive, with a heartbeat within its lease
    state: str  # alive, stopped (left in good order) or dead (declared dead by another worker)
    host: str
    pid: int
    guardian_pid: int | None  # of the process that watches over it; None: it has none
    incarnation: int
    queues: tuple[str, ...]  # "*" for all
    concurrency: int
    active_jobs: int
    active_job_ids: tuple[str, ...]  # the first fifty
    lease_seconds: float
    started_at: datetime
    beat_at: datetime
    alive_until: datetime
    ended_at: datetime | None


LIST_WORKERS = sql("""
    SELECT worker_id, CASE WHEN state = 'alive' AND alive_until >= {now} THEN 1 ELSE 0 END, state, host, pid, guardian_pid,
           incarnation, queues, concurrency, active, COALESCE(active_ids, ''), lease, started_at, beat_at, alive_until, ended_at
      FROM stepfast_worker
     WHERE state = 'alive' OR :everyone = 1
     ORDER BY started_at, incarnation
""")


def list_workers(tx: Transaction, *, everyone: bool = False) -> list[WorkerReport]:
    """Workers that are not declared dead, oldest first; with `everyone`, also those that left in the last day."""
    read = reader(
        WorkerReport,
        running=bool,
        queues=_names,
        active_job_ids=_names,
        lease_seconds=lambda lease: lease / 1e6,
    )
    return tx.all(LIST_WORKERS, read, everyone=int(everyone))


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split(",")) if text else ()


# Leases


@dataclass(frozen=True)
class LeaseReport:
    """The lease of one job."""

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
    cancel_at: datetime | None  # when an operator asked the job to stop


# A worker's leases expire when it has sent no heartbeat for too long, was declared dead, or left. A lease by hand has
# an end of its own.
_EXPIRED = """
    CASE WHEN j.owner = :manual THEN CASE WHEN j.lease_until < {now} THEN 1 ELSE 0 END
         WHEN w.state = 'alive' AND w.alive_until >= {now} THEN 0 ELSE 1 END
"""

LIST_LEASES = sql(f"""
    SELECT j.id, j.kind, j.queue, j.step, j.failures + j.crashes + 1, j.progress, COALESCE(j.leased_by, w.worker_id),
           CASE WHEN j.owner <> :manual THEN j.owner END, j.leased_at, COALESCE(j.lease_until, w.alive_until), {_EXPIRED}, j.cancel_at
      FROM stepfast_job j LEFT JOIN stepfast_worker w ON w.incarnation = j.owner
     WHERE j.state = 'leased' AND (:all_of_them = 1 OR {_EXPIRED} = :expired)
     ORDER BY j.leased_at, j.id LIMIT :limit
""")

COUNT_LEASES = sql(f"""
    SELECT COALESCE(sum(1 - {_EXPIRED}), 0), COALESCE(sum({_EXPIRED}), 0)
      FROM stepfast_job j LEFT JOIN stepfast_worker w ON w.incarnation = j.owner
     WHERE j.state = 'leased'
""")


def list_leases(tx: Transaction, *, expired: bool | None = None, limit: int = 200) -> list[LeaseReport]:
    """Leases, the longest held first: all, only the `expired`, or only those in force."""
    filters = {"all_of_them": int(expired is None), "expired": int(expired or False)}
    return tx.all(LIST_LEASES, reader(LeaseReport, expired=bool), **filters, manual=MANUAL_OWNER, limit=limit)


def count_leases(tx: Transaction) -> tuple[int, int]:
    """How many leases are in force, and how many have expired."""
    in_force, expired = tx.rows(COUNT_LEASES, manual=MANUAL_OWNER)[0]
    return int(in_force), int(expired)


def reset_leases(
    database: Database, crash_limit: int = WorkerSettings.crash_limit, *, by: Actor | None = None
) -> Rescued:
    """Take back the jobs of expired leases, as every living worker does by itself; `.jobs` is how many.

    Expired means: by the database's clock. A lease that is in force is never touched.
    """

    def declare(tx: Transaction) -> tuple[int, int | None]:
        dead = declare_dead(tx, NO_INCARNATION, trust_clock=True, trust_machine=False)
        return dead, 0 if dead else None

    def batch(tx: Transaction) -> tuple[Rescued, int | None]:
        found = rescue(tx, crash_limit)
        return found, found.jobs or None

    command = Command(database, by, "leases.reset", "expired", {"crash_limit": crash_limit})
    command.run(declare)
    total = Rescued()
    while (found := command.run(batch)).jobs:
        total += found
    command.end()
    return total


# Queues


@dataclass(frozen=True)
class QueueReport:
    """A queue, with the number of its jobs in each state."""

    queue: str
    scheduled: int
    ready: int
    suspect: int
    leased: int
    held: int
    waiting: int  # for the jobs that they come after
    dead: int
    oldest_ready_seconds: float | None  # how long the job that comes next has been waiting
    paused_at: datetime | None
    note: str | None


LIVE_BY_QUEUE = sql("SELECT queue, state, count(*), min(ready_at) FROM stepfast_job GROUP BY queue, state")
DEAD_BY_QUEUE = sql(
    "SELECT queue, 'dead', count(*), NULL FROM stepfast_archive WHERE state = 'dead' GROUP BY queue"
)
QUEUE_USED = sql("""
    SELECT 1 WHERE EXISTS (SELECT 1 FROM stepfast_job WHERE queue = :queue)
                OR EXISTS (SELECT 1 FROM stepfast_archive WHERE queue = :queue)
""")
KNOWN_QUEUES = sql("SELECT id, paused_at, note FROM stepfast_queue")


def has_jobs(tx: Transaction, queue: str) -> bool:
    """Whether any job that is kept was ever put into this queue. Walks the archive if there was none."""
    return tx.first(QUEUE_USED, queue=queue) is not None


def list_queues(tx: Transaction) -> list[QueueReport]:
    """Every queue that has unfinished jobs or dead letters, or was ever paused; by name."""
    counts: dict[tuple[str, str], int] = {}
    oldest: dict[str, int] = {}
    for queue, state, count, ready_at in (*tx.rows(LIVE_BY_QUEUE), *tx.rows(DEAD_BY_QUEUE)):
        counts[queue, state] = int(count)
        if state == "ready":
            oldest[queue] = int(ready_at)
    known = {queue: (paused_at, note) for queue, paused_at, note in tx.rows(KNOWN_QUEUES)}
    instant = now(tx)
    read = reader(QueueReport)
    return [
        read(
            queue,
            *(
                counts.get((queue, state), 0)
                for state in ("scheduled", "ready", "suspect", "leased", "held", "waiting", "dead")
            ),
            max(0.0, (instant - oldest[queue]) / 1e6) if queue in oldest else None,
            *known.get(queue, (None, None)),
        )
        for queue in sorted({queue for queue, _ in counts} | set(known))
    ]


def unserved_queues(tx: Transaction) -> list[str]:
    """Queues with ready jobs that no living worker serves."""
    served = {name for worker in list_workers(tx) if worker.running for name in worker.queues}
    return [] if "*" in served else [queue for queue in queues_with_work(tx) if queue not in served]


KNOW_QUEUE = sql("INSERT INTO stepfast_queue (id) VALUES (:id) {keep_existing}")
PAUSE_QUEUE = sql(
    "UPDATE stepfast_queue SET paused_at = {now}, note = :note WHERE id = :id AND paused_at IS NULL"
)
REMARK_QUEUE = sql("UPDATE stepfast_queue SET note = :note WHERE id = :id AND paused_at IS NOT NULL")
RESUME_QUEUE = sql(
    "UPDATE stepfast_queue SET paused_at = NULL, note = NULL WHERE id = :id AND paused_at IS NOT NULL"
)


def pause_queue(tx: Transaction, name: str, note: str | None = None, *, by: Actor | None = None) -> bool:
    """Let no worker take jobs of this queue; jobs that run go on. False if it was paused before (its note is replaced)."""
    _check_name(name)
    by = by or actor_or_default()
    text = (note or by.reason or "")[:LONGEST_NOTE] or None
    by = by if by.reason else by.with_reason(note)
    detail = {"note": text} if text != by.reason else None
    tx.run(KNOW_QUEUE, id=name)
    if tx.run(PAUSE_QUEUE, id=name, note=text) == 1:
        record(tx, by, "queue.pause", name, detail=detail)
        return True
    if text is not None and tx.run(REMARK_QUEUE, id=name, note=text) == 1:
        record(tx, by, "queue.remark", name, detail=detail)
    return False


def resume_queue(tx: Transaction, name: str, *, by: Actor | None = None) -> bool:
    """Let workers take its jobs again. False if it was not paused."""
    _check_name(name)
    tx.wakes.add(name)
    if tx.run(RESUME_QUEUE, id=name) != 1:
        return False
    record(tx, by, "queue.resume", name)
    return True


def _check_name(name: str) -> None:
    if not 0 < len(name) <= LONGEST_NAME:
        raise ConfigurationError(f"queue {name[:40]!r}: 1 to {LONGEST_NAME} characters, not {len(name)}")
