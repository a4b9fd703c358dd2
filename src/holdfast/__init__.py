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
    LeaseLostError,
    PermanentError,
    StepCancelled,
    TransientError,
)
from holdfast.job import Job
from holdfast.steps.dead_letters import Filter
from holdfast.steps.job import EnqueuedJob, JobState
from holdfast.steps.outcome import Continue, Done, Effect, Reject, Snooze
from holdfast.steps.retry import Retry
from holdfast.steps.step import Step

__all__ = [
    "ArgumentsError",
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
    "JobState",
    "LeaseLostError",
    "PermanentError",
    "Reject",
    "Retry",
    "Snooze",
    "Step",
    "StepCancelled",
    "Transaction",
    "TransientError",
    "Upsert",
]
