"""Logs as JSON, metrics, and one trace over an order, its two steps and the job that it enqueues.

python -m examples.observability
"""

from __future__ import annotations

import io
import json
import logging
import sys
import tempfile
import threading

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import CollectorRegistry, generate_latest

from stepfast import Continue, Done, Reject, Step, Stepfast
from stepfast.applications import LogLines, log_formatter

app = Stepfast(f"sqlite:///{tempfile.mkdtemp()}/orders.db")
log = logging.getLogger("shop")
mails = threading.Event()


@app.job()
async def send_mail(to: str) -> None:
    log.info("mail to %s", to)
    mails.set()


@app.job()
async def take_order(step: Step, order: str, password: str) -> Continue | Done | Reject:
    step.annotate(order=order)
    if order == "A-2":
        return Reject(f"the bank refused password={password}")
    if step.number == 0:
        return Continue("paid")
    send_mail.enqueue(to="ada@example.com")
    return Done()


def main() -> int:
    lines = io.StringIO()  # `stepfast worker --log-format json` prints the same to stderr
    handler = logging.StreamHandler(lines)
    handler.setFormatter(log_formatter("json", LogLines()))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    spans = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    trace.set_tracer_provider(provider)
    metrics = CollectorRegistry()
    metrics.register(app.metrics())

    with trace.get_tracer("shop").start_as_current_span("POST /orders"):
        good = take_order.enqueue(order="A-1", password="hunter2")  # noqa: S106 - must not appear in any output
    bad = take_order.enqueue(order="A-2", password="hunter2")  # noqa: S106
    with app.worker():
        good.wait(timeout="30s")
        bad.wait(timeout="30s")
        mails.wait(30)

    print("— the log")
    for line in map(json.loads, lines.getvalue().splitlines()):
        if line["event"] == "job.died" or line["logger"] == "shop":
            shown = ("event", "kind", "order", "errorType", "errorMessage")
            print("  ", {name: line[name] for name in shown if name in line})
    print("— the metrics")
    text = generate_latest(metrics).decode()
    for line in text.splitlines():
        if line.startswith(("stepfast_jobs_total", "stepfast_dead_letters")):
            print("  ", line)
    print("— one trace")
    (root,) = [it for it in spans.get_finished_spans() if it.name == "POST /orders"]
    inside = [it for it in spans.get_finished_spans() if it.context.trace_id == root.context.trace_id]
    for span in sorted(inside, key=lambda it: it.start_time or 0):
        print("  ", span.name, dict(span.attributes or {}).get("stepfast.outcome", ""))
    secret = any("hunter2" in it for it in (lines.getvalue(), text, *(span.to_json() for span in inside)))
    print(f"job {good.id}: {app.operator.job(good.id).job.state}; a secret was seen: {secret}")
    return int(secret)


if __name__ == "__main__":
    sys.exit(main())
