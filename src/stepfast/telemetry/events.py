"""Everything that is ever reported, by name: the one list that logs, metrics, traces and the reference share.

An event is `noun.past-verb`; its values are fields, never poured into a sentence. To add one, put it into its
chapter in `worker_events` or `other_events` and call `happened`; a test finds whatever is missing on either side.
"""

from __future__ import annotations

from typing import Final

from stepfast.telemetry import other_events, worker_events
from stepfast.telemetry.event import STEP_FIELDS, Event

__all__ = ["CHAPTERS", "EVENTS", "LEVELS", "STEP_FIELDS", "Event"]

CHAPTERS: Final = {**worker_events.CHAPTERS, **other_events.CHAPTERS}
EVENTS: Final = {event.name: event for chapter in CHAPTERS.values() for event in chapter}
LEVELS: Final = {event.name: event.level for event in EVENTS.values()}
