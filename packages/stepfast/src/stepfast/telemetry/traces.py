"""The trace a job belongs to: one id that follows it across its steps, its children and its webhooks.

It is stored as a W3C traceparent (version, trace, parent span, flags). A job without one begins a trace of its own,
whose id is made of the job's id, so that enqueuing costs nothing and the trace of a known job is known.
OpenTelemetry is used where a program has configured it, and only then; the ids follow without it.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import sys
import threading
from contextlib import contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from stepfast.errors import ConfigurationError, install_hint
from stepfast.telemetry.current_step import CURRENT
from stepfast.telemetry.sinks import Fact, Plain, Subject, plain

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from opentelemetry.trace import Span, SpanContext, Tracer, TracerProvider

    from stepfast.telemetry.current_step import Work


_log: Final = logging.getLogger("stepfast")
_TRACEPARENT: Final = re.compile(r"00-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})")
_UUID: Final = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)
_NO_TRACE: Final = "0" * 32  # invalid, says W3C
# Properties of a message in which a sender names its span; the second one is that of Azure's older SDKs.
_OF_SENDER: Final = ("traceparent", "diagnostic-id")
SAMPLED: Final = 1


def trace_id_of(job_id: str, trace: str | None) -> str:
    """The 32 digits of the trace that a job belongs to: the one in `trace`, or one of its own."""
    if trace is not None and (found := _TRACEPARENT.fullmatch(trace)):
        return found[1]
    own = job_id.replace("-", "").lower() if _UUID.fullmatch(job_id) else _NO_TRACE
    return own if own != _NO_TRACE else hashlib.sha256(job_id.encode()).hexdigest()[:32]


def traceparent_of(work: Work) -> str:
    """The traceparent that a child of this step stores."""
    return traceparent_of_job(work.job_id, work.trace)


def traceparent_of_job(job_id: str, trace: str | None) -> str:
    """The traceparent of what belongs to a job: the one that it stores, or that of its own trace."""
    if trace is not None and _TRACEPARENT.fullmatch(trace):
        return trace
    trace_id = trace_id_of(job_id, None)
    return f"00-{trace_id}-{_first_span(trace_id)}-01"


def sender_trace(properties: Mapping[str, Any]) -> str | None:
    """The traceparent that the sender of a message wrote into its properties; None if there is none of W3C's form."""
    given = {name.lower(): value for name, value in properties.items()}
    for name in _OF_SENDER:
        value = given.get(name)
        if isinstance(value, str) and _TRACEPARENT.fullmatch(value):
            return value
    return None


def _first_span(trace_id: str) -> str:
    """The span that a job's own trace begins with. It is never recorded: it only holds the steps together."""
    return hashlib.sha256(trace_id.encode()).hexdigest()[:16]


def current_trace() -> str | None:
    """The traceparent of a job or a message that is made right now; None: it begins a trace of its own."""
    if (otel := sys.modules.get("opentelemetry.trace")) is not None:
        stored = _stored(otel.get_current_span().get_span_context())
        if stored is not None:
            return stored
    work = CURRENT.get()
    return None if work is None else traceparent_of(work)


def current_facts() -> Plain:
    """The ids of the step that a log line which is written right now belongs to."""
    work = CURRENT.get()
    return {} if work is None else plain(work.facts())


def _stored(context: SpanContext) -> str | None:
    if not context.is_valid:
        return None
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{int(context.trace_flags) & SAMPLED:02x}"


# OpenTelemetry


def tracer() -> Tracer | None:
    """The tracer of the program, if it has configured one; a program that has not imported the module has not."""
    if (otel := sys.modules.get("opentelemetry.trace")) is None:
        return None
    provider = otel.get_tracer_provider()
    return None if isinstance(provider, otel.ProxyTracerProvider) else _tracer_of(provider)


@lru_cache(maxsize=4)
def _tracer_of(provider: TracerProvider) -> Tracer:
    return provider.get_tracer("stepfast")


@contextmanager
def enqueuing(kind: str, queue: str, jobs: int = 1) -> Iterator[str | None]:
    """A span around an enqueue, if the program has a tracer; yields the traceparent that the jobs store."""
    active = tracer()
    if active is None:
        yield current_trace()
        return
    from opentelemetry.trace import SpanKind, StatusCode, get_current_span

    work = CURRENT.get()
    parent = None
    if work is not None and not get_current_span().get_span_context().is_valid:
        parent = _as_parent(traceparent_of(work), active)
    facts = {"messaging.batch.message_count": jobs} if jobs != 1 else {}
    with active.start_as_current_span(
        f"enqueue {kind}",
        parent,
        kind=SpanKind.PRODUCER,
        attributes=_messaging("send", queue) | {"stepfast.kind": kind, **facts},
        record_exception=False,  # the text of an error may quote what it refuses
        set_status_on_exception=False,
    ) as span:
        try:
            yield _stored(span.get_span_context()) or current_trace()
        except Exception as error:
            span.set_status(StatusCode.ERROR, type(error).__qualname__)
            raise


def begin_step(active: Tracer, work: Work, kind: str, queue: str, facts: Mapping[str, Any]) -> Span:
    """Begin the span of one step, which goes on until its end is committed; it is current where the handler runs."""
    from opentelemetry.context import attach
    from opentelemetry.trace import INVALID_SPAN, SpanKind, set_span_in_context

    try:
        span = active.start_span(
            kind,
            _as_parent(traceparent_of(work), active),
            kind=SpanKind.CONSUMER,
            attributes=_messaging("process", queue) | _named(plain(facts)),
        )
        attach(set_span_in_context(span))
    except Exception:  # noqa: BLE001 - a processor of the program's own: the work goes on without it
        _log.exception("OpenTelemetry could not begin a span")
        return INVALID_SPAN
    return span


def end_step(span: Span, outcome: str, facts: Mapping[str, Fact]) -> None:
    """End the span of a step. Its error is shown as in the log: without secrets and quoted data."""
    try:
        if span.is_recording():
            _describe(span, outcome, plain(facts))
            span.end()
    except Exception:  # noqa: BLE001 - as above
        _log.exception("OpenTelemetry could not end a span")


def _describe(span: Span, outcome: str, facts: Plain) -> None:
    from opentelemetry.trace import StatusCode

    span.set_attributes(_named(facts) | {"stepfast.outcome": outcome})
    if "error_message" in facts or "error_type" in facts:
        kind, message = str(facts.get("error_type", "Error")), str(facts.get("error_message", ""))
        span.add_event("exception", {"exception.type": kind, "exception.message": message})
        span.set_attribute("error.type", kind)
        span.set_status(StatusCode.ERROR, f"{kind}: {message}")


@contextmanager
def inside(work: Work, span: Span | None) -> Iterator[None]:
    """A context for code that belongs to a step and runs outside of its handler: its effects."""
    before = CURRENT.set(work)
    try:
        if span is None:
            yield
        else:
            from opentelemetry.trace import use_span

            with use_span(span, record_exception=False, set_status_on_exception=False):
                yield
    finally:
        CURRENT.reset(before)


@contextmanager
def sending(channel: str, destination: str, trace: str | None, about: Subject) -> Iterator[SendingSpan]:
    """A span around one try to send a message, if the program has a tracer; it belongs to the trace of the message."""
    active = tracer()
    if active is None:
        yield SendingSpan(trace)
        return
    from opentelemetry.context import Context
    from opentelemetry.trace import INVALID_SPAN, SpanKind

    known = trace is not None and _TRACEPARENT.fullmatch(trace)
    try:
        span = active.start_span(
            f"send {channel}",
            _as_parent(trace, active) if trace is not None and known else Context(),
            kind=SpanKind.CLIENT,
            attributes=_messaging("send", destination) | _named(plain(about.facts())),
        )
    except Exception:  # noqa: BLE001 - a processor of the program's own: the message is sent without it
        _log.exception("OpenTelemetry could not begin a span")
        span = INVALID_SPAN
    sent = SendingSpan(_stored(span.get_span_context()) or trace)
    try:
        yield sent
    finally:
        end_step(span, sent.outcome, sent.facts)


class SendingSpan:
    """The span of one try to send a message, or nothing: whoever sends says how it ended."""

    def __init__(self, traceparent: str | None) -> None:
        self.traceparent = traceparent  # for the receiver, whose spans belong below this one
        self.outcome = "failed"
        self.facts: dict[str, Fact] = {}


def _as_parent(traceparent: str, active: Tracer) -> Any:
    """The context that a span below this one begins in."""
    from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, set_span_in_context

    found = _TRACEPARENT.fullmatch(traceparent)
    assert found is not None  # noqa: S101 - all callers have looked
    trace_id, span_id, flags = found[1], found[2], int(found[3], 16)
    if span_id == _first_span(trace_id):
        flags = SAMPLED if _chosen(trace_id, active) else 0
    context = SpanContext(int(trace_id, 16), int(span_id, 16), is_remote=True, trace_flags=TraceFlags(flags))
    return set_span_in_context(NonRecordingSpan(context))


def _chosen(trace_id: str, active: Tracer) -> bool:
    """Whether the program's sampler wants a trace that is not decided yet.

    It is asked about a hash: samplers look at the digits, and those of an id that counts the time are not random.
    """
    sampler = getattr(active, "sampler", None)
    if sampler is None:
        return True
    from opentelemetry.context import Context

    dice = int(hashlib.sha256(trace_id.encode()).hexdigest()[:32], 16)
    # An empty context: without one it would look at the current span, which may be of the step before.
    return bool(sampler.should_sample(Context(), dice, "stepfast").decision.is_sampled())


def _messaging(operation: str, queue: str) -> dict[str, Any]:
    return {
        "messaging.system": "stepfast",
        "messaging.operation.type": operation,
        "messaging.destination.name": queue,
    }


def _named(facts: Mapping[str, Any]) -> dict[str, Any]:
    hidden = {"trace_id", "error_type", "error_message"}
    return {
        f"stepfast.{name}": value for name, value in facts.items() if name not in hidden and value is not None
    }


# The exporter of `stepfast worker` and `stepfast tasks work`, configured by OpenTelemetry's own variables.

FLUSHING: Final = 3.0  # seconds that the last spans get
PACKAGES: Final = {
    "otlp_proto_http": "opentelemetry-exporter-otlp-proto-http",
    "otlp_proto_grpc": "opentelemetry-exporter-otlp-proto-grpc",
}


def export_spans() -> None:
    """Set up a tracer provider if OTEL_TRACES_EXPORTER or an OTEL_EXPORTER_… is set and the program has none."""
    exporters = span_exporters()
    if not exporters:
        return
    from opentelemetry import trace
    from opentelemetry.sdk.resources import SERVICE_NAME, Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    resource = Resource.create()
    if str(resource.attributes.get(SERVICE_NAME, "")).startswith("unknown_service"):
        resource = resource.merge(Resource({SERVICE_NAME: "stepfast"}))
    provider = TracerProvider(resource=resource)
    for exporter in exporters:
        provider.add_span_processor(BatchSpanProcessor(exporter()))
    trace.set_tracer_provider(provider)


def span_exporters() -> list[Any]:
    """The classes of the exporters that the environment asks for; raises if one of them is not installed.

    None where the program has set up a tracer provider of its own.
    """
    chosen = os.environ.get("OTEL_TRACES_EXPORTER", "")
    asked = chosen or any(name.startswith("OTEL_EXPORTER_") for name in os.environ)
    if not asked or chosen == "none":
        return []
    try:
        from opentelemetry import trace
        from opentelemetry.sdk.trace import export  # noqa: F401 - is it there?
    except ImportError as missing:
        raise ConfigurationError(
            f"the environment asks for OpenTelemetry, which needs an extra: {install_hint('telemetry')}"
        ) from missing
    if not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        return []
    return [_exporter(name.strip()) for name in (chosen or "otlp").split(",")]


def flush_spans(patience: float = FLUSHING) -> None:
    """Export the spans that wait for it, for at most so many seconds: this process ends without its exit hooks."""
    if (otel := sys.modules.get("opentelemetry.trace")) is None:
        return
    flush = getattr(otel.get_tracer_provider(), "force_flush", None)
    if flush is None:
        return

    def export() -> None:
        try:
            flush()
        except Exception:  # noqa: BLE001 - an exporter of the program's own
            _log.exception("OpenTelemetry could not export the last spans")

    exporting = threading.Thread(target=export, name="stepfast-spans", daemon=True)
    exporting.start()
    exporting.join(patience)  # the exporter has a patience of its own, which may be longer


def _exporter(name: str) -> Any:
    from importlib.metadata import entry_points  # here: it imports `email`, which most programs do without

    if name == "otlp":
        protocol = os.environ.get("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")
        name = "otlp_proto_grpc" if protocol == "grpc" else "otlp_proto_http"
    for entry_point in entry_points(group="opentelemetry_traces_exporter", name=name):
        return entry_point.load()
    cure = f"pip install {PACKAGES[name]}" if name in PACKAGES else "install the package that brings it"
    raise ConfigurationError(f"OTEL_TRACES_EXPORTER: there is no exporter {name!r} here; {cure}")
