"""Durable background work: leased steps, committed once."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from holdfast.app import Holdfast
from holdfast.database.connection import Transaction
from holdfast.database.upsert import Upsert
from holdfast.errors import (
    ArgumentsError,
    AuthError,
    ConfigurationError,
    CursorExpiredError,
    DuplicateKeyError,
    HoldfastError,
    JobCancelledError,
    JobFailedError,
    LeaseLostError,
    OutageError,
    PermanentError,
    ResultExpiredError,
    SealedError,
    StepCancelled,
    ThrottledError,
    TransientError,
    WaitTimeoutError,
)
from holdfast.job import Job
from holdfast.limits.limit import Concurrency, Rate
from holdfast.results.handle import EnqueuedJob
from holdfast.results.outcome import JobOutcome
from holdfast.steps.dead_letters import Filter
from holdfast.steps.job import JobState
from holdfast.steps.outcome import Continue, Done, Effect, Reject, Snooze, Wait
from holdfast.steps.retry import Retry
from holdfast.steps.step import Step
from holdfast.steps.waiting import Event

if TYPE_CHECKING:
    from holdfast.retrying import with_retry
    from holdfast.runs.bounds import Bounds
    from holdfast.runs.broker import Broker
    from holdfast.runs.feed import Feed, Page, Window
    from holdfast.runs.paging.paginators import Keyset, Offset, Token
    from holdfast.runs.paging.state import Cursor
    from holdfast.runs.partitioning.dimension import Choices, Dimension
    from holdfast.runs.partitioning.fixed import Fixed
    from holdfast.runs.partitioning.heatmap import Heatmap
    from holdfast.runs.partitioning.key_ranges import KeyRanges
    from holdfast.runs.partitioning.time_slices import TimeSlices
    from holdfast.runs.ranges import Range
    from holdfast.runs.sweep import Sweep

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
    "Holdfast",
    "HoldfastError",
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
    "Bounds": "holdfast.runs.bounds",
    "Broker": "holdfast.runs.broker",
    "Choices": "holdfast.runs.partitioning.dimension",
    "Cursor": "holdfast.runs.paging.state",
    "Dimension": "holdfast.runs.partitioning.dimension",
    "Feed": "holdfast.runs.feed",
    "Fixed": "holdfast.runs.partitioning.fixed",
    "Heatmap": "holdfast.runs.partitioning.heatmap",
    "KeyRanges": "holdfast.runs.partitioning.key_ranges",
    "Keyset": "holdfast.runs.paging.paginators",
    "Offset": "holdfast.runs.paging.paginators",
    "Page": "holdfast.runs.feed",
    "Range": "holdfast.runs.ranges",
    "Sweep": "holdfast.runs.sweep",
    "TimeSlices": "holdfast.runs.partitioning.time_slices",
    "Token": "holdfast.runs.paging.paginators",
    "Window": "holdfast.runs.feed",
    "with_retry": "holdfast.retrying",
}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module 'holdfast' has no attribute {name!r}")
    return getattr(import_module(_LATER[name]), name)
