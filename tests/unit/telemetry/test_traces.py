"""The trace id that follows a job, with and without OpenTelemetry."""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from opentelemetry import trace
from opentelemetry.context import Context, attach, detach
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ParentBased, TraceIdRatioBased

from stepfast.clock import new_id, new_ids
from stepfast.errors import ConfigurationError, install_hint
from stepfast.jobs.lease import Lease
from stepfast.telemetry.current_step import CURRENT
from stepfast.telemetry.traces import (
    begin_step,
    current_trace,
    end_step,
    enqueuing,
    export_spans,
    flush_spans,
    inside,
    sender_trace,
    sending,
    trace_id_of,
    traceparent_of,
    tracer,
)

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.sampling import Sampler

STORED = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
TRACEPARENT = r"00-[0-9a-f]{32}-[0-9a-f]{16}-0[01]"


def lease(job_id: str = "", stored: str | None = None) -> Lease:
    return Lease(job_id or new_id(), "greet", "mail", 0, 0, 0, 0, 0, None, stored, "{}", 1)


class Recorded:
    """A provider of spans, in place of the program's, and what it was given."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, sampler: Sampler | None = None) -> None:
        self.exporter = InMemorySpanExporter()
        provider = TracerProvider(sampler=sampler, shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)


@pytest.fixture(autouse=True)
def _nothing_current() -> Iterator[None]:
    """A step stays current where it began; here that would be the next test."""
    before = attach(Context())
    yield
    detach(before)


# Ids


def test_a_job_without_a_trace_has_one_of_its_own_made_of_its_id() -> None:
    job_id = "01a1df83-8d5c-7000-8000-5a706572814F"

    assert trace_id_of(job_id, None) == "01a1df838d5c700080005a706572814f"
    assert traceparent_of(lease(job_id)).startswith("00-01a1df838d5c700080005a706572814f-")


@pytest.mark.parametrize("job_id", ["order-17", "00000000-0000-0000-0000-000000000000", "ü", "01a1df83"])
def test_an_id_that_is_no_uuid_is_hashed(job_id: str) -> None:
    found = trace_id_of(job_id, None)

    assert re.fullmatch(r"[0-9a-f]{32}", found)
    assert found != "0" * 32
    assert found == trace_id_of(job_id, None) != trace_id_of(job_id + "x", None)


def test_a_job_of_somebody_elses_trace_keeps_it() -> None:
    assert trace_id_of("order-17", STORED) == "0af7651916cd43dd8448eb211c80319c"
    assert traceparent_of(lease(stored=STORED)) == STORED


@pytest.mark.parametrize(
    "stored",
    [
        "",
        "nonsense",
        STORED.upper(),
        STORED + "0",
        "00-" + "0" * 32 + STORED[35:],
        STORED.replace("b7ad6b7169203331", "0" * 16),
    ],
)
def test_a_trace_that_cannot_be_read_is_none(stored: str) -> None:
    job = lease(stored=stored)

    assert trace_id_of(job.job_id, stored) == trace_id_of(job.job_id, None)
    assert re.fullmatch(TRACEPARENT, traceparent_of(job))


@pytest.mark.parametrize(
    ("properties", "found"),
    [
        ({"traceparent": STORED}, STORED),
        ({"Diagnostic-Id": STORED}, STORED),
        ({"diagnostic-id": STORED}, STORED),
        ({"Diagnostic-Id": "|7d4b.1.", "traceparent": STORED}, STORED),
        ({"Diagnostic-Id": "|7d4b.1."}, None),  # as Azure's oldest SDKs wrote it
        ({"traceparent": 7, "other": STORED}, None),
        ({}, None),
    ],
)
def test_the_span_of_a_sender_is_read_from_the_properties_of_its_message(
    properties: dict[str, object], found: str | None
) -> None:
    assert sender_trace(properties) == found


def test_what_is_made_inside_a_step_belongs_to_it() -> None:
    job = lease()
    assert current_trace() is None

    with inside(job, None):
        child = current_trace()
        assert child is not None
        with inside(lease(stored=child), None):
            grandchild = current_trace()

    assert grandchild == child == traceparent_of(job)
    assert len(child) == 55
    assert current_trace() is None
    assert CURRENT.get() is None


# OpenTelemetry


def test_a_program_that_does_not_use_it_has_no_tracer(monkeypatch: pytest.MonkeyPatch) -> None:
    assert tracer() is None  # loaded, but nobody has configured it
    monkeypatch.delitem(sys.modules, "opentelemetry.trace")
    assert tracer() is None
    with enqueuing("greet", "mail") as stored:
        assert stored is None


def test_the_span_of_an_enqueue_is_the_parent_of_the_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    recorded = Recorded(monkeypatch)
    active = tracer()
    assert active is not None

    with active.start_as_current_span("request"), enqueuing("greet", "mail", 3) as stored:
        pass
    job = lease(stored=stored)
    end_step(begin_step(active, job, "greet", "mail", job.facts()), "done", {"took_s": 0.5})

    send, request, step = recorded.exporter.get_finished_spans()
    assert (send.name, step.name) == ("enqueue greet", "greet")
    assert send.context is not None
    assert send.parent is not None
    assert request.context is not None
    assert step.parent is not None
    assert send.parent.span_id == request.context.span_id
    assert step.parent.span_id == send.context.span_id
    assert {it.context.trace_id for it in (send, request, step) if it.context} == {request.context.trace_id}
    assert stored == f"00-{send.context.trace_id:032x}-{send.context.span_id:016x}-01"
    assert send.attributes is not None
    assert send.attributes["messaging.batch.message_count"] == 3
    assert step.attributes is not None
    assert step.attributes["stepfast.job_id"] == job.job_id
    assert step.attributes["stepfast.outcome"] == "done"
    assert (send.kind, step.kind) == (trace.SpanKind.PRODUCER, trace.SpanKind.CONSUMER)


def test_a_context_without_a_provider_is_passed_on() -> None:
    context = trace.SpanContext(int("0af7651916cd43dd8448eb211c80319c", 16), 7, is_remote=True)

    with trace.use_span(trace.NonRecordingSpan(context)), enqueuing("greet", "mail") as stored:
        assert stored == "00-0af7651916cd43dd8448eb211c80319c-0000000000000007-00"


def test_an_error_is_shown_without_secrets_and_without_a_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    recorded = Recorded(monkeypatch)
    active = tracer()
    assert active is not None
    job = lease()

    span = begin_step(active, job, "greet", "mail", job.facts())
    end_step(span, "failed", {"error_type": "ValueError", "error": "password=hunter2"})
    end_step(span, "refused", {})  # too late, and told to nobody

    (step,) = recorded.exporter.get_finished_spans()
    assert step.attributes is not None
    assert step.attributes["stepfast.outcome"] == "failed"
    assert step.status.description == "ValueError: password=***"
    (event,) = step.events
    assert dict(event.attributes or {}) == {
        "exception.type": "ValueError",
        "exception.message": "password=***",
    }


def test_a_refused_enqueue_shows_its_kind_of_error_only(monkeypatch: pytest.MonkeyPatch) -> None:
    recorded = Recorded(monkeypatch)

    with pytest.raises(LookupError), enqueuing("greet", "mail"):
        raise LookupError("key hunter2 is held")

    (send,) = recorded.exporter.get_finished_spans()
    assert send.status.description == "LookupError"
    assert send.events == ()


def test_a_sampler_chooses_among_jobs_that_nobody_decided_about(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ids that count the time are not random where samplers look."""
    recorded = Recorded(monkeypatch, ParentBased(TraceIdRatioBased(0.3)))
    active = tracer()
    assert active is not None

    for job_id in new_ids(1_000):
        for _ in range(2):  # two steps of one job share one fate
            job = lease(job_id)
            end_step(begin_step(active, job, "greet", "mail", {}), "done", {})

    seen = [span.context.trace_id for span in recorded.exporter.get_finished_spans() if span.context]
    assert 200 < len(set(seen)) < 400
    assert len(seen) == 2 * len(set(seen))


def test_what_was_not_chosen_is_not_chosen_further_down(monkeypatch: pytest.MonkeyPatch) -> None:
    recorded = Recorded(monkeypatch, ParentBased(ALWAYS_OFF))
    active = tracer()
    assert active is not None

    with enqueuing("greet", "mail") as stored:
        assert stored is not None
    assert stored.endswith("-00")
    end_step(begin_step(active, lease(stored=stored), "greet", "mail", {}), "done", {})

    assert recorded.exporter.get_finished_spans() == ()


def test_a_broken_processor_of_the_program_does_not_stop_the_work(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    Recorded(monkeypatch)
    active = tracer()
    assert active is not None
    job = lease()
    span = begin_step(active, job, "greet", "mail", {})

    def stumble(*_: object, **__: object) -> None:
        raise RuntimeError("disk full")

    monkeypatch.setattr(SimpleSpanProcessor, "on_end", stumble)
    end_step(span, "done", {})
    monkeypatch.setattr(SimpleSpanProcessor, "on_start", stumble)
    end_step(begin_step(active, job, "greet", "mail", {}), "done", {})

    assert [it.getMessage() for it in caplog.records] == [
        "OpenTelemetry could not end a span",
        "OpenTelemetry could not begin a span",
    ]


def test_a_message_is_sent_inside_a_span_of_its_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    recorded = Recorded(monkeypatch)

    with sending("webhook", "https://a.example", STORED, lease()) as span:
        span.outcome = "sent"
    with sending("webhook", "https://a.example", None, lease()) as failed:
        failed.facts = {"error": "HTTP 500"}

    one, other = recorded.exporter.get_finished_spans()
    assert one.context is not None
    assert one.parent is not None
    assert span.traceparent == f"{STORED[:36]}{one.context.span_id:016x}-01"
    assert f"{one.parent.span_id:016x}" == "b7ad6b7169203331"
    assert (one.name, one.kind, (one.attributes or {})["stepfast.outcome"]) == (
        "send webhook",
        trace.SpanKind.CLIENT,
        "sent",
    )
    assert other.parent is None
    assert other.status.description == "Error: HTTP 500"


def test_without_a_tracer_a_message_carries_the_trace_that_it_has() -> None:
    with sending("webhook", "https://a.example", STORED, lease()) as span:
        assert span.traceparent == STORED


def test_spans_that_wait_are_exported_before_a_process_ends_without_hooks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(exporter, schedule_delay_millis=3_600_000))
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    with provider.get_tracer("shop").start_as_current_span("request"):
        pass

    flush_spans()

    assert [it.name for it in exporter.get_finished_spans()] == ["request"]
    provider.shutdown()


def test_an_exporter_that_hangs_keeps_no_process_from_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    released = threading.Event()
    provider = TracerProvider(shutdown_on_exit=False)
    monkeypatch.setattr(provider, "force_flush", released.wait)
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)

    flush_spans(patience=0.01)

    released.set()


# What the environment asks for


def test_an_exporter_that_is_missing_is_named_with_its_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4318")

    with pytest.raises(ConfigurationError, match="pip install opentelemetry-exporter-otlp-proto-http"):
        export_spans()


@pytest.mark.parametrize("chosen", [None, "none"])
def test_nobody_is_asked_where_the_environment_says_nothing(
    monkeypatch: pytest.MonkeyPatch, chosen: str | None
) -> None:
    if chosen is not None:
        monkeypatch.setenv("OTEL_TRACES_EXPORTER", chosen)

    export_spans()

    assert tracer() is None


def test_a_program_with_a_provider_of_its_own_keeps_it(monkeypatch: pytest.MonkeyPatch) -> None:
    Recorded(monkeypatch)
    before = trace.get_tracer_provider()
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "console")

    export_spans()

    assert trace.get_tracer_provider() is before


def test_without_the_extra_the_cure_of_that_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "console")
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)

    with pytest.raises(ConfigurationError, match=re.escape(install_hint("telemetry"))):
        export_spans()
