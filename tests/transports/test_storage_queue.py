"""Storage Queue beyond conformance: its receipts, its texts, its missing dead letters. With the real SDK on Azurite."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from azure.core.exceptions import ServiceRequestError
from azure.storage.queue import AccountSasPermissions, ResourceTypes, generate_account_sas
from azure.storage.queue.aio import QueueClient, QueueServiceClient

from stepfast.clock import new_id
from stepfast.errors import ConfigurationError
from stepfast.tasks import held_messages as holding
from stepfast.testing.azurite import ACCOUNT, KEY, Azurite, AzuriteMissingError, find_azurite
from stepfast.transports.contract import (
    TOO_OFTEN,
    Delivery,
    DeliveryLostError,
    Outgoing,
    TransportRefusedError,
    TransportUnavailableError,
)
from stepfast.transports.storage_queue import LARGEST_TEXT, POISON, StorageQueueTransport

if TYPE_CHECKING:
    from pathlib import Path

HOLD = timedelta(seconds=30)
SHORT = timedelta(seconds=1)
AT_ONCE = timedelta(0)


class Account:
    """A transport, and the bare SDK beside it, for what strangers do."""

    def __init__(self, azurite: Azurite, transport: StorageQueueTransport, bare: QueueServiceClient) -> None:
        self.azurite = azurite
        self.transport = transport
        self.bare = bare

    async def queue(self) -> str:
        name = f"q{new_id()[-12:]}"
        await self.transport.ensure(name)
        return name

    async def strangers_text(self, queue: str, text: str) -> None:
        await self.bare.get_queue_client(queue).send_message(text)

    async def one(self, queue: str, hold: timedelta = HOLD) -> Delivery:
        found = await self.transport.receive(queue, at_most=1, wait=timedelta(seconds=10), hold=hold)
        return found[0]

    async def texts(self, queue: str) -> list[str]:
        peeked = await self.bare.get_queue_client(queue).peek_messages(32)
        return [it.content for it in peeked]


@pytest.fixture(scope="module")
def account(azurite: Azurite, runner: asyncio.Runner) -> Iterator[Account]:
    @asynccontextmanager
    async def opened() -> AsyncIterator[Account]:
        text = azurite.connection_string
        async with (
            StorageQueueTransport(connection_string=text) as transport,
            QueueServiceClient.from_connection_string(text) as bare,
        ):
            yield Account(azurite, transport, bare)

    context = opened()
    found = runner.run(context.__aenter__())
    yield found
    runner.run(context.__aexit__(None, None, None))


def message(body: str = "{}", **fields: Any) -> Outgoing:
    return Outgoing(id=new_id(), body=body, **fields)


# Receipts


async def test_a_renewal_makes_a_new_receipt_and_the_old_one_is_worth_nothing(account: Account) -> None:
    queue = await account.queue()
    await account.transport.send(queue, [message()])
    first = await account.one(queue)

    renewed = await account.transport.renew(first, HOLD)

    with pytest.raises(DeliveryLostError):
        await account.transport.complete(first)
    await account.transport.complete(renewed)


async def test_a_renewal_leaves_the_text_as_it_is_and_a_removal_is_done_once(account: Account) -> None:
    queue = await account.queue()
    await account.transport.send(queue, [message('{"n": 1}')])
    renewed = await account.transport.renew(await account.one(queue), HOLD)

    await account.transport.release(renewed)

    again = await account.one(queue)
    assert (again.body, again.attempt) == ('{"n": 1}', 2)
    await account.transport.complete(again)
    with pytest.raises(DeliveryLostError):
        await account.transport.complete(again)


async def test_a_receipt_fences_only_against_a_newer_receive(account: Account) -> None:
    """Not promised by the contract, and so not relied upon: here the late holder gets through."""
    queue = await account.queue()
    await account.transport.send(queue, [message()])
    late = await account.one(queue, timedelta(seconds=1))
    await asyncio.sleep(1.1)

    await account.transport.complete(await account.transport.renew(late, HOLD))


async def test_of_twenty_receivers_one_gets_the_message(account: Account) -> None:
    queue = await account.queue()
    await account.transport.send(queue, [message()])

    found = await asyncio.gather(
        *(account.transport.receive(queue, at_most=1, wait=AT_ONCE, hold=HOLD) for _ in range(20))
    )

    assert sum(map(len, found)) == 1


async def test_more_than_a_page_may_be_asked_for_and_a_page_comes(account: Account) -> None:
    queue = await account.queue()
    await account.transport.send(queue, [message() for _ in range(40)])

    found = await account.transport.receive(queue, at_most=500, wait=AT_ONCE, hold=HOLD)

    assert len(found) == 32


async def test_a_hold_of_months_is_cut_to_what_the_service_allows(account: Account) -> None:
    queue = await account.queue()
    await account.transport.send(queue, [message()])

    found = await account.one(queue, timedelta(days=90))

    assert found.held_until < datetime.now(UTC) + timedelta(days=8)
    await account.transport.complete(found)


# Texts of strangers


@pytest.mark.parametrize(
    ("text", "body"),
    [
        ('{"task_id": "t-1"}', '{"task_id": "t-1"}'),
        (base64.b64encode(b'{"task_id": "\xc3\xbc"}').decode(), '{"task_id": "ü"}'),
        ("no JSON at all", "no JSON at all"),
        ("bm8gSlNPTg==", "bm8gSlNPTg=="),  # base64, but not of JSON: as it stands
        ('{"_stepfast":{"id":"broken"', '{"_stepfast":{"id":"broken"'),
        ('{"_stepfast":null,"a":1}', '{"_stepfast":null,"a":1}'),
        ("1234", "1234"),
    ],
)
async def test_what_a_stranger_sends_is_taken_as_it_is(account: Account, text: str, body: str) -> None:
    """The SDK's decoders raise on texts that they cannot read, when the message is already hidden."""
    queue = await account.queue()
    await account.strangers_text(queue, text)

    found = await account.one(queue)

    assert (found.body, found.attempt, found.properties) == (body, 1, {})
    assert found.id
    await account.transport.dead_letter(found, "NotUnderstood", "no task")
    dead = await account.transport.dead_letters(queue, at_most=1, hold=HOLD)
    assert (dead[0].body, dead[0].id, dead[0].dead_reason) == (body, found.id, "NotUnderstood")


async def test_a_text_that_cannot_be_read_does_not_block_the_others(account: Account) -> None:
    """XML cannot carry it, so the service fails to answer; the messages around it must come all the same."""
    queue = await account.queue()
    await account.transport.send(queue, [message('{"n": 1}')])
    await account.strangers_text(queue, "a\x01b")
    await account.transport.send(queue, [message('{"n": 2}')])
    bodies: list[str] = []

    async with asyncio.timeout(20):
        while len(bodies) < 2:
            try:
                found = await account.transport.receive(queue, at_most=32, wait=SHORT, hold=SHORT)
            except TransportUnavailableError:
                continue  # as everybody does who receives
            bodies += [it.body for it in found]
            await asyncio.gather(*map(account.transport.complete, found))

    assert sorted(bodies) == ['{"n": 1}', '{"n": 2}']


async def test_a_stranger_reads_our_task_as_the_object_that_it_is(account: Account) -> None:
    """A Logic App hands the text of the message to a container, as it stands."""
    queue = await account.queue()
    sent = message('{"task_id": "t-1", "payload": {"a": [1]}}', subject="TASK", properties={"client": "x"})

    await account.transport.send(queue, [sent])

    read = json.loads((await account.texts(queue))[0])
    assert (read["task_id"], read["payload"]) == ("t-1", {"a": [1]})
    assert read["_stepfast"] == {"id": sent.id, "subject": "TASK", "properties": {"client": "x"}}


async def test_a_message_does_not_vanish_after_a_week(account: Account) -> None:
    """As the service does with a message without a time to live."""
    queue = await account.queue()
    await account.transport.send(queue, [message()])

    peeked = await account.bare.get_queue_client(queue).peek_messages(1)

    assert peeked[0].expires_on is not None
    assert peeked[0].expires_on > datetime.now(UTC) + timedelta(days=365)


# Dead letters


class Dying(StorageQueueTransport):
    """Its process ends between the two halves of a dead letter."""

    async def complete(self, delivery: Delivery) -> None:
        del delivery
        raise KeyboardInterrupt


async def test_a_crash_in_the_middle_leaves_it_in_both_places_never_in_none(account: Account) -> None:
    queue = await account.queue()
    await account.transport.send(queue, [message('{"n": 1}')])
    dying = Dying(connection_string=account.azurite.connection_string)
    await dying.open()
    held = (await dying.receive(queue, at_most=1, wait=AT_ONCE, hold=timedelta(seconds=1)))[0]

    with pytest.raises(KeyboardInterrupt):
        await dying.dead_letter(held, "spoilt")
    dying._held.clear()  # a process that is gone gives nothing back
    await dying.close()

    assert len(await account.texts(queue + POISON)) == 1
    count = (await account.bare.get_queue_client(queue).get_queue_properties()).approximate_message_count
    assert count == 1


async def test_a_passing_failure_while_it_is_put_aside_does_not_cost_its_holder_the_message(
    account: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first try has renewed it: only the new receipt ends it."""
    queue = await account.queue()
    await account.transport.send(queue, [message()])
    ours = holding.HeldMessages(account.transport, HOLD)
    held = ours.take(await account.one(queue))
    send, faults = QueueClient.send_message, [ServiceRequestError("no route to host")]

    async def stumbling(self: QueueClient, *given: Any, **options: Any) -> Any:
        if faults:
            raise faults.pop()
        return await send(self, *given, **options)

    monkeypatch.setattr(QueueClient, "send_message", stumbling)
    monkeypatch.setattr(holding, "PAUSE", 0.0)

    assert await ours.put_aside(held, "refused")

    depth = await account.transport.depth(queue)
    assert (faults, depth.ready, depth.dead) == ([], 0, 1)


async def test_a_late_holder_does_not_put_aside_what_was_received_here_since(account: Account) -> None:
    queue = await account.queue()
    await account.transport.send(queue, [message()])
    late = await account.one(queue, SHORT)
    ours = await account.one(queue)

    with pytest.raises(DeliveryLostError):
        await account.transport.dead_letter(late, "refused")

    await account.transport.complete(ours)
    assert await account.texts(queue + POISON) == []


async def test_the_largest_text_of_a_stranger_is_put_aside_without_room_for_the_reason(
    account: Account,
) -> None:
    queue = await account.queue()
    text = json.dumps({"a": "x" * (LARGEST_TEXT - 9)})
    assert len(text) == LARGEST_TEXT
    await account.strangers_text(queue, text)

    await account.transport.dead_letter(await account.one(queue), "NotUnderstood")

    dead = (await account.transport.dead_letters(queue, at_most=1, hold=HOLD))[0]
    assert (dead.body, dead.dead_reason) == (text, "")


async def test_a_long_complaint_is_cut_to_what_fits(account: Account) -> None:
    queue = await account.queue()
    text = json.dumps({"a": "x" * (LARGEST_TEXT - 1_500)})
    await account.strangers_text(queue, text)

    await account.transport.dead_letter(await account.one(queue), "NotUnderstood", "y" * 50_000)

    dead = (await account.transport.dead_letters(queue, at_most=1, hold=HOLD))[0]
    assert (dead.body, dead.dead_reason, dead.dead_detail) == (text, "NotUnderstood", "y" * 200)


async def test_what_was_received_too_often_is_put_aside_before_anybody_works_on_it(account: Account) -> None:
    """By the next receiver, whatever killed the earlier ones."""
    queue = await account.queue()
    await account.strangers_text(queue, "kills")
    client = account.bare.get_queue_client(queue)
    for _ in range(account.transport.most_deliveries):
        found = await client.receive_message(visibility_timeout=1)
        assert found is not None
        await client.update_message(found, visibility_timeout=0)

    assert await account.transport.receive(queue, at_most=1, wait=AT_ONCE, hold=HOLD) == []

    dead = (await account.transport.dead_letters(queue, at_most=1, hold=HOLD))[0]
    assert (dead.body, dead.dead_reason) == ("kills", TOO_OFTEN)


# Names, keys and rights


@pytest.mark.parametrize("name", ["q1", "Upper", "a--b", "under_score", "x" * 60])
async def test_a_name_that_the_service_does_not_take_is_refused(account: Account, name: str) -> None:
    with pytest.raises(TransportRefusedError, match=name):
        await account.transport.ensure(name)


async def test_a_wrong_key_is_refused_without_showing_it(account: Account) -> None:
    wrong = account.azurite.connection_string.replace("Eby8", "AAAA")

    async with StorageQueueTransport(connection_string=wrong) as transport:
        with pytest.raises(TransportRefusedError) as refused:
            await transport.send("anything", [message()])

    assert "AAAA" not in str(refused.value)


async def test_a_connection_string_that_cannot_be_read_is_refused_without_showing_it() -> None:
    with pytest.raises(TransportRefusedError) as refused:
        await StorageQueueTransport(connection_string="AccountKey=secret-of-mine").open()

    assert "secret-of-mine" not in str(refused.value)


async def test_who_may_not_make_queues_uses_those_that_are_there(account: Account) -> None:
    queue = await account.queue()
    rights = generate_account_sas(
        ACCOUNT,
        KEY,
        resource_types=ResourceTypes(service=False, container=True, object=True),
        permission=AccountSasPermissions(read=True, add=True, process=True, update=True, delete=True),
        expiry=datetime.now(UTC) + timedelta(hours=1),
    )
    limited = f"QueueEndpoint={account.azurite.endpoint('queue')};SharedAccessSignature={rights};"

    async with StorageQueueTransport(connection_string=limited) as transport:
        await transport.ensure(queue)
        await transport.send(queue, [message()])
        with pytest.raises(TransportRefusedError, match="nobody-made-it"):
            await transport.ensure("nobody-made-it")

    await account.transport.complete(await account.one(queue))


async def test_a_service_that_is_not_there_may_come_later() -> None:
    nowhere = f"AccountName={ACCOUNT};AccountKey={KEY};QueueEndpoint=http://127.0.0.1:9/{ACCOUNT};"  # nobody listens there

    async with StorageQueueTransport(connection_string=nowhere) as transport:
        with pytest.raises(TransportUnavailableError) as away:
            await transport.send("anything", [message()])

    assert KEY not in str(away.value)


async def test_a_message_cannot_be_scheduled_beyond_a_week(account: Account) -> None:
    queue = await account.queue()

    with pytest.raises(TransportRefusedError, match="7 days"):
        await account.transport.send(
            queue, [message(), message(not_before=datetime.now(UTC) + timedelta(days=8))]
        )

    assert (await account.transport.depth(queue)).ready == 0  # nor is the rest of its batch sent


async def test_properties_that_leave_no_room_are_refused(account: Account) -> None:
    queue = await account.queue()

    with pytest.raises(TransportRefusedError, match="with its properties"):
        await account.transport.send(queue, [message(properties={"a": "x" * LARGEST_TEXT})])


async def test_one_needs_a_connection_string_or_an_account() -> None:
    with pytest.raises(ConfigurationError, match="and not both"):
        StorageQueueTransport(connection_string="x", account="y")
    with pytest.raises(ConfigurationError, match="and not both"):
        StorageQueueTransport()


async def test_a_transport_that_is_not_open_says_so() -> None:
    with pytest.raises(TransportRefusedError, match="not open"):
        await StorageQueueTransport(account="x").send("q", [message()])


# The emulator


def test_azurite_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    import subprocess
    import sys

    from devtools.processes import family, wait_until_gone

    starter = subprocess.Popen(
        [sys.executable, "-m", "stepfast.testing.azurite"], stdout=subprocess.PIPE, text=True
    )
    assert starter.stdout is not None
    assert starter.stdout.readline().startswith("DefaultEndpointsProtocol=http;")
    members = family(starter.pid)

    starter.kill()
    starter.wait()
    starter.stdout.close()

    assert len(members) > 1
    assert wait_until_gone(members, 10)
    del tmp_path


def test_without_azurite_the_sentence_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STEPFAST_AZURITE", str(tmp_path / "azurite.js"))

    with pytest.raises(AzuriteMissingError, match=r"npm install azurite@3\.35\.0"):
        find_azurite()
