"""What every worker does for all workers: promote due jobs, rescue abandoned ones (`worker/rescue.py`), prune old ones.

No process is special. Each duty is a class with a `work()` that returns the seconds until its next call; they stand in
the order of their importance. Each works in short transactions over bounded batches and skips rows that another
worker is working on. Most begin with a look, so that an idle worker takes no write lock.
"""

from __future__ import annotations

import random
from functools import partial
from typing import TYPE_CHECKING, Final

from stepfast.admin import audit, masks
from stepfast.clock import micros
from stepfast.database.database import persist
from stepfast.database.dialects import Plans
from stepfast.database.statement import sql
from stepfast.errors import ContentionError
from stepfast.jobs.archive import NOT_NEEDED, not_needed
from stepfast.jobs.commit import give_back
from stepfast.jobs.dead_letters import purge
from stepfast.jobs.debounce import free_successors, promote_successor
from stepfast.jobs.events import any_old_events, deliver_kept, forget_old_events, missed_events
from stepfast.jobs.keys import forget_expired_keys
from stepfast.jobs.lease import queues_with_work, raise_overdue
from stepfast.limits.limit_rows import Declared, forget_idle_limits, look_at_all_limits, release_due
from stepfast.results.outcome import any_expired_results, expire_results
from stepfast.suspects import READY_STATE
from stepfast.telemetry import happened
from stepfast.telemetry.masking import any_rules
from stepfast.worker.periodic import NEVER, Periodic, around, in_batches
from stepfast.worker.rescue import RESCUE_EVERY, Rescue, Suspects

if TYPE_CHECKING:
    import threading

    from stepfast.config import WorkerSettings
    from stepfast.database.connection import Transaction
    from stepfast.database.database import Database
    from stepfast.jobs.kinds import Kind, Kinds
    from stepfast.worker.heartbeat import Heartbeat
    from stepfast.worker.leases import Leases
    from stepfast.worker.vital import VitalParts


BATCH: Final = 1_000
PROMOTION_EVERY: Final = 0.5  # seconds between looks for due jobs, at most
# Microseconds; a lease that no part of this worker holds is then no race of threads.
LEAKED_AFTER: Final = 5_000_000
AGEING_EVERY: Final = 15.0  # seconds, at most
PRUNING_EVERY: Final = 60.0
IDLE_LIMITS_KEPT: Final = 3600 * 1_000_000
WORKER_ROWS_KEPT: Final = 24 * 3600 * 1_000_000


class Maintenance:
    """Two threads that keep the tables in order: one for jobs that wait to run, one for rows that are old."""

    def __init__(
        self,
        database: Database,
        kinds: Kinds,
        settings: WorkerSettings,
        heartbeat: Heartbeat,
        *,
        suspects: Suspects,
        leases: Leases,
        vital: VitalParts,
    ) -> None:
        self._database = database
        self._settings = settings
        self._rescue = Rescue(database, settings, heartbeat, suspects)
        self._waiting_jobs = Periodic("maintenance", settings.worker_id, vital=vital)
        self._waiting_jobs.add(Promotion(database, kinds.families, self._rescue).work, first=0.1)
        self._waiting_jobs.add(self._rescue.work)
        self._waiting_jobs.add(LeakedLeases(database, settings, heartbeat, leases).work)
        self._waiting_jobs.add(Ageing(database, settings).work)

        self._old_rows = Periodic("pruning", settings.worker_id, vital=vital)
        stopping = self._old_rows.stopping
        phase = random.uniform(0, PRUNING_EVERY)  # not all workers of a deployment at once
        for duty in (
            Pruning(database, settings, stopping),
            ResultExpiry(database, kinds, settings, stopping),
            EventPruning(database, stopping),
            AuditPruning(database, settings, stopping),
            MaskRules(database),
        ):
            self._old_rows.add(duty.work, first=phase)

    def start(self) -> None:
        """Rescue at once what is certainly abandoned, then keep looking."""
        persist(self._database, look_at_all_limits)
        declare_masks(self._database)
        found = self._rescue.rescue()
        happened(
            "worker.recovered",
            worker_id=self._settings.worker_id,
            jobs=found.jobs,
            note=f"Reset {found.jobs} expired leases on startup",
        )
        self._waiting_jobs.start()
        self._old_rows.start()

    def stop(self) -> None:
        self._waiting_jobs.stop()
        self._old_rows.stop()


# Jobs that wait to run.

DUE_JOBS = sql("""
    SELECT id, queue FROM stepfast_job WHERE state = 'scheduled' AND ready_at <= {now}
     ORDER BY ready_at LIMIT :limit {skip_locked}
""")
# The rows are locked by DUE_JOBS; naming their state again would tempt PostgreSQL to walk the scheduled index.
PROMOTE_JOBS = sql(f"""
    UPDATE stepfast_job
       SET state = {READY_STATE}, updated_at = {{now}}
     WHERE id {{any_of:ids}}
""")
NEXT_DUE = sql("""
    SELECT (SELECT min(ready_at) FROM stepfast_job WHERE state = 'scheduled') - {now},
           (SELECT min(due_at) FROM stepfast_limit WHERE due_at IS NOT NULL) - {now},
           (SELECT count(*) FROM stepfast_job WHERE held_by = '(key)' AND state = 'held'),
           (SELECT count(*) FROM stepfast_job WHERE state = 'suspect')
""")


def promote(tx: Transaction, limit: int = BATCH) -> int:
    """Make due jobs ready; returns how many."""
    rows = tx.rows(DUE_JOBS, limit=limit)
    if not rows:
        return 0
    tx.run(PROMOTE_JOBS, ids=[row[0] for row in rows])
    tx.wakes.update(row[1] for row in rows)
    return len(rows)


class Promotion:
    """Promote due jobs and release jobs that a limit, or another job with their key, held back."""

    def __init__(self, database: Database, limits: Declared, rescue: Rescue) -> None:
        self._database = database
        self._rescue = rescue
        self._limits = limits

    def work(self) -> float:
        with self._database.looking() as tx:
            scheduled, held, successors, suspects = tx.rows(NEXT_DUE)[0]
        more = False
        if suspects:
            self._rescue.look_for_suspects()
        if successors:
            self._release_successors()
        if scheduled is not None and scheduled <= 0:
            promoted = persist(self._database, promote)
            happened("jobs.promoted", jobs=promoted)
            more, scheduled = promoted == BATCH, None
        if held is not None and held <= 0:
            more = persist(self._database, lambda tx: release_due(tx, self._limits)) > 0 or more
            held = None
        if more:
            return 0.0
        soonest = min((int(wait) for wait in (scheduled, held) if wait is not None), default=None)
        return PROMOTION_EVERY if soonest is None else min(PROMOTION_EVERY, max(0.005, soonest / 1e6))

    def _release_successors(self) -> None:
        """Each in a transaction of its own: another call may be taking its key, and commit late."""
        with self._database.looking() as tx:
            free = free_successors(tx)
        random.shuffle(free)  # one that waits for such a call must not be the first every time
        for successor in free:
            try:
                with self._database.transaction(Plans.ENGINE) as tx:
                    promote_successor(tx, *successor)
            except ContentionError:
                return


LONG_LEASES = sql("""
    SELECT id, fence FROM stepfast_job
     WHERE owner = :owner AND state = 'leased' AND leased_at < {now} - :age LIMIT :limit
""")


class LeakedLeases:
    """Give back leases that the database says are ours and that no part of this worker holds.

    They are left by a claim or a commit whose answer was lost.
    """

    def __init__(
        self, database: Database, settings: WorkerSettings, heartbeat: Heartbeat, leases: Leases
    ) -> None:
        self._database = database
        self._settings = settings
        self._heartbeat = heartbeat
        self._leases = leases
        self._strangers: set[tuple[str, int]] = set()  # job and fence, as the last look found them

    def work(self) -> float:
        with self._database.looking() as tx:
            rows = tx.rows(LONG_LEASES, owner=self._heartbeat.incarnation, age=LEAKED_AFTER, limit=BATCH)
        strangers = {(row[0], row[1]) for row in rows if not self._leases.holds(row[0], row[1])}
        for job_id, fence in strangers & self._strangers:  # seen twice: not just on its way between threads
            with self._database.transaction(Plans.ENGINE) as tx:
                give_back(tx, [job_id], fence)
            happened("leases.leaked", worker_id=self._settings.worker_id, job_id=job_id, fence=fence)
        self._strangers = strangers
        return around(RESCUE_EVERY)


class Ageing:
    """Raise the priority of jobs that waited longer than `ageing`."""

    def __init__(self, database: Database, settings: WorkerSettings) -> None:
        self._database = database
        self._after = settings.ageing

    def work(self) -> float:
        if self._after is None:
            return NEVER
        with self._database.looking() as tx:
            queues = queues_with_work(tx)
        for queue in queues:
            risen = persist(self._database, partial(raise_overdue, queue=queue, after=micros(self._after)))
            if risen:
                happened("jobs.risen", queue=queue, jobs=risen)
        return min(AGEING_EVERY, self._after.total_seconds() / 4)


# Rows that are old.

OLD_JOBS = sql(f"""
    SELECT id FROM stepfast_archive WHERE state = :state AND finished_at < {{now}} - :age AND {NOT_NEEDED}
     ORDER BY finished_at LIMIT :limit {{skip_locked}}
""")
FORGET_WORKERS = sql("""
    DELETE FROM stepfast_worker
     WHERE state IN ('dead', 'stopped') AND ended_at < {now} - :age
       AND NOT EXISTS (SELECT 1 FROM stepfast_job WHERE owner = stepfast_worker.incarnation AND state = 'leased')
""")


def prune(tx: Transaction, age: int, limit: int = BATCH) -> int:
    """Forget one batch of jobs that were done or cancelled longer than `age` ago; returns how many.

    Dead letters stay, and so do jobs that an unfinished job depends on.
    """
    removed = 0
    for state in ("done", "cancelled"):
        old = [row[0] for row in tx.rows(OLD_JOBS, state=state, age=age, limit=limit)]
        removed += purge(tx, not_needed(tx, old))
    return removed


class Pruning:
    """Forget jobs that ended longer than `retention` ago, expired keys, unused limits and rows of ended workers."""

    def __init__(self, database: Database, settings: WorkerSettings, stopping: threading.Event) -> None:
        self._database = database
        self._settings = settings
        self._stopping = stopping

    def work(self) -> float:
        age = micros(self._settings.retention)
        removed = in_batches(self._database, self._stopping, lambda tx: prune(tx, age))
        persist(self._database, lambda tx: forget_expired_keys(tx, BATCH))
        persist(self._database, lambda tx: forget_idle_limits(tx, IDLE_LIMITS_KEPT, BATCH))
        persist(self._database, lambda tx: tx.run(FORGET_WORKERS, age=WORKER_ROWS_KEPT))
        if removed:
            happened("archive.pruned", worker_id=self._settings.worker_id, jobs=removed)
        return PRUNING_EVERY


class ResultExpiry:
    """Forget results whose time is over, of the kinds that this worker knows.

    Results of a kind that no worker knows stay until their jobs are pruned.
    """

    def __init__(
        self, database: Database, kinds: Kinds, settings: WorkerSettings, stopping: threading.Event
    ) -> None:
        self._database = database
        self._kinds = kinds
        self._settings = settings
        self._stopping = stopping

    def work(self) -> float:
        expired = sum(self._expire(self._kinds.get(name)) for name in self._kinds.names())
        if expired:
            happened("results.expired", results=expired)
        return PRUNING_EVERY

    def _expire(self, kind: Kind) -> int:
        age = micros(self._settings.results_kept if kind.result_ttl is None else kind.result_ttl)
        return in_batches(
            self._database,
            self._stopping,
            lambda tx: expire_results(tx, kind.name, age, BATCH),
            look=lambda tx: any_expired_results(tx, kind.name, age),
        )


class EventPruning:
    """Match events with waits that missed them, and forget events whose time is over."""

    def __init__(self, database: Database, stopping: threading.Event) -> None:
        self._database = database
        self._stopping = stopping

    def work(self) -> float:
        with self._database.looking() as tx:
            names = missed_events(tx)
        for name in names:
            persist(self._database, partial(deliver_kept, name=name))
        if forgotten := in_batches(
            self._database, self._stopping, lambda tx: forget_old_events(tx, BATCH), look=any_old_events
        ):
            happened("events.forgotten", events=forgotten)
        return PRUNING_EVERY


class AuditPruning:
    """Forget audit rows older than `audit_kept`."""

    def __init__(self, database: Database, settings: WorkerSettings, stopping: threading.Event) -> None:
        self._database = database
        self._age = micros(settings.audit_kept)
        self._stopping = stopping

    def work(self) -> float:
        in_batches(
            self._database,
            self._stopping,
            lambda tx: audit.prune(tx, self._age, BATCH),
            look=lambda tx: audit.any_older(tx, self._age),
        )
        return PRUNING_EVERY


class MaskRules:
    """Keep the masking rules of this process known to programs that show its rows."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def work(self) -> float:
        declare_masks(self._database)
        return PRUNING_EVERY


def declare_masks(database: Database) -> None:
    """Write down what this process hides, so that other programs hide it as well."""
    if not any_rules():
        return
    with database.looking() as tx:
        new = masks.outdated(tx)
    if new:
        persist(database, lambda tx: masks.declare(tx, new))
