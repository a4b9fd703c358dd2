"""Durable background work: leased steps, committed once."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from stepfast.app import Stepfast
from stepfast.database.connection import Transaction
from stepfast.database.statement import sql
from stepfast.database.upsert import Upsert
from stepfast.errors import (
    ArgumentsError,
    AuthError,
    ConfigurationError,
    CursorExpiredError,
    DuplicateKeyError,
    HeldError,
    JobCancelledError,
    JobFailedError,
    LeaseLostError,
    OutageError,
    PermanentError,
    ResultExpiredError,
    SealedError,
    StepCancelled,
    StepfastError,
    ThrottledError,
    TransientError,
    WaitTimeoutError,
)
from stepfast.job import Job
from stepfast.jobs.outcome import Continue, Done, Effect, Reject, Snooze, Wait, effect
from stepfast.jobs.retry import Retry
from stepfast.jobs.state import JobState
from stepfast.jobs.step import Step
from stepfast.jobs.wait import Event
from stepfast.limits.limit import Concurrency, Rate
from stepfast.results.enqueued_job import EnqueuedJob
from stepfast.results.outcome import JobOutcome

if TYPE_CHECKING:
    from stepfast.jobs.dead_letters import Filter
    from stepfast.local_retry import with_retry
    from stepfast.runs.broker import Broker
    from stepfast.runs.feed import Feed, Page, Sweep
    from stepfast.runs.paging.decision import Cursor
    from stepfast.runs.paging.paginators import Keyset, Offset, Token
    from stepfast.runs.partitioning.dimension import Choices, Dimension
    from stepfast.runs.partitioning.partitioners import Fixed, Heatmap, KeyRanges, TimeSlices
    from stepfast.runs.partitioning.ranges import Bounds, Range
    from stepfast.runs.window import Window

__all__ = [
    "ArgumentsError",
    "AuthError",
    "Bounds",
    "Broker",
    "Choices",
    "Concurrency",
    "ConfigurationError",
    "Continue",
    "Cursor",
    "CursorExpiredError",
    "Dimension",
    "Done",
    "DuplicateKeyError",
    "Effect",
    "EnqueuedJob",
    "Event",
    "Feed",
    "Filter",
    "Fixed",
    "Heatmap",
    "HeldError",
    "Job",
    "JobCancelledError",
    "JobFailedError",
    "JobOutcome",
    "JobState",
    "KeyRanges",
    "Keyset",
    "LeaseLostError",
    "Offset",
    "OutageError",
    "Page",
    "PermanentError",
    "Range",
    "Rate",
    "Reject",
    "ResultExpiredError",
    "Retry",
    "SealedError",
    "Snooze",
    "Step",
    "StepCancelled",
    "Stepfast",
    "StepfastError",
    "Sweep",
    "ThrottledError",
    "TimeSlices",
    "Token",
    "Transaction",
    "TransientError",
    "Upsert",
    "Wait",
    "WaitTimeoutError",
    "Window",
    "effect",
    "sql",
    "with_retry",
]

# Feeds, and other names that most programs do without: loaded when they are asked for.
_LATER = {
    "Bounds": "stepfast.runs.partitioning.ranges",
    "Broker": "stepfast.runs.broker",
    "Choices": "stepfast.runs.partitioning.dimension",
    "Cursor": "stepfast.runs.paging.decision",
    "Dimension": "stepfast.runs.partitioning.dimension",
    "Feed": "stepfast.runs.feed",
    "Filter": "stepfast.jobs.dead_letters",
    "Fixed": "stepfast.runs.partitioning.partitioners",
    "Heatmap": "stepfast.runs.partitioning.partitioners",
    "KeyRanges": "stepfast.runs.partitioning.partitioners",
    "Keyset": "stepfast.runs.paging.paginators",
    "Offset": "stepfast.runs.paging.paginators",
    "Page": "stepfast.runs.feed",
    "Range": "stepfast.runs.partitioning.ranges",
    "Sweep": "stepfast.runs.feed",
    "TimeSlices": "stepfast.runs.partitioning.partitioners",
    "Token": "stepfast.runs.paging.paginators",
    "Window": "stepfast.runs.window",
    "with_retry": "stepfast.local_retry",
}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module 'stepfast' has no attribute {name!r}")
    return getattr(import_module(_LATER[name]), name)
