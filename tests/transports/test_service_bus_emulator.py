"""The emulator of Service Bus answers Azure's own SDK: what our transport relies on, and what it does not use."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import gc
import json
import subprocess
import sys
import time
import warnings
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from azure.core.credentials import AccessToken
from azure.servicebus import ServiceBusClient as PlainClient
from azure.servicebus import ServiceBusMessage, ServiceBusReceiveMode, ServiceBusSubQueue
from azure.servicebus.aio import ServiceBusClient, ServiceBusReceiver, ServiceBusSender
from azure.servicebus.exceptions import (
    MessageAlreadySettled,
    MessageLockLostError,
    ServiceBusAuthenticationError,
    ServiceBusError,
)

from stepfast.clock import new_id
from stepfast_emulators.service_bus import Moment, ServiceBusEmulator, busy, refuse

ATTEMPTS: dict[str, Any] = {"retry_total": 2, "retry_backoff_factor": 0.05}


@pytest.fixture(scope="module")
def emulator() -> Iterator[ServiceBusEmulator]:
    with ServiceBusEmulator() as found:
        yield found


@asynccontextmanager
async def talking(
    emulator: ServiceBusEmulator, queue: str, **options: Any
) -> AsyncIterator[tuple[ServiceBusSender, ServiceBusReceiver]]:
    """A sender and a receiver of the SDK, opened and closed side by side: each takes half a second."""
    async with ServiceBusClient.from_connection_string(emulator.connection_string, **ATTEMPTS) as client:
        sender, receiver = client.get_queue_sender(queue), client.get_queue_receiver(queue, **options)
        await asyncio.gather(sender.__aenter__(), receiver.__aenter__())
        try:
            yield sender, receiver
        finally:
            await asyncio.gather(sender.close(), receiver.close())
            forget_broken_connections()


def forget_broken_connections() -> None:
    """The SDK does not close the socket of a connection that was cut; now, and not in the middle of another test."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


def new_queue(emulator: ServiceBusEmulator, **settings: Any) -> str:
    name = f"q-{new_id()}"
    emulator.add_queue(name, **settings)
    return name


async def test_a_message_arrives_with_everything_that_was_put_on_it(emulator: ServiceBusEmulator) -> None:
    queue = new_queue(emulator, lock="2m")
    async with talking(emulator, queue) as (sender, receiver):
        properties: dict[Any, Any] = {"runId": "r", "offset": 30, "f": 1.5, "yes": True}
        await sender.send_messages(
            ServiceBusMessage(
                "text",
                message_id="r:p:0",
                subject="WORK_ITEM",
                correlation_id="t",
                application_properties=properties,
            )
        )

        [found] = await receiver.receive_messages(max_wait_time=5)

        assert (str(found), found.message_id, found.subject, found.correlation_id) == (
            "text",
            "r:p:0",
            "WORK_ITEM",
            "t",
        )
        expected = {b"runId": b"r", b"offset": 30, b"f": 1.5, b"yes": True}
        assert found.application_properties == expected  # bytes: so the SDK gives them
        assert (found.delivery_count, found.sequence_number) == (0, 1)
        assert found.locked_until_utc is not None
        held = found.locked_until_utc - datetime.now(UTC)
        assert timedelta(minutes=1, seconds=50) < held <= timedelta(minutes=2)
        await receiver.complete_message(found)
        with pytest.raises(MessageAlreadySettled):
            await receiver.complete_message(found)
    assert emulator.content(queue).counted["completed"] == 1


async def test_large_messages_and_batches_travel_in_several_frames(emulator: ServiceBusEmulator) -> None:
    queue = new_queue(emulator)
    async with talking(emulator, queue, prefetch_count=50) as (sender, receiver):
        batch = await sender.create_message_batch()
        for n in range(100):
            batch.add_message(ServiceBusMessage(f"m{n}"))
        await sender.send_messages(batch)
        await sender.send_messages(ServiceBusMessage(b"z" * 200_000))
        with pytest.raises(ServiceBusError):
            await sender.send_messages(ServiceBusMessage(b"z" * 300_000))

        found: list[Any] = []
        while len(found) < 101:
            page = await receiver.receive_messages(101 - len(found), max_wait_time=5)
            await asyncio.gather(*(receiver.complete_message(it) for it in page))
            found += page

        assert [str(it) for it in found[:100]] == [f"m{n}" for n in range(100)]
        assert len(b"".join(found[-1].body)) == 200_000


async def test_a_lock_ends_by_the_brokers_clock_whatever_the_client_believes(
    emulator: ServiceBusEmulator,
) -> None:
    queue = new_queue(emulator, lock="5m")
    async with talking(emulator, queue) as (sender, receiver):
        await sender.send_messages(ServiceBusMessage("x"))
        [late] = await receiver.receive_messages(max_wait_time=5)

        emulator.advance("4m")
        await receiver.renew_message_lock(late)
        emulator.advance("4m")
        held = emulator.content(queue).held
        emulator.advance("2m")

        assert held == 1
        with pytest.raises(MessageLockLostError):
            await receiver.complete_message(late)
        with pytest.raises(MessageLockLostError):
            await receiver.renew_message_lock(late)
        [again] = await receiver.receive_messages(max_wait_time=5)
        assert again.delivery_count == 1
        await receiver.complete_message(again)


async def test_messages_are_scheduled_deferred_peeked_and_cancelled(emulator: ServiceBusEmulator) -> None:
    queue = new_queue(emulator)
    async with talking(emulator, queue) as (sender, receiver):
        due = emulator.now() + timedelta(hours=1)
        numbers = await sender.schedule_messages(
            [ServiceBusMessage("kept"), ServiceBusMessage("dropped")], due
        )
        await sender.cancel_scheduled_messages(numbers[1])
        with pytest.raises(ServiceBusError):
            await sender.cancel_scheduled_messages(numbers[1])
        peeked = await receiver.peek_messages(9)
        assert await receiver.receive_messages(max_wait_time=0.2) == []

        emulator.advance("1h")
        [found] = await receiver.receive_messages(max_wait_time=10)
        await receiver.defer_message(found)
        assert found.sequence_number is not None
        [deferred] = await receiver.receive_deferred_messages(found.sequence_number)
        await receiver.complete_message(deferred)  # over $management: it came over no link

        assert [str(it) for it in (*peeked, found, deferred)] == ["kept"] * 3
    content = emulator.content(queue)
    assert (content.ready, content.held, content.deferred, content.scheduled) == (0, 0, 0, 0)


async def test_what_a_receiver_has_not_seen_is_given_back_uncounted_when_it_closes(
    emulator: ServiceBusEmulator,
) -> None:
    queue = new_queue(emulator)
    async with talking(emulator, queue, prefetch_count=5) as (sender, receiver):
        await sender.send_messages([ServiceBusMessage(letter) for letter in "abcdef"])
        [seen] = await receiver.receive_messages(1, max_wait_time=5)
        await receiver.complete_message(seen)

    content = emulator.content(queue)
    assert (content.ready, content.held) == (5, 0)
    assert content.counted["lock-expired"] == content.counted["abandoned"] == 0


async def test_who_receives_and_deletes_holds_nothing(emulator: ServiceBusEmulator) -> None:
    queue = new_queue(emulator)
    mode = ServiceBusReceiveMode.RECEIVE_AND_DELETE
    async with talking(emulator, queue, receive_mode=mode) as (sender, receiver):
        await sender.send_messages([ServiceBusMessage("a"), ServiceBusMessage("b")])

        found = await receiver.receive_messages(2, max_wait_time=5)

        assert [str(it) for it in found] == ["a", "b"]
    assert (emulator.content(queue).ready, emulator.content(queue).held) == (0, 0)


async def test_the_end_of_a_connection_ends_no_lock(emulator: ServiceBusEmulator) -> None:
    queue = new_queue(emulator)
    async with talking(emulator, queue) as (sender, receiver):
        await sender.send_messages(ServiceBusMessage("x"))
        [found] = await receiver.receive_messages(max_wait_time=5)

        assert emulator.cut_connections() >= 2
        held = emulator.content(queue).held

        assert held == 1
        await receiver.complete_message(found)  # over a new connection
    assert emulator.content(queue).counted["completed"] == 1


async def test_a_send_whose_acknowledgement_is_lost_is_sent_again_and_swallowed(
    emulator: ServiceBusEmulator,
) -> None:
    queue = new_queue(emulator, duplicates="10m")
    emulator.fail(Moment.MESSAGE_STORED, queue=queue)
    emulator.fail(Moment.MESSAGE_ARRIVED, busy, queue=queue)

    async with talking(emulator, queue) as (sender, _):
        await sender.send_messages(ServiceBusMessage("once", message_id="k1"))

    content = emulator.content(queue)
    assert (content.ready, content.counted["duplicate"], emulator.faults_left()) == (1, 1, 0)


async def test_a_settlement_that_is_cut_off_is_made_over_another_link(emulator: ServiceBusEmulator) -> None:
    queue = new_queue(emulator)
    async with talking(emulator, queue) as (sender, receiver):
        await sender.send_messages([ServiceBusMessage("lost"), ServiceBusMessage("unconfirmed")])
        first, second = await receiver.receive_messages(2, max_wait_time=5)

        emulator.fail(Moment.SETTLEMENT_DONE, lambda: refuse("amqp:internal-error"), queue=queue)
        with pytest.raises(ServiceBusError):
            await receiver.complete_message(second)
        emulator.fail(Moment.SETTLEMENT_ARRIVED, queue=queue)
        await receiver.complete_message(first)

    assert emulator.content(queue).counted["completed"] == 2


async def test_a_wrong_key_and_an_unknown_queue_are_refused_with_their_reason(
    emulator: ServiceBusEmulator,
) -> None:
    queue = new_queue(emulator)
    wrong = emulator.connection_string.replace("SAS_KEY_VALUE", "other")

    for connection_string, name, problem in (
        (wrong, queue, "InvalidSignature"),
        (emulator.connection_string, "nobody-made-it", "could not be found"),
    ):
        async with ServiceBusClient.from_connection_string(connection_string, retry_total=0) as client:
            with pytest.raises(ServiceBusAuthenticationError) as refused:
                await client.get_queue_sender(name).__aenter__()
        assert problem in str(refused.value.inner_exception)


class Identity:
    """A credential that has a token already."""

    def __init__(self, audience: str) -> None:
        claims = json.dumps({"aud": audience, "exp": int(time.time()) + 600}).encode()
        self.token = f"e30.{base64.urlsafe_b64encode(claims).decode().rstrip('=')}.c2ln"

    async def get_token(self, *_: str, **__: Any) -> AccessToken:
        return AccessToken(self.token, int(time.time()) + 600)

    async def close(self) -> None:
        pass


async def test_an_identity_is_let_in_by_its_token(emulator: ServiceBusEmulator) -> None:
    queue, host = new_queue(emulator), f"127.0.0.1:{emulator.port}"

    for audience, refused in (("https://servicebus.azure.net", False), ("https://storage.azure.com", True)):
        client = ServiceBusClient(host, Identity(audience), use_tls=False, retry_total=0)  # type: ignore[arg-type]
        async with client:
            expected = pytest.raises(ServiceBusAuthenticationError) if refused else contextlib.nullcontext()
            with expected:
                async with client.get_queue_sender(queue) as sender:
                    await sender.send_messages(ServiceBusMessage("x"))

    assert emulator.content(queue).ready == 1


def test_the_plain_client_works_too(emulator: ServiceBusEmulator) -> None:
    queue = new_queue(emulator)
    with PlainClient.from_connection_string(emulator.connection_string) as client:
        with client.get_queue_sender(queue) as sender:
            sender.send_messages(ServiceBusMessage("plain"))
        with client.get_queue_receiver(queue) as receiver:
            [found] = receiver.receive_messages(max_wait_time=5)
            receiver.dead_letter_message(found, reason="Spoilt", error_description="for a test")
        with client.get_queue_receiver(queue, sub_queue=ServiceBusSubQueue.DEAD_LETTER) as receiver:
            [dead] = receiver.receive_messages(max_wait_time=5)
            assert (dead.dead_letter_reason, dead.dead_letter_error_description) == ("Spoilt", "for a test")
            receiver.complete_message(dead)
    assert emulator.content(queue).dead == 0


async def test_a_peer_that_does_not_speak_amqp_ends_its_own_connection_only(
    emulator: ServiceBusEmulator,
) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", emulator.port)
    writer.write(b"GET / HTTP/1.1\r\n\r\n")

    said = await asyncio.wait_for(reader.read(), 5)

    assert b"amqp:decode-error" in said
    writer.close()
    await writer.wait_closed()
    assert emulator.now() > datetime(2026, 1, 1, tzinfo=UTC)


def test_it_runs_as_a_process_that_prints_its_connection_string() -> None:
    program = [
        sys.executable,
        "-m",
        "stepfast_emulators.service_bus",
        "--queue",
        "work,lock=2m,duplicates=10m",
    ]
    with subprocess.Popen(program, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        connection_string = process.stdout.readline().strip()
        with (
            PlainClient.from_connection_string(connection_string) as client,
            client.get_queue_sender("work") as sender,
        ):
            sender.send_messages(ServiceBusMessage("x"))
        process.terminate()
        assert process.wait(10) == 0


async def test_a_session_is_refused_in_words(emulator: ServiceBusEmulator) -> None:
    queue = new_queue(emulator)
    async with ServiceBusClient.from_connection_string(
        emulator.connection_string, **ATTEMPTS | {"retry_total": 0}
    ) as client:
        receiver = client.get_queue_receiver(queue, session_id="s-1")
        with pytest.raises(ServiceBusError, match="the emulator knows none"):
            await receiver.receive_messages(max_wait_time=1)
        await receiver.close()
