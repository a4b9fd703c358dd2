"""Runs over Azure's queues, by the real SDKs: the four troubles of a broker that operators know, and whole runs.

A message lock that expired, a message that was delivered too often, one that came twice, and a queue that is full.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine, Iterator
from contextlib import closing
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusReceivedMessage

from stepfast import Filter, Stepfast
from stepfast.admin.dead_letters import list_dead_messages
from stepfast.clock import new_id
from stepfast.notifications.settings import NotificationSettings
from stepfast.runs.broker import Broker
from stepfast.runs.run import RunState
from stepfast.transports.contract import TOO_OFTEN, Outgoing
from stepfast.transports.service_bus import ServiceBusTransport
from stepfast.worker.relay import Relay
from stepfast_emulators.service_bus import Moment, ServiceBusEmulator, busy
from tests.support import rows
from tests.support.broker import brokered, ended, staged
from tests.support.events import hearing, named
from tests.support.failing_runs import broken_at, run_row
from tests.support.feeds import price_ranges
from tests.support.run_facts import check_complete
from tests.support.single_threaded_worker import SingleThreadedWorker
from tests.transports.test_service_bus_emulator import forget_broken_connections

if TYPE_CHECKING:
    from stepfast.testing.azurite import Azurite
    from stepfast.transports.contract import Delivery

T = TypeVar("T")

HOLD = timedelta(minutes=2)
WAIT = timedelta(seconds=10)
PATIENT = "1h"  # a head start that no test waits for

pytestmark = pytest.mark.only_on("sqlite")


@pytest.fixture(scope="module")
def emulator() -> Iterator[ServiceBusEmulator]:
    with ServiceBusEmulator() as found:
        yield found


@pytest.fixture
def app(database_url: str) -> Iterator[Stepfast]:
    with closing(Stepfast(database_url)) as app:
        yield app
    forget_broken_connections()


@pytest.fixture
def work(emulator: ServiceBusEmulator, monkeypatch: pytest.MonkeyPatch) -> Broker:
    """Queues of its own, as the catalogue's are set up: locks of 2 minutes, 5 deliveries, duplicates for 10 minutes."""
    monkeypatch.setenv("AZURE_SERVICE_BUS_CONNECTION_STRING", emulator.connection_string)
    name = new_id()[-12:]
    broker = Broker("service-bus://", f"work-{name}", f"consolidate-{name}", head_start=PATIENT)
    for queue in (broker.work_items, broker.consolidate):
        emulator.add_queue(queue, lock="2m", max_deliveries=5, duplicates="10m")
    return broker


def with_stranger(
    emulator: ServiceBusEmulator, act: Callable[[ServiceBusTransport], Coroutine[Any, Any, T]]
) -> T:
    """Another client of the same queues."""

    async def work() -> T:
        transport = ServiceBusTransport(connection_string=emulator.connection_string)
        async with transport:
            return await act(transport)

    return asyncio.run(work())


def listed(app: Stepfast) -> list[Any]:
    with app.reading() as tx:
        return list_dead_messages(tx, Filter())


def test_a_message_whose_lock_expired_is_worked_on_by_another(
    app: Stepfast, emulator: ServiceBusEmulator, work: Broker
) -> None:
    shop = brokered(app, transport=work)
    run = app.runs.start("catalogue")

    async def take_and_die(stranger: ServiceBusTransport) -> list[Delivery]:
        return await stranger.receive(work.work_items, at_most=1, wait=WAIT, hold=HOLD)

    async def forget(stranger: ServiceBusTransport) -> None:
        found = await asyncio.gather(
            take_and_die(stranger), asyncio.to_thread(plan, app)
        )  # the message comes when the run is planned
        assert len(found[0]) == 1
        stranger._held.clear()  # as a process that was killed: it gives nothing back

    with_stranger(emulator, forget)
    assert emulator.content(work.work_items).held == 1
    assert emulator.expire_locks(work.work_items) == 1

    with app.worker(concurrency=4):
        ended(app, run.id)

    check_complete(app, run.id, shop)
    assert emulator.content(work.work_items).counted["lock-expired"] == 1


def plan(app: Stepfast) -> list[dict[str, Any]]:
    """Let a worker plan the run and send the messages, and take none of them; returns what was sent."""
    worker = SingleThreadedWorker(app, "planner")
    while not rows.count(app, "stepfast_partition"):
        worker.step()
    sent = staged(app)
    Relay(app.database, NotificationSettings(), feeds=app.feeds).drain()
    return sent


def test_a_message_that_was_delivered_too_often_is_removed_and_its_job_runs_all_the_same(
    app: Stepfast, emulator: ServiceBusEmulator, work: Broker
) -> None:
    hasty = Broker(work.url, work.work_items, work.consolidate, head_start="3s")
    shop = brokered(app, transport=hasty)
    run = app.runs.start("catalogue")
    plan(app)

    async def refuse(stranger: ServiceBusTransport) -> None:
        while not emulator.content(work.work_items).dead:
            for it in await stranger.receive(work.work_items, at_most=1, wait=WAIT, hold=HOLD):
                await stranger.release(it)

    with_stranger(emulator, refuse)
    with hearing() as told, app.worker(concurrency=4, poll_interval="50ms"):
        ended(app, run.id)
        rows.eventually(lambda: not emulator.content(work.work_items).dead)

    check_complete(app, run.id, shop)
    assert [(it["kept"], it["removed"]) for it in named(told, "dead-letters.reconciled")] == [(0, 1)]
    assert listed(app) == []


def test_a_message_that_nobody_understands_waits_in_our_list_and_is_sent_again_under_a_new_id(
    app: Stepfast, emulator: ServiceBusEmulator, work: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stepfast.worker.broker_listener.LETTERS_EVERY", 0.1)
    brokered(app, transport=work)

    async def send(stranger: ServiceBusTransport) -> None:
        await stranger.send(work.work_items, [Outgoing(id="often", body="{}")])
        while not emulator.content(work.work_items).dead:
            for it in await stranger.receive(work.work_items, at_most=1, wait=WAIT, hold=HOLD):
                await stranger.release(it)
        await stranger.send(work.work_items, [Outgoing(id="hello", body='{"type": "HELLO"}')])

    with_stranger(emulator, send)
    with app.worker():
        found = rows.eventually(lambda: letters if len(letters := listed(app)) == 2 else None)
        first, often = sorted(found, key=lambda it: it.message_id)
        app.operator.retry_dead_letters(
            Filter(error_group="UnknownType")
        )  # within the ten minutes in which its old id would be swallowed
        (second,) = rows.eventually(lambda: [it for it in listed(app) if it.id not in {first.id, often.id}])

    assert (often.reason, often.origin) == (TOO_OFTEN, f"service-bus:{work.work_items}")
    assert (first.message_id, first.reason, second.message_id) == ("hello", "UnknownType", "hello:retry-1")
    assert emulator.content(work.work_items).counted["duplicate"] == 0


@pytest.mark.idempotency
def test_a_duplicate_message_changes_nothing(
    app: Stepfast, emulator: ServiceBusEmulator, work: Broker
) -> None:
    shop = brokered(app, transport=work)
    run = app.runs.start("catalogue")
    sent = plan(app)

    async def repeat(stranger: ServiceBusTransport) -> None:
        again = [Outgoing(id=it["id"], body=json.dumps(it)) for it in sent]
        other = [Outgoing(id=f"{it.id}/2", body=it.body) for it in again]
        await stranger.send(work.work_items, again + other)

    with_stranger(emulator, repeat)
    with app.worker(concurrency=4):
        ended(app, run.id)
        rows.eventually(lambda: not emulator.content(work.work_items).ready)

    check_complete(app, run.id, shop)
    assert emulator.content(work.work_items).counted["duplicate"] == 4  # swallowed; the others were skipped
    assert emulator.content(work.work_items).dead == 0


def test_a_full_queue_holds_back_messages_until_there_is_room(
    app: Stepfast, emulator: ServiceBusEmulator, work: Broker
) -> None:
    emulator.add_queue(work.work_items, lock="2m", max_deliveries=5, duplicates="10m", capacity=3)
    shop = brokered(app, transport=work)
    run = app.runs.start("catalogue")

    with hearing() as told, app.worker(concurrency=4):
        ended(app, run.id)

    check_complete(app, run.id, shop)
    assert any("quota" in str(it["error"]) for it in named(told, "message.failed"))


def test_a_run_survives_a_broker_that_is_busy_cut_off_and_forgets_to_answer(
    app: Stepfast, emulator: ServiceBusEmulator, work: Broker
) -> None:
    shop = brokered(app, transport=work)
    emulator.fail(Moment.MESSAGE_ARRIVED, busy, times=1, queue=work.work_items)
    emulator.fail(Moment.MESSAGE_STORED, times=2, queue=work.work_items)
    emulator.fail(Moment.SETTLEMENT_DONE, times=2, queue=work.work_items)
    run = app.runs.start("catalogue")

    with app.worker(concurrency=4):
        ended(app, run.id, patience=60)

    check_complete(app, run.id, shop)
    assert emulator.faults_left() == 0


def test_a_run_is_read_over_storage_queue(
    app: Stepfast, azurite: Azurite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", azurite.connection_string)
    name = new_id()[-12:]
    shop = brokered(
        app, transport=Broker("storage-queue://", f"work-{name}", f"consolidate-{name}", head_start=PATIENT)
    )
    run = app.runs.start("catalogue")

    with app.worker(concurrency=4):
        ended(app, run.id, patience=60)

    check_complete(app, run.id, shop)


def test_the_bare_sdk_reads_what_a_message_is_about_and_forces_a_consolidation(
    app: Stepfast, emulator: ServiceBusEmulator, work: Broker
) -> None:
    """Nothing of ours is needed on the other side: fields, application properties, a stable id, a lock of two minutes."""
    shop = brokered(app, transport=work)
    shop.before = broken_at(("page", price_ranges(250, 500, 750)[1].name, 0))
    run = app.runs.start("catalogue")
    plan(app)

    with ServiceBusClient.from_connection_string(emulator.connection_string) as client:
        with client.get_queue_receiver(work.work_items) as receiver:
            found: dict[str | None, ServiceBusReceivedMessage] = {}
            while len(found) < 4:
                found |= {it.message_id: it for it in receiver.receive_messages(4, max_wait_time=20)}
            first = found[f"{run.id}:partition-0:0:e0.0"]
            body = json.loads(str(first))
            properties = {
                name.decode(): value.decode() if isinstance(value, bytes) else value
                for name, value in (first.application_properties or {}).items()
                if isinstance(name, bytes)
            }
            assert first.locked_until_utc is not None
            locked = first.locked_until_utc - emulator.now()
            for it in found.values():
                receiver.abandon_message(it)
        with app.worker(concurrency=4):
            assert ended(app, run.id).state is RunState.FAILED
            with client.get_queue_sender(work.consolidate) as sender:
                told = {"type": "CONSOLIDATE", "runId": run.id, "traceId": body["traceId"], "force": True}
                sender.send_messages(ServiceBusMessage(json.dumps(told)))
            rows.eventually(lambda: run_row(app, run.id).state is RunState.PUBLISHED_PARTIAL)
            rows.eventually(lambda: not emulator.content(work.consolidate).ready)

    named_ones = {"runId": run.id, "partitionId": "partition-0", "offset": 0, "limit": 10}
    assert {name: properties[name] for name in named_ones} == named_ones
    assert {name: body[name] for name in named_ones} == named_ones
    assert (body["type"], body["minPrice"], body["maxPrice"]) == ("WORK_ITEM", 0, 250)
    assert timedelta(seconds=60) < locked <= HOLD
    assert emulator.content(work.consolidate).dead == 0
    assert rows.count(app, "stepfast_feed", "watermark IS NOT NULL") == 0


def test_the_end_of_a_partition_is_told_once_and_vanishes_if_nobody_reads_it(
    app: Stepfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ServiceBusEmulator() as emulator:  # its clock is moved: it is nobody else's
        monkeypatch.setenv("AZURE_SERVICE_BUS_CONNECTION_STRING", emulator.connection_string)
        for queue in ("work", "consolidate", "done"):
            emulator.add_queue(queue, lock="2m", duplicates="10m")
        shop = brokered(app, transport=Broker("service-bus://", "work", "consolidate", "done", PATIENT))
        run = app.runs.start("catalogue")

        with app.worker(concurrency=4):
            ended(app, run.id)
            rows.eventually(lambda: emulator.content("done").ready == 4)
        emulator.advance("61m")

        left = emulator.content("done")
        assert (left.ready, left.dead, left.counted["stored"]) == (0, 0, 4)
    check_complete(app, run.id, shop)


def test_the_doctor_looks_at_the_queues_of_runs(
    app: Stepfast, emulator: ServiceBusEmulator, work: Broker
) -> None:
    brokered(app, transport=work)

    async def send(stranger: ServiceBusTransport) -> None:
        await stranger.send(work.work_items, [Outgoing(id=new_id(), body="{}")])

    with_stranger(emulator, send)

    found = [(str(it.level), it.found) for it in app.operator.doctor() if it.name == "broker"]

    assert found == [
        ("ok", f"service-bus lets us in; {work.work_items} has 1 message"),
        ("ok", f"service-bus lets us in; {work.consolidate} has 0 messages"),
    ]
