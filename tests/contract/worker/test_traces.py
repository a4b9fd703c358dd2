"""One trace covers everything that a job causes: steps, child jobs and messages."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry import trace
from opentelemetry.context import Context, attach, detach
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from stepfast import Continue, Done, Retry, Step, Stepfast
from stepfast.notifications.settings import NotificationSettings
from stepfast.telemetry.traces import current_trace, inside, trace_id_of
from stepfast.worker.relay import Relay
from tests.support import rows
from tests.support.engine import drain, take
from tests.support.http_receiver import SETTINGS

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan

    from tests.support.http_receiver import HttpReceiver


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    """A program that uses OpenTelemetry, and the spans it gets."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    before = attach(Context())
    yield exporter
    detach(before)


def traces_of(app: Stepfast) -> dict[str, str]:
    """The trace of each job that ended, by kind."""
    found = rows.query(app, "SELECT id, kind, trace FROM stepfast_archive")
    return {row["kind"]: trace_id_of(row["id"], row["trace"]) for row in found}


def by_name(spans: InMemorySpanExporter) -> dict[str, list[ReadableSpan]]:
    found: dict[str, list[ReadableSpan]] = {}
    for span in spans.get_finished_spans():
        found.setdefault(span.name, []).append(span)
    return found


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def parent_of(span: ReadableSpan) -> int | None:
    return span.parent.span_id if span.parent else None


def id_of(span: ReadableSpan) -> int:
    assert span.context is not None
    return int(span.context.span_id)


def register(app: Stepfast) -> Any:
    """A job of two steps. The first enqueues a child by an effect, the second one in its handler."""

    @app.job()
    async def by_effect() -> None: ...

    @app.job()
    def by_handler(step: Step) -> str:
        return step.trace_id

    @app.job()
    async def parent(step: Step) -> Continue | Done:
        await asyncio.sleep(0)
        step.annotate(run_id="r-7")
        if step.number == 0:
            step.effect(lambda tx: by_effect.enqueue(tx=tx))
            return Continue(1)
        by_handler.enqueue()
        return Done(step.trace_id)

    return parent


def test_without_opentelemetry_one_id_follows_a_job_and_its_children(app: Stepfast) -> None:
    job_id = register(app).enqueue().id

    drain(app)

    own = job_id.replace("-", "")
    assert traces_of(app) == {"parent": own, "by_effect": own, "by_handler": own}
    results = {
        it["kind"]: it["result"] for it in rows.query(app, "SELECT kind, result FROM stepfast_archive")
    }
    assert results == {"parent": f'"{own}"', "by_handler": f'"{own}"', "by_effect": None}
    assert rows.query(app, "SELECT trace FROM stepfast_archive WHERE kind = 'parent'") == [{"trace": None}]


def test_one_trace_over_the_enqueue_the_steps_and_the_children(
    app: Stepfast, spans: InMemorySpanExporter
) -> None:
    parent = register(app)

    with trace.get_tracer("shop").start_as_current_span("request") as request:
        parent.enqueue()
    drain(app, worker_id="w-1")

    rows.eventually(lambda: len(spans.get_finished_spans()) == 8)
    found = by_name(spans)
    context = request.get_span_context()
    assert {it.context.trace_id for it in spans.get_finished_spans() if it.context} == {context.trace_id}
    assert set(traces_of(app).values()) == {f"{context.trace_id:032x}"}
    (send,) = found["enqueue parent"]
    first, second = sorted(found["parent"], key=lambda it: attributes(it)["stepfast.step"])
    assert parent_of(send) == context.span_id
    assert parent_of(first) == parent_of(second) == id_of(send)
    (sent_by_effect,), (sent_by_handler,) = found["enqueue by_effect"], found["enqueue by_handler"]
    assert parent_of(sent_by_effect) == id_of(first)
    assert parent_of(sent_by_handler) == id_of(second)
    assert parent_of(found["by_effect"][0]) == id_of(sent_by_effect)
    assert parent_of(found["by_handler"][0]) == id_of(sent_by_handler)


def test_a_span_says_which_step_it_was_and_how_it_ended(app: Stepfast, spans: InMemorySpanExporter) -> None:
    job_id = register(app).enqueue().id

    drain(app, worker_id="w-1")

    rows.eventually(lambda: len(spans.get_finished_spans()) == 7)
    first, second = sorted(by_name(spans)["parent"], key=lambda it: attributes(it)["stepfast.step"])
    said = attributes(first)
    assert said.pop("stepfast.took_s") > 0
    assert said == {
        "messaging.system": "stepfast",
        "messaging.operation.type": "process",
        "messaging.destination.name": "default",
        "stepfast.job_id": job_id,
        "stepfast.kind": "parent",
        "stepfast.queue": "default",
        "stepfast.step": 0,
        "stepfast.attempt": 1,
        "stepfast.worker_id": "w-1",
        "stepfast.run_id": "r-7",
        "stepfast.outcome": "continued",
    }
    assert attributes(second)["stepfast.outcome"] == "done"
    assert by_name(spans)["by_handler"][0].attributes


def test_a_failure_is_recorded_without_its_data(app: Stepfast, spans: InMemorySpanExporter) -> None:
    @app.job(retry=Retry(attempts=2, first="1ms"))
    def fail(pin: str) -> None:
        raise ValueError(f"wrong password={pin}")

    fail.enqueue(pin="hunter2")
    drain(app)

    rows.eventually(lambda: len(by_name(spans).get("fail", [])) == 2)
    once, twice = sorted(by_name(spans)["fail"], key=lambda it: attributes(it)["stepfast.attempt"])
    assert (attributes(once)["stepfast.outcome"], attributes(twice)["stepfast.outcome"]) == ("failed", "dead")
    assert once.status.status_code is trace.StatusCode.ERROR
    assert attributes(once)["error.type"] == "ValueError"
    assert "hunter2" not in "".join(it.to_json() for it in spans.get_finished_spans())


def test_a_job_enqueued_by_a_program_without_opentelemetry_has_spans_in_the_trace_of_its_id(
    app: Stepfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = register(app).enqueue().id
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)

    drain(app)

    rows.eventually(lambda: len(exporter.get_finished_spans()) == 6)
    assert {f"{it.context.trace_id:032x}" for it in exporter.get_finished_spans() if it.context} == {
        job_id.replace("-", "")
    }


def test_a_handler_in_a_thread_is_inside_its_own_span(app: Stepfast, spans: InMemorySpanExporter) -> None:
    seen: dict[str, tuple[int, str | None]] = {}

    @app.job()
    def look(name: str) -> None:
        seen[name] = (trace.get_current_span().get_span_context().span_id, current_trace())

    for name in "abc":
        look.enqueue(name=name)
    drain(app)

    rows.eventually(lambda: len(by_name(spans).get("look", [])) == 3)
    assert {span_id for span_id, _ in seen.values()} == {id_of(it) for it in by_name(spans)["look"]}
    assert all(stored and f"{span_id:016x}" in stored for span_id, stored in seen.values())


def test_many_jobs_of_one_enqueue_share_its_span(app: Stepfast, spans: InMemorySpanExporter) -> None:
    @app.job()
    async def count(n: int) -> None: ...

    count.enqueue_many([{"n": n} for n in range(5)])
    drain(app)

    rows.eventually(lambda: len(by_name(spans).get("count", [])) == 5)
    (send,) = by_name(spans)["enqueue count"]
    assert attributes(send)["messaging.batch.message_count"] == 5
    assert {parent_of(it) for it in by_name(spans)["count"]} == {id_of(send)}


def test_a_replaced_payload_belongs_to_whoever_replaced_it(
    app: Stepfast, spans: InMemorySpanExporter
) -> None:
    @app.job()
    async def count(n: int) -> None: ...

    count.enqueue(n=1, key="one")
    count.enqueue(n=2, key="one", on_duplicate="replace")
    drain(app)

    rows.eventually(lambda: len(by_name(spans).get("count", [])) == 1)
    _, second = by_name(spans)["enqueue count"]
    assert parent_of(by_name(spans)["count"][0]) == id_of(second)


def test_a_payload_replaced_outside_of_any_trace_begins_its_own(app: Stepfast) -> None:
    @app.job()
    async def count(n: int) -> None: ...

    other = count.enqueue(n=0)
    with inside(take(app), None):
        job_id = count.enqueue(n=1, key="one").id
    before = rows.query(app, "SELECT trace FROM stepfast_job WHERE id = :id", id=job_id)[0]["trace"]
    count.enqueue(n=2, key="one", on_duplicate="replace")

    assert trace_id_of("", before) == other.id.replace("-", "")
    assert rows.query(app, "SELECT trace FROM stepfast_job WHERE id = :id", id=job_id) == [{"trace": None}]


def test_a_message_staged_by_a_step_carries_its_trace(app: Stepfast) -> None:
    @app.job()
    def tell(step: Step) -> str:
        step.effect(lambda tx: app.send_webhook("https://127.0.0.1:1/", data={"n": 1}, tx=tx))
        return step.trace_id

    job_id = tell.enqueue().id
    drain(app)

    (message,) = rows.query(app, "SELECT trace FROM stepfast_outbox")
    assert trace_id_of("", message["trace"]) == job_id.replace("-", "")


def test_each_try_to_send_a_webhook_is_a_span_and_the_receiver_is_told_of_it(
    app: Stepfast, spans: InMemorySpanExporter, receiver: HttpReceiver
) -> None:
    quiet = Stepfast(database=app.database, notifications=NotificationSettings(outbox_relay=False))

    @quiet.job()
    def tell(step: Step) -> None:
        step.effect(lambda tx: quiet.send_webhook(receiver.url("/hook?key=secret"), data={"n": 1}, tx=tx))

    tell.enqueue()
    drain(quiet)
    receiver.fail(1, 503)
    relay = Relay(app.database, SETTINGS)
    relay.drain()
    rows.change(app, "UPDATE stepfast_outbox SET due_at = 1")
    relay.drain()

    (step,) = by_name(spans)["tell"]
    failed, sent = by_name(spans)["send webhook"]
    assert step.context is not None
    assert {it.context.trace_id for it in (failed, sent) if it.context} == {step.context.trace_id}
    assert parent_of(failed) == parent_of(sent) == id_of(step)
    assert [f"{id_of(it):016x}" for it in (failed, sent)] == [
        it.headers["traceparent"].split("-")[2] for it in receiver.received
    ]
    assert [attributes(it)["stepfast.outcome"] for it in (failed, sent)] == ["failed", "sent"]
    assert failed.status.status_code is trace.StatusCode.ERROR
    assert attributes(sent)["stepfast.message_id"] == receiver.ids[0]
    assert "secret" not in "".join(it.to_json() for it in (failed, sent))
