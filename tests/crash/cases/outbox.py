"""Cases of the outbox: staging, taking, recording and alerting, and what operators do to messages."""

from __future__ import annotations

from collections import defaultdict
from datetime import timedelta
from typing import TYPE_CHECKING

from stepfast import Done
from stepfast.admin import outbox
from stepfast.database.database import persist
from stepfast.jobs.outcome import Bury
from stepfast.notifications.settings import NotificationSettings
from stepfast.notifications.webhook import Failed
from stepfast.outbox.alerts import stage_alerts
from stepfast.outbox.broker import broker_message
from stepfast.outbox.destinations import (
    GiveUp,
    ServedDestination,
    TryAgain,
    due_destinations,
    next_messages,
    prune_outbox,
    release_destination,
    renew_destinations,
)
from stepfast.outbox.messages import stage_many, webhook
from stepfast.worker.relay import (
    Attempt,
    DirectSender,
    alert_about_dead_jobs,
    next_or_leave,
    record,
    take_heads,
)
from tests.crash.cases.case import Cases
from tests.crash.recovery import effect_of
from tests.support import rows

if TYPE_CHECKING:
    from stepfast import Stepfast
    from stepfast.database.connection import Transaction
    from stepfast.outbox.destinations import DueMessage
    from tests.crash.kill_points import Action
    from tests.crash.setup import Setup

URL, OTHER = "https://a.example/", "https://b.example/"
HOUR = timedelta(hours=1)
CASES = Cases()


def relay_everything(app: Stepfast) -> None:
    """Send all waiting messages; afterwards none waits, and each destination got its own in order."""
    with app.transaction() as tx:
        tx.execute("UPDATE stepfast_destination SET leased_until = 1")
        tx.execute("UPDATE stepfast_outbox SET due_at = 1 WHERE state = 'waiting'")
    order = {row["id"]: row["seq"] for row in rows.query(app, "SELECT id, seq FROM stepfast_outbox")}
    arrived: dict[str, list[str]] = defaultdict(list)
    while lines := persist(
        app.database, lambda tx: take_heads(tx, [it.id for it in due_destinations(tx, 10)])
    ):
        for served, first in lines:
            message: DueMessage | None = first
            while message is not None:
                arrived[served.id].append(message.id)
                message = _recorded(app, served, message)
    assert rows.count(app, "stepfast_outbox", "state = 'waiting'") == 0
    assert rows.count(app, "stepfast_destination", "fence <> 0") == 0
    for ids in arrived.values():
        assert ids == sorted(ids, key=lambda it: order[it])


def _recorded(app: Stepfast, served: ServedDestination, message: DueMessage) -> DueMessage | None:
    following = persist(app.database, lambda tx: _record_and_go_on(tx, served, message, Attempt(1)))
    return following[0] if following else None


def _record_and_go_on(
    tx: Transaction, served: ServedDestination, message: DueMessage, attempt: Attempt
) -> list[DueMessage]:
    """As a courier does it."""
    record(tx, served, [message], attempt)
    return next_or_leave(tx, served, DirectSender(NotificationSettings()))


def _staged(setup: Setup, *urls: str) -> None:
    for n, url in enumerate(urls):
        setup.app.send_webhook(url, data=n)


def _taken(setup: Setup) -> tuple[ServedDestination, DueMessage]:
    ((served, message),) = setup.do(lambda tx: take_heads(tx, [it.id for it in due_destinations(tx, 10)]))
    return served, message


def _record(setup: Setup, attempt: Attempt, *, messages: int) -> Action:
    _staged(setup, *[URL] * messages)
    served, message = _taken(setup)
    return lambda: setup.do(lambda tx: _record_and_go_on(tx, served, message, attempt))


def _dead(setup: Setup, *urls: str) -> None:
    _staged(setup, *urls)
    setup.change("UPDATE stepfast_outbox SET state = 'dead', ended_at = 1")


# Staging


@CASES.once
def stage_with_a_step(setup: Setup) -> Action:
    (lease,) = setup.leased()
    effects = [webhook(URL, "1"), effect_of(lease), webhook(OTHER, "2")]
    return lambda: setup.end(lease, Done(), effects)


@CASES.repeated
def stage_under_a_key(setup: Setup) -> Action:
    return lambda: setup.app.send_webhook(URL, data=1, key="order-17")


@CASES.once
def raise_an_alert(setup: Setup) -> Action:
    return lambda: setup.app.alert("disk", "The disk is full")


@CASES.once
def raise_an_alert_again(setup: Setup) -> Action:
    setup.app.alert("disk", "The disk is full")
    return lambda: setup.app.alert("disk", "The disk is full")


# Sending


@CASES.once
def take_destinations(setup: Setup) -> Action:
    _staged(setup, URL, OTHER, URL)
    return lambda: setup.do(lambda tx: take_heads(tx, [it.id for it in due_destinations(tx, 10)]))


@CASES.once
def take_a_destination_from_the_dead(setup: Setup) -> Action:
    _staged(setup, URL)
    _taken(setup)
    setup.change("UPDATE stepfast_destination SET leased_until = 1")
    return lambda: _taken(setup)


@CASES.once
def record_that_it_was_sent(setup: Setup) -> Action:
    return _record(setup, Attempt(1), messages=1)


@CASES.once
def record_and_take_the_next(setup: Setup) -> Action:
    return _record(setup, Attempt(1), messages=3)


@CASES.once
def record_that_hints_were_sent(setup: Setup) -> Action:
    hints = [
        broker_message("memory://nobody", "work", id=str(n), body=str(n), subject="", job_id=job_id)
        for n, job_id in enumerate(("one", "two", None))
    ]
    setup.do(lambda tx: stage_many(tx, hints))
    served, _ = _taken(setup)
    batch = setup.do(lambda tx: next_messages(tx, served, 10))

    def record_and_leave(tx: Transaction) -> None:
        record(tx, served, batch, Attempt(len(batch)))
        release_destination(tx, served)

    return lambda: setup.do(record_and_leave)


@CASES.once
def record_a_failure(setup: Setup) -> Action:
    return _record(setup, Attempt(0, Failed("HTTP 500"), TryAgain(HOUR)), messages=2)


@CASES.once
def record_a_death(setup: Setup) -> Action:
    return _record(setup, Attempt(0, Failed("HTTP 410"), GiveUp("gave up")), messages=2)


@CASES.once
def keep_a_destination(setup: Setup) -> Action:
    _staged(setup, URL)
    served, _ = _taken(setup)
    return lambda: setup.do(lambda tx: renew_destinations(tx, [served]))


@CASES.once
def leave_a_destination(setup: Setup) -> Action:
    _staged(setup, URL)
    served, _ = _taken(setup)
    return lambda: setup.do(lambda tx: release_destination(tx, served))


@CASES.once
def tell_what_is_due(setup: Setup) -> Action:
    for cause in ("disk", "memory"):
        setup.app.alert(cause, "Title")
    return lambda: setup.do(lambda tx: stage_alerts(tx, ["json://a.example", "json://b.example"], HOUR))


@CASES.once
def notice_deaths(setup: Setup) -> Action:
    setup.do(alert_about_dead_jobs)
    setup.ended(2, Bury("gave up", "gave up"))
    return lambda: setup.do(alert_about_dead_jobs)


# Keeping order, and stepping in


@CASES.once
def forget_what_was_sent(setup: Setup) -> Action:
    _staged(setup, URL, OTHER, URL)
    _dead(setup, URL)
    setup.change("UPDATE stepfast_outbox SET state = 'sent', ended_at = 1 WHERE body <> '0'")
    setup.do(lambda tx: take_heads(tx, [it.id for it in due_destinations(tx, 10)]))
    setup.app.alert("disk", "Title")
    setup.change("UPDATE stepfast_alert SET last_at = 1, notify_at = NULL")
    return lambda: setup.do(lambda tx: prune_outbox(tx, rows.DAY, 10))


@CASES.once
def retry_a_message(setup: Setup) -> Action:
    _dead(setup, URL)
    (message,) = setup.app.operator.messages()
    return lambda: setup.app.operator.retry_message(message.id)


@CASES.repeated
def retry_all_messages(setup: Setup) -> Action:
    _dead(setup, URL, OTHER, URL)
    return lambda: outbox.retry_dead_messages(setup.app.database)


@CASES.repeated
def purge_all_messages(setup: Setup) -> Action:
    _dead(setup, URL, OTHER)
    return lambda: outbox.purge_dead_messages(setup.app.database)
