"""What happened, as named events with fields. Logs listen here; metrics and traces will too.

An event is `noun.past-verb`; the ids are fields, never poured into a sentence.
"""

from __future__ import annotations

import logging
from typing import Final

Fact = str | float | int | None

_log: Final = logging.getLogger("holdfast")

# Events that deserve attention; everything else is information, and the ones per step are detail.
LEVELS: Final = {
    "step.committed": logging.DEBUG,
    "jobs.claimed": logging.DEBUG,
    "jobs.acknowledged": logging.DEBUG,
    "jobs.promoted": logging.DEBUG,
    "step.postponed": logging.DEBUG,
    "step.failed": logging.WARNING,
    "step.timed-out": logging.WARNING,
    "step.refused": logging.WARNING,
    "job.died": logging.ERROR,
    "heartbeat.failed": logging.WARNING,
    "incarnation.replaced": logging.WARNING,
    "database.lost": logging.WARNING,
    "commit.unknown": logging.WARNING,
    "worker.declared-dead": logging.WARNING,
    "slot.lost": logging.ERROR,
    "loop.stuck": logging.CRITICAL,
    "worker.failed": logging.ERROR,
    "reports.dropped": logging.ERROR,
    "kind.unknown": logging.WARNING,
    "leases.leaked": logging.WARNING,
    "worker.ended": logging.WARNING,
}


def happened(event: str, /, **facts: Fact) -> None:
    """Report `event` with the ids that let a reader follow one job."""
    level = LEVELS.get(event, logging.INFO)
    if _log.isEnabledFor(level):
        text = " ".join(f"{name}={value}" for name, value in facts.items() if value is not None)
        _log.log(level, "%s %s", event, text, extra={"event": event, "facts": facts})
