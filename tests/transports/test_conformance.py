"""What every queue of others promises us: the same tests on each of them.

What is not promised, and not tested: order; exactly one delivery; that a holder whose time is over is refused before
somebody else has received the message (a receipt of Storage Queue fences only against a newer receive: the lease in
the database is the fence, see test_a_late_holder_is_refused).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta

import pytest

from stepfast.clock import new_id
from stepfast.errors import ConfigurationError
from stepfast.transports.contract import (
    MOST_AT_ONCE,
    MOST_DELIVERIES,
    TOO_OFTEN,
    Delivery,
    DeliveryLostError,
    Outgoing,
    Transport,
    TransportRefusedError,
    TransportUnavailableError,
)
from tests.transports.brokers import HOLD, SHORT, Broker

AT_ONCE = timedelta(0)
A_MOMENT = timedelta(seconds=0.2)  # after which something that should not come has not come
PATIENCE = timedelta(seconds=20)  # only a test that fails waits so long


def message(body: str = '{"n": 1}', **fields: object) -> Outgoing:
    return Outgoing(**{"id": new_id(), "body": body, **fields})  # type: ignore[arg-type]


async def take(transport: Transport, queue: str, count: int = 1, hold: timedelta = HOLD) -> list[Delivery]:
    """As many deliveries as this, however often one has to ask."""
    found: list[Delivery] = []
    deadline = datetime.now(UTC) + PATIENCE
    while len(found) < count:
        assert datetime.now(UTC) < deadline, f"{len(found)} of {count} came"
        found += await transport.receive(
            queue, at_most=min(MOST_AT_ONCE, count - len(found)), wait=timedelta(seconds=1), hold=hold
        )
    return found


async def one(transport: Transport, queue: str, hold: timedelta = HOLD) -> Delivery:
    return (await take(transport, queue, 1, hold))[0]


async def nothing(transport: Transport, queue: str, wait: timedelta = A_MOMENT) -> None:
    assert await transport.receive(queue, at_most=10, wait=wait, hold=HOLD) == []


# Send and receive


async def test_what_is_sent_arrives_as_it_was(broker: Broker) -> None:
    queue = await broker.new_queue()
    sent = message(
        '{"shape": "ROUND", "price": 1}',
        subject="WORK_ITEM",
        properties={"runId": "r-1", "epoch": 3, "force": True},
    )
    before = datetime.now(UTC)

    await broker.transport.send(queue, [sent])
    found = await one(broker.transport, queue)

    assert (found.id, found.body, found.subject, found.queue) == (sent.id, sent.body, "WORK_ITEM", queue)
    assert dict(found.properties) == {"runId": "r-1", "epoch": 3, "force": True}
    assert found.attempt == 1
    assert found.sent_at is not None
    assert abs(found.sent_at - before) < timedelta(seconds=10)
    assert found.held_until > before
    assert (found.dead_reason, found.dead_detail) == ("", "")
    await broker.transport.complete(found)


@pytest.mark.parametrize(
    "body",
    [
        "",
        "plain text",
        '{"a": "ünï ☃ 💎", "b": "<xml>&amp;"}',
        '["no", "object"]',
        '{"_stepfast": {"id": "somebody else\'s"}}',
        '{"a":\r\n\t1}',
        "line\r\nline\x01\x0b\x7f\ufffe",
        "eyJhIjogMX0=",  # base64 of JSON, meant as it stands
    ],
)
async def test_every_text_arrives_as_it_was(broker: Broker, body: str) -> None:
    queue = await broker.new_queue()

    await broker.transport.send(queue, [message(body)])

    found = await one(broker.transport, queue)
    assert found.body == body
    await broker.transport.complete(found)


async def test_a_batch_is_stored_whole(broker: Broker) -> None:
    queue = await broker.new_queue()
    batch = [message(f'{{"n": {n}}}') for n in range(70)]

    await broker.transport.send(queue, batch)

    found = await take(broker.transport, queue, len(batch))
    assert {it.id: it.body for it in found} == {it.id: it.body for it in batch}
    await asyncio.gather(*(broker.transport.complete(it) for it in found))


async def test_an_empty_batch_is_nothing(broker: Broker) -> None:
    queue = await broker.new_queue()

    await broker.transport.send(queue, [])

    await nothing(broker.transport, queue, AT_ONCE)


async def test_a_receive_takes_no_more_than_was_asked_for(broker: Broker) -> None:
    queue = await broker.new_queue()
    await broker.transport.send(queue, [message() for _ in range(3)])

    found = await broker.transport.receive(queue, at_most=2, wait=PATIENCE, hold=HOLD)

    assert 1 <= len(found) <= 2
    rest = await take(broker.transport, queue, 3 - len(found))
    await asyncio.gather(*(broker.transport.complete(it) for it in [*found, *rest]))


async def test_a_receive_waits_for_what_comes_later(broker: Broker) -> None:
    queue = await broker.new_queue()
    other = await broker.another()

    waiting = asyncio.create_task(other.receive(queue, at_most=1, wait=PATIENCE, hold=HOLD))
    await asyncio.sleep(0.1)
    await broker.transport.send(queue, [message()])

    found = await asyncio.wait_for(waiting, 10)
    assert len(found) == 1
    await other.complete(found[0])


async def test_an_empty_queue_answers_after_the_wait(broker: Broker) -> None:
    queue = await broker.new_queue()
    loop = asyncio.get_running_loop()

    began = loop.time()
    await nothing(broker.transport, queue, timedelta(seconds=0.3))

    assert 0.25 < loop.time() - began < 5


async def test_queues_are_apart(broker: Broker) -> None:
    here, there = await broker.new_queue(), await broker.new_queue()

    await broker.transport.send(here, [message()])

    await nothing(broker.transport, there)
    await broker.transport.complete(await one(broker.transport, here))


async def test_concurrent_receivers_share_the_messages(broker: Broker) -> None:
    queue = await broker.new_queue()
    others = [broker.transport, await broker.another(), await broker.another()]
    batch = [message() for _ in range(40)]
    sent = {it.id for it in batch}
    await broker.transport.send(queue, batch)
    taken: list[str] = []

    async def work(transport: Transport) -> None:
        while len(taken) < len(sent):
            for it in await transport.receive(queue, at_most=5, wait=A_MOMENT, hold=HOLD):
                taken.append(it.id)
                await transport.complete(it)

    await asyncio.wait_for(asyncio.gather(*map(work, others)), 60)
    assert sorted(taken) == sorted(sent)


# Hold, renew, end


async def test_a_held_message_is_given_to_nobody_else(broker: Broker) -> None:
    queue = await broker.new_queue()
    other = await broker.another()
    await broker.transport.send(queue, [message()])

    found = await one(broker.transport, queue)

    await nothing(other, queue)
    await broker.transport.complete(found)


async def test_a_completed_message_never_comes_back(broker: Broker) -> None:
    queue = await broker.new_queue()
    await broker.transport.send(queue, [message()])
    found = await one(broker.transport, queue, SHORT)

    await broker.transport.complete(found)

    with pytest.raises(DeliveryLostError, match=found.id):
        await broker.transport.complete(found)
    await nothing(broker.transport, queue, SHORT + A_MOMENT)


async def test_a_renewed_message_is_held_for_longer(broker: Broker) -> None:
    hold = timedelta(seconds=3)
    queue = await broker.new_queue(hold)
    other = await broker.another()
    await nothing(other, queue, AT_ONCE)  # its link is open now
    await broker.transport.send(queue, [message()])
    first = await one(broker.transport, queue, hold)

    await asyncio.sleep(1.5)
    renewed = await broker.transport.renew(first, hold)

    assert renewed.held_until > first.held_until
    assert (renewed.id, renewed.body, renewed.attempt) == (first.id, first.body, 1)
    await nothing(other, queue, max(A_MOMENT, first.held_until - datetime.now(UTC) + A_MOMENT))
    await broker.transport.complete(renewed)
    await nothing(broker.transport, queue)


async def test_a_message_is_renewed_while_a_receive_waits(broker: Broker) -> None:
    queue = await broker.new_queue()
    await broker.transport.send(queue, [message()])
    held = await one(broker.transport, queue)

    waiting = asyncio.create_task(
        broker.transport.receive(queue, at_most=1, wait=timedelta(seconds=30), hold=HOLD)
    )
    await asyncio.sleep(0.1)
    renewed = await asyncio.wait_for(broker.transport.renew(held, HOLD), 5)
    await asyncio.wait_for(broker.transport.complete(renewed), 5)

    await broker.transport.send(queue, [message()])
    found = await asyncio.wait_for(waiting, 20)
    await broker.transport.complete(found[0])


async def test_a_released_message_comes_back_at_once_and_is_counted(broker: Broker) -> None:
    queue = await broker.new_queue()
    await broker.transport.send(queue, [message()])
    first = await one(broker.transport, queue)

    await broker.transport.release(first)

    second = await one(broker.transport, queue)
    assert (second.id, second.attempt) == (first.id, 2)
    await broker.transport.complete(second)


async def test_a_message_released_for_later_comes_back_later(broker: Broker) -> None:
    queue = await broker.new_queue()
    await broker.transport.send(queue, [message()])
    first = await one(broker.transport, queue)
    later = datetime.now(UTC) + timedelta(seconds=0.9)

    await broker.transport.release(first, timedelta(seconds=1))

    second = await one(broker.transport, queue)
    assert not broker.transport.abilities.delays_release or datetime.now(UTC) > later
    await broker.transport.complete(second)


async def test_what_a_crashed_receiver_held_comes_back(broker: Broker) -> None:
    queue = await broker.new_queue()
    crashed = await broker.another()  # it is never heard of again
    await broker.transport.send(queue, [message()])
    lost = await one(crashed, queue, SHORT)

    await broker.expire(lost)

    found = await one(broker.transport, queue)
    assert (found.id, found.body, found.attempt) == (lost.id, lost.body, 2)
    await broker.transport.complete(found)


async def test_a_late_holder_is_refused(broker: Broker) -> None:
    """Promised: once another has received the message, the first can do nothing to it. Before that some brokers let
    it: so what it did is only true if the database says so."""
    queue = await broker.new_queue()
    other = await broker.another()
    await broker.transport.send(queue, [message()])
    late = await one(broker.transport, queue, SHORT)
    await broker.expire(late)
    current = await one(other, queue)

    attempts: list[Callable[[], Awaitable[object]]] = [
        lambda: broker.transport.renew(late, HOLD),
        lambda: broker.transport.release(late),
        lambda: broker.transport.dead_letter(late, "late"),
        lambda: broker.transport.complete(late),
    ]
    for attempt in attempts:
        with pytest.raises(DeliveryLostError, match=late.id):
            await attempt()

    assert await other.dead_letters(queue, at_most=1, hold=HOLD) == []
    await other.complete(await other.renew(current, HOLD))
    await nothing(broker.transport, queue)


async def test_closing_gives_back_what_is_held(broker: Broker) -> None:
    queue = await broker.new_queue()
    await broker.transport.send(queue, [message()])
    async with broker.connect() as closing:
        held = await one(closing, queue)

    found = await one(broker.transport, queue)
    assert found.id == held.id
    await broker.transport.complete(found)


# Dead letters


async def test_a_dead_letter_says_why(broker: Broker) -> None:
    queue = await broker.new_queue()
    sent = message("not understood", properties={"runId": "r-1"}, subject="WORK_ITEM")
    await broker.transport.send(queue, [sent])

    await broker.transport.dead_letter(
        await one(broker.transport, queue), "UnknownRun", "there is no run r-1 ☃"
    )

    await nothing(broker.transport, queue)
    found = (await broker.transport.dead_letters(queue, at_most=10, hold=HOLD))[0]
    assert (found.id, found.body, found.queue) == (sent.id, sent.body, queue)
    assert (found.dead_reason, found.dead_detail) == ("UnknownRun", "there is no run r-1 ☃")
    assert (found.properties["runId"], found.subject) == ("r-1", "WORK_ITEM")
    await broker.transport.release(found)
    again = (await broker.transport.dead_letters(queue, at_most=10, hold=HOLD))[0]
    assert (again.id, again.dead_reason) == (sent.id, "UnknownRun")
    await broker.transport.complete(again)
    assert await broker.transport.dead_letters(queue, at_most=10, hold=HOLD) == []


async def test_a_message_that_nobody_ends_is_put_aside(broker: Broker) -> None:
    """So that a message that kills its receivers does not go round for ever."""
    queue = await broker.new_queue()
    most = broker.transport.abilities.most_deliveries or MOST_DELIVERIES
    sent = message()
    await broker.transport.send(queue, [sent])

    for attempt in range(1, most + 1):
        found = await one(broker.transport, queue)
        assert found.attempt == attempt
        await broker.transport.release(found)
    await nothing(broker.transport, queue)

    dead = (await broker.transport.dead_letters(queue, at_most=10, hold=HOLD))[0]
    assert (dead.id, dead.body, dead.dead_reason) == (sent.id, sent.body, TOO_OFTEN)
    await broker.transport.complete(dead)


# Ids and time


async def test_the_same_id_twice(broker: Broker) -> None:
    """Where duplicates are detected the second is swallowed, also after the first was ended; else both come."""
    queue = await broker.new_queue()
    twice = message()

    await broker.transport.send(queue, [twice, twice])
    found = await take(broker.transport, queue, 1)
    await broker.transport.complete(found[0])
    await broker.transport.send(queue, [twice])

    if broker.transport.abilities.detects_duplicates:
        await nothing(broker.transport, queue)
    else:
        rest = await take(broker.transport, queue, 2)
        assert {it.id for it in rest} == {twice.id}
        await asyncio.gather(*(broker.transport.complete(it) for it in rest))


async def test_a_scheduled_message_comes_at_its_time(broker: Broker) -> None:
    queue = await broker.new_queue()
    due = datetime.now(UTC) + timedelta(seconds=1)

    await broker.transport.send(queue, [message(not_before=due)])

    found = await one(broker.transport, queue)
    assert datetime.now(UTC) >= due - timedelta(seconds=0.1)
    await broker.transport.complete(found)


async def test_a_message_vanishes_after_its_life(broker: Broker) -> None:
    queue = await broker.new_queue()
    short, long = message(lives_for=timedelta(seconds=1)), message(lives_for=timedelta(hours=1))

    await broker.transport.send(queue, [short, long])
    await asyncio.sleep(1.2)

    found = await one(broker.transport, queue)
    assert found.id == long.id
    await broker.transport.complete(found)
    await nothing(broker.transport, queue)


async def test_depth(broker: Broker) -> None:
    queue = await broker.new_queue()
    await broker.transport.send(queue, [message() for _ in range(3)])

    full = await broker.transport.depth(queue)
    await broker.transport.dead_letter(await one(broker.transport, queue), "spoilt")
    fewer = await broker.transport.depth(queue)
    held = await one(broker.transport, queue)
    holding = await broker.transport.depth(queue)

    assert (full.ready, full.dead or 0) == (3, 0)
    assert (fewer.ready, fewer.dead) == (2, 1)
    assert holding.held is None or (holding.ready, holding.held) == (1, 1)
    await broker.transport.complete(held)


# What goes wrong


async def test_a_cancelled_receive_loses_nothing(broker: Broker) -> None:
    queue = await broker.new_queue()
    other = await broker.another()
    batch = [message() for _ in range(6)]
    came: set[str] = set()

    for it in batch:
        waiting = asyncio.create_task(other.receive(queue, at_most=3, wait=PATIENCE, hold=SHORT))
        await asyncio.sleep(0.02)
        await broker.transport.send(queue, [it])
        waiting.cancel()  # in the middle of it, or right before the answer
        try:
            found = await waiting
        except asyncio.CancelledError:
            continue
        came |= {it.id for it in found}
        await asyncio.gather(*map(other.complete, found))

    found = await take(broker.transport, queue, len(batch) - len(came))
    assert came | {it.id for it in found} == {it.id for it in batch}
    await asyncio.gather(*map(broker.transport.complete, found))


async def test_a_message_that_is_too_large_is_refused_before_anything_is_sent(broker: Broker) -> None:
    queue = await broker.new_queue()
    most = broker.transport.abilities.largest_body

    with pytest.raises(TransportRefusedError, match=f"at most {most:,} fit"):
        await broker.transport.send(queue, [message(), message("ü" * (most // 2 + 1))])

    await nothing(broker.transport, queue, AT_ONCE)


async def test_the_largest_message_fits(broker: Broker) -> None:
    queue = await broker.new_queue()
    body = '{"a": "' + "<" * (broker.transport.abilities.largest_body - 9) + '"}'

    await broker.transport.send(
        queue, [message(body, subject="WORK_ITEM", properties={"runId": new_id(), "epoch": 1})]
    )

    found = await one(broker.transport, queue)
    assert found.body == body
    await broker.transport.complete(found)


@pytest.mark.parametrize(
    "fields",
    [
        {"id": ""},
        {"id": "x" * 129},
        {"id": "a\nb"},
        {"body": "a\0b"},
        {"body": "half a character: \ud83d"},
        {"properties": {"weight": 1.5}},
        {"properties": {"name": "a\0b"}},
    ],
    ids=str,
)
async def test_what_no_broker_takes_is_refused_with_a_sentence(
    broker: Broker, fields: dict[str, object]
) -> None:
    queue = await broker.new_queue()

    with pytest.raises(TransportRefusedError):
        await broker.transport.send(queue, [message(**fields)])  # type: ignore[arg-type]


async def test_a_time_without_a_zone_is_refused(broker: Broker) -> None:
    queue = await broker.new_queue()

    with pytest.raises(ConfigurationError, match="no time zone"):
        await broker.transport.send(queue, [message(not_before=datetime(2031, 1, 1))])  # noqa: DTZ001


async def test_an_unknown_queue_is_refused_by_its_name(broker: Broker) -> None:
    asked: list[Callable[[], Awaitable[object]]] = [
        lambda: broker.transport.send("nobody-made-it", [message()]),
        lambda: broker.transport.receive("nobody-made-it", at_most=1, wait=AT_ONCE, hold=HOLD),
        lambda: broker.transport.depth("nobody-made-it"),
    ]
    for ask in asked:
        with pytest.raises(TransportRefusedError, match="nobody-made-it"):
            await ask()


async def test_a_queue_may_be_made_twice(broker: Broker) -> None:
    queue = await broker.new_queue()
    await broker.transport.send(queue, [message()])

    await broker.transport.ensure(queue)

    await broker.transport.complete(await one(broker.transport, queue))


async def test_a_broker_goes_away_and_comes_back(broker: Broker) -> None:
    if not broker.can_vanish:  # SQLite is a file: it is there or we are not
        return
    queue = await broker.new_queue()
    kept = message()
    await broker.transport.send(queue, [kept])

    await broker.vanish()
    try:
        with pytest.raises(TransportUnavailableError):
            await broker.transport.send(queue, [message()])
        with pytest.raises(TransportUnavailableError):
            await broker.transport.receive(queue, at_most=1, wait=AT_ONCE, hold=HOLD)
    finally:
        await broker.come_back()

    found = await eventually_one(broker.transport, queue)
    assert found.id == kept.id
    await broker.transport.complete(found)


async def eventually_one(transport: Transport, queue: str) -> Delivery:
    """Links may need a moment to be made again."""
    for _ in range(20):
        try:
            return await one(transport, queue)
        except TransportUnavailableError:
            await asyncio.sleep(0.2)
    raise AssertionError("the transport did not find its broker again")
