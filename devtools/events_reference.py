"""The events and the metrics as tables, from the two lists in `telemetry`.

`docs/reference/events.md` and `docs/reference/metrics.md` include them through cog.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from stepfast.telemetry.events import CHAPTERS, Event
from stepfast.telemetry.metrics import COUNTERS, GAUGES, HISTOGRAMS


def events() -> str:
    """A section per chapter, a row per event."""
    return "\n".join(_chapter(title, list(found)) for title, found in CHAPTERS.items())


def metrics() -> str:
    """What this process counts and times; a row per metric."""
    rows = [
        f"| `{it.name}_total` | counter | {_names(it.labels)} | {it.meaning.rstrip('.')} | {_names(it.events)} |"
        for it in COUNTERS
    ]
    rows += [
        f"| `{it.name}` | histogram | {_names(it.labels)} | {it.meaning.rstrip('.')} | {_names(sorted(it.events))} |"
        for it in HISTOGRAMS
    ]
    rows += [
        f"| `{it.name}` | gauge | {_names(it.labels)} | {it.meaning.rstrip('.')} | {_names(it.events)} |"
        for it in GAUGES
    ]
    head = ["| metric | type | labels | meaning | fed by |", "|---|---|---|---|---|"]
    return "\n".join([*head, *rows, ""])


def _chapter(title: str, events: list[Event]) -> str:
    head = [f"## {title}\n", "| event | level | meaning | fields |", "|---|---|---|---|"]
    return "\n".join([*head, *map(_row, events), ""])


def _row(event: Event) -> str:
    level = logging.getLevelName(event.level).lower()
    fields = (["of the step"] if event.about_step else []) + [f"`{name}`" for name in event.fields]
    return f"| `{event.name}` | {level} | {event.meaning} | {', '.join(fields)} |"


def _names(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)
