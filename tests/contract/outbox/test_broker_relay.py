"""Broker messages of the outbox are sent in order, up to a hundred per call, and none is lost."""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING

import pytest

from stepfast.clock import new_id
from stepfast.database.database import persist
from stepfast.errors import DestinationLostError
from stepfast.notifications.settings import NotificationSettings
from stepfast.notifications.webhook import Failed
from stepfast.outbox.broker import broker_message
from stepfast.outbox.destinations import GiveUp, due_destinations, next_messages, take_destinations
from stepfast.outbox.messages import stage_many
from stepfast.transports.contract import TransportUnavailableError
from stepfast.transports.memory import MemoryBroker, MemoryTransport, named_broker
from stepfast.worker.relay import Attempt, Relay, record
from tests.support import rows
from tests.support.events import hearing, named

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from stepfast import Stepfast
    from stepfast.transports.contract import Outgoing

QUEUE = "work"


class Calls:
    """What was sent, call by call; the first of them may fail."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, failing: int = 0) -> None:
        self.sizes: list[int] = []
        real = MemoryTransport.send

        async def send(transport: MemoryTransport, queue: str, messages: Sequence[Outgoing]) -> None:
            self.sizes.append(len(messages))
            if len(self.sizes) <= failing:
                raise TransportUnavailableError("memory", "the queue is full")
            await real(transport, queue, messages)

        monkeypatch.setattr(MemoryTransport, "send", send)


def stage(app: Stepfast, count: int, *, hints: Callable[[int], bool] = lambda _: False) -> MemoryBroker:
    """So many messages, named by their numbers; returns the broker that will have them."""
    name = new_id()
    messages = [
        broker_message(
            f"memory://{name}",
            QUEUE,
            id=str(n),
            body=str(n),
            subject="",
            job_id="a job" if hints(n) else None,
        )
        for n in range(count)
    ]
    with app.transaction() as tx:
        stage_many(tx, messages)
    return named_broker(name)


def relay(app: Stepfast) -> None:
    Relay(app.database, NotificationSettings()).drain()


def arrived(broker: MemoryBroker) -> list[int]:
    return [int(it.message.id) for it in broker.queues[QUEUE].live.kept.values()]


def try_again(app: Stepfast, sender: Relay) -> None:
    """Let the time of the next try come."""
    assert rows.change(app, "UPDATE stepfast_outbox SET due_at = 1 WHERE state = 'waiting'")
    sender.look()
    for it in sender._serving():
        it.join(10)


def test_a_hundred_are_sent_in_one_call_and_all_in_their_order(
    app: Stepfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = Calls(monkeypatch)
    broker = stage(app, 250)

    relay(app)

    assert calls.sizes == [100, 100, 50]
    assert arrived(broker) == list(range(250))
    assert rows.count(app, "stepfast_outbox", "state = 'sent' AND attempts = 1") == 250


def test_after_a_failure_fewer_are_tried_and_then_more_again(
    app: Stepfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = Calls(monkeypatch, failing=3)
    broker = stage(app, 120)
    sender = Relay(app.database, NotificationSettings())

    with suppress(AssertionError):  # nothing waits any more
        while True:
            try_again(app, sender)

    assert calls.sizes[:5] == [100, 50, 25, 12, 24]
    assert arrived(broker) == list(range(120))
    sender._close_brokers()


def test_a_message_to_a_broker_that_is_away_waits_a_second_then_two_then_four(app: Stepfast) -> None:
    broker = stage(app, 2)
    broker.away = True
    sender = Relay(app.database, NotificationSettings())
    waits = []

    for _ in range(4):
        try_again(app, sender)
        (head,) = rows.query(app, "SELECT due_at, attempts FROM stepfast_outbox ORDER BY seq LIMIT 1")
        waits.append((head["attempts"], (int(head["due_at"]) - rows.now(app)) / 1e6))

    assert [attempts for attempts, _ in waits] == [1, 2, 3, 4]
    assert all(2.0**n / 2 - 1 < wait <= 2.0**n for n, (_, wait) in enumerate(waits))
    assert rows.count(app, "stepfast_outbox", "state = 'waiting'") == 2
    assert rows.count(app, "stepfast_alert") == 1  # from the third try on


def test_hints_about_jobs_are_forgotten_when_they_are_sent_and_other_messages_are_kept(app: Stepfast) -> None:
    broker = stage(app, 250, hints=lambda n: n % 10 > 0)

    with hearing() as told:
        relay(app)

    assert arrived(broker) == list(range(250))
    assert len(named(told, "message.sent")) == 250  # and so the metrics count them
    assert rows.count(app, "stepfast_outbox", "state = 'sent' AND attempts = 1 AND job_id IS NULL") == 25
    assert rows.count(app, "stepfast_outbox") == 25


def test_a_hint_that_was_not_sent_waits_or_is_dead(app: Stepfast) -> None:
    stage(app, 3, hints=lambda _: True)
    (served,) = persist(
        app.database, lambda tx: take_destinations(tx, [it.id for it in due_destinations(tx, 10)])
    )
    batch = persist(app.database, lambda tx: next_messages(tx, served, 10))
    refused = Attempt(1, Failed("too large"), GiveUp("gave up"))

    persist(app.database, lambda tx: record(tx, served, batch, refused))

    left = rows.query(app, "SELECT body, state FROM stepfast_outbox ORDER BY seq")
    assert [(it["body"], it["state"]) for it in left] == [("1", "dead"), ("2", "waiting")]


@pytest.mark.parametrize("hints", [True, False])
def test_a_courier_that_was_replaced_records_nothing(app: Stepfast, *, hints: bool) -> None:
    stage(app, 3, hints=lambda _: hints)
    (served,) = persist(
        app.database, lambda tx: take_destinations(tx, [it.id for it in due_destinations(tx, 10)])
    )
    batch = persist(app.database, lambda tx: next_messages(tx, served, 10))
    rows.change(app, "UPDATE stepfast_destination SET fence = 7")

    for attempt in (Attempt(3), Attempt(1, Failed("no answer"))):
        write = partial(record, served=served, batch=batch, attempt=attempt)
        with pytest.raises(DestinationLostError):
            persist(app.database, write)

    assert rows.count(app, "stepfast_outbox", "state = 'waiting' AND attempts = 0") == 3


def test_a_message_may_vanish_after_a_while(app: Stepfast) -> None:
    name = new_id()
    hour = timedelta(hours=1)
    with app.transaction() as tx:
        told = broker_message(
            f"memory://{name}", QUEUE, id="1", body="x", subject="WORK_DONE", lives_for=hour
        )
        stage_many(tx, [told])

    relay(app)

    (kept,) = named_broker(name).queues[QUEUE].live.kept.values()
    assert (kept.message.lives_for, kept.message.subject) == (hour, "WORK_DONE")
