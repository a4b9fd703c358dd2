"""A process proves that it lives with one row, and its leases live as long as it does.

The heartbeat runs on a thread and a connection of its own and touches nothing else, so that no slow
commit and no busy handler can make the process look dead. It also owns the deadlines: what runs past
its time is not vouched for, and a process whose event loop hangs gives its work back and ends.
"""

from __future__ import annotations

import os
import socket
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from stepfast.clock import boot_time, micros, new_fence
from stepfast.database.database import persist
from stepfast.database.statement import sql
from stepfast.errors import DatabaseError, ReplacedError
from stepfast.jobs.rescue import this_process
from stepfast.telemetry import happened

if TYPE_CHECKING:
    from collections.abc import Callable

    from stepfast.config import WorkerSettings
    from stepfast.database.connection import Connection, Transaction
    from stepfast.database.database import Database


TICK: Final = 2.0  # seconds between looks at the database, at most
RETRY: Final = 0.5  # seconds between tries while the database cannot be reached
MOST_IDS: Final = 50  # job ids shown in the worker's row

REGISTER = sql("""
    INSERT INTO stepfast_worker (incarnation, worker_id, state, alive_until, lease, started_at, beat_at,
                                 process, host, pid, concurrency, queues)
    VALUES (:incarnation, :worker_id, 'alive', {now} + :lease, :lease, {now}, {now},
            :process, :host, :pid, :concurrency, :queues)
""")

STAY_ALIVE = sql("""
    UPDATE stepfast_worker
       SET alive_until = {now} + :lease, beat_at = {now}, active = :active, active_ids = :active_ids
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


class Doubt(Protocol):
    """Hears that the database has been silent for a whole lease, and that it is back."""

    def __call__(self, *, uncertain: bool) -> None: ...


@dataclass(frozen=True)
class Pulse:
    """What the heartbeat needs to know of the worker, and whom it tells."""

    running: Callable[[], list[tuple[str, int]]]  # job id and fence of each step that runs right now
    cancelled: Callable[[str, int], None]
    replaced: Callable[[str, int], None]
    all_replaced: Callable[[], None]
    doubt: Doubt
    overdue: Callable[[], None]


def register(tx: Transaction, settings: WorkerSettings) -> int:
    """Begin to exist; returns the incarnation."""
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
    )
    return incarnation


def _registered(tx: Transaction, settings: WorkerSettings) -> tuple[int, int]:
    """The incarnation, and the database's time."""
    return register(tx, settings), int(tx.first(CLOCK))


def stay_alive(tx: Transaction, incarnation: int, settings: WorkerSettings, active: list[str]) -> int:
    """Renew; returns the database's time. Raises if somebody declared us dead."""
    matched = tx.run(
        STAY_ALIVE,
        incarnation=incarnation,
        lease=micros(settings.lease),
        active=len(active),
        active_ids=",".join(active[:MOST_IDS]),
    )
    if matched != 1:
        raise ReplacedError(incarnation)
    return int(tx.first(CLOCK))


class Heartbeat:
    """Keeps the incarnation alive, and knows how far it may be believed."""

    def __init__(self, database: Database, settings: WorkerSettings, pulse: Pulse) -> None:
        self._database = database
        self._settings = settings
        self._pulse = pulse
        self._lease = settings.lease.total_seconds()
        self._connection: Connection | None = None
        self._stop = threading.Event()
        self._nudge = threading.Event()
        self._thread = threading.Thread(
            target=self._beat_until_stopped, name="stepfast-heartbeat", daemon=True
        )
        self._failing = False
        self._told: set[str] = set()  # what the worker's row says is running
        self._drift: float | None = None
        self.incarnation = 0
        self.believed_until = 0.0  # boot time until which nobody can have replaced us
        self.observing_since = 0.0  # since when we and the database have been in touch without a gap

    def start(self) -> None:
        """Register, then keep beating."""
        self._register()
        self._thread.start()

    def stop(self) -> None:
        """Stop beating and leave; what was not given back is rescued by others."""
        self._stop.set()
        self._nudge.set()
        self._thread.join(timeout=10)
        try:
            persist(self._database, lambda tx: tx.run(RESIGN, incarnation=self.incarnation), urgent=True)
        except DatabaseError as error:
            happened("heartbeat.failed", worker_id=self._settings.worker_id, error=error)
        if self._connection is not None:
            self._connection.close()

    def nudge(self) -> None:
        """Look now: somebody asked a job to stop."""
        self._nudge.set()

    @property
    def may_claim(self) -> bool:
        """A worker whose heartbeat does not get through must not take work that others will rescue."""
        return not self._failing and boot_time() < self.believed_until

    @property
    def may_rescue(self) -> bool:
        """Only who has seen the database for a whole lease knows that silent owners had time to renew."""
        return self.may_claim and boot_time() - self.observing_since >= self._lease

    def silence(self) -> float:
        """For how many seconds the database has not been heard of."""
        return boot_time() - (self.believed_until - self._lease)

    def database_time(self) -> float | None:
        """The database's clock in seconds, as far as the last heartbeat tells; good for figures, not for decisions."""
        return None if self._drift is None else boot_time() + self._drift

    def _register(self) -> None:
        sent = boot_time()
        self.incarnation, now = persist(
            self._database, lambda tx: _registered(tx, self._settings), urgent=True
        )
        self._drift = now / 1e6 - sent
        self.believed_until = sent + self._lease
        self.observing_since = sent

    def _beat_until_stopped(self) -> None:
        renewed = boot_time()
        while not self._stop.is_set():
            due = renewed + self._lease * self._settings.renew_at / 100
            pause = RETRY if self._failing else min(TICK, self._lease / 5, max(0.01, due - boot_time()))
            self._nudge.wait(pause)
            self._nudge.clear()
            if self._stop.is_set():
                return
            self._pulse.overdue()
            sent = boot_time()
            try:
                if self._failing or sent >= due or self._running_jobs() != self._told:
                    self._renew(sent)
                    renewed = sent
                self._look()
            except ReplacedError:
                self._replaced()
                renewed = boot_time()
            except Exception as error:  # noqa: BLE001 - the heartbeat goes on, whatever it meets
                self._failed(error)

    def _renew(self, sent: float) -> None:
        self._told = self._running_jobs()
        active = sorted(self._told)
        connection = self._own_connection()
        now = persist(
            self._database,
            lambda tx: stay_alive(tx, self.incarnation, self._settings, active),
            urgent=True,
            on=connection,
            tries=3,
        )
        silence = self.silence()
        if sent > self.believed_until or self._jumped(now, sent):
            self.observing_since = sent  # we were away, or a clock moved: let the living renew first
        self.believed_until = sent + self._lease
        if self._failing:
            self._failing = False
            self._pulse.doubt(uncertain=False)
            happened("heartbeat.recovered", worker_id=self._settings.worker_id, silent_s=round(silence, 1))

    def _jumped(self, database_now: int, sent: float) -> bool:
        drift = database_now / 1e6 - sent
        before, self._drift = self._drift, drift
        return before is not None and abs(drift - before) > self._lease / 2

    def _running_jobs(self) -> set[str]:
        return {job_id for job_id, _ in self._pulse.running()}

    def _look(self) -> None:
        """Which of the running steps are still ours, and which are asked to stop?"""
        running = self._pulse.running()
        if not running:
            return
        with self._database.reading(on=self._own_connection()) as tx:
            rows = {row[0]: (row[1], row[2]) for row in tx.rows(STILL_MINE, ids=sorted(dict(running)))}
        for job_id, fence in running:
            held, cancel_at = rows.get(job_id, (None, None))
            if held != fence:
                self._pulse.replaced(job_id, fence)
            elif cancel_at is not None:
                self._pulse.cancelled(job_id, fence)

    def _replaced(self) -> None:
        happened("incarnation.replaced", incarnation=self.incarnation, worker_id=self._settings.worker_id)
        self._pulse.all_replaced()
        try:
            self._register()
        except DatabaseError as error:
            self._failed(error)
        else:
            self._failing = False
            self._pulse.doubt(uncertain=False)

    def _failed(self, error: Exception) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        if not self._failing:
            self._failing = True
            happened("heartbeat.failed", worker_id=self._settings.worker_id, error=error)
        if boot_time() >= self.believed_until:
            self._pulse.doubt(uncertain=True)

    def _own_connection(self) -> Connection:
        if self._connection is None or self._connection.broken:
            self._connection = self._database.connect()
        return self._connection
