"""Serve a broker's queue: send the first hundred messages of its line in one call, record it, take the next.

Like any courier, outside of any transaction, and recording under the fence. An outage costs no message its tries.
"""

from __future__ import annotations

import random
import threading
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from stepfast.database.database import persist
from stepfast.errors import DatabaseError, DestinationLostError
from stepfast.notifications.delivery import Delivered, Delivery, Failed, Patience
from stepfast.outbox.alerts import raise_alert
from stepfast.outbox.broker import Brokers, unreachable_broker
from stepfast.outbox.relay import LEASE, Outgoing, Served, again, die, heads, release, sent_together
from stepfast.outbox.verdict import Again, GiveUp, Verdict, decide
from stepfast.telemetry import happened

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from stepfast.database.connection import Transaction
    from stepfast.database.database import Database
    from stepfast.notifications.settings import NotificationSettings

TURN: Final = 5.0  # seconds, then others get a chance
RETRY: Final = 0.5  # seconds between tries to record while the database is away
FIRST: Final = 1.0  # seconds to wait for a broker that is away or full; twice as long each time, up to ...
LONGEST: Final = 30.0
TELL_AFTER: Final = 3  # tries in vain, before a person is told


class BrokerCourier:
    """A thread that serves a queue until its line is empty, its head has to wait, or its turn is over."""

    def __init__(
        self,
        database: Database,
        settings: NotificationSettings,
        served: Served,
        left: Callable[[Served], None],
        brokers: Brokers,
    ) -> None:
        self.served = served
        self.since = self.renewed = time.monotonic()  # of the current try; of our lease
        self._database = database
        self._settings = settings
        self._left = left
        self._brokers = brokers
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="stepfast-courier", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()

    def join(self, seconds: float) -> bool:
        """Wait for its end, at most so long; whether it has come."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _serve(self) -> None:
        began = time.monotonic()
        try:
            batch = persist(self._database, self._look)
            while batch:
                self.since = time.monotonic()
                done = self._send(batch)
                more = time.monotonic() - began < TURN and not self._stop.is_set()
                batch = self._settle(batch, done, more=more)
        except DestinationLostError:
            happened("message.refused", destination=self.served.id)
        except Exception as error:  # noqa: BLE001 - the lease runs out, and somebody else tries
            happened("worker.failed", error=error, note="courier")
        finally:
            self._left(self.served)

    def _look(self, tx: Transaction, *, more: bool = True) -> list[Outgoing]:
        """The next batch; if there is none, or others are to have a chance, the queue is left."""
        found = heads(tx, self.served, self._brokers.at_once(self.served.id)) if more else []
        if not found:
            release(tx, self.served)
        return found

    def _send(self, batch: Sequence[Outgoing]) -> tuple[int, Delivery]:
        """How many of them the broker has, from the first on, and what became of the last try."""
        delivery = self._brokers.send(batch)
        if isinstance(delivery, Delivered):
            return len(batch), delivery
        if len(batch) == 1 or delivery.patience is Patience.FREE:
            return 0, delivery
        for number, message in enumerate(batch):  # one of them is refused: alone, only the guilty one is
            delivery = self._brokers.send([message])
            if isinstance(delivery, Failed):
                return number, delivery
        return len(batch), delivery

    def _settle(self, batch: Sequence[Outgoing], done: tuple[int, Delivery], *, more: bool) -> list[Outgoing]:
        """Record until the database has answered, as long as the destination can be ours; returns the next batch."""
        count, delivery = done
        verdict = self._verdict(batch[count], delivery) if isinstance(delivery, Failed) else None
        deadline = time.monotonic() + LEASE.total_seconds()

        def write(tx: Transaction) -> list[Outgoing]:
            record(tx, self.served, batch, done, verdict)
            return self._look(tx, more=more)

        while True:
            try:
                following = persist(self._database, write)
            except DatabaseError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(RETRY)
            else:
                self.renewed = time.monotonic()
                self._report(batch, count, delivery, verdict)
                return following

    def _verdict(self, message: Outgoing, failed: Failed) -> Verdict:
        """An outage is waited out, however long it lasts: the work itself does not wait for it."""
        if failed.patience is not Patience.FREE:
            return decide(failed, message.attempts + 1, message.age, self._settings, random.random())
        wait = min(LONGEST, FIRST * 2.0 ** min(message.attempts, 10))
        return Again(timedelta(seconds=wait * random.uniform(0.5, 1.0)))

    def _report(
        self, batch: Sequence[Outgoing], count: int, delivery: Delivery, verdict: Verdict | None
    ) -> None:
        took = round(time.monotonic() - self.since, 3)
        for message in batch[:count]:
            happened("message.sent", message, took_s=took)
        match delivery, verdict:
            case Failed(reason), Again(delay):
                wait = delay.total_seconds()
                happened("message.failed", batch[count], took_s=took, error=reason, retry_in_s=wait)
            case Failed(reason), GiveUp(why):
                happened("message.died", batch[count], took_s=took, error=f"{reason}; {why}")
            case _:
                pass


def record(
    tx: Transaction,
    served: Served,
    batch: Sequence[Outgoing],
    done: tuple[int, Delivery],
    verdict: Verdict | None,
) -> None:
    """Write that so many were sent, and what became of the one behind them."""
    count, delivery = done
    if count:
        sent_together(tx, served, batch[:count])
    if isinstance(delivery, Failed):
        message = batch[count]
        match verdict:
            case Again(delay, charged):
                again(tx, served, message.id, delay, delivery.reason, charged=charged)
            case GiveUp(why):
                die(tx, served, message.id, f"{delivery.reason} ({why})")
            case None:
                pass
        if message.attempts + 1 >= TELL_AFTER or isinstance(verdict, GiveUp):
            raise_alert(tx, unreachable_broker(message, delivery))
