"""Durable background work: leased steps, committed once."""

from __future__ import annotations

from holdfast.app import Holdfast
from holdfast.database.connection import Transaction
from holdfast.database.upsert import Upsert
from holdfast.errors import (
    ArgumentsError,
    ConfigurationError,
    DuplicateKeyError,
    HoldfastError,
    JobCancelledError,
    JobFailedError,
    LeaseLostError,
    PermanentError,
    ResultExpiredError,
    StepCancelled,
    TransientError,
    WaitTimeoutError,
)
from holdfast.job import Job
from holdfast.limits.limit import Concurrency, Rate
from holdfast.results.handle import EnqueuedJob
from holdfast.results.outcome import JobOutcome
from holdfast.steps.dead_letters import Filter
from holdfast.steps.job import JobState
from holdfast.steps.outcome import Continue, Done, Effect, Reject, Snooze
from holdfast.steps.retry import Retry
from holdfast.steps.step import Step

__all__ = [
    "ArgumentsError",
    "Concurrency",
    "ConfigurationError",
    "Continue",
    "Done",
    "DuplicateKeyError",
    "Effect",
    "EnqueuedJob",
    "Filter",
    "Holdfast",
    "HoldfastError",
    "Job",
    "JobCancelledError",
    "JobFailedError",
    "JobOutcome",
    "JobState",
    "LeaseLostError",
    "PermanentError",
    "Rate",
    "Reject",
    "ResultExpiredError",
    "Retry",
    "Snooze",
    "Step",
    "StepCancelled",
    "Transaction",
    "TransientError",
    "Upsert",
    "WaitTimeoutError",
]
