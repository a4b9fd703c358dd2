"""What is counted and timed: the one list of metrics, each fed by events.

To add one, put it here; it needs a name, a meaning, labels with few values, and the events it hears of.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

Labels = tuple[str, ...]

BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900)
ENDINGS: Final = frozenset({"done", "dead", "cancelled"})  # outcomes of a step that end its job


@dataclass(frozen=True)
class Counter:
    """What is counted, at which events; each says what else it knows: the field to add, or labels that are fixed."""

    name: str
    meaning: str
    labels: Labels
    events: Mapping[str, Mapping[str, str]]
    by: str | None = None  # the field that says how many; else each event counts one


@dataclass(frozen=True)
class Histogram:
    """What is timed: a field of these events, one number or many."""

    name: str
    meaning: str
    labels: Labels
    of: str
    events: frozenset[str]


STEPS: Final = Counter(
    "stepfast_steps",
    "Steps that ended, by kind and outcome.",
    ("kind", "outcome"),
    {
        "jobs.acknowledged": {"outcome": "done"},
        "step.committed": {},
        "step.failed": {"outcome": "failed"},
        "step.postponed": {"outcome": "postponed"},
        "step.refused": {"outcome": "refused"},
        "job.died": {"outcome": "dead"},
        "job.cancelled": {"outcome": "cancelled"},
    },
    by="jobs",
)
_ENDED: Final = frozenset(STEPS.events) - {"step.refused"}
_ONE: Final[Mapping[str, str]] = {}

COUNTERS: Final = (
    STEPS,
    Counter(
        "stepfast_refused_commits",
        "Commits that were refused because somebody else had the step.",
        ("kind",),
        {"step.refused": _ONE},
    ),
    Counter(
        "stepfast_duplicates",
        "Enqueues that met their key or id.",
        ("kind", "answer"),
        {
            "duplicate.skipped": {"answer": "skipped"},
            "duplicate.refused": {"answer": "refused"},
            "duplicate.replaced": {"answer": "replaced"},
            "duplicate.merged": {"answer": "merged"},
            "duplicate.deferred": {"answer": "deferred"},
        },
    ),
    Counter(
        "stepfast_claimed_jobs", "Jobs taken from their queue.", ("queue",), {"jobs.claimed": _ONE}, "jobs"
    ),
    Counter(
        "stepfast_held_jobs", "Times that a limit had no room for a job.", (), {"jobs.held": _ONE}, "jobs"
    ),
    Counter("stepfast_timeouts", "Steps that ran longer than they may.", ("kind",), {"step.timed-out": _ONE}),
    Counter("stepfast_lost_slots", "Handlers that ignored their timeout.", ("kind",), {"slot.lost": _ONE}),
    Counter(
        "stepfast_isolated_crashes",
        "Isolated steps whose process died under them.",
        ("kind",),
        {"step.crashed": _ONE},
    ),
    Counter("stepfast_promoted_jobs", "Scheduled jobs whose time came.", (), {"jobs.promoted": _ONE}, "jobs"),
    Counter(
        "stepfast_pruned_jobs", "Finished jobs that were forgotten.", (), {"archive.pruned": _ONE}, "jobs"
    ),
    Counter("stepfast_rescued_jobs", "Jobs taken back from the dead.", (), {"jobs.rescued": _ONE}, "jobs"),
    Counter(
        "stepfast_crashes_charged",
        "Jobs charged with the death of their worker.",
        (),
        {"jobs.rescued": _ONE},
        "charged",
    ),
    Counter(
        "stepfast_messages",
        "Tries to send a message of the outbox, by channel and outcome.",
        ("channel", "outcome"),
        {
            "message.sent": {"outcome": "sent"},
            "message.failed": {"outcome": "failed"},
            "message.died": {"outcome": "dead"},
        },
    ),
    Counter(
        "stepfast_clipped_values",
        "Texts that were left out of a row because they are too long.",
        ("field",),
        {"mapping.clipped": _ONE},
    ),
    Counter("stepfast_dead_workers", "Workers declared dead.", (), {"worker.declared-dead": _ONE}),
    Counter("stepfast_heartbeat_failures", "Outages of the heartbeat.", (), {"heartbeat.failed": _ONE}),
    Counter("stepfast_replacements", "Times this was declared dead.", (), {"incarnation.replaced": _ONE}),
    Counter("stepfast_database_outages", "Outages that a part met.", (), {"database.lost": _ONE}),
    Counter("stepfast_unknown_commits", "Commits without an answer.", (), {"commit.unknown": _ONE}),
    Counter("stepfast_worker_failures", "Unexpected errors of our own.", (), {"worker.failed": _ONE}),
)
HISTOGRAMS: Final = (
    Histogram("stepfast_processing_seconds", "Time in the handler, by kind.", ("kind",), "took_s", _ENDED),
    Histogram(
        "stepfast_lease_hold_seconds",
        "Time from a claim until the step's end was written, by kind.",
        ("kind",),
        "held_s",
        _ENDED,
    ),
    Histogram(
        "stepfast_sending_seconds",
        "Time of one try to send a message, by channel.",
        ("channel",),
        "took_s",
        frozenset({"message.sent", "message.failed", "message.died"}),
    ),
    Histogram(
        "stepfast_pickup_seconds",
        "Time that a job was ready before it was claimed, by queue.",
        ("queue",),
        "waited_s",
        frozenset({"jobs.claimed"}),
    ),
)
