"""Spans of tasks are exported as the environment says: by a worker that polls, and by a process for one task."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from tests.support import rows

if TYPE_CHECKING:
    from tests.journeys.conftest import Container

TARGET = "tests.journeys.documents:app"
TRACE = "0af7651916cd43dd8448eb211c80319c"
SENDER = f"00-{TRACE}-b7ad6b7169203331-01"
CONSOLE = {"OTEL_TRACES_EXPORTER": "console"}


def spans(said: str) -> dict[str, tuple[str, str, str | None]]:
    """The spans that OpenTelemetry printed, by name: the trace, the span, its parent."""
    found = re.findall(r"^\{$.*?^\}$", said, re.MULTILINE | re.DOTALL)
    read = [json.loads(it) for it in found]
    return {
        it["name"]: (
            it["context"]["trace_id"].removeprefix("0x"),
            it["context"]["span_id"].removeprefix("0x"),
            (it["parent_id"] or "").removeprefix("0x") or None,
        )
        for it in read
    }


def check(container: Container, said: str) -> None:
    found = spans(said)
    assert found.keys() == {"task.summarize", "send webhook"}
    assert {trace for trace, _, _ in found.values()} == {TRACE}
    assert found["task.summarize"][2] == "b7ad6b7169203331"
    assert found["send webhook"][2] == found["task.summarize"][1]
    (webhook,) = container.receiver.received
    assert webhook.headers["traceparent"] == f"00-{TRACE}-{found['send webhook'][1]}-01"


def test_a_process_for_one_task_exports_the_spans_of_its_child_and_of_its_webhook(
    container: Container,
) -> None:
    task = container.task("summarize", filename="b") | {"traceparent": SENDER}

    running = container.run(task, real=True, **CONSOLE)

    assert running.code == 0, running.said()
    check(container, running.said())


def test_a_worker_that_polls_exports_them(container: Container) -> None:
    task = container.task("summarize", filename="b") | {"traceparent": SENDER}
    send(container, task)

    worker = container.start("tasks", "work", TARGET, real=True, **CONSOLE)
    rows.eventually(container.told, 60)
    rows.eventually(lambda: "task.ended" in worker.said(), 60)

    assert worker.stop() == 0
    check(container, worker.said())


def test_an_exporter_that_is_not_installed_is_named_before_anything_is_done(container: Container) -> None:
    running = container.run(
        container.task("summarize", filename="b"), OTEL_EXPORTER_OTLP_ENDPOINT="http://collector:4318"
    )

    assert running.code == 1
    assert "pip install opentelemetry-exporter-otlp-proto-http" in running.said()
    assert container.notes() == []


def send(container: Container, task: object) -> None:
    """A message in the queue of the database, with fields that `stepfast tasks send` does not write."""
    import asyncio
    from contextlib import closing

    from stepfast import Stepfast
    from stepfast.transports.contract import Outgoing
    from stepfast.transports.open import open_transport, transport_settings

    async def put() -> None:
        with closing(Stepfast(f"sqlite:///{container.database}")) as app:
            app.migrate()
            transport = open_transport("database://", transport_settings(database=app.database))
            async with transport:
                await transport.ensure("default-tasks")
                await transport.send("default-tasks", [Outgoing(id="m-1", body=json.dumps(task))])

    asyncio.run(put())
