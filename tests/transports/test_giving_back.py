"""A message that a worker gives back in good order, on each broker: another has it at once, and nobody has died.

The broker counts what is released. So Holding sends it anew, under an id that no duplicate detection knows, and removes
the old one.
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

import pytest

from stepfast.tasks.envelope import read
from stepfast.tasks.held_messages import DEATHS, FIRST_SENT, HeldMessages
from stepfast.transports.contract import MOST_DELIVERIES
from tests.transports.brokers import HOLD, SHORT, Broker
from tests.transports.test_conformance import AT_ONCE, message, nothing, one, take

if TYPE_CHECKING:
    from datetime import timedelta

    from stepfast.transports.contract import Delivery, Outgoing, Transport

TASK = json.dumps(
    {
        "task_id": "t-1",
        "task_type": "ingest",
        "payload": {"filename": "ä ☃.pdf"},
        "webhook_url": "https://front.example/hook?token=1",
        "schema_version": 1,
    },
    ensure_ascii=False,
)
SOON = HOLD.total_seconds() / 3  # far less than it takes for a hold to end by itself


class KilledError(BaseException):
    """The process is gone."""


def holding(transport: Transport, hold: timedelta = HOLD) -> HeldMessages:
    return HeldMessages(transport, hold, deaths_count=True)


async def delivered_twice(
    broker: Broker, transport: Transport, sent: Outgoing, queue: str, hold: timedelta = HOLD
) -> Delivery:
    """A message that was given back once before."""
    await broker.transport.send(queue, [sent])
    await transport.release(await one(transport, queue))
    found = await one(transport, queue, hold)
    assert (found.id, found.attempt) == (sent.id, 2)
    return found


async def test_the_first_time_the_broker_takes_it_back_as_it_is(broker: Broker) -> None:
    queue, other = await broker.new_queue(), await broker.another()
    sent = message(TASK)
    await broker.transport.send(queue, [sent])
    ours = holding(broker.transport)

    assert await ours.give_back(ours.take(await one(broker.transport, queue)))

    found = await one(other, queue)
    assert (found.id, found.attempt, found.body) == (sent.id, 2, TASK)
    await other.complete(found)


async def test_then_another_has_it_at_once_and_all_that_it_said(broker: Broker) -> None:
    queue, other = await broker.new_queue(), await broker.another()
    sent = message(TASK, subject="task", properties={"tenant": "south", "epoch": 3, "urgent": True})
    held = await delivered_twice(broker, broker.transport, sent, queue)
    ours = holding(broker.transport)

    begun = time.monotonic()
    assert await ours.give_back(ours.take(held))
    found = await one(other, queue)

    assert time.monotonic() - begun < SOON
    assert (found.body, found.subject, found.attempt) == (TASK, "task", 1)
    assert found.id != sent.id
    assert held.sent_at is not None
    assert dict(found.properties) == {
        "tenant": "south",
        "epoch": 3,
        "urgent": True,
        FIRST_SENT: held.sent_at.isoformat(),
        DEATHS: 0,
    }
    assert read(found.body) == read(TASK)
    await other.complete(found)
    await nothing(other, queue, AT_ONCE)
    assert await other.dead_letters(queue, at_most=10, hold=HOLD) == []


async def test_however_often_workers_stop_it_is_not_put_aside(broker: Broker) -> None:
    """Twice as often as a message may be delivered; and when it was first sent is still known."""
    queue = await broker.new_queue()
    ours = holding(broker.transport)
    await broker.transport.send(queue, [message(TASK)])
    found = await one(broker.transport, queue)
    first = found.sent_at

    for _ in range(2 * MOST_DELIVERIES):
        assert await ours.give_back(ours.take(found))
        found = await one(broker.transport, queue)
        assert found.attempt <= 2

    assert first is not None
    assert (found.properties[FIRST_SENT], found.properties[DEATHS]) == (first.isoformat(), 0)
    await broker.transport.complete(found)
    await nothing(broker.transport, queue, AT_ONCE)
    assert await broker.transport.dead_letters(queue, at_most=10, hold=HOLD) == []


async def test_who_comes_late_gives_back_nothing(broker: Broker) -> None:
    queue, other = await broker.new_queue(), await broker.another()
    held = await delivered_twice(broker, broker.transport, message(TASK), queue, SHORT)
    ours = holding(broker.transport)
    late = ours.take(held)
    await broker.expire(held)
    his = await one(other, queue)

    assert not await ours.give_back(late)

    assert len(ours) == 0
    await other.complete(his)
    await nothing(other, queue, AT_ONCE)


async def test_who_is_killed_in_between_leaves_the_same_task_twice_and_loses_nothing(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both messages become one task: see test_what_a_killed_worker_doubled_is_done_once of test_intake."""
    queue, other, dying = await broker.new_queue(), await broker.another(), await broker.another()
    sent = message(TASK)
    held = await delivered_twice(broker, dying, sent, queue)
    ours = holding(dying, SHORT)
    last = ours.take(held)

    async def killed(_: Delivery) -> None:
        raise KilledError

    with monkeypatch.context() as patch:
        patch.setattr(dying, "complete", killed)
        with pytest.raises(KilledError):
            await ours.give_back(last)
    await broker.expire(last.delivery)

    found = await take(other, queue, 2)
    assert sorted(it.attempt for it in found) == [1, 3]
    assert [read(it.body).task_id for it in found] == ["t-1", "t-1"]
    assert sum(it.id == sent.id for it in found) == 1
    for it in found:
        await other.complete(it)
    await nothing(other, queue, AT_ONCE)
