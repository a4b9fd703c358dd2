"""Send the messages of the outbox: a thread that looks for due destinations, and a courier for each one it serves.

A message is staged in a transaction (`outbox/messages.py`). After the commit a relay takes its destination
(`outbox/destinations.py`), sends it (`notifications/webhook.py`, `notifications/alert.py`, `outbox/broker.py`,
`outbox/exports.py`), and records the answer or the next try.

Any number of workers may do this at once. A destination is leased under a fence, so that one worker at a time sends to
it and its messages stay in their order. Sending happens outside any transaction; recording what became of it is a
transaction under the fence. An idle relay asks the database one question a second. Which destinations get a courier is
decided in `outbox/hosts.py`, and which files and brokers this process may reach in `worker/permissions.py`.

The same look raises alerts about dead jobs, and hands alerts that are due to the places where people read them.
"""

from __future__ import annotations

import random
import threading
import time
from collections import defaultdict
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import takewhile
from typing import TYPE_CHECKING, Final, Protocol
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
from stepfast.outbox.alerts import TOO_OLD, Alert, alert, raise_alert, stage_alerts, text_of
from stepfast.outbox.destinations import (
    LEASE,
    DueMessage,
    GiveUp,
    ServedDestination,
    TryAgain,
    Verdict,
    decide,
    due_destinations,
    next_message,
    next_messages,
    postpone_host,
    prune_outbox,
    record_all_sent,
    record_death,
    record_retry,
    record_sent,
    release_destination,
    renew_destinations,
    take_destinations,
)
from stepfast.outbox.hosts import COURIERS, Hosts, Standing, host_of
from stepfast.outbox.messages import ALERT, BROKER, EXPORT, WEBHOOK, as_shown
from stepfast.telemetry import happened
from stepfast.telemetry.masking import without_secrets
from stepfast.telemetry.traces import sending
from stepfast.worker.periodic import BREATH, Periodic, around, in_batches
from stepfast.worker.permissions import Permissions

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from stepfast.database.connection import Transaction
    from stepfast.database.database import Database
    from stepfast.notifications.settings import NotificationSettings
    from stepfast.runs.feeds import Feeds
    from stepfast.worker.vital import VitalParts


LOOK: Final = 1.0  # seconds between looks, at most: a wake-up may get lost
LOOK_AGAIN: Final = 0.05  # seconds to the look after one that was asked for
SHARE: Final = 20  # a look rests so many times what it took, when there is much to look at
LOOKED_AT: Final = 200  # destinations of each share that a look finds, to choose from
# How long a message that this process may not send is left to one that may, before it gets an error.
LEFT_TO_OTHERS: Final = timedelta(seconds=2)
UNSERVED_ALERT: Final = timedelta(minutes=5)  # and for how long, before a person is alerted
PRUNING_EVERY: Final = 60.0
PRUNING_BATCH: Final = 500
POSTPONING_BATCH: Final = 500
# Seconds that tries under way get when the worker stops; then another worker repeats them.
SETTLING: Final = 5.0
RENEW_AFTER: Final = LEASE.total_seconds() / 3
HUNG_AFTER: Final = 120.0  # seconds of one try after which its destination is left to other workers
NEVER: Final = 2**62  # an instant after which nothing has happened

# Whether there are messages to send, alerts to tell, and dead jobs without an alert.
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


class Relay:
    """The part of a worker that sends messages."""

    def __init__(
        self,
        database: Database,
        settings: NotificationSettings,
        settling: float = SETTLING,
        vital: VitalParts | None = None,
        *,
        feeds: Feeds | None = None,
    ) -> None:
        self.database = database
        self.hosts = Hosts()
        self._settings = settings
        self._permissions = Permissions(feeds, settings)
        self._settling = settling
        self._places = alerting.places(settings.alert_urls)  # refuses URLs that cannot be read
        self._direct = DirectSender(settings, self._permissions)
        self._broker: BrokerSender | None = None  # made for the first message to a broker
        self._couriers: dict[ServedDestination, Courier] = {}
        self._lock = threading.Lock()
        self._dead_since = NEVER  # jobs that died after this instant may have no alert yet
        self._took = 0.0  # seconds that the search for destinations took
        self._asked = False  # to look, since the last look
        self._left: dict[str, float] = {}  # destinations that are left to others, until when
        self._thread = Periodic("relay", vital=vital)
        self._thread.add(self._look_and_rest)
        self._thread.add(self._tidy)

    def start(self) -> None:
        """Begin to look."""
        self.database.listen(self._heard, OUTBOX)
        self._thread.start()

    def stop(self) -> None:
        """Take nothing more; let tries under way end and be recorded, for a moment."""
        self.database.unlisten(self._heard)
        self._thread.stop()
        deadline = time.monotonic() + self._settling
        for courier in self._serving():
            courier.stop()
        for courier in self._serving():
            courier.join(max(0.0, deadline - time.monotonic()))
        self._close_brokers()

    def drain(self) -> int:
        """Send everything that is due, and return when that is done; returns how many destinations were served."""
        self._tidy()
        total = 0
        while taken := self.look():
            total += taken
            for courier in self._serving():
                while not courier.join(LOOK):
                    self._renew_leases()
        self._close_brokers()
        return total

    def _heard(self, _: set[str]) -> None:
        self._wake()

    def _wake(self) -> None:
        self._asked = True
        self._thread.wake()

    def _look_and_rest(self) -> float:
        asked, self._asked = self._asked, False
        self.look()
        self._thread.rest = max(BREATH, min(SHARE * self._took, 5 * LOOK))
        # Once more soon after we were asked: a wake-up is withheld if the last one was a moment ago.
        return LOOK_AGAIN if asked else LOOK * random.uniform(0.9, 1.0)

    def look(self) -> int:
        """Alert about dead jobs, tell due alerts, and start couriers; returns how many destinations were taken."""
        self._renew_leases()
        self._took = 0.0
        with self.database.looking() as tx:
            waiting, alerts, dead = tx.rows(ANYTHING, since=self._dead_since, too_old=micros(TOO_OLD))[0]
        if dead:
            self._alert_about_dead_jobs()
        if (alerts or dead) and self._places:
            waiting += self._tell_alerts()
        if not waiting or len(self._serving()) >= COURIERS:
            return 0
        chosen = self._choose_destinations()
        if not chosen:
            return 0
        taken = persist(self.database, lambda tx: take_heads(tx, list(chosen), self._is_left_to_others))
        for served, message in taken:
            self._start_courier(served, message, chosen[served.id])
        return len(taken)

    def _choose_destinations(self) -> dict[str, Standing]:
        """The destinations that get a courier now, as far as others do not take them first."""
        began = time.monotonic()
        with self.database.looking() as tx:
            due = due_destinations(tx, LOOKED_AT)
        self._took = time.monotonic() - began
        now = time.monotonic()
        self._left = {destination: until for destination, until in self._left.items() if until > now}
        served = [(courier.served.id, courier.standing) for courier in self._serving()]
        mine = [destination for destination in due if destination.id not in self._left]
        return dict(self.hosts.choose(mine, served, now))

    def _is_left_to_others(self, message: DueMessage) -> bool:
        """Whether a message that this process may not send is left to one that may, for the moment."""
        if message.late >= LEFT_TO_OTHERS or self._permissions.refusal_of(message) is None:
            return False
        self._left[message.destination] = time.monotonic() + LEFT_TO_OTHERS.total_seconds()
        return True

    def _alert_about_dead_jobs(self) -> None:
        while (found := persist(self.database, alert_about_dead_jobs)) is not None:
            self._dead_since = found.since
            if not found.more:
                break

    def _tell_alerts(self) -> int:
        """Stage a message to each place for each alert that is due; returns how many alerts."""
        told = persist(
            self.database, lambda tx: stage_alerts(tx, self._places, self._settings.alert_cooldown)
        )
        for cause in told:
            happened("alert.told", cause=cause, places=len(self._places))
        return len(told)

    def _start_courier(self, served: ServedDestination, message: DueMessage, standing: Standing) -> None:
        if message.channel == BROKER:
            self._broker = self._broker or BrokerSender(self.database, self._settings, self._permissions)
            courier = Courier(self, served, standing, self._broker, [])  # it looks for a whole batch itself
        else:
            courier = Courier(self, served, standing, self._direct, [message])
        with self._lock:
            self._couriers[served] = courier
        courier.start()

    def left(self, served: ServedDestination) -> None:
        """Its courier has ended. Look again: it may have got a message in the very moment in which it was left."""
        with self._lock:
            del self._couriers[served]
        self._wake()

    def postpone_host(self, host: str, delay: timedelta) -> None:
        """Let all messages to a host wait that did not answer in time."""
        happened("host.postponed", host=host.partition(":")[2], wait_s=delay.total_seconds())
        in_batches(
            self.database,
            self._thread.stopping,
            lambda tx: postpone_host(tx, host, delay, POSTPONING_BATCH),
            batch=POSTPONING_BATCH,
        )

    def _serving(self) -> list[Courier]:
        with self._lock:
            return list(self._couriers.values())

    def _renew_leases(self) -> None:
        """Renew the leases of tries that take long, but not for ever."""
        now = time.monotonic()
        long = [
            courier
            for courier in self._serving()
            if now - courier.renewed > RENEW_AFTER and now - courier.since < HUNG_AFTER
        ]
        if long:
            persist(self.database, lambda tx: renew_destinations(tx, [courier.served for courier in long]))
            for courier in long:
                courier.renewed = now

    def _tidy(self) -> float:
        """Prune messages that were sent long ago; returns the seconds until the next time."""
        if self._settings.alert_deaths:
            self._alert_about_dead_jobs()  # also moves the bookmark on, so that each look has little behind it
        age = micros(self._settings.outbox_retention)
        removed = in_batches(
            self.database,
            self._thread.stopping,
            lambda tx: prune_outbox(tx, age, PRUNING_BATCH),
            batch=PRUNING_BATCH,
        )
        if removed:
            happened("outbox.pruned", messages=removed)
        return around(PRUNING_EVERY)

    def _close_brokers(self) -> None:
        if self._broker is not None:
            self._broker.close()


def take_heads(
    tx: Transaction, destinations: list[str], is_left: Callable[[DueMessage], bool] = lambda _: False
) -> list[tuple[ServedDestination, DueMessage]]:
    """Lease the free ones of these destinations, each with its first message.

    A destination whose first message went away meanwhile, or is left to others, is released at once.
    """
    taken = []
    for served in take_destinations(tx, destinations):
        message = next_message(tx, served)
        if message is None or is_left(message):
            release_destination(tx, served)
        else:
            taken.append((served, message))
    return taken


# One destination: send its first messages, record what became of them, take the next ones.

IN_A_ROW: Final = 100  # calls to one destination, then others get a chance
TURN: Final = 5.0  # seconds, likewise
RETRY: Final = 0.5  # seconds between tries to record while the database is away


@dataclass(frozen=True)
class Attempt:
    """What became of a batch: how many messages arrived, from the first on, and what becomes of the one behind them."""

    arrived: int
    failed: Failed | None = None
    verdict: Verdict | None = None  # of the failure
    replaced: str | None = None  # the document that a person had put in the place of an export


class Sender(Protocol):
    """Sends the messages of one kind of destination."""

    def next_batch(self, tx: Transaction, served: ServedDestination) -> list[DueMessage]:
        """The first messages of the line that are due, as many as go in one call."""

    def send(self, batch: Sequence[DueMessage]) -> Attempt:
        """Try once. Never raises."""


class Courier:
    """A thread that serves a destination until its line is empty, its head has to wait, or its turn is over."""

    def __init__(
        self,
        relay: Relay,
        served: ServedDestination,
        standing: Standing,
        sender: Sender,
        first: Sequence[DueMessage],
    ) -> None:
        self.served = served
        self.standing = standing
        self.since = self.renewed = time.monotonic()  # of the current try; of our lease
        self._relay = relay
        self._sender = sender
        self._first = first
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="stepfast-courier", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Leave after the try that is under way."""
        self._stop.set()

    def join(self, seconds: float) -> bool:
        """Wait for its end, at most so long; whether it has come."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _serve(self) -> None:
        began, calls = time.monotonic(), 0
        try:
            batch = self._first or persist(
                self._relay.database, lambda tx: next_or_leave(tx, self.served, self._sender)
            )
            while batch:
                calls += 1
                self.since = time.monotonic()
                attempt = self._sender.send(batch)
                leave = calls >= IN_A_ROW or time.monotonic() - began >= TURN or self._stop.is_set()
                following = self._record(batch, attempt, leave=leave)
                self._report(batch, attempt)
                self._note_host(attempt)
                batch = following
        except DestinationLostError:
            happened("message.refused", destination=self.served.id)
        except DatabaseError as error:
            happened("database.lost", error=error, note="a destination waits for another courier")
        except Exception as error:  # noqa: BLE001 - the lease runs out, and another worker tries
            happened("worker.failed", error=error, note="courier")
        finally:
            self._relay.left(self.served)

    def _record(self, batch: Sequence[DueMessage], attempt: Attempt, *, leave: bool) -> list[DueMessage]:
        """Record until the database has answered, as long as the lease can be ours; returns the next batch."""

        def write(tx: Transaction) -> list[DueMessage]:
            record(tx, self.served, batch, attempt)
            return next_or_leave(tx, self.served, self._sender, leave=leave)

        deadline = time.monotonic() + LEASE.total_seconds()
        while True:
            try:
                following = persist(self._relay.database, write)
            except DatabaseError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(RETRY)
            else:
                self.renewed = time.monotonic()
                return following

    def _report(self, batch: Sequence[DueMessage], attempt: Attempt) -> None:
        took = round(time.monotonic() - self.since, 3)
        for message in batch[: attempt.arrived]:
            happened("message.sent", message, took_s=took)
        match attempt.failed, attempt.verdict:
            case Failed(reason), TryAgain(delay):
                wait = delay.total_seconds()
                happened("message.failed", batch[attempt.arrived], took_s=took, error=reason, retry_in_s=wait)
            case Failed(reason), GiveUp(why):
                happened("message.died", batch[attempt.arrived], took_s=took, error=f"{reason}; {why}")
            case _:
                pass

    def _note_host(self, attempt: Attempt) -> None:
        """Remember whether the host answered; one that did not waits as a whole."""
        host, now = host_of(self.served.id), time.monotonic()
        if host == self.served.id:
            return  # no webhook
        if attempt.failed is not None and attempt.failed.timed_out:
            self._relay.postpone_host(host, self._relay.hosts.timed_out(host, now))
        elif attempt.failed is None or attempt.failed.answered:
            self._relay.hosts.answered(host, now)


class DirectSender:
    """Sends webhooks, alerts and exports: one message in a call."""

    def __init__(self, settings: NotificationSettings, permissions: Permissions | None = None) -> None:
        self._settings = settings
        self._permissions = permissions or Permissions(None, settings)

    def next_batch(self, tx: Transaction, served: ServedDestination) -> list[DueMessage]:
        message = next_message(tx, served)
        return [] if message is None or message.channel == BROKER else [message]

    def send(self, batch: Sequence[DueMessage]) -> Attempt:
        (message,) = batch
        refusal = self._permissions.refusal_of(message)
        delivery = self._deliver(message) if refusal is None else Failed(refusal, Patience.FREE)
        if isinstance(delivery, Delivered):
            return Attempt(1, replaced=delivery.replaced)
        return Attempt(0, delivery, _judge(message, delivery, self._settings))

    def _deliver(self, message: DueMessage) -> Delivery:
        """Try once. Of a webhook, the try is a span: the receiver's own spans belong below it."""
        if message.channel != WEBHOOK:
            return deliver(message, self._settings)
        with sending(message.channel, message.destination, message.trace, message) as span:
            delivery = deliver(replace(message, trace=span.traceparent), self._settings)
            if isinstance(delivery, Delivered):
                span.outcome = "sent"
            else:
                span.facts = {"error": delivery.reason}
        return delivery


def deliver(message: DueMessage, settings: NotificationSettings) -> Delivery:
    """Try once, by the message's channel. Never raises."""
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


# Seconds to wait for a broker that is away or full; twice as long each time, up to ....
FIRST_PAUSE: Final = 1.0
LONGEST_PAUSE: Final = 30.0
ALERT_AFTER: Final = 3  # tries in vain, before a person is alerted


class BrokerSender:
    """Sends messages to a broker's queue: up to a hundred in a call. An outage of the broker costs no tries."""

    def __init__(self, database: Database, settings: NotificationSettings, permissions: Permissions) -> None:
        from stepfast.outbox.broker import Brokers

        self._brokers = Brokers(database)
        self._settings = settings
        self._permissions = permissions

    def next_batch(self, tx: Transaction, served: ServedDestination) -> list[DueMessage]:
        found = next_messages(tx, served, self._brokers.at_once(served.id))
        # A destination has one channel and one address, unless somebody wrote a row by hand.
        return [*takewhile(lambda it: it.channel == BROKER and it.address == found[0].address, found)]

    def send(self, batch: Sequence[DueMessage]) -> Attempt:
        if (refusal := self._permissions.refusal_of(batch[0])) is not None:
            refused = Failed(refusal, Patience.FREE)
            return Attempt(0, refused, _judge(batch[0], refused, self._settings))
        failed = self._send(batch)
        if failed is None:
            return Attempt(len(batch))
        if len(batch) == 1 or failed.patience is Patience.FREE:
            return Attempt(0, failed, self._judge(batch[0], failed))
        for number, message in enumerate(batch):  # one of them is refused: alone, only the guilty one is
            failed = self._send([message])
            if failed is not None:
                return Attempt(number, failed, self._judge(message, failed))
        return Attempt(len(batch))

    def close(self) -> None:
        self._brokers.close()

    def _send(self, batch: Sequence[DueMessage]) -> Failed | None:
        delivery = self._brokers.send(batch)
        return delivery if isinstance(delivery, Failed) else None

    def _judge(self, message: DueMessage, failed: Failed) -> Verdict:
        """An outage is waited out, however long it lasts: the work itself does not wait for it."""
        if failed.patience is not Patience.FREE:
            return _judge(message, failed, self._settings)
        wait = min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** min(message.attempts, 10))
        return TryAgain(timedelta(seconds=wait * random.uniform(0.5, 1.0)))


def _judge(message: DueMessage, failed: Failed, settings: NotificationSettings) -> Verdict:
    return decide(failed, message.attempts + 1, message.age, settings, random.random())


def record(tx: Transaction, served: ServedDestination, batch: Sequence[DueMessage], attempt: Attempt) -> None:
    """Write which messages of the batch arrived, and what becomes of the one that did not."""
    if attempt.arrived and batch[0].channel == BROKER:
        record_all_sent(tx, served, batch[: attempt.arrived])
    elif attempt.arrived:
        record_sent(tx, served, batch[0].id)
        if attempt.replaced is not None:
            raise_alert(tx, exports.replaced_document(batch[0], attempt.replaced))
    if attempt.failed is None:
        return
    message, error = batch[attempt.arrived], _error_text(attempt.failed)
    match attempt.verdict:
        case TryAgain(delay, charged):
            record_retry(tx, served, message.id, delay, error, charged=charged)
        case GiveUp(why):
            record_death(tx, served, message.id, f"{error} ({why})")
        case None:
            pass
    if (problem := _alert_about(message, attempt.failed, attempt.verdict)) is not None:
        raise_alert(tx, problem)


def next_or_leave(
    tx: Transaction, served: ServedDestination, sender: Sender, *, leave: bool = False
) -> list[DueMessage]:
    """The next batch; if there is none, or others are to have a chance, the destination is released."""
    batch = [] if leave else sender.next_batch(tx, served)
    if not batch:
        release_destination(tx, served)
    return batch


def _error_text(failed: Failed) -> str:
    """The failure as it is kept with the message, with how the receiver's answer began."""
    answer = f"; it said: {failed.answer}" if failed.answer else ""
    return without_secrets(failed.reason + answer)


def _alert_about(message: DueMessage, failed: Failed, verdict: Verdict | None) -> Alert | None:
    unserved = isinstance(verdict, TryAgain) and not verdict.charged
    if unserved and message.age < UNSERVED_ALERT:
        return None  # another worker may be able to send it
    if message.channel == WEBHOOK and isinstance(verdict, GiveUp):
        return _dead_webhook(message, failed)
    if message.channel == EXPORT:
        return exports.lost_export(message, failed)
    given_up = isinstance(verdict, GiveUp)
    if message.channel == BROKER and (unserved or given_up or message.attempts + 1 >= ALERT_AFTER):
        from stepfast.outbox.broker import unreachable_broker

        return unreachable_broker(message, failed)
    return None


def _dead_webhook(message: DueMessage, failed: Failed) -> Alert:
    """An alert may be read outside of the house: it names the host, which is in the URL, and not the address behind it."""
    address = as_shown(WEBHOOK, message.address)
    reason = failed.reason.replace(failed.hidden, "an inner address") if failed.hidden else failed.reason
    body = (
        f"A webhook to {address} was given up: {reason}\n\n"
        f"Look at it:   stepfast outbox show {message.id}\n"
        f"Try again:    stepfast outbox retry {message.id}"
    )
    return alert(f"webhook died: {message.destination}", f"Webhook to {address} died", body)


# Alerts about dead jobs: one per kind and error, raised after the fact and not in the commit that buries the job.
#
# Dead letters are looked at in the order of their deaths, behind a bookmark. A death may be committed after a younger
# one, so the last minutes before the bookmark are looked at again, and the jobs that were counted are remembered for so
# long. Jobs of a run raise no alert: their run does, once for all of them.

BOOKMARK: Final = "deaths"
OVERLAP: Final = timedelta(minutes=2)  # longer than any transaction of ours may last
OLDEST: Final = timedelta(days=1)  # jobs that died earlier, while no relay ran, are history
DEAD_JOBS_BATCH: Final = 500

FIND_BOOKMARK = sql("SELECT 1 FROM stepfast_bookmark WHERE id = :id")
BEGIN_BOOKMARK = sql("INSERT INTO stepfast_bookmark (id, at) VALUES (:id, {now}) {keep_existing}")
LOCK_BOOKMARK = sql("SELECT at, {now} FROM stepfast_bookmark WHERE id = :id {skip_locked}")
MOVE_BOOKMARK = sql("UPDATE stepfast_bookmark SET at = :at WHERE id = :id AND at <> :at")

NEW_DEAD_JOBS = sql("""
    SELECT a.id, a.kind, COALESCE(a.error_group, ''), a.queue, COALESCE(a.last_error, ''), a.finished_at, a.trace
      FROM stepfast_archive a
     WHERE a.state = 'dead' AND a.finished_at > :since
       AND NOT EXISTS (SELECT 1 FROM stepfast_death d WHERE d.id = a.id AND d.finished_at = a.finished_at)
     ORDER BY a.finished_at LIMIT :limit
""")
FIND_RUNS = sql("SELECT id FROM stepfast_run WHERE id {any_of:ids}")
REMEMBER_DEAD_JOBS = sql(
    "INSERT INTO stepfast_death (id, finished_at) VALUES (:id, :finished_at) {keep_existing}"
)
FORGET_DEAD_JOBS = sql("DELETE FROM stepfast_death WHERE finished_at < :before")


@dataclass(frozen=True)
class DeadJob:
    """A job that became a dead letter, as an alert shows it."""

    job_id: str
    kind: str
    error_group: str
    queue: str
    error: str
    finished_at: int
    trace: str | None

    @property
    def run_id(self) -> str | None:
        """The run that the job belongs to, if any: its trace has the same digits."""
        digits = (self.trace or "").split("-")[1:2]
        try:
            return str(UUID(digits[0])) if digits else None
        except ValueError:
            return None


@dataclass(frozen=True)
class DeadJobsSeen:
    """How far the bookmark has moved, and how many dead jobs were found on the way."""

    since: int  # all jobs that died before this instant have been looked at
    jobs: int
    more: bool


def alert_about_dead_jobs(tx: Transaction) -> DeadJobsSeen | None:
    """Raise alerts for dead jobs that have none yet; None if another worker is doing it."""
    if not tx.rows(FIND_BOOKMARK, id=BOOKMARK):
        tx.run(BEGIN_BOOKMARK, id=BOOKMARK)
    rows = tx.rows(LOCK_BOOKMARK, id=BOOKMARK)
    if not rows:
        return None
    bookmark, now = rows[0]
    since = max(bookmark, now - micros(OLDEST)) - micros(OVERLAP)
    found = tx.all(NEW_DEAD_JOBS, DeadJob, since=since, limit=DEAD_JOBS_BATCH)
    for jobs in _by_cause(_without_runs(tx, found)):
        _raise_alert_about(tx, jobs)
    tx.run_many(REMEMBER_DEAD_JOBS, [{"id": job.job_id, "finished_at": job.finished_at} for job in found])
    more = len(found) == DEAD_JOBS_BATCH
    at = max(bookmark, found[-1].finished_at) if more else now
    tx.run(MOVE_BOOKMARK, id=BOOKMARK, at=at)
    tx.run(FORGET_DEAD_JOBS, before=at - 2 * micros(OVERLAP))
    return DeadJobsSeen(at - micros(OVERLAP), len(found), more)


def _without_runs(tx: Transaction, jobs: list[DeadJob]) -> list[DeadJob]:
    ids = sorted({job.run_id for job in jobs if job.run_id is not None})
    runs = {str(row[0]) for row in tx.rows(FIND_RUNS, ids=ids)} if ids else set()
    return [job for job in jobs if job.run_id not in runs]


def _by_cause(jobs: list[DeadJob]) -> list[list[DeadJob]]:
    """The jobs of each cause, in the order of the causes: two workers that raise several alerts lock them in one order."""
    groups: dict[tuple[str, str], list[DeadJob]] = defaultdict(list)
    for job in jobs:
        groups[job.kind, job.error_group].append(job)
    return [groups[cause] for cause in sorted(groups)]


def _raise_alert_about(tx: Transaction, jobs: list[DeadJob]) -> None:
    last = jobs[-1]
    what = last.error.strip().partition("\n")[0][:500]
    body = (
        f"Job {last.job_id} of queue {last.queue} became a dead letter: {what or 'for no stated reason'}\n\n"
        f"Look at it:       stepfast jobs show {last.job_id}\n"
        f"See all of them:  stepfast dead-letters list --by-error\n"
        f"Try them again:   stepfast dead-letters retry --kind {last.kind}"
    )
    cause = f"job died: {last.kind}: {last.error_group}"
    raise_alert(tx, alert(cause, f"Job {last.kind} died", body, times=len(jobs)))
