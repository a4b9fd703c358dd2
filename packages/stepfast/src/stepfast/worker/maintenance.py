"""What every worker does for all: promote what is due, rescue the abandoned, forget the old.

No process is special. Each pass is a short transaction over a bounded batch, and skips rows that a
colleague is working on.
"""

from __future__ import annotations

import random
import threading
import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final

from stepfast.admin import audit, masks
from stepfast.clock import boot_time, micros
from stepfast.database.database import persist
from stepfast.database.dialects import Whose
from stepfast.database.statement import sql
from stepfast.errors import CRASH_GROUP, ContentionError, DatabaseError, UnreachableError
from stepfast.jobs.archive import NOT_NEEDED, not_needed
from stepfast.jobs.commit import give_back
from stepfast.jobs.dead_letters import purge
from stepfast.jobs.debounce import free_successors, promote_successor
from stepfast.jobs.dependencies import BEGINNING, find_stranded, release_stranded
from stepfast.jobs.events import any_old_events, deliver_kept, forget_old_events, missed_events
from stepfast.jobs.keys import forget_expired_keys
from stepfast.jobs.lease import queues_with_work, raise_overdue
from stepfast.jobs.rescue import Rescued, declare_dead, late_workers, rescue
from stepfast.limits.slots import Declared, forget_idle_limits, look_at_all_limits, release_due
from stepfast.results.outcome import any_expired_results, expire_results
from stepfast.telemetry import happened
from stepfast.telemetry.masking import any_rules

if TYPE_CHECKING:
    from collections.abc import Callable

    from stepfast.config import WorkerSettings
    from stepfast.database.connection import Transaction
    from stepfast.database.database import Database
    from stepfast.jobs.kinds import Kind, Kinds
    from stepfast.worker.heartbeat import Heartbeat


# Once a minute, a look at a part of those who wait for others: nobody waits for what has ended.

BATCH: Final = 1_000  # edges of one look


class StrandedJobs:
    """Walks along the open edges, a batch at a time, and begins again at the end."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._place = BEGINNING

    def look(self) -> int:
        """Look at the next batch; returns how many parents had ended without telling."""
        with self._database.looking() as tx:
            found, self._place = find_stranded(tx, self._place, BATCH)
        late = persist(self._database, lambda tx: release_stranded(tx, found)) if found else 0
        if late:
            happened("dependants.found", jobs=late)
        return late


SWEEP: Final = 2.0  # seconds between rescues
SUSPECT_SWEEP: Final = 0.5  # while suspects wait
CONFIRMED_AFTER: Final = 0.5  # seconds a lease must have been seen to have run out
PROMOTION: Final = 0.5  # seconds between looks at what is due, at most
PRUNING: Final = 60.0
AGEING: Final = 15.0  # seconds between looks at who has waited too long, at most
BATCH_MAINTENANCE: Final = 1_000
LEAKED_AFTER: Final = 5_000_000  # microseconds; a lease nobody knows of is then no race between threads
IDLE_LIMITS_KEPT: Final = 3600 * 1_000_000
WORKER_ROWS_KEPT: Final = 24 * 3600 * 1_000_000

DUE = sql("""
    SELECT id, queue FROM stepfast_job WHERE state = 'scheduled' AND ready_at <= {now}
     ORDER BY ready_at LIMIT :limit {skip_locked}
""")
# The rows are locked by DUE; naming their state again would tempt PostgreSQL to walk the scheduled index. Who was
# scheduled as a suspect comes back as one.
PROMOTE = sql(f"""
    UPDATE stepfast_job
       SET state = CASE WHEN error_group = '{CRASH_GROUP}' THEN 'suspect' ELSE 'ready' END, updated_at = {{now}}
     WHERE id {{any_of:ids}}
""")
NEXT_DUE = sql("""
    SELECT (SELECT min(ready_at) FROM stepfast_job WHERE state = 'scheduled') - {now},
           (SELECT min(due_at) FROM stepfast_limit WHERE due_at IS NOT NULL) - {now},
           (SELECT count(*) FROM stepfast_job WHERE held_by = '(key)' AND state = 'held')
""")

OLD = sql(f"""
    SELECT id FROM stepfast_archive WHERE state = :state AND finished_at < {{now}} - :age AND {NOT_NEEDED}
     ORDER BY finished_at LIMIT :limit {{skip_locked}}
""")
GONE_WORKERS = sql("""
    DELETE FROM stepfast_worker
     WHERE state IN ('dead', 'stopped') AND ended_at < {now} - :age
       AND NOT EXISTS (SELECT 1 FROM stepfast_job WHERE owner = stepfast_worker.incarnation AND state = 'leased')
""")

LONG_MINE = sql("""
    SELECT id, fence FROM stepfast_job
     WHERE owner = :owner AND state = 'leased' AND leased_at < {now} - :age LIMIT :limit
""")
SUSPECTS = sql("""
    SELECT count(*) FROM stepfast_job
     WHERE state = 'suspect' AND (:anywhere = 1 OR queue {any_of:queues})
       AND queue NOT IN (SELECT id FROM stepfast_queue WHERE paused_at IS NOT NULL)
""")


def promote(tx: Transaction, limit: int = BATCH_MAINTENANCE) -> int:
    """Make ready what is due; returns how many."""
    rows = tx.rows(DUE, limit=limit)
    if not rows:
        return 0
    tx.run(PROMOTE, ids=[row[0] for row in rows])
    tx.wakes.update(row[1] for row in rows)
    return len(rows)


def prune(tx: Transaction, age: int, limit: int = BATCH_MAINTENANCE) -> int:
    """Forget one batch of finished jobs older than `age`. Dead letters are not finished; nor is what others wait for."""
    removed = 0
    for state in ("done", "cancelled"):
        removed += purge(
            tx, not_needed(tx, [row[0] for row in tx.rows(OLD, state=state, age=age, limit=limit)])
        )
    return removed


class Maintenance:
    """A thread that keeps the tables in order while the worker lives."""

    def __init__(
        self,
        database: Database,
        settings: WorkerSettings,
        heartbeat: Heartbeat,
        isolate: Callable[[int], None],
        owned: dict[str, int],
        *,
        limits: Declared,
    ) -> None:
        self._database = database
        self._settings = settings
        self._heartbeat = heartbeat
        self._isolate = isolate
        self._owned = owned
        self._declared = limits
        self._suspects = 0
        self._strangers: set[tuple[str, int]] = set()
        self._late: dict[tuple[int, int], float] = {}  # since when we have seen them late
        self._stop = threading.Event()
        self._thread = threading.Thread(
            target=self._work_until_stopped, name="stepfast-maintenance", daemon=True
        )
        self._next_sweep = 0.0
        self._next_pruning = time.monotonic() + random.uniform(1, PRUNING)
        self._next_ageing = 0.0
        self._failing = False
        self._stranded = StrandedJobs(database)

    def start(self) -> None:
        """Take back at once what is certainly abandoned, then keep looking."""
        persist(self._database, look_at_all_limits)
        found = self._sweep()
        happened(
            "worker.recovered",
            worker_id=self._settings.worker_id,
            jobs=found.jobs,
            note=f"Reset {found.jobs} expired leases on startup",
        )
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(timeout=10)

    def _work_until_stopped(self) -> None:
        pause = 0.1
        while not self._stop.wait(pause):
            try:
                pause = self._pass()
                if self._failing:
                    self._failing = False
                    happened(
                        "database.recovered", worker_id=self._settings.worker_id, note="maintenance goes on"
                    )
            except DatabaseError as error:
                if not self._failing:
                    self._failing = True
                    happened(
                        "database.lost",
                        worker_id=self._settings.worker_id,
                        error=error,
                        note="maintenance waits",
                    )
                pause = 1.0
            except Exception as error:  # noqa: BLE001 - others depend on this thread: it goes on
                happened("worker.failed", worker_id=self._settings.worker_id, error=error, note="maintenance")
                pause = 5.0

    def _pass(self) -> float:
        soonest = self._promote_what_is_due()
        now = time.monotonic()
        if now >= self._next_sweep:
            self._sweep()
            pause = SUSPECT_SWEEP if self._suspects or self._late else SWEEP
            self._next_sweep = now + pause * random.uniform(0.9, 1.1)
            self._return_leaked()
        if now >= self._next_ageing:
            self._next_ageing = now + self._let_rise()
        if now >= self._next_pruning:
            self._prune()
            self._stranded.look()
            self._next_pruning = now + PRUNING
        return soonest

    def _promote_what_is_due(self) -> float:
        """Make ready whose time has come, and let go whom a limit held; returns seconds until the next look.

        It begins with a look, so that an idle worker never takes a write lock.
        """
        while True:
            with self._database.looking() as tx:
                scheduled, held, successors = tx.rows(NEXT_DUE)[0]
            more = False
            if successors:
                self._let_successors_go()
            if scheduled is not None and scheduled <= 0:
                moved = persist(self._database, promote)
                happened("jobs.promoted", jobs=moved)
                more, scheduled = moved == BATCH_MAINTENANCE, None
            if held is not None and held <= 0:
                more = persist(self._database, lambda tx: release_due(tx, self._declared)) > 0 or more
                held = None
            if not more or self._stop.is_set():
                due = min((int(it) for it in (scheduled, held) if it is not None), default=None)
                return PROMOTION if due is None else min(PROMOTION, max(0.005, due / 1e6))

    def _let_successors_go(self) -> None:
        """Each in a transaction of its own: another call may be taking its key, and commit late."""
        with self._database.looking() as tx:
            free = free_successors(tx)
        random.shuffle(free)  # one that waits for such a call must not be the first every time
        for successor in free:
            try:
                with self._database.transaction(Whose.OURS) as tx:
                    promote_successor(tx, *successor)
            except ContentionError:
                return

    def _sweep(self) -> Rescued:
        me, silent = self._heartbeat.incarnation, self._silent()
        persist(self._database, lambda tx: declare_dead(tx, me, trust_clock=bool(silent), only=silent))
        total = Rescued()
        while True:
            found = persist(self._database, lambda tx: rescue(tx, self._settings.crash_limit))
            total += found
            if not found.jobs:
                break
        with self._database.looking() as tx:
            queues = list(self._settings.queues)
            self._suspects = int(tx.first(SUSPECTS, queues=queues, anywhere=int(not queues)))
        self._isolate(self._suspects)
        return total

    def _silent(self) -> set[int]:
        """Who has been late for a while. After the database hung, everybody looks late: the living renew first."""
        if not self._heartbeat.may_rescue:
            self._late = {}
            return set()
        with self._database.looking() as tx:
            found = late_workers(tx, self._heartbeat.incarnation)
        now = boot_time()
        self._late = {it: self._late.get(it, now) for it in found}
        return {it[0] for it, since in self._late.items() if now - since >= CONFIRMED_AFTER}

    def _return_leaked(self) -> None:
        """Give back what the database says is ours and nobody here has: a claim or commit whose answer was lost."""
        with self._database.looking() as tx:
            rows = tx.rows(
                LONG_MINE, owner=self._heartbeat.incarnation, age=LEAKED_AFTER, limit=BATCH_MAINTENANCE
            )
        strangers = {(row[0], row[1]) for row in rows if self._owned.get(row[0]) != row[1]}
        for job_id, fence in strangers & self._strangers:  # seen twice: not just on its way between threads
            with self._database.transaction(Whose.OURS) as tx:
                give_back(tx, [job_id], fence)
            happened("leases.leaked", worker_id=self._settings.worker_id, job_id=job_id, fence=fence)
        self._strangers = strangers

    def _let_rise(self) -> float:
        """Let those who waited long behind others rise; returns seconds until the next time."""
        after = self._settings.ageing
        if after is None:
            return PRUNING
        with self._database.looking() as tx:
            queues = queues_with_work(tx)
        for queue in queues:
            risen = persist(self._database, partial(raise_overdue, queue=queue, after=micros(after)))
            if risen:
                happened("jobs.risen", queue=queue, jobs=risen)
        return min(AGEING, after.total_seconds() / 4)

    def _prune(self) -> None:
        age = micros(self._settings.retention)
        removed = 0
        while not self._stop.is_set():
            batch = persist(self._database, lambda tx: prune(tx, age))
            removed += batch
            if not batch:
                break
            self._stop.wait(0.02)  # let others write in between
        persist(self._database, lambda tx: forget_expired_keys(tx, BATCH_MAINTENANCE))
        persist(self._database, lambda tx: forget_idle_limits(tx, IDLE_LIMITS_KEPT, BATCH_MAINTENANCE))
        persist(self._database, lambda tx: tx.run(GONE_WORKERS, age=WORKER_ROWS_KEPT))
        if removed:
            happened("archive.pruned", worker_id=self._settings.worker_id, jobs=removed)


# Forget what was promised for a while only: results, and what operators did long ago.
#
# Every worker does it for the kinds it knows, in bounded batches, and begins with a look. A kind that no worker knows
# keeps its results until its jobs are forgotten as a whole.

EVERY: Final = 60.0  # seconds between passes
BATCH_FORGETTING: Final = 1_000
BREATH: Final = 0.02  # seconds in which others may write


class Forgetting:
    """A thread that forgets once a minute."""

    def __init__(self, database: Database, kinds: Kinds, settings: WorkerSettings) -> None:
        self._database = database
        self._kinds = kinds
        self._settings = settings
        self._stop = threading.Event()
        self._thread = threading.Thread(
            target=self._forget_until_stopped, name="stepfast-forgetting", daemon=True
        )

    def start(self) -> None:
        self.declare_rules()
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(timeout=10)

    def forget(self) -> None:
        """One pass over everything whose time may be over."""
        expired = sum(self._expire(self._kinds.get(name)) for name in self._kinds.names())
        if expired:
            happened("results.expired", results=expired)
        age = micros(self._settings.audit_kept)
        with self._database.looking() as tx:
            names = missed_events(tx)
        for name in names:
            persist(self._database, partial(deliver_kept, name=name))
        if forgotten := self._in_batches(any_old_events, lambda tx: forget_old_events(tx, BATCH_FORGETTING)):
            happened("events.forgotten", events=forgotten)
        self.declare_rules()
        self._in_batches(
            lambda tx: audit.any_older(tx, age), lambda tx: audit.prune(tx, age, BATCH_FORGETTING)
        )

    def declare_rules(self) -> None:
        """Let others who show these rows hide what this process hides."""
        if not any_rules():
            return
        with self._database.looking() as tx:
            new = masks.outdated(tx)
        if new:
            persist(self._database, lambda tx: masks.declare(tx, new))

    def _expire(self, kind: Kind) -> int:
        age = micros(self._settings.results_kept if kind.result_ttl is None else kind.result_ttl)
        return self._in_batches(
            lambda tx: any_expired_results(tx, kind.name, age),
            lambda tx: expire_results(tx, kind.name, age, BATCH_FORGETTING),
        )

    def _in_batches(self, look: Callable[[Transaction], bool], forget: Callable[[Transaction], int]) -> int:
        with self._database.looking() as tx:
            if not look(tx):
                return 0
        total = 0
        while not self._stop.is_set() and (done := persist(self._database, forget)):
            total += done
            self._stop.wait(BREATH)
        return total

    def _forget_until_stopped(self) -> None:
        pause = random.uniform(0, EVERY)  # not all workers of a deployment at once
        while not self._stop.wait(pause):
            pause = EVERY
            try:
                with suppress(UnreachableError, ContentionError):  # others of this worker tell; there is time
                    self.forget()
            except Exception as error:  # noqa: BLE001 - this thread goes on
                happened("worker.failed", worker_id=self._settings.worker_id, error=error, note="forgetting")
