"""Traps of Service Bus, each with a test. What all transports promise is in test_conformance.py."""

from __future__ import annotations

import asyncio
import base64
import json
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from azure.core.credentials import AccessToken
from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient
from azure.servicebus.amqp import AmqpAnnotatedMessage

from stepfast.clock import new_id
from stepfast.errors import ConfigurationError
from stepfast.transports.contract import (
    Delivery,
    DeliveryLostError,
    Outgoing,
    Transport,
    TransportRefusedError,
    TransportUnavailableError,
)
from stepfast.transports.open import TransportSettings, open_transport
from stepfast.transports.service_bus import ServiceBusTransport
from stepfast_emulators.service_bus import Moment, ServiceBusEmulator, busy

HOLD = timedelta(minutes=2)  # the queue decides
AT_ONCE = timedelta(0)
A_MOMENT = timedelta(seconds=0.3)
PATIENCE = timedelta(seconds=20)


class Bus:
    """An emulator, and users of it."""

    def __init__(self, emulator: ServiceBusEmulator, transport: ServiceBusTransport) -> None:
        self.emulator = emulator
        self.transport = transport

    def another(self) -> ServiceBusTransport:
        return ServiceBusTransport(connection_string=self.emulator.connection_string)

    def new_queue(self, **settings: Any) -> str:
        name = f"q-{new_id()}"
        self.emulator.add_queue(name, **{"lock": "2m", "max_deliveries": 5, "duplicates": "10m", **settings})
        return name


@pytest.fixture(scope="module")
def bus(runner: asyncio.Runner) -> Iterator[Bus]:
    with ServiceBusEmulator() as emulator:
        transport = ServiceBusTransport(connection_string=emulator.connection_string)
        runner.run(transport.open())
        try:
            yield Bus(emulator, transport)
        finally:
            runner.run(transport.close())


def message(name: str = "", **fields: Any) -> Outgoing:
    return Outgoing(**{"id": name or new_id(), "body": "{}", **fields})


async def one(transport: Transport, queue: str) -> Delivery:
    found = await transport.receive(queue, at_most=1, wait=PATIENCE, hold=HOLD)
    assert len(found) == 1
    return found[0]


# Ids


async def test_a_dead_letter_sent_again_under_its_old_id_vanishes_and_under_a_new_one_comes(bus: Bus) -> None:
    queue = bus.new_queue()
    await bus.transport.send(queue, [message("task-1")])
    await bus.transport.dead_letter(await one(bus.transport, queue), "Spoilt")

    await bus.transport.send(queue, [message("task-1")])
    swallowed = bus.emulator.content(queue)
    await bus.transport.send(queue, [message("task-1:retry-1")])

    assert (swallowed.ready, swallowed.counted["duplicate"]) == (0, 1)
    again = await one(bus.transport, queue)
    assert again.id == "task-1:retry-1"
    await bus.transport.complete(again)


async def test_an_id_may_be_used_again_after_the_window(bus: Bus) -> None:
    queue = bus.new_queue(duplicates="10m")
    await bus.transport.send(queue, [message("tick")])

    bus.emulator.advance("10m")
    await bus.transport.send(queue, [message("tick")])

    assert bus.emulator.content(queue).ready == 2


# Locks


async def test_a_lock_that_the_broker_ended_is_lost_though_our_clock_says_otherwise(bus: Bus) -> None:
    queue = bus.new_queue(lock="2m")
    await bus.transport.send(queue, [message()])
    held = await one(bus.transport, queue)

    bus.emulator.advance("2m")

    assert held.held_until > datetime.now(UTC)
    with pytest.raises(DeliveryLostError):
        await bus.transport.renew(held, HOLD)
    with pytest.raises(DeliveryLostError):
        await bus.transport.complete(held)
    again = await one(bus.transport, queue)
    assert (again.id, again.attempt) == (held.id, 2)
    await bus.transport.complete(again)


async def test_a_message_released_for_later_is_held_for_longer_than_one_lock() -> None:
    with ServiceBusEmulator() as emulator:  # whose clock nobody has moved
        emulator.add_queue("work", lock="2s")
        async with ServiceBusTransport(connection_string=emulator.connection_string) as transport:
            await transport.send("work", [message()])
            held = await one(transport, "work")
            began = time.monotonic()

            await transport.release(held, timedelta(seconds=3.5))

            again = await one(transport, "work")
            assert time.monotonic() - began > 3.4
            assert again.attempt == 2  # no lock ran out meanwhile
            await transport.complete(again)


async def test_closing_does_not_wait_for_what_is_released_later(bus: Bus) -> None:
    queue = bus.new_queue()
    await bus.transport.send(queue, [message()])
    async with bus.another() as closing:
        await closing.release(await one(closing, queue), timedelta(hours=1))

    again = await one(bus.transport, queue)
    assert again.attempt == 2
    await bus.transport.complete(again)


async def test_a_search_through_dead_letters_holds_what_it_passes(bus: Bus) -> None:
    """Messages that are given back stand in front again: a search gives back only when it has found its message."""
    queue = bus.new_queue()
    await bus.transport.send(queue, [message(f"m{n}") for n in range(4)])
    for _ in range(4):
        await bus.transport.dead_letter(await one(bus.transport, queue), "Spoilt")

    first = await bus.transport.dead_letters(queue, at_most=1, hold=HOLD)
    await bus.transport.release(first[0])
    same = await bus.transport.dead_letters(queue, at_most=1, hold=HOLD)
    passed = await bus.transport.dead_letters(queue, at_most=2, hold=HOLD)
    last = await bus.transport.dead_letters(queue, at_most=2, hold=HOLD)

    assert [it.id for it in (*first, *same, *passed, *last)] == ["m0", "m0", "m1", "m2", "m3"]
    for it in (*same, *passed, *last):
        await bus.transport.complete(it)
    assert bus.emulator.content(queue).dead == 0


# Links


async def test_a_link_that_opens_slowly_is_not_taken_for_an_empty_queue(bus: Bus) -> None:
    queue = bus.new_queue()
    await bus.transport.send(queue, [message()])
    bus.emulator.slow_links("1s")
    try:
        async with bus.another() as other:
            found = await other.receive(queue, at_most=1, wait=timedelta(seconds=0.2), hold=HOLD)
            assert len(found) == 1
            await other.complete(found[0])
    finally:
        bus.emulator.slow_links(0)


async def test_a_receiver_that_does_not_look_takes_no_messages(bus: Bus) -> None:
    """The broker would send it what it once asked for, and those messages would wait until the SDK gives them back."""
    queue = bus.new_queue()
    async with bus.another() as idle:
        assert await idle.receive(queue, at_most=32, wait=A_MOMENT, hold=HOLD) == []

        await bus.transport.send(queue, [message() for _ in range(3)])
        found: list[Delivery] = []
        began = time.monotonic()
        while len(found) < 3:
            found += await bus.transport.receive(queue, at_most=3, wait=A_MOMENT, hold=HOLD)

        assert time.monotonic() - began < 3  # opening a link included
        assert [it.attempt for it in found] == [1, 1, 1]
        await asyncio.gather(*map(bus.transport.complete, found))


async def test_links_that_were_cut_while_nobody_spoke_are_made_again_without_an_error(bus: Bus) -> None:
    queue = bus.new_queue()
    await bus.transport.send(queue, [message("a"), message("b")])
    held = await one(bus.transport, queue)

    bus.emulator.cut_connections()

    await bus.transport.send(queue, [message("c")])
    rest = await bus.transport.receive(queue, at_most=2, wait=PATIENCE, hold=HOLD)
    await bus.transport.complete(held)
    while len(rest) < 2:
        rest += await bus.transport.receive(queue, at_most=2, wait=PATIENCE, hold=HOLD)
    await asyncio.gather(*map(bus.transport.complete, rest))
    content = bus.emulator.content(queue)
    assert (content.ready, content.held, content.counted["completed"]) == (0, 0, 3)


async def test_whoever_is_cancelled_in_the_middle_of_a_word_breaks_no_link(bus: Bus) -> None:
    """A frame that is half read would leave its rest to the next reader."""
    queue = bus.new_queue()
    for n in range(10):
        sending = asyncio.create_task(bus.transport.send(queue, [message(f"m{n}")]))
        await asyncio.sleep(0.001 * n)
        sending.cancel()
        await asyncio.wait([sending])
    await bus.transport.send(queue, [message("last")])
    held = [await one(bus.transport, queue) for _ in range(bus.emulator.content(queue).ready)]
    assert held[-1].id == "last"

    for it in held:
        ending = asyncio.create_task(bus.transport.complete(it))
        await asyncio.sleep(0)
        ending.cancel()
        await asyncio.wait([ending])

    assert await bus.transport.receive(queue, at_most=1, wait=AT_ONCE, hold=HOLD) == []
    assert bus.emulator.content(queue).counted["completed"] == len(held)


async def test_what_was_lost_is_no_longer_counted_as_ours(bus: Bus) -> None:
    queue = bus.new_queue()
    await bus.transport.send(queue, [message()])
    lost = await one(bus.transport, queue)
    held = await bus.transport.depth(queue)
    bus.emulator.expire_locks(queue)

    with pytest.raises(DeliveryLostError):
        await bus.transport.complete(lost)

    assert (held.ready, (await bus.transport.depth(queue)).ready) == (0, 1)


# Faults


async def test_a_lost_acknowledgement_does_not_double_a_message(bus: Bus) -> None:
    queue = bus.new_queue()
    await bus.transport.send(queue, [message()])  # the link is kept
    bus.emulator.fail(Moment.MESSAGE_STORED, queue=queue)

    await bus.transport.send(queue, [message("once"), message("twice")])

    content = bus.emulator.content(queue)
    assert (content.ready, content.counted["duplicate"], bus.emulator.faults_left()) == (3, 2, 0)


async def test_a_busy_broker_is_unavailable_and_takes_the_same_ids_later(bus: Bus) -> None:
    queue = bus.new_queue()
    bus.emulator.fail(Moment.MESSAGE_ARRIVED, busy, times=2, queue=queue)
    sent = [message("once")]

    for _ in range(2):
        with pytest.raises(TransportUnavailableError, match="throttled"):
            await bus.transport.send(queue, sent)
    await bus.transport.send(queue, sent)

    assert bus.emulator.content(queue).ready == 1


async def test_a_settlement_that_is_lost_is_made_over_another_link(bus: Bus) -> None:
    queue = bus.new_queue()
    await bus.transport.send(queue, [message()])
    held = await one(bus.transport, queue)
    bus.emulator.fail(Moment.SETTLEMENT_ARRIVED, queue=queue)

    await bus.transport.complete(held)

    content = bus.emulator.content(queue)
    assert (content.counted["completed"], content.held, bus.emulator.faults_left()) == (1, 0, 0)


async def test_a_settlement_whose_confirmation_is_lost_is_reported_as_lost(bus: Bus) -> None:
    """It was done, but that cannot be known. The caller goes on, since the database decides."""
    queue = bus.new_queue()
    await bus.transport.send(queue, [message()])
    held = await one(bus.transport, queue)
    bus.emulator.fail(Moment.SETTLEMENT_DONE, queue=queue)

    with pytest.raises(DeliveryLostError):
        await bus.transport.complete(held)

    assert bus.emulator.content(queue).counted["completed"] == 1


async def test_a_renewal_that_is_lost_is_asked_for_again(bus: Bus) -> None:
    queue = bus.new_queue()
    await bus.transport.send(queue, [message()])
    held = await one(bus.transport, queue)
    bus.emulator.fail(Moment.REQUEST_ARRIVED, queue=queue)

    renewed = await bus.transport.renew(held, HOLD)

    await bus.transport.complete(renewed)
    assert bus.emulator.content(queue).counted["renewed"] == 1


async def test_a_full_queue_is_unavailable(bus: Bus) -> None:
    queue = bus.new_queue(capacity=1)
    await bus.transport.send(queue, [message()])

    with pytest.raises(TransportUnavailableError, match="quota"):
        await bus.transport.send(queue, [message()])


# What others send


async def test_every_kind_of_body_is_read_as_text(bus: Bus) -> None:
    queue = bus.new_queue()
    bodies: list[tuple[Any, str]] = [
        (AmqpAnnotatedMessage(value_body="text"), "text"),
        (
            AmqpAnnotatedMessage(value_body={"task_id": "t", "n": [1, None, True]}),
            '{"task_id": "t", "n": [1, null, true]}',
        ),
        (AmqpAnnotatedMessage(sequence_body=[[1, "a"], [2, "b"]]), '[[1, "a"], [2, "b"]]'),
        (AmqpAnnotatedMessage(data_body=[b'{"a"', b": 1}"]), '{"a": 1}'),
        (ServiceBusMessage('{"a": "é"}'.encode("utf-16")), '{"a": "é"}'),
        (ServiceBusMessage('{"a": "é"}'.encode("utf-16-le")), '{"a": "é"}'),
        (ServiceBusMessage(b"\xff\xfd not UTF-8"), "\ufffd\ufffd not UTF-8"),
    ]
    async with (
        ServiceBusClient.from_connection_string(bus.emulator.connection_string) as client,
        client.get_queue_sender(queue) as sender,
    ):
        for body, _ in bodies:
            await sender.send_messages(body)

    found = [await one(bus.transport, queue) for _ in bodies]

    assert [it.body for it in found] == [text for _, text in bodies]
    assert len({it.id for it in found}) == len(bodies)  # the sender gave them none: the broker did
    await asyncio.gather(*map(bus.transport.complete, found))


async def test_numbers_of_64_bits_arrive_and_larger_ones_are_refused(bus: Bus) -> None:
    queue = bus.new_queue()
    numbers = {"small": -1, "offset": 2**40, "least": -(2**63)}

    await bus.transport.send(queue, [message(properties=numbers)])
    found = await one(bus.transport, queue)
    await bus.transport.complete(found)

    assert dict(found.properties) == numbers
    with pytest.raises(TransportRefusedError, match="more than 64 bits"):
        await bus.transport.send(queue, [message(properties={"n": 2**63})])


# Who may come in


async def test_a_wrong_key_is_refused_with_the_reason_and_without_the_key(bus: Bus) -> None:
    queue = bus.new_queue()
    wrong = bus.emulator.connection_string.replace("SAS_KEY_VALUE", "c2VjcmV0LWtleQ==")

    async with ServiceBusTransport(connection_string=wrong) as transport:
        with pytest.raises(TransportRefusedError, match="InvalidSignature") as refused:
            await transport.send(queue, [message()])

    assert "c2VjcmV0LWtleQ" not in str(refused.value)


class Identity:
    """A credential that has a token already."""

    async def get_token(self, *_: str, **__: Any) -> AccessToken:
        end = int(time.time()) + 600
        claims = json.dumps({"aud": "https://servicebus.azure.net", "exp": end}).encode()
        return AccessToken(f"e30.{base64.urlsafe_b64encode(claims).decode().rstrip('=')}.c2ln", end)

    async def close(self) -> None:
        pass


async def test_an_identity_is_let_in(bus: Bus) -> None:
    queue = bus.new_queue()

    namespace = f"127.0.0.1:{bus.emulator.port}"
    async with ServiceBusTransport(namespace=namespace, credential=Identity()) as transport:  # type: ignore[arg-type]
        await transport.ensure(queue)
        await transport.send(queue, [message()])

    assert bus.emulator.content(queue).ready == 1


async def test_it_is_opened_by_its_name(bus: Bus) -> None:
    queue = bus.new_queue()
    settings = TransportSettings(service_bus_connection_string=bus.emulator.connection_string)

    async with open_transport("service-bus://", settings) as transport:
        await transport.send(queue, [message()])

    assert (transport.name, bus.emulator.content(queue).ready) == ("service-bus", 1)


def test_a_connection_string_that_cannot_be_read_is_named_without_its_key() -> None:
    async def use() -> None:
        async with ServiceBusTransport(connection_string="Endpoint=nowhere;SharedAccessKey=c2VjcmV0"):
            pass

    with pytest.raises(ConfigurationError, match="connection string") as refused:
        asyncio.run(use())
    assert "c2VjcmV0" not in str(refused.value)


def test_one_of_connection_string_and_namespace_is_needed() -> None:
    for given in ({}, {"connection_string": "a", "namespace": "b"}):
        with pytest.raises(ConfigurationError, match="connection string, or a namespace"):
            ServiceBusTransport(**given)  # type: ignore[arg-type]


def test_without_the_sdk_the_cure_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "stepfast.transports.service_bus")
    monkeypatch.setitem(sys.modules, "azure.servicebus.exceptions", None)

    with pytest.raises(ConfigurationError, match=r"stepfast\[azure\]"):
        open_transport("service-bus://here")
