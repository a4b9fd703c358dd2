"""What is cut short, fourth part: staging, taking, recording, telling, and what an operator does about messages."""

from __future__ import annotations

from collections import defaultdict
from datetime import timedelta
from typing import TYPE_CHECKING

from stepfast import Done
from stepfast.admin import outbox
from stepfast.database.database import persist
from stepfast.jobs.outcome import Bury
from stepfast.notifications.webhook import Delivered, Delivery, Failed
from stepfast.outbox.alerts import tell
from stepfast.outbox.broker import broker_message
from stepfast.outbox.destinations import Again, GiveUp, Served, Verdict, due, heads, prune, release, renew
from stepfast.outbox.messages import stage_many, webhook
from stepfast.worker import relay as broker_courier
from stepfast.worker.relay import notice, record, take_heads
from tests.crash.cases.case import Operations
from tests.crash.recovery import effect_of
from tests.support import rows

if TYPE_CHECKING:
    from stepfast import Stepfast
    from stepfast.database.connection import Transaction
    from stepfast.outbox.destinations import Outgoing
    from tests.crash.kill_points import Act
    from tests.crash.setup import Scene

URL, OTHER = "https://a.example/", "https://b.example/"
HOUR = timedelta(hours=1)
OPERATIONS = Operations()


def relay_everything(app: Stepfast) -> None:
    """Who is left sends what waits; afterwards nothing does, and each line came in its order."""
    with app.transaction() as tx:
        tx.execute("UPDATE stepfast_destination SET leased_until = 1")
        tx.execute("UPDATE stepfast_outbox SET due_at = 1 WHERE state = 'waiting'")
    order = {row["id"]: row["seq"] for row in rows.query(app, "SELECT id, seq FROM stepfast_outbox")}
    arrived: dict[str, list[str]] = defaultdict(list)
    while lines := persist(app.database, lambda tx: take_heads(tx, due(tx, 10))):
        for served, first in lines:
            message: Outgoing | None = first
            while message is not None:
                arrived[served.id].append(message.id)
                message = _recorded(app, served, message)
    assert rows.count(app, "stepfast_outbox", "state = 'waiting'") == 0
    assert rows.count(app, "stepfast_destination", "fence <> 0") == 0
    for ids in arrived.values():
        assert ids == sorted(ids, key=lambda it: order[it])


def _recorded(app: Stepfast, served: Served, message: Outgoing) -> Outgoing | None:
    return persist(app.database, lambda tx: record(tx, served, message, Delivered(), None, more=True))


def _staged(scene: Scene, *urls: str) -> None:
    for n, url in enumerate(urls):
        scene.app.send_webhook(url, data=n)


def _taken(scene: Scene) -> tuple[Served, Outgoing]:
    ((served, message),) = scene.do(lambda tx: take_heads(tx, due(tx, 10)))
    return served, message


def _record(scene: Scene, delivery: Delivery, verdict: Verdict | None, *, messages: int) -> Act:
    _staged(scene, *[URL] * messages)
    served, message = _taken(scene)
    return lambda: scene.do(lambda tx: record(tx, served, message, delivery, verdict, more=True))


def _dead(scene: Scene, *urls: str) -> None:
    _staged(scene, *urls)
    scene.change("UPDATE stepfast_outbox SET state = 'dead', ended_at = 1")


# Staging


@OPERATIONS.once
def stage_with_a_step(scene: Scene) -> Act:
    (lease,) = scene.leased()
    effects = [webhook(URL, "1"), effect_of(lease), webhook(OTHER, "2")]
    return lambda: scene.end(lease, Done(), effects)


@OPERATIONS.repeated
def stage_under_a_key(scene: Scene) -> Act:
    return lambda: scene.app.send_webhook(URL, data=1, key="order-17")


@OPERATIONS.once
def raise_an_alert(scene: Scene) -> Act:
    return lambda: scene.app.alert("disk", "The disk is full")


@OPERATIONS.once
def raise_an_alert_again(scene: Scene) -> Act:
    scene.app.alert("disk", "The disk is full")
    return lambda: scene.app.alert("disk", "The disk is full")


# Sending


@OPERATIONS.once
def take_destinations(scene: Scene) -> Act:
    _staged(scene, URL, OTHER, URL)
    return lambda: scene.do(lambda tx: take_heads(tx, due(tx, 10)))


@OPERATIONS.once
def take_a_destination_from_the_dead(scene: Scene) -> Act:
    _staged(scene, URL)
    _taken(scene)
    scene.change("UPDATE stepfast_destination SET leased_until = 1")
    return lambda: _taken(scene)


@OPERATIONS.once
def record_that_it_was_sent(scene: Scene) -> Act:
    return _record(scene, Delivered(), None, messages=1)


@OPERATIONS.once
def record_and_take_the_next(scene: Scene) -> Act:
    return _record(scene, Delivered(), None, messages=3)


@OPERATIONS.once
def record_that_hints_were_sent(scene: Scene) -> Act:
    hints = [
        broker_message("memory://nobody", "work", id=str(n), body=str(n), subject="", job_id=job_id)
        for n, job_id in enumerate(("one", "two", None))
    ]
    scene.do(lambda tx: stage_many(tx, hints))
    served, _ = _taken(scene)
    batch = scene.do(lambda tx: heads(tx, served, 10))

    def record_and_leave(tx: Transaction) -> None:
        broker_courier.record_broker_courier(tx, served, batch, (len(batch), Delivered()), None)
        release(tx, served)

    return lambda: scene.do(record_and_leave)


@OPERATIONS.once
def record_a_failure(scene: Scene) -> Act:
    return _record(scene, Failed("HTTP 500"), Again(HOUR), messages=2)


@OPERATIONS.once
def record_a_death(scene: Scene) -> Act:
    return _record(scene, Failed("HTTP 410"), GiveUp("gave up"), messages=2)


@OPERATIONS.once
def keep_a_destination(scene: Scene) -> Act:
    _staged(scene, URL)
    served, _ = _taken(scene)
    return lambda: scene.do(lambda tx: renew(tx, [served]))


@OPERATIONS.once
def leave_a_destination(scene: Scene) -> Act:
    _staged(scene, URL)
    served, _ = _taken(scene)
    return lambda: scene.do(lambda tx: release(tx, served))


@OPERATIONS.once
def tell_what_is_due(scene: Scene) -> Act:
    for cause in ("disk", "memory"):
        scene.app.alert(cause, "Title")
    return lambda: scene.do(lambda tx: tell(tx, ["json://a.example", "json://b.example"], HOUR))


@OPERATIONS.once
def notice_deaths(scene: Scene) -> Act:
    scene.do(notice)
    scene.ended(2, Bury("gave up", "gave up"))
    return lambda: scene.do(notice)


# Keeping order, and stepping in


@OPERATIONS.once
def forget_what_was_sent(scene: Scene) -> Act:
    _staged(scene, URL, OTHER, URL)
    _dead(scene, URL)
    scene.change("UPDATE stepfast_outbox SET state = 'sent', ended_at = 1 WHERE body <> '0'")
    scene.do(lambda tx: take_heads(tx, due(tx, 10)))
    scene.app.alert("disk", "Title")
    scene.change("UPDATE stepfast_alert SET last_at = 1, notify_at = NULL")
    return lambda: scene.do(lambda tx: prune(tx, rows.DAY, 10))


@OPERATIONS.once
def retry_a_message(scene: Scene) -> Act:
    _dead(scene, URL)
    (message,) = scene.app.operator.messages()
    return lambda: scene.app.operator.retry_message(message.id)


@OPERATIONS.repeated
def retry_all_messages(scene: Scene) -> Act:
    _dead(scene, URL, OTHER, URL)
    return lambda: outbox.retry_dead_messages(scene.app.database)


@OPERATIONS.repeated
def purge_all_messages(scene: Scene) -> Act:
    _dead(scene, URL, OTHER)
    return lambda: outbox.purge_dead_messages(scene.app.database)
