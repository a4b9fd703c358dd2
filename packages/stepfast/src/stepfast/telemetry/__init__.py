"""Report events, each once and under a name: logs, metrics and traces all listen here.

    happened("step.refused", lease, fence=lease.fence)
    when_committed(tx, "run.planned", run, partitions=4)  # in a transaction that may yet be rolled back

The list of events is `events.py`; the reference in the documentation is generated from it.
"""

from __future__ import annotations

from stepfast.telemetry.events import EVENTS, LEVELS, Event
from stepfast.telemetry.sinks import Fact, Subject, happened, listen, unlisten, wanted, when_committed
from stepfast.telemetry.traces import current_trace, trace_id_of

__all__ = [
    "EVENTS",
    "LEVELS",
    "Event",
    "Fact",
    "Subject",
    "current_trace",
    "happened",
    "listen",
    "trace_id_of",
    "unlisten",
    "wanted",
    "when_committed",
]
