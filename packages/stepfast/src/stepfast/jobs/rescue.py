"""Rescue jobs whose worker died, and charge only the job that killed it.

A worker is declared dead by its guardian (`worker/guardian.py`), which saw its process end, or by another worker: its
process is gone from the same machine, or its lease ran out. Every worker looks about every two seconds (`Rescue` in
`worker/rescue.py`).

The guardian also reports which steps had started. A job whose step had not started is ready again at once. If one step had
started, its job is charged with the crash; of several, none is. A job whose step had started is a suspect: it runs apart
from the other jobs, together with a few other suspects, in a disposable process that a guardian starts (its loop is in
`worker/claimer.py`). If that process dies too, or if the step had run for long, the job runs `alone` from then on: nothing
else runs in that process, and the next death is charged to it. After `crash_limit` charges it is dead. Without a report all
jobs that the worker held are suspects. A suspect that is scheduled or held is known by its `error_group` (`suspects.py`).
The claim of suspects is `claim_suspects` in `jobs/lease.py`.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from stepfast.clock import new_fence
from stepfast.database.statement import sql
from stepfast.errors import StepTimeout
from stepfast.jobs.archive import end_jobs
from stepfast.jobs.commit import commit
from stepfast.jobs.lease import MANUAL_OWNER, Lease
from stepfast.jobs.outcome import Again, Bury, Stop
from stepfast.jobs.retry import Retry, describe, fingerprint, judge
from stepfast.limits.limit_rows import look_at_limits_of_jobs
from stepfast.process_identity import process_is_gone, process_lives
from stepfast.suspects import CRASH_GROUP, CRASH_NOTE, READY_STATE
from stepfast.telemetry import trace_id_of, when_committed

if TYPE_CHECKING:
    from collections.abc import Container, Mapping

    from stepfast.database.connection import Transaction
    from stepfast.telemetry import Fact


BATCH: Final = 200

LONG: Final = 10_000_000  # microseconds; a step that ran so long when its worker died runs alone at once

LIVE_WORKERS = sql("""
    SELECT incarnation, worker_id, process, guardian, CASE WHEN alive_until < {now} THEN 1 ELSE 0 END
      FROM stepfast_worker WHERE state = 'alive' AND incarnation <> :me
""")

GUARDED_WORKERS = sql("""
    SELECT incarnation, process, guardian FROM stepfast_worker
     WHERE state = 'alive' AND incarnation <> :me AND guardian IS NOT NULL
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

# Also into a row that another worker declared dead meanwhile, unless all its jobs are rescued already.
REPORT_DEATH = sql("""
    UPDATE stepfast_worker SET report = :report WHERE incarnation = :incarnation AND state = 'dead' AND report IS NULL
""")

LEASED_JOBS = sql("SELECT id FROM stepfast_job WHERE owner = :incarnation AND state = 'leased'")

ENDED_WORKERS_WITH_JOBS = sql("""
    SELECT w.incarnation, w.worker_id, w.state, COALESCE(w.abandoned, 0), w.suspects_only, w.ended_at, w.report
      FROM stepfast_worker w
     WHERE w.state IN ('dead', 'stopped')
       AND EXISTS (SELECT 1 FROM stepfast_job j WHERE j.owner = w.incarnation AND j.state = 'leased')
     LIMIT :limit
""")

ABANDONED_JOBS = sql("""
    SELECT id, crashes, cancel_at, kind, queue, trace, COALESCE(leased_at, {now}) FROM stepfast_job
     WHERE owner = :owner AND state = 'leased'
     LIMIT :limit {skip_locked}
""")

EXPIRED_MANUAL_LEASES = sql("""
    SELECT id, crashes, cancel_at, kind, queue, trace, COALESCE(leased_at, {now}) FROM stepfast_job
     WHERE owner = :owner AND state = 'leased' AND lease_until < {now}
     LIMIT :limit {skip_locked}
""")

# The row of its owner is gone: deleted by hand, or pruned while a stopped process was in the middle of a claim.
ORPHANED_JOBS = sql("""
    SELECT id, crashes, cancel_at, kind, queue, trace, COALESCE(leased_at, {now}) FROM stepfast_job
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
           crashes = crashes + :charge, ready_at = {{now}}, updated_at = {{now}}, error_group = :error_group, alone = :alone,
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


# Their steps had not started: they keep their place. A suspect stays one.
TAKE_BACK_UNSTARTED = sql(f"""
    UPDATE stepfast_job
       SET state = {READY_STATE}, owner = NULL, leased_by = NULL, lease_until = NULL, fence = :fence, updated_at = {{now}}
     WHERE id {{any_of:ids}} AND state = 'leased'
""")

FIND_LEASE = sql("""
    SELECT id, kind, queue, priority, ready_at, step, failures, crashes, cursor_json, trace, payload, fence
      FROM stepfast_job WHERE id = :id AND state = 'leased'
""")


@dataclass(frozen=True)
class AbandonedJob:
    """A job whose owner is gone."""

    id: str
    crashes: int
    cancel_at: int | None
    kind: str
    queue: str
    trace: str | None
    leased_at: int

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


@dataclass(frozen=True)
class DeathReport:
    """What the guardian of a dead worker knows: which steps had started, and which one it was killed for."""

    started: frozenset[str]  # jobs
    guilty: str | None = None  # the job whose step passed its deadline while the interpreter did not answer
    timeout: float = 0.0  # seconds; of the guilty step
    retry: Mapping[str, Any] | None = None  # the retry policy of its kind; None: there is no second try

    def to_json(self) -> str:
        guilt = {"guilty": self.guilty, "timeout": self.timeout, "retry": self.retry} if self.guilty else {}
        return json.dumps({"started": sorted(self.started), **guilt})

    @classmethod
    def from_json(cls, text: str) -> DeathReport:
        found = json.loads(text)
        return cls(
            frozenset(found["started"]), found.get("guilty"), found.get("timeout", 0.0), found.get("retry")
        )

    def ending(self, failures: int) -> Again | Bury | Stop:
        """What becomes of the guilty step: it has missed its timeout."""
        late = StepTimeout(timedelta(seconds=self.timeout))
        if self.retry is None:
            return Bury(describe(late), fingerprint(late))
        return judge(late, Retry(**self.retry), failures, random.random())


def late_workers(tx: Transaction, me: int) -> set[tuple[int, int]]:
    """The workers whose lease ran out, by incarnation, and when."""
    return {(row[0], row[1]) for row in tx.rows(LATE_WORKERS, me=me)}


def guarded_and_gone(tx: Transaction, me: int) -> set[int]:
    """Workers of this machine whose process is gone, and whose guardian lives: it will report their deaths itself."""
    return {
        incarnation
        for incarnation, process, guardian in tx.rows(GUARDED_WORKERS, me=me)
        if process_is_gone(process) and process_lives(guardian)
    }


def declare_dead(
    tx: Transaction,
    me: int,
    *,
    trust_clock: bool,
    trust_machine: bool = True,
    only: Container[int] | None = None,
    unreported: Container[int] = (),
) -> int:
    """Declare workers dead whose lease ran out (`trust_clock`), or whose process is gone (`trust_machine`).

    With `only`, the clock convicts no other incarnation. A process that is gone and whose guardian lives is left to that,
    unless it is one of `unreported`. Returns how many.
    """
    dead = 0
    for incarnation, worker_id, process, guardian, expired in tx.rows(LIVE_WORKERS, me=me):
        proven = (
            trust_machine
            and process_is_gone(process)
            and (incarnation in unreported or not (guardian and process_lives(guardian)))
        )
        silent = expired and trust_clock and (only is None or incarnation in only)
        if not proven and not silent:
            continue
        if tx.run(DECLARE_DEAD, incarnation=incarnation, proven=int(proven)) == 1:
            dead += 1
            when_committed(tx, "worker.declared-dead", dead_worker_id=worker_id, incarnation=incarnation)
    return dead


def bury(tx: Transaction, incarnation: int, worker_id: str, report: DeathReport | None) -> None:
    """Declare a worker dead whose process has certainly ended, with what its guardian knows about its steps."""
    if tx.run(DECLARE_DEAD, incarnation=incarnation, proven=1) == 1:
        when_committed(tx, "worker.declared-dead", dead_worker_id=worker_id, incarnation=incarnation)
    if report is None:
        return
    leased = {row[0] for row in tx.rows(LEASED_JOBS, incarnation=incarnation)}
    known = replace(report, started=report.started & leased)
    if known.guilty not in leased:
        known = replace(known, guilty=None)
    tx.run(REPORT_DEATH, incarnation=incarnation, report=known.to_json())


def rescue(tx: Transaction, crash_limit: int) -> Rescued:
    """Give back one batch of what dead processes and expired manual leases left behind."""
    total = Rescued()
    for incarnation, worker_id, state, abandoned, suspects_only, ended_at, report in tx.rows(
        ENDED_WORKERS_WITH_JOBS, limit=10
    ):
        jobs = tx.all(ABANDONED_JOBS, AbandonedJob, owner=incarnation, limit=BATCH)
        death = Death(worker_id, crash_limit, alone=bool(suspects_only), at=ended_at or 0)
        if state == "dead" and report is not None:
            total += _as_reported(tx, jobs, death, DeathReport.from_json(report))
            continue
        if (
            state == "stopped"
        ):  # it gave its work back in good order; what is left was claimed in the same moment
            total += _give_back(tx, jobs, death)
            continue
        charged = abandoned == 1 and len(jobs) == 1
        total += _take_back(tx, jobs, death, charge=int(charged), as_suspects=True)
        if charged:
            tx.run(CLEAR_ABANDONED, incarnation=incarnation)
    orphans = tx.all(ORPHANED_JOBS, AbandonedJob, owner=MANUAL_OWNER, limit=BATCH)
    total += _give_back(tx, orphans, Death("forgotten", crash_limit))
    by_hand = tx.all(EXPIRED_MANUAL_LEASES, AbandonedJob, owner=MANUAL_OWNER, limit=BATCH)
    return total + _take_back(
        tx,
        by_hand,
        Death("manual", crash_limit, "let its lease by hand run out"),
        charge=1,
        as_suspects=False,
    )


@dataclass(frozen=True)
class Death:
    """The end of a worker, or of a lease by hand."""

    worker_id: str
    crash_limit: int
    cause: str = "killed its worker"  # what a job is charged with
    alone: bool = False  # it ran suspects only: those that had started run alone from now on
    at: int = 0

    def runs_alone(self, job: AbandonedJob) -> bool:
        """Whether this job, a suspect, must run with nothing beside it."""
        return self.alone or self.at - job.leased_at >= LONG


def _as_reported(tx: Transaction, jobs: list[AbandonedJob], death: Death, report: DeathReport) -> Rescued:
    """Take jobs back as the guardian's report says."""
    innocent = [job for job in jobs if job.id not in report.started and job.id != report.guilty]
    suspects = [job for job in jobs if job.id in report.started and job.id != report.guilty]
    guilty = [job for job in jobs if job.id == report.guilty]
    if report.guilty is not None:  # the others did no harm
        innocent, suspects = innocent + suspects, []
    total = _give_back(tx, innocent, death)
    # One step had started: no other can have killed the worker.
    total += _take_back(tx, suspects, death, charge=int(len(report.started) == 1), as_suspects=True)
    for job in guilty:
        total += _fail(tx, job, death, report)
    return total


def _give_back(tx: Transaction, jobs: list[AbandonedJob], death: Death) -> Rescued:
    """Put jobs back whose steps had not started, or did no harm."""
    if not jobs:
        return Rescued()
    cancelled = [job.id for job in jobs if job.cancel_at is not None]
    back = [job for job in jobs if job.cancel_at is None]
    if back:
        tx.run(TAKE_BACK_UNSTARTED, ids=[job.id for job in back], fence=new_fence())
        tx.wakes.update(job.queue for job in back)
    look_at_limits_of_jobs(tx, [job.id for job in jobs])
    if cancelled:
        end_jobs(tx, cancelled, "cancelled")
    when_committed(tx, "jobs.rescued", dead_worker_id=death.worker_id, jobs=len(jobs), died=0, charged=0)
    return Rescued(1, len(jobs), 0)


def _fail(tx: Transaction, job: AbandonedJob, death: Death, report: DeathReport) -> Rescued:
    """The step missed its timeout, and its worker was killed for it: that is a failure like any other."""
    (row,) = tx.rows(FIND_LEASE, id=job.id)
    lease = Lease(*row)
    ending = report.ending(lease.failures)
    commit(tx, lease, ending)
    look_at_limits_of_jobs(tx, [job.id])
    died = int(isinstance(ending, Bury))
    if died:
        when_committed(tx, "job.died", job, error=ending.error if isinstance(ending, Bury) else "")
    when_committed(tx, "jobs.rescued", dead_worker_id=death.worker_id, jobs=1, died=died, charged=0)
    return Rescued(1, 1, died)


def _take_back(
    tx: Transaction, jobs: list[AbandonedJob], death: Death, *, charge: int, as_suspects: bool
) -> Rescued:
    if not jobs:
        return Rescued()
    crash_limit = death.crash_limit
    cancelled = [job.id for job in jobs if job.cancel_at is not None]
    died = [job for job in jobs if job.cancel_at is None and charge and job.crashes + charge >= crash_limit]
    dead = [job.id for job in died]
    ended = {*cancelled, *dead}
    rest = [job for job in jobs if job.id not in ended]
    # A manual lease that ran out killed no worker: its job goes back among the others.
    state = "suspect" if as_suspects else "ready"
    alone = [job.id for job in rest if as_suspects and (charge or death.runs_alone(job))]
    _mark(tx, alone, state, charge, CRASH_NOTE, alone=1)
    _mark(tx, [job.id for job in rest if job.id not in set(alone)], state, charge, CRASH_NOTE)
    # Those that end stay leased under our fence until `end_jobs` moves them to the archive.
    _mark(tx, dead, "leased", charge, f"{CRASH_NOTE}; {death.cause} {crash_limit} times")
    _mark(tx, cancelled, "leased", 0, CRASH_NOTE)
    look_at_limits_of_jobs(tx, [job.id for job in jobs])
    if dead:
        end_jobs(tx, dead, "dead")
    if cancelled:
        end_jobs(tx, cancelled, "cancelled")
    for job in died:
        when_committed(tx, "job.died", job, error=f"{death.cause} {crash_limit} times")
    charged = charge * (len(jobs) - len(cancelled))
    when_committed(
        tx, "jobs.rescued", dead_worker_id=death.worker_id, jobs=len(jobs), died=len(dead), charged=charged
    )
    return Rescued(1, len(jobs), len(dead))


def _mark(tx: Transaction, ids: list[str], state: str, charge: int, note: str, alone: int = 0) -> None:  # noqa: PLR0917 - the columns of one statement
    if ids:
        tx.run(
            TAKE_BACK_JOBS,
            ids=ids,
            state=state,
            charge=charge,
            note=note,
            alone=alone,
            error_group=None if state == "ready" else CRASH_GROUP,
            fence=new_fence(),
        )
