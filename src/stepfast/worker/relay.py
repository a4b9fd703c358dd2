"""Send what was staged: a thread that looks, and a thread per destination that is being served.

Any number of workers may do this at once. An idle one asks the database one question a second.
"""

from __future__ import annotations

import random
import threading
import time
from typing import TYPE_CHECKING, Final

from stepfast.clock import micros
from stepfast.database.database import persist
from stepfast.database.statement import sql
from stepfast.database.wakeup import OUTBOX
from stepfast.errors import DatabaseError
from stepfast.notifications import alert as alerting
from stepfast.outbox.alerts import TOO_OLD, tell
from stepfast.outbox.messages import BROKER
from stepfast.outbox.relay import LEASE, Outgoing, Served, due, head, release, renew, take
from stepfast.outbox.retention import prune
from stepfast.telemetry import happened
from stepfast.worker.courier import Courier
from stepfast.worker.deaths import notice

if TYPE_CHECKING:
    from stepfast.database.connection import Transaction
    from stepfast.database.database import Database
    from stepfast.notifications.settings import NotificationSettings
    from stepfast.outbox.broker import Brokers
    from stepfast.worker.broker_courier import BrokerCourier

LOOK: Final = 1.0  # seconds; hearing nothing is never trusted
AGAIN: Final = 0.05  # seconds to the look after one that somebody asked for
BREATH: Final = 0.02  # between looks, however often we are woken ...
SHARE: Final = 20  # ... and so many times what a look takes, when there is much to look at
COURIERS: Final = 8  # destinations that one process serves at once
PRUNING: Final = 60.0
BATCH: Final = 500
SETTLING: Final = 5.0  # seconds that tries under way get when the worker stops; then others repeat them
RENEW_AFTER: Final = LEASE.total_seconds() / 3
HUNG_AFTER: Final = 120.0  # seconds of one try after which its destination is left to others
NEVER: Final = 2**62

# Is there anything to do at all: messages, alerts to tell, deaths to notice?
ANYTHING = sql("""
    SELECT CASE WHEN EXISTS (SELECT 1 FROM stepfast_outbox WHERE state = 'waiting') THEN 1 ELSE 0 END,
           CASE WHEN EXISTS (SELECT 1 FROM stepfast_alert
                              WHERE notify_at <= {now} AND notify_at > {now} - :too_old) THEN 1 ELSE 0 END,
           CASE WHEN EXISTS (SELECT 1 FROM stepfast_archive a
                              WHERE a.state = 'dead' AND a.finished_at > :since
                                AND NOT EXISTS (SELECT 1 FROM stepfast_death d
                                                 WHERE d.id = a.id AND d.finished_at = a.finished_at))
                THEN 1 ELSE 0 END
""")


def take_heads(tx: Transaction, destinations: list[str]) -> list[tuple[Served, Outgoing]]:
    """Lease what is free, each with the head of its line; a line whose head went away meanwhile is left at once."""
    taken = []
    for served in take(tx, destinations):
        message = head(tx, served)
        if message is None:
            release(tx, served)
        else:
            taken.append((served, message))
    return taken


class Relay:
    """The part of a worker that sends. Starts and stops with it."""

    def __init__(
        self, database: Database, settings: NotificationSettings, settling: float = SETTLING
    ) -> None:
        self._settling = settling
        self._database = database
        self._settings = settings
        self._places = alerting.places(settings.alert_urls)  # refuses URLs that nobody can read
        self._couriers: dict[Served, Courier | BrokerCourier] = {}
        self._brokers: Brokers | None = None
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._stop = threading.Event()
        self._since = NEVER  # deaths after this instant are worth a look
        self._took = 0.0  # seconds, to find out who waits
        self._next_pruning = 0.0
        self._failing = False
        self._thread = threading.Thread(target=self._work_until_stopped, name="stepfast-relay", daemon=True)

    def start(self) -> None:
        """Begin to look."""
        self._database.listen(self._heard)
        self._thread.start()

    def stop(self) -> None:
        """Take nothing more; let tries under way end and be recorded, for a moment."""
        self._database.unlisten(self._heard)
        self._stop.set()
        self._wake.set()
        self._thread.join(timeout=10)
        deadline = time.monotonic() + self._settling
        for courier in self._serving():
            courier.stop()
        for courier in self._serving():
            courier.join(max(0.0, deadline - time.monotonic()))
        self._hang_up()

    def _heard(self, names: set[str]) -> None:
        if OUTBOX in names:
            self._wake.set()

    def _work_until_stopped(self) -> None:
        pause, looked, woken = 0.0, 0.0, False
        while not self._stop.wait(max(0.0, looked + pause - time.monotonic())):
            try:
                self.look()
                pause = max(BREATH, min(SHARE * self._took, 5 * LOOK))
                self._tidy()
                self._failing = False
            except DatabaseError as error:
                if not self._failing:
                    self._failing = True
                    happened("database.lost", error=error, note="the relay waits")
                pause = LOOK
            except Exception as error:  # noqa: BLE001 - whatever it is, later messages must go out
                happened("worker.failed", error=error, note="relay")
                pause = 5 * LOOK
            looked = time.monotonic()
            # Once more soon after we were woken: a wake-up is withheld if the last one was a moment ago.
            woken = self._wake.wait(AGAIN if woken else LOOK * random.uniform(0.9, 1.0))
            self._wake.clear()

    def look(self) -> int:
        """Take what is due, as far as there is room; returns how many destinations."""
        self._keep_holding()
        room = COURIERS - len(self._serving())
        self._took = 0.0
        with self._database.looking() as tx:
            waiting, alerts, deaths = tx.rows(ANYTHING, since=self._since, too_old=micros(TOO_OLD))[0]
        if deaths:
            self._notice()
        if (alerts or deaths) and self._places:
            waiting += self._tell()
        if not waiting or room <= 0:
            return 0
        began = time.monotonic()
        with self._database.looking() as tx:
            names = due(tx, room)
        self._took = time.monotonic() - began
        if not names:
            return 0
        taken = persist(self._database, lambda tx: take_heads(tx, names))
        for served, message in taken:
            courier = self._courier(served, message)
            with self._lock:
                self._couriers[served] = courier
            courier.start()
        return len(taken)

    def _courier(self, served: Served, message: Outgoing) -> Courier | BrokerCourier:
        if message.channel != BROKER:
            return Courier(self._database, self._settings, served, message, self._left)
        from stepfast.outbox.broker import Brokers  # most programs have none
        from stepfast.worker.broker_courier import BrokerCourier

        if self._brokers is None:
            self._brokers = Brokers(self._database)
        return BrokerCourier(self._database, self._settings, served, self._left, self._brokers)

    def drain(self) -> int:
        """Send everything that is due, and return when that is done; returns how many destinations were served."""
        self._tidy()
        total = 0
        while taken := self.look():
            total += taken
            for courier in self._serving():
                while not courier.join(LOOK):
                    self._keep_holding()
        self._hang_up()
        return total

    def _hang_up(self) -> None:
        if self._brokers is not None:
            self._brokers.close()

    def _serving(self) -> list[Courier | BrokerCourier]:
        with self._lock:
            return list(self._couriers.values())

    def _left(self, served: Served) -> None:
        """A courier has ended: its destination may have got something in the very moment in which it was left."""
        with self._lock:
            del self._couriers[served]
        self._wake.set()

    def _keep_holding(self) -> None:
        """Renew the leases of tries that take long, but not for ever."""
        now = time.monotonic()
        long = [
            it for it in self._serving() if now - it.renewed > RENEW_AFTER and now - it.since < HUNG_AFTER
        ]
        if long:
            persist(self._database, lambda tx: renew(tx, [it.served for it in long]))
            for it in long:
                it.renewed = now

    def _notice(self) -> None:
        while (found := persist(self._database, notice)) is not None:
            self._since = found.since
            if not found.more:
                break

    def _tell(self) -> int:
        told = persist(self._database, lambda tx: tell(tx, self._places, self._settings.alert_cooldown))
        for cause in told:
            happened("alert.told", cause=cause, places=len(self._places))
        return len(told)

    def _tidy(self) -> None:
        now = time.monotonic()
        if now < self._next_pruning:
            return
        self._next_pruning = now + PRUNING * random.uniform(0.9, 1.1)
        if self._settings.alert_deaths:
            self._notice()  # also moves the bookmark on, so that each look has little behind it
        age, removed = micros(self._settings.outbox_retention), 0
        while not self._stop.is_set():
            batch = persist(self._database, lambda tx: prune(tx, age, BATCH))
            removed += batch
            if batch < BATCH:
                break
            self._stop.wait(BREATH)  # let others write in between
        if removed:
            happened("outbox.pruned", messages=removed)
