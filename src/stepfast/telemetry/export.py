"""Send spans where the environment says, for `stepfast worker`: the variables are OpenTelemetry's own.

A program that configures OpenTelemetry itself is left alone, and so is one whose environment says nothing.
"""

from __future__ import annotations

import os
from importlib.metadata import entry_points
from typing import Any, Final

from stepfast.errors import ConfigurationError

PACKAGES: Final = {
    "otlp_proto_http": "opentelemetry-exporter-otlp-proto-http",
    "otlp_proto_grpc": "opentelemetry-exporter-otlp-proto-grpc",
}


def export_spans() -> None:
    """If OTEL_TRACES_EXPORTER or an OTEL_EXPORTER_… is set and nobody has set up a provider, do so."""
    chosen = os.environ.get("OTEL_TRACES_EXPORTER", "")
    asked = chosen or any(name.startswith("OTEL_EXPORTER_") for name in os.environ)
    if not asked or chosen == "none":
        return
    try:
        from opentelemetry import trace
        from opentelemetry.sdk.resources import SERVICE_NAME, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as missing:
        raise ConfigurationError(
            "the environment asks for OpenTelemetry, which needs an extra: pip install 'stepfast[telemetry]'"
        ) from missing
    if not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        return
    resource = Resource.create()
    if str(resource.attributes.get(SERVICE_NAME, "")).startswith("unknown_service"):
        resource = resource.merge(Resource({SERVICE_NAME: "stepfast"}))
    provider = TracerProvider(resource=resource)
    for name in (chosen or "otlp").split(","):
        provider.add_span_processor(BatchSpanProcessor(_exporter(name.strip())))
    trace.set_tracer_provider(provider)


def _exporter(name: str) -> Any:
    if name == "otlp":
        protocol = os.environ.get("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")
        name = "otlp_proto_grpc" if protocol == "grpc" else "otlp_proto_http"
    for found in entry_points(group="opentelemetry_traces_exporter", name=name):
        return found.load()()
    cure = f"pip install {PACKAGES[name]}" if name in PACKAGES else "install the package that brings it"
    raise ConfigurationError(f"OTEL_TRACES_EXPORTER: there is no exporter {name!r} here; {cure}")
