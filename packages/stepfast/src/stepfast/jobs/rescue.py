"""Rescue jobs whose worker died, and charge only the job that killed it.

Every worker calls this about every two seconds (`Rescue` in `worker/maintenance.py`). A job that a dead worker held is
a suspect: from then on it runs alone, in a process of its own (`worker/children.py`) or while its worker runs nothing
else (`worker/claimer.py`). It is charged with the crash only if it was the only job that the worker held. So a job that
kills its workers is charged from its second death on at the latest, and is dead after `crash_limit` charges; the jobs
that ran beside it are not charged. A suspect that is scheduled or held is known by its `error_group`.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from stepfast.clock import new_fence
from stepfast.database.statement import sql
from stepfast.errors import CRASH_GROUP, CRASH_NOTE
from stepfast.jobs.archive import end_jobs
from stepfast.jobs.lease import MANUAL_OWNER
from stepfast.limits.limit_rows import look_at_limits_of_jobs
from stepfast.telemetry import happened, trace_id_of

if TYPE_CHECKING:
    from collections.abc import Container

    from stepfast.database.connection import Transaction
    from stepfast.telemetry import Fact


BATCH: Final = 200

LIVE_WORKERS = sql("""
    SELECT incarnation, worker_id, process, CASE WHEN alive_until < {now} THEN 1 ELSE 0 END
      FROM stepfast_worker WHERE state = 'alive' AND incarnation <> :me
""")

LATE_WORKERS = sql("""
    SELECT incarnation, alive_until FROM stepfast_worker
     WHERE state = 'alive' AND incarnation <> :me AND alive_until < {now}
""")

# The guard is repeated here: an owner that renewed meanwhile stays alive.
DECLARE_DEAD = sql("""
    UPDATE stepfast_worker
       SET state = 'dead', ended_at = {now},
           abandoned = (SELECT count(*) FROM stepfast_job WHERE owner = :incarnation AND state = 'leased')
     WHERE incarnation = :incarnation AND state = 'alive' AND (alive_until < {now} OR :proven = 1)
""")

ENDED_WORKERS_WITH_JOBS = sql("""
    SELECT w.incarnation, w.worker_id, w.state, COALESCE(w.abandoned, 0)
      FROM stepfast_worker w
     WHERE w.state IN ('dead', 'stopped')
       AND EXISTS (SELECT 1 FROM stepfast_job j WHERE j.owner = w.incarnation AND j.state = 'leased')
     LIMIT :limit
""")

ABANDONED_JOBS = sql("""
    SELECT id, crashes, cancel_at, kind, queue, trace FROM stepfast_job
     WHERE owner = :owner AND state = 'leased'
     LIMIT :limit {skip_locked}
""")

EXPIRED_MANUAL_LEASES = sql("""
    SELECT id, crashes, cancel_at, kind, queue, trace FROM stepfast_job
     WHERE owner = :owner AND state = 'leased' AND lease_until < {now}
     LIMIT :limit {skip_locked}
""")

# The row of its owner is gone: deleted by hand, or pruned while a stopped process was in the middle of a claim.
ORPHANED_JOBS = sql("""
    SELECT id, crashes, cancel_at, kind, queue, trace FROM stepfast_job
     WHERE owner > :owner AND state = 'leased'
       AND NOT EXISTS (SELECT 1 FROM stepfast_worker WHERE incarnation = owner)
     LIMIT :limit {skip_locked}
""")

# One charge for one death: what the dead process was claiming in that moment may be committed later, and never ran.
CLEAR_ABANDONED = sql(
    "UPDATE stepfast_worker SET abandoned = 0 WHERE incarnation = :incarnation AND state = 'dead'"
)

_TAKE_BACK = """
    UPDATE stepfast_job
       SET state = :state, owner = NULL, leased_by = NULL, lease_until = NULL, fence = :fence,
           crashes = crashes + :charge, ready_at = {{now}}, updated_at = {{now}}, error_group = :error_group,
           last_error = CASE WHEN last_error IS NULL THEN :note WHEN length(last_error) > 3500 THEN last_error
                             ELSE {joined} END
     WHERE id {{any_of:ids}} AND state = 'leased'
"""
TAKE_BACK_JOBS = sql(
    _TAKE_BACK.format(joined="last_error || '; ' || :note"),
    mariadb=_TAKE_BACK.format(joined="CONCAT(last_error, '; ', :note)"),
    postgresql=_TAKE_BACK.format(joined="last_error || '; ' || CAST(:note AS TEXT)").replace(
        "THEN :note", "THEN CAST(:note AS TEXT)"
    ),
)


@dataclass(frozen=True)
class AbandonedJob:
    """A job whose owner is gone."""

    id: str
    crashes: int
    cancel_at: int | None
    kind: str
    queue: str
    trace: str | None

    def facts(self) -> dict[str, Fact]:
        """The fields of an event about this job."""
        trace_id = trace_id_of(self.id, self.trace)
        return {"job_id": self.id, "kind": self.kind, "queue": self.queue, "trace_id": trace_id}


@dataclass(frozen=True)
class Rescued:
    """What one rescue gave back."""

    workers: int = 0
    jobs: int = 0
    died: int = 0

    def __add__(self, other: Rescued) -> Rescued:
        return Rescued(self.workers + other.workers, self.jobs + other.jobs, self.died + other.died)


def late_workers(tx: Transaction, me: int) -> set[tuple[int, int]]:
    """The workers whose lease ran out, by incarnation, and when."""
    return {(row[0], row[1]) for row in tx.rows(LATE_WORKERS, me=me)}


def declare_dead(
    tx: Transaction,
    me: int,
    *,
    trust_clock: bool,
    trust_machine: bool = True,
    only: Container[int] | None = None,
) -> int:
    """Declare workers dead whose lease ran out (`trust_clock`), or whose process is gone (`trust_machine`).

    With `only`, the clock convicts no other incarnation. Returns how many.
    """
    dead = 0
    for incarnation, worker_id, process, expired in tx.rows(LIVE_WORKERS, me=me):
        proven = trust_machine and process_is_gone(process)
        silent = expired and trust_clock and (only is None or incarnation in only)
        if not proven and not silent:
            continue
        if tx.run(DECLARE_DEAD, incarnation=incarnation, proven=int(proven)) == 1:
            dead += 1
            happened("worker.declared-dead", dead_worker_id=worker_id, incarnation=incarnation)
    return dead


def rescue(tx: Transaction, crash_limit: int) -> Rescued:
    """Give back one batch of what dead processes and expired manual leases left behind."""
    total = Rescued()
    for incarnation, worker_id, state, abandoned in tx.rows(ENDED_WORKERS_WITH_JOBS, limit=10):
        jobs = tx.all(ABANDONED_JOBS, AbandonedJob, owner=incarnation, limit=BATCH)
        # A worker that stopped in good order gave its work back; what is left was claimed in the same moment.
        charged = state == "dead" and abandoned == 1 and len(jobs) == 1
        total += _take_back(
            tx, jobs, worker_id, crash_limit, charge=int(charged), as_suspects=state == "dead"
        )
        if charged:
            tx.run(CLEAR_ABANDONED, incarnation=incarnation)
    orphans = tx.all(ORPHANED_JOBS, AbandonedJob, owner=MANUAL_OWNER, limit=BATCH)
    total += _take_back(tx, orphans, "forgotten", crash_limit, charge=0, as_suspects=False)
    by_hand = tx.all(EXPIRED_MANUAL_LEASES, AbandonedJob, owner=MANUAL_OWNER, limit=BATCH)
    return total + _take_back(tx, by_hand, "manual", crash_limit, charge=1, as_suspects=False)


def _take_back(
    tx: Transaction,
    jobs: list[AbandonedJob],
    worker_id: str,
    crash_limit: int,
    *,
    charge: int,
    as_suspects: bool,
) -> Rescued:
    if not jobs:
        return Rescued()
    cancelled = [job.id for job in jobs if job.cancel_at is not None]
    died = [job for job in jobs if job.cancel_at is None and charge and job.crashes + charge >= crash_limit]
    dead = [job.id for job in died]
    ended = {*cancelled, *dead}
    rest = [job.id for job in jobs if job.id not in ended]
    # A manual lease that ran out killed no worker: its job goes back among the others.
    _mark(tx, rest, "suspect" if as_suspects else "ready", charge, CRASH_NOTE)
    _mark(tx, dead, "leased", charge, f"{CRASH_NOTE}; killed its worker {crash_limit} times")
    _mark(tx, cancelled, "leased", 0, CRASH_NOTE)
    look_at_limits_of_jobs(tx, [job.id for job in jobs])
    if dead:
        end_jobs(tx, dead, "dead")
    if cancelled:
        end_jobs(tx, cancelled, "cancelled")
    for job in died:
        happened("job.died", job, error=f"killed its worker {crash_limit} times")
    charged = charge * (len(jobs) - len(cancelled))
    happened("jobs.rescued", dead_worker_id=worker_id, jobs=len(jobs), died=len(dead), charged=charged)
    return Rescued(1, len(jobs), len(dead))


def _mark(tx: Transaction, ids: list[str], state: str, charge: int, note: str) -> None:
    if ids:
        tx.run(
            TAKE_BACK_JOBS,
            ids=ids,
            state=state,
            charge=charge,
            note=note,
            error_group=None if state == "ready" else CRASH_GROUP,
            fence=new_fence(),
        )


# --- The identity of a process, so that another one on the same machine can see that it is gone.
#
# A process is named by the machine's boot, its PID namespace, its PID and its start time. Only a process
# in the same namespace of the same boot can judge; all others wait for the lease to run out.


def this_process() -> str:
    """The name of this process, as `process_is_gone` reads it."""
    return f"{_machine()}/{os.getpid()}/{_started(os.getpid())}"


def process_is_gone(process: str) -> bool:
    """True only if that process certainly runs no more."""
    machine, _, rest = process.partition("/")
    pid, _, started = rest.partition("/")
    if not machine or machine != _machine() or not pid.isdigit() or not started:
        return False
    return _started(int(pid)) != started


def process_age() -> float:
    """For how many seconds this process has been running; 0 where the system does not tell."""
    started = _started(os.getpid())
    if not started:
        return 0.0
    return time.clock_gettime(time.CLOCK_BOOTTIME) - int(started) / os.sysconf("SC_CLK_TCK")


def _machine() -> str:
    """The boot and the PID namespace; empty where the system does not tell."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot}:{Path('/proc/self/ns/pid').stat().st_ino}"
    except OSError:
        return ""


def _started(pid: int) -> str:
    """When the process started, in ticks since boot; empty if there is none, or only its shell."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    fields = text.rpartition(")")[2].split()  # the name in front may contain anything
    return "" if fields[0] in {"Z", "X"} else fields[19]
