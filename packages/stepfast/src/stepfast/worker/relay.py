"""Send what was staged: a thread that looks, and a thread per destination that is being served.

Any number of workers may do this at once. An idle one asks the database one question a second.
"""

from __future__ import annotations

import random
import threading
import time
from collections import defaultdict
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Final
from uuid import UUID

from stepfast.clock import micros
from stepfast.database.database import persist
from stepfast.database.statement import sql
from stepfast.database.wakeup import OUTBOX
from stepfast.errors import DatabaseError, DestinationLostError
from stepfast.notifications import alert as alerting
from stepfast.notifications import webhook as webhooks
from stepfast.notifications.webhook import Delivered, Delivery, Failed, Patience
from stepfast.outbox import exports
from stepfast.outbox.alerts import TOO_OLD, Alert, alert, raise_alert, tell, text_of
from stepfast.outbox.broker import Brokers, unreachable_broker
from stepfast.outbox.destinations import (
    LEASE,
    Again,
    GiveUp,
    Outgoing,
    Served,
    Verdict,
    again,
    decide,
    die,
    due,
    head,
    heads,
    prune,
    release,
    renew,
    sent,
    sent_together,
    take,
)
from stepfast.outbox.messages import ALERT, BROKER, EXPORT, WEBHOOK, as_shown
from stepfast.telemetry import happened
from stepfast.telemetry.masking import without_secrets
from stepfast.worker.periodic import Periodic, around, in_batches

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from stepfast.database.connection import Transaction
    from stepfast.database.database import Database
    from stepfast.notifications.settings import NotificationSettings


# Serve one destination: send the head of its line, record what became of it, take the next.
#
# Sending happens outside any transaction. Recording, the next message, and leaving are one transaction under the fence.

IN_A_ROW: Final = 100  # messages of one destination, then others get a chance
TURN: Final = 5.0  # seconds, likewise
RETRY: Final = 0.5  # seconds between tries to record while the database is away


class Courier:
    """A thread that serves a destination until its line is empty, its head has to wait, or its turn is over."""

    def __init__(
        self,
        database: Database,
        settings: NotificationSettings,
        served: Served,
        first: Outgoing,
        left: Callable[[Served], None],
    ) -> None:
        self.served = served
        self.since = self.renewed = time.monotonic()  # of the current try; of our lease
        self._database = database
        self._settings = settings
        self._first = first
        self._left = left
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
        message: Outgoing | None = self._first
        began, count = time.monotonic(), 0
        try:
            while message is not None:
                count += 1
                self.since = time.monotonic()
                delivery = deliver(message, self._settings)
                more = count < IN_A_ROW and time.monotonic() - began < TURN and not self._stop.is_set()
                message = self._settle(message, delivery, more=more)
        except DestinationLostError:
            happened("message.refused", destination=self.served.id)
        except Exception as error:  # noqa: BLE001 - the lease runs out, and somebody else tries
            happened("worker.failed", error=error, note="courier")
        finally:
            self._left(self.served)

    def _settle(self, message: Outgoing, delivery: Delivery, *, more: bool) -> Outgoing | None:
        """Record until the database has answered, as long as the destination can be ours."""
        verdict = (
            None
            if isinstance(delivery, Delivered)
            else decide(delivery, message.attempts + 1, message.age, self._settings, random.random())
        )
        deadline = time.monotonic() + LEASE.total_seconds()
        while True:
            try:
                following = persist(
                    self._database,
                    lambda tx: record(tx, self.served, message, delivery, verdict, more=more),
                )
            except DatabaseError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(RETRY)
            else:
                self.renewed = time.monotonic()
                self._report(message, delivery, verdict)
                return following

    def _report(self, message: Outgoing, delivery: Delivery, verdict: Verdict | None) -> None:
        took = round(time.monotonic() - self.since, 3)
        match delivery, verdict:
            case Failed(reason), Again(delay):
                wait = delay.total_seconds()
                happened("message.failed", message, took_s=took, error=reason, retry_in_s=wait)
            case Failed(reason), GiveUp(why):
                happened("message.died", message, took_s=took, error=f"{reason}; {why}")
            case _:
                happened("message.sent", message, took_s=took)


def deliver(message: Outgoing, settings: NotificationSettings) -> Delivery:
    """Try once, by whatever channel it goes. Never raises."""
    try:
        match message.channel:
            case channel if channel == WEBHOOK:
                webhook = webhooks.Webhook(
                    message.id, message.address, message.body, message.headers, message.trace
                )
                return webhooks.send(webhook, settings)
            case channel if channel == ALERT:
                return alerting.send(message.address, text_of(message.body), settings.alert_urls)
            case channel if channel == EXPORT:
                return exports.write(message)
            case other:
                return Failed(f"this worker knows no channel {other!r}")
    except Exception as error:  # noqa: BLE001 - a message that cannot be sent must not stop those to others
        return Failed(without_secrets(f"{type(error).__name__}: {error}"))


def record(
    tx: Transaction,
    served: Served,
    message: Outgoing,
    delivery: Delivery,
    verdict: Verdict | None,
    *,
    more: bool,
) -> Outgoing | None:
    """Write what became of a message; returns the next one, or leaves the destination."""
    match delivery, verdict:
        case Failed(), Again(delay, charged):
            again(tx, served, message.id, delay, _kept(delivery), charged=charged)
        case Failed(), GiveUp(why):
            die(tx, served, message.id, f"{_kept(delivery)} ({why})")
            if message.channel == WEBHOOK:
                raise_alert(tx, _dead_webhook(message, delivery))
        case _:
            sent(tx, served, message.id)
    if message.channel == EXPORT and isinstance(delivery, Failed):
        raise_alert(tx, exports.lost_export(message, delivery))
    following = head(tx, served) if more else None
    if following is None:
        release(tx, served)
    return following


def _kept(failed: Failed) -> str:
    """The failure as it is kept with the message, with how the receiver's answer began."""
    answer = f"; it said: {failed.answer}" if failed.answer else ""
    return without_secrets(failed.reason + answer)


def _dead_webhook(message: Outgoing, failed: Failed) -> Alert:
    address = as_shown(WEBHOOK, message.address)
    body = (
        f"A webhook to {address} was given up: {failed.reason}\n\n"
        f"Look at it:   stepfast outbox show {message.id}\n"
        f"Try again:    stepfast outbox retry {message.id}"
    )
    return alert(f"webhook died: {message.destination}", f"Webhook to {address} died", body)


# A job that dies raises an alert, one per kind and error: noticed afterwards, not in the commit that buries it.
#
# Dead letters are looked at in the order of their deaths, behind a bookmark. A death may be committed after a younger one,
# so the last minutes before the bookmark are looked at again, and those that were counted are remembered for so long.
# Jobs of a run raise none: their run does, once for all of them.

BOOKMARK: Final = "deaths"
OVERLAP: Final = timedelta(minutes=2)  # longer than any transaction of ours may last
OLDEST: Final = timedelta(days=1)  # what died before nobody was there to notice is history
BATCH: Final = 500

KNOWN = sql("SELECT 1 FROM stepfast_bookmark WHERE id = :id")
BEGIN = sql("INSERT INTO stepfast_bookmark (id, at) VALUES (:id, {now}) {keep_existing}")
WHERE = sql("SELECT at, {now} FROM stepfast_bookmark WHERE id = :id {skip_locked}")
MOVE = sql("UPDATE stepfast_bookmark SET at = :at WHERE id = :id AND at <> :at")

UNNOTICED = sql("""
    SELECT a.id, a.kind, COALESCE(a.error_group, ''), a.queue, COALESCE(a.last_error, ''), a.finished_at, a.trace
      FROM stepfast_archive a
     WHERE a.state = 'dead' AND a.finished_at > :since
       AND NOT EXISTS (SELECT 1 FROM stepfast_death d WHERE d.id = a.id AND d.finished_at = a.finished_at)
     ORDER BY a.finished_at LIMIT :limit
""")
RUNS = sql("SELECT id FROM stepfast_run WHERE id {any_of:ids}")
NOTICE = sql("INSERT INTO stepfast_death (id, finished_at) VALUES (:id, :finished_at) {keep_existing}")
FORGET = sql("DELETE FROM stepfast_death WHERE finished_at < :before")


@dataclass(frozen=True)
class Death:
    job_id: str
    kind: str
    error_group: str
    queue: str
    error: str
    finished_at: int
    trace: str | None

    @property
    def run_id(self) -> str | None:
        """The run to which it belongs, if it does: its trace has the same digits."""
        digits = (self.trace or "").split("-")[1:2]
        try:
            return str(UUID(digits[0])) if digits else None
        except ValueError:
            return None


@dataclass(frozen=True)
class Noticed:
    """How far somebody has looked, and what was found on the way."""

    since: int  # nothing before this instant will ever be unnoticed
    deaths: int
    more: bool


def notice(tx: Transaction) -> Noticed | None:
    """Raise alerts for deaths that nobody noticed yet; None if a colleague is at it."""
    if not tx.rows(KNOWN, id=BOOKMARK):
        tx.run(BEGIN, id=BOOKMARK)
    rows = tx.rows(WHERE, id=BOOKMARK)
    if not rows:
        return None
    bookmark, now = rows[0]
    since = max(bookmark, now - micros(OLDEST)) - micros(OVERLAP)
    found = tx.all(UNNOTICED, Death, since=since, limit=BATCH)
    for together in _by_cause(_without_runs(tx, found)):
        _raise(tx, together)
    tx.run_many(NOTICE, [{"id": it.job_id, "finished_at": it.finished_at} for it in found])
    at = now if len(found) < BATCH else max(bookmark, found[-1].finished_at)
    tx.run(MOVE, id=BOOKMARK, at=at)
    tx.run(FORGET, before=at - 2 * micros(OVERLAP))
    return Noticed(at - micros(OVERLAP), len(found), more=len(found) == BATCH)


def _without_runs(tx: Transaction, deaths: list[Death]) -> list[Death]:
    ids = sorted({it.run_id for it in deaths if it.run_id is not None})
    runs = {str(row[0]) for row in tx.rows(RUNS, ids=ids)} if ids else set()
    return [it for it in deaths if it.run_id not in runs]


def _by_cause(deaths: list[Death]) -> list[list[Death]]:
    """In the order of their causes: two who raise several lock them in one order."""
    groups: dict[tuple[str, str], list[Death]] = defaultdict(list)
    for it in deaths:
        groups[it.kind, it.error_group].append(it)
    return [groups[cause] for cause in sorted(groups)]


def _raise(tx: Transaction, deaths: list[Death]) -> None:
    last = deaths[-1]
    what = last.error.strip().partition("\n")[0][:500]
    body = (
        f"Job {last.job_id} of queue {last.queue} became a dead letter: {what or 'for no stated reason'}\n\n"
        f"Look at it:       stepfast jobs show {last.job_id}\n"
        f"See all of them:  stepfast dead-letters list --by-error\n"
        f"Try them again:   stepfast dead-letters retry --kind {last.kind}"
    )
    cause = f"job died: {last.kind}: {last.error_group}"
    raise_alert(tx, alert(cause, f"Job {last.kind} died", body, times=len(deaths)))


LOOK: Final = 1.0  # seconds; hearing nothing is never trusted
AGAIN: Final = 0.05  # seconds to the look after one that somebody asked for
BREATH: Final = 0.02  # between looks, however often we are woken ...
SHARE: Final = 20  # ... and so many times what a look takes, when there is much to look at
COURIERS: Final = 8  # destinations that one process serves at once
PRUNING: Final = 60.0
BATCH_RELAY: Final = 500
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
        self._since = NEVER  # deaths after this instant are worth a look
        self._took = 0.0  # seconds that the search for destinations took
        self._asked = False  # to look, since the last look
        self._thread = Periodic("relay")
        self._thread.add(self._look_and_rest)
        self._thread.add(self._tidy)

    def start(self) -> None:
        """Begin to look."""
        self._database.listen(self._heard)
        self._thread.start()

    def stop(self) -> None:
        """Take nothing more; let tries under way end and be recorded, for a moment."""
        self._database.unlisten(self._heard)
        self._thread.stop()
        deadline = time.monotonic() + self._settling
        for courier in self._serving():
            courier.stop()
        for courier in self._serving():
            courier.join(max(0.0, deadline - time.monotonic()))
        self._hang_up()

    def _heard(self, names: set[str]) -> None:
        if OUTBOX in names:
            self._wake()

    def _wake(self) -> None:
        self._asked = True
        self._thread.wake()

    def _look_and_rest(self) -> float:
        asked, self._asked = self._asked, False
        self.look()
        self._thread.rest = max(BREATH, min(SHARE * self._took, 5 * LOOK))
        # Once more soon after we were asked: a wake-up is withheld if the last one was a moment ago.
        return AGAIN if asked else LOOK * random.uniform(0.9, 1.0)

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
        from stepfast.outbox.broker import Brokers
        from stepfast.worker.relay import BrokerCourier

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
        self._wake()

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

    def _tidy(self) -> float:
        """Prune sent messages, and look for dead jobs; returns the seconds until the next time."""
        if self._settings.alert_deaths:
            self._notice()  # also moves the bookmark on, so that each look has little behind it
        age = micros(self._settings.outbox_retention)
        removed = in_batches(
            self._database,
            self._thread.stopping,
            lambda tx: prune(tx, age, BATCH_RELAY),
            batch=BATCH_RELAY,
        )
        if removed:
            happened("outbox.pruned", messages=removed)
        return around(PRUNING)


# Serve a broker's queue: send the first hundred messages of its line in one call, record it, take the next.
#
# Like any courier, outside of any transaction, and recording under the fence. An outage costs no message its tries.

TURN_BROKER_COURIER: Final = 5.0  # seconds, then others get a chance
RETRY_BROKER_COURIER: Final = 0.5  # seconds between tries to record while the database is away
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
                more = time.monotonic() - began < TURN_BROKER_COURIER and not self._stop.is_set()
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
            record_broker_courier(tx, self.served, batch, done, verdict)
            return self._look(tx, more=more)

        while True:
            try:
                following = persist(self._database, write)
            except DatabaseError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(RETRY_BROKER_COURIER)
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


def record_broker_courier(
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
