"""Durable background work: leased steps, committed once."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from stepfast.app import Stepfast
from stepfast.database.connection import Transaction
from stepfast.database.upsert import Upsert
from stepfast.errors import (
    ArgumentsError,
    AuthError,
    ConfigurationError,
    CursorExpiredError,
    DuplicateKeyError,
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
from stepfast.limits.limit import Concurrency, Rate
from stepfast.results.handle import EnqueuedJob
from stepfast.results.outcome import JobOutcome
from stepfast.steps.dead_letters import Filter
from stepfast.steps.job import JobState
from stepfast.steps.outcome import Continue, Done, Effect, Reject, Snooze, Wait
from stepfast.steps.retry import Retry
from stepfast.steps.step import Step
from stepfast.steps.waiting import Event

if TYPE_CHECKING:
    from stepfast.retrying import with_retry
    from stepfast.runs.bounds import Bounds
    from stepfast.runs.broker import Broker
    from stepfast.runs.feed import Feed, Page
    from stepfast.runs.paging.paginators import Keyset, Offset, Token
    from stepfast.runs.paging.state import Cursor
    from stepfast.runs.partitioning.dimension import Choices, Dimension
    from stepfast.runs.partitioning.fixed import Fixed
    from stepfast.runs.partitioning.heatmap import Heatmap
    from stepfast.runs.partitioning.key_ranges import KeyRanges
    from stepfast.runs.partitioning.time_slices import TimeSlices
    from stepfast.runs.ranges import Range
    from stepfast.runs.sweep import Sweep
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
    "with_retry",
]

# What feeds are made of, and what else most programs do without: loaded when it is asked for.
_LATER = {
    "Bounds": "stepfast.runs.bounds",
    "Broker": "stepfast.runs.broker",
    "Choices": "stepfast.runs.partitioning.dimension",
    "Cursor": "stepfast.runs.paging.state",
    "Dimension": "stepfast.runs.partitioning.dimension",
    "Feed": "stepfast.runs.feed",
    "Fixed": "stepfast.runs.partitioning.fixed",
    "Heatmap": "stepfast.runs.partitioning.heatmap",
    "KeyRanges": "stepfast.runs.partitioning.key_ranges",
    "Keyset": "stepfast.runs.paging.paginators",
    "Offset": "stepfast.runs.paging.paginators",
    "Page": "stepfast.runs.feed",
    "Range": "stepfast.runs.ranges",
    "Sweep": "stepfast.runs.sweep",
    "TimeSlices": "stepfast.runs.partitioning.time_slices",
    "Token": "stepfast.runs.paging.paginators",
    "Window": "stepfast.runs.feed",
    "with_retry": "stepfast.retrying",
}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module 'stepfast' has no attribute {name!r}")
    return getattr(import_module(_LATER[name]), name)
