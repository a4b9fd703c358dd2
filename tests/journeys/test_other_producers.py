"""Tasks that other programs send, without our code: in JavaScript, by curl, with Azure's own library."""

from __future__ import annotations

import json
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from stepfast.testing.azurite import ACCOUNT, KEY
from tests.support import rows
from tests.support.javascript import service_bus

if TYPE_CHECKING:
    from collections.abc import Iterator

    from azure.storage.queue import QueueClient

    from stepfast.testing.azurite import Azurite
    from tests.journeys.conftest import Container, Running

TARGET = "tests.journeys.documents:app"
HERE = Path(__file__).parent


@pytest.fixture
def queue(azurite: Azurite, request: pytest.FixtureRequest) -> Iterator[QueueClient]:
    """The client's queue, as its owner sees it."""
    from azure.storage.queue import QueueClient

    client = f"c{abs(hash(request.node.name)) % 10**12}"
    with QueueClient.from_connection_string(azurite.connection_string, f"{client}-tasks") as found:
        found.create_queue()
        yield found
        found.delete_queue()


def client_of(queue: QueueClient) -> str:
    return str(queue.queue_name).removesuffix("-tasks")


def working(container: Container, azurite: Azurite, queue: QueueClient, *words: str) -> Running:
    return container.start(
        "tasks",
        "work",
        TARGET,
        *words,
        CLIENT_ID=client_of(queue),
        AZURE_STORAGE_CONNECTION_STRING=azurite.connection_string,
        WORKER_POLL_INTERVAL="300ms",
    )


def waiting(queue: QueueClient) -> int:
    return int(queue.get_queue_properties().approximate_message_count or 0)


def test_a_task_from_plain_javascript_is_completed(
    container: Container, azurite: Azurite, queue: QueueClient
) -> None:
    task = json.dumps(container.task("summarize", filename="from JavaScript"))
    subprocess.run(
        ["node", str(HERE / "producer.mjs"), azurite.endpoint("queue"), ACCOUNT, KEY, queue.queue_name, task],
        check=True,
        timeout=60,
    )

    worker = working(container, azurite, queue)
    rows.eventually(container.told, 60)
    rows.eventually(lambda: waiting(queue) == 0)

    assert [it["result"] for it in container.told()] == ["a summary of from JavaScript"]
    assert worker.stop() == 0


def test_a_task_from_curl_is_completed(container: Container, azurite: Azurite, queue: QueueClient) -> None:
    """With a signature that the owner of the queue gave away."""
    from azure.storage.queue import QueueSasPermissions, generate_queue_sas

    sas = generate_queue_sas(
        ACCOUNT,
        str(queue.queue_name),
        KEY,
        permission=QueueSasPermissions(add=True),
        expiry=datetime.now(UTC) + timedelta(hours=1),
    )
    task = json.dumps(container.task("summarize", filename="by curl"))
    body = f"<QueueMessage><MessageText>{task}</MessageText></QueueMessage>"
    url = f"{azurite.endpoint('queue')}/{queue.queue_name}/messages?{sas}"
    subprocess.run(
        ["curl", "--fail", "--silent", "-X", "POST", url, "-H", "x-ms-version: 2021-12-02", "-d", body],
        check=True,
        timeout=60,
    )

    worker = working(container, azurite, queue)
    rows.eventually(container.told, 60)
    rows.eventually(lambda: waiting(queue) == 0)

    assert [it["result"] for it in container.told()] == ["a summary of by curl"]
    assert worker.stop() == 0


def test_a_poison_message_goes_to_the_poison_queue_with_the_reason(
    container: Container, azurite: Azurite, queue: QueueClient
) -> None:
    queue.send_message("no task at all")
    queue.send_message(json.dumps(container.task("fail", message="no")))

    worker = working(container, azurite, queue)
    rows.eventually(container.told, 60)
    rows.eventually(lambda: waiting(queue) == 0)
    assert worker.stop() == 0

    from azure.storage.queue import QueueClient

    name = f"{queue.queue_name}-poison"
    with QueueClient.from_connection_string(azurite.connection_string, name) as poison:
        texts = sorted(str(it.content) for it in poison.peek_messages(max_messages=5))
        poison.delete_queue()
    assert len(texts) == 2
    assert any("no task at all" in it and "it is no JSON" in it for it in texts)
    assert any("ValueError" in it for it in texts)
    letters = container.start("dead-letters", "list", "--json")
    assert letters.ended() == 0
    assert sorted(it["kind"] for it in json.loads(letters.said())) == ["refused-task", "task.fail"]


def test_a_container_job_takes_one_message_and_ends_with_it(
    container: Container, azurite: Azurite, queue: QueueClient
) -> None:
    for n in range(2):
        queue.send_message(json.dumps(container.task("summarize", f"t-{n}", filename=str(n))))
    queue.send_message(json.dumps(container.task("fail", "t-2", message="no")))

    codes = [working(container, azurite, queue, "--once").ended() for _ in range(4)]

    assert codes == [0, 0, 1, 0]  # the last one found nothing to do
    assert sorted(it["task_id"] for it in container.told()) == ["t-0", "t-1", "t-2"]
    assert waiting(queue) == 0


def test_a_task_from_service_bus_is_completed_and_poison_is_a_dead_letter_there(container: Container) -> None:
    from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusSubQueue

    from stepfast_emulators.service_bus import ServiceBusEmulator

    with ServiceBusEmulator() as emulator:
        emulator.add_queue("south-tasks", lock="30s", max_deliveries=5)
        client = ServiceBusClient.from_connection_string(emulator.connection_string)
        with client, client.get_queue_sender("south-tasks") as sender:
            task = json.dumps(container.task("summarize", filename="from the bus"))
            sender.send_messages([ServiceBusMessage("no task"), ServiceBusMessage(task)])
            worker = container.start(
                "tasks",
                "work",
                TARGET,
                CLIENT_ID="south",
                AZURE_SERVICE_BUS_CONNECTION_STRING=emulator.connection_string,
            )
            rows.eventually(container.told, 60)
            with client.get_queue_receiver(
                "south-tasks", sub_queue=ServiceBusSubQueue.DEAD_LETTER
            ) as receiver:
                (dead,) = receiver.receive_messages(max_wait_time=20)
                reason = (str(dead), dead.dead_letter_reason)
            rows.eventually(lambda: worker.said().count("task.ended") == 2)
            assert worker.stop() == 0

    assert [it["result"] for it in container.told()] == ["a summary of from the bus"]
    assert reason == ("no task", "refused")


def test_a_task_from_the_javascript_sdk_is_completed_in_the_trace_of_its_sender(container: Container) -> None:
    """`body: JSON.stringify(task)`, which the SDK writes as a JSON string, and the property that its tracing adds."""
    from stepfast_emulators.service_bus import ServiceBusEmulator

    trace = "0af7651916cd43dd8448eb211c80319c"
    with ServiceBusEmulator() as emulator:
        emulator.add_queue("south-tasks", lock="30s", max_deliveries=5)
        task = json.dumps(container.task("summarize", filename="from JavaScript"))
        sender = f"00-{trace}-b7ad6b7169203331-01"
        service_bus(emulator.connection_string, "send", "south-tasks", task, sender)
        worker = container.start(
            "tasks",
            "work",
            TARGET,
            CLIENT_ID="south",
            AZURE_SERVICE_BUS_CONNECTION_STRING=emulator.connection_string,
        )
        rows.eventually(container.told, 60)
        rows.eventually(lambda: emulator.content("south-tasks").counted["completed"] == 1)
        assert worker.stop() == 0

    assert [it["result"] for it in container.told()] == ["a summary of from JavaScript"]
    assert container.receiver.received[0].headers["traceparent"].split("-")[1] == trace
