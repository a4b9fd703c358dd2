"""Serve one destination: send the head of its line, record what became of it, take the next.

Sending happens outside any transaction. Recording, the next message, and leaving are one transaction under the fence.
"""

from __future__ import annotations

import random
import threading
import time
from typing import TYPE_CHECKING, Final

from stepfast.database.database import persist
from stepfast.errors import DatabaseError, DestinationLostError
from stepfast.notifications import alert as alerting
from stepfast.notifications import webhook as webhooks
from stepfast.notifications.delivery import Delivered, Delivery, Failed
from stepfast.outbox import exports
from stepfast.outbox.alerts import Alert, alert, raise_alert, text_of
from stepfast.outbox.messages import ALERT, EXPORT, WEBHOOK, as_shown
from stepfast.outbox.relay import (
    LEASE,
    Outgoing,
    Served,
    again,
    die,
    head,
    release,
    sent,
)
from stepfast.outbox.verdict import Again, GiveUp, Verdict, decide
from stepfast.telemetry import happened
from stepfast.telemetry.masking import without_secrets

if TYPE_CHECKING:
    from collections.abc import Callable

    from stepfast.database.connection import Transaction
    from stepfast.database.database import Database
    from stepfast.notifications.settings import NotificationSettings

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
