"""The heartbeat: one row proves that this process lives, and its leases live as long as it does.

Each start of a worker has a number of its own, its incarnation; jobs that it holds have that number as their owner.

It runs on a thread and a connection of its own and touches nothing else, so that no slow commit and no busy handler
can make the process look dead. Before each beat the worker enforces deadlines: a step that runs past its time is not
vouched for. After it the heartbeat looks which running steps were cancelled or replaced.

The guardian of the process (`worker/guardian.py`) renews the row while the interpreter does not answer, and declares the
worker dead as soon as its process has ended; it writes through `worker/deputy.py`. Where there is no guardian any more, other
workers notice the death: `Rescue` in `worker/rescue.py` looks for workers whose process is gone or whose row was not renewed
in time. How they are declared dead (`declare_dead`), and how their jobs are taken back, is in `jobs/rescue.py`.
"""

from __future__ import annotations

import os
import socket
import threading
from typing import TYPE_CHECKING, Final

from stepfast.clock import boot_time, micros, new_fence
from stepfast.database.database import persist
from stepfast.database.statement import sql
from stepfast.errors import DatabaseError, ReplacedError, StepfastError
from stepfast.jobs.step import Halt
from stepfast.process_identity import this_process
from stepfast.telemetry import happened
from stepfast.worker.vital import VitalParts

if TYPE_CHECKING:
    from collections.abc import Callable

    from stepfast.config import WorkerSettings
    from stepfast.database.connection import Connection, Transaction
    from stepfast.database.database import Database
    from stepfast.worker.guardian_link import GuardianLink
    from stepfast.worker.leases import Leases
    from stepfast.worker.wakeups import Wakeups


TICK: Final = 2.0  # seconds between looks at the database, at most
RETRY: Final = 0.5  # seconds between tries while the database cannot be reached
MOST_STRANGE: Final = 3  # errors in a row that are none of the database; then the worker ends
MOST_IDS: Final = 50  # job ids shown in the worker's row

REGISTER = sql("""
    INSERT INTO stepfast_worker (incarnation, worker_id, state, alive_until, lease, started_at, beat_at,
                                 process, host, pid, concurrency, queues, guardian, guardian_pid, suspects_only)
    VALUES (:incarnation, :worker_id, 'alive', {now} + :lease, :lease, {now}, {now},
            :process, :host, :pid, :concurrency, :queues, :guardian, :guardian_pid, :suspects_only)
""")

STAY_ALIVE = sql("""
    UPDATE stepfast_worker
       SET alive_until = {now} + :lease, beat_at = {now}, active = :active, active_ids = :active_ids,
           guardian = :guardian, guardian_pid = :guardian_pid
     WHERE incarnation = :incarnation AND state = 'alive'
""")

RESIGN = sql("""
    UPDATE stepfast_worker SET state = 'stopped', ended_at = {now}, active = 0, active_ids = NULL
     WHERE incarnation = :incarnation AND state = 'alive'
""")

CLOCK = sql("SELECT {now}")

STILL_MINE = sql("""
    SELECT id, fence, cancel_at FROM stepfast_job WHERE id {any_of:ids}
""")


def register(
    tx: Transaction,
    settings: WorkerSettings,
    guardian: GuardianLink | None = None,
    *,
    suspects_only: bool = False,
) -> int:
    """Insert the row of a new incarnation, and return its number."""
    incarnation = new_fence()
    tx.run(
        REGISTER,
        incarnation=incarnation,
        worker_id=settings.worker_id,
        lease=micros(settings.lease),
        process=this_process(),
        host=socket.gethostname()[:200],
        pid=os.getpid(),
        concurrency=settings.concurrency,
        queues=",".join(settings.queues) or "*",
        guardian=None if guardian is None else guardian.identity,
        guardian_pid=None if guardian is None else guardian.pid,
        suspects_only=int(suspects_only),
    )
    return incarnation


def stay_alive(
    tx: Transaction,
    incarnation: int,
    settings: WorkerSettings,
    active: list[str],
    guardian: GuardianLink | None = None,
) -> int:
    """Renew the row, and return the database's time. Raises if this incarnation was declared dead."""
    matched = tx.run(
        STAY_ALIVE,
        incarnation=incarnation,
        lease=micros(settings.lease),
        active=len(active),
        active_ids=",".join(active[:MOST_IDS]),
        guardian=None if guardian is None else guardian.identity,
        guardian_pid=None if guardian is None else guardian.pid,
    )
    if matched != 1:
        raise ReplacedError(incarnation)
    return int(tx.first(CLOCK))


class Heartbeat:
    """Keeps the incarnation of this process alive, and knows how far it may be believed."""

    def __init__(
        self,
        database: Database,
        settings: WorkerSettings,
        leases: Leases,
        wakeups: Wakeups,
        guardian: GuardianLink | None = None,
        *,
        suspects_only: bool = False,
        vital: VitalParts | None = None,
    ) -> None:
        self._guardian = guardian
        self._suspects_only = suspects_only
        self._database = database
        self._settings = settings
        self._leases = leases
        self._nudge = wakeups.cancelled  # set when an operator cancels a job: look now
        self._lease = settings.lease.total_seconds()
        self._connection: Connection | None = None
        self._stop = threading.Event()
        self._vital = vital or VitalParts()
        self._thread: threading.Thread | None = None
        self._failing = False
        self._shown: set[str] = set()  # jobs that the worker's row shows as running
        self._drift: float | None = None
        self.incarnation = 0
        self.believed_until = 0.0  # boot time until which no other worker can have replaced this one
        # Boot time; as `believed_until`, but 0 while the heartbeat does not get through.
        self.may_claim_until = 0.0
        self.observing_since = 0.0  # since when we and the database have been in touch without a gap

    def start(self, enforce_deadlines: Callable[[], None]) -> None:
        """Register, then keep beating; deadlines are enforced before each beat."""
        self._register()
        self._thread = self._vital.thread("heartbeat", lambda: self._beat_until_stopped(enforce_deadlines))
        self._thread.start()

    def stop(self) -> None:
        """Stop beating and resign; leases that were not given back are rescued by other workers."""
        self._stop.set()
        self._nudge.set()
        if self._thread is None:
            return
        self._thread.join(timeout=10)
        try:
            persist(self._database, lambda tx: tx.run(RESIGN, incarnation=self.incarnation), urgent=True)
        except DatabaseError as error:
            happened("heartbeat.failed", worker_id=self._settings.worker_id, error=error)
        if self._connection is not None:
            self._connection.close()

    @property
    def may_claim(self) -> bool:
        """A worker whose heartbeat does not get through must not take work that others will rescue."""
        return boot_time() < self.may_claim_until

    @property
    def may_rescue(self) -> bool:
        """Only a worker that has seen the database for a whole lease knows that silent owners had time to renew."""
        return self.may_claim and boot_time() - self.observing_since >= self._lease

    @property
    def renewed_at(self) -> float:
        """Boot time at which the last heartbeat that got through was sent."""
        return self.believed_until - self._lease

    def silence(self) -> float:
        """For how many seconds the database has not answered."""
        return boot_time() - (self.believed_until - self._lease)

    def database_time(self) -> float | None:
        """The database's clock in seconds, as far as the last heartbeat tells; good for figures, not for decisions."""
        return None if self._drift is None else boot_time() + self._drift

    def _register(self) -> None:
        sent = boot_time()
        self.incarnation, now = persist(
            self._database,
            lambda tx: (
                register(tx, self._settings, self._guardian, suspects_only=self._suspects_only),
                int(tx.first(CLOCK)),
            ),
            urgent=True,
        )
        self._drift = now / 1e6 - sent
        self._believe(sent)
        if self._guardian is not None:
            self._guardian.register(self.incarnation, self._lease, self._settings.worker_id)
        self.observing_since = sent

    def _beat_until_stopped(self, enforce_deadlines: Callable[[], None]) -> None:
        renewed = boot_time()
        strange = 0  # errors in a row that nobody expects
        while not self._stop.is_set():
            due = renewed + self._lease * self._settings.renew_at / 100
            pause = RETRY if self._failing else min(TICK, self._lease / 5, max(0.01, due - boot_time()))
            self._nudge.wait(pause)
            self._nudge.clear()
            if self._stop.is_set():
                return
            enforce_deadlines()
            sent = boot_time()
            try:
                if self._failing or sent >= due or self._running_jobs() != self._shown:
                    self._renew(sent)
                    renewed = sent
                self._halt_lost_steps()
                strange = 0
            except ReplacedError:
                self._register_again()
                renewed = boot_time()
            except StepfastError as error:  # the database is away, or a pooler before it
                self._failed(error)
            except Exception as error:
                strange += 1  # a driver may stumble over a connection that broke; over a new one it must not
                if strange >= MOST_STRANGE:
                    raise
                self._failed(error)

    def _renew(self, sent: float) -> None:
        self._shown = self._running_jobs()
        active = sorted(self._shown)
        connection = self._own_connection()
        now = persist(
            self._database,
            lambda tx: stay_alive(tx, self.incarnation, self._settings, active, self._guardian),
            urgent=True,
            on=connection,
            tries=3,
        )
        silence = self.silence()
        if sent > self.believed_until or self._jumped(now, sent):
            self.observing_since = sent  # we were away, or a clock moved: let the living renew first
        was_failing = self._failing
        self._failing = False
        self._believe(sent)
        if was_failing:
            self._leases.doubt(uncertain=False)
            happened("heartbeat.recovered", worker_id=self._settings.worker_id, silent_s=round(silence, 1))

    def _believe(self, sent: float) -> None:
        """The row was renewed by a statement that was sent at this boot time."""
        if self._guardian is not None:
            self._guardian.board.renewed(sent)
        self.believed_until = sent + self._lease
        self.may_claim_until = 0.0 if self._failing else self.believed_until

    def _jumped(self, database_now: int, sent: float) -> bool:
        drift = database_now / 1e6 - sent
        before, self._drift = self._drift, drift
        return before is not None and abs(drift - before) > self._lease / 2

    def _running_jobs(self) -> set[str]:
        return {job_id for job_id, _ in self._leases.running_fences()}

    def _halt_lost_steps(self) -> None:
        """Halt running steps whose job another worker owns by now, or whose job was cancelled."""
        running = self._leases.running_fences()
        if not running:
            return
        with self._database.reading(on=self._own_connection()) as tx:
            rows = {row[0]: (row[1], row[2]) for row in tx.rows(STILL_MINE, ids=sorted(dict(running)))}
        for job_id, fence in running:
            held, cancel_at = rows.get(job_id, (None, None))
            if held != fence:
                self._leases.halt(job_id, fence, Halt.REPLACED)
            elif cancel_at is not None:
                self._leases.halt(job_id, fence, Halt.CANCELLED)

    def _register_again(self) -> None:
        """This incarnation was declared dead: its jobs belong to other workers, and a new one begins."""
        happened("incarnation.replaced", incarnation=self.incarnation, worker_id=self._settings.worker_id)
        self._leases.lose_all()
        try:
            self._register()
        except DatabaseError as error:
            self._failed(error)
        else:
            self._failing = False
            self.may_claim_until = self.believed_until
            self._leases.doubt(uncertain=False)

    def _failed(self, error: Exception) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        if not self._failing:
            self._failing = True
            self.may_claim_until = 0.0
            happened("heartbeat.failed", worker_id=self._settings.worker_id, error=error)
        if boot_time() >= self.believed_until:
            self._leases.doubt(uncertain=True)

    def connection(self) -> Connection:
        """The heartbeat's own connection; for its thread only, such as in the enforcement of deadlines."""
        return self._own_connection()

    def _own_connection(self) -> Connection:
        if self._connection is None or self._connection.broken:
            self._connection = self._database.connect()
        return self._connection
