"""Durable background work: leased steps, committed once."""

from __future__ import annotations

from holdfast.app import Holdfast, Job
from holdfast.database.connection import Transaction
from holdfast.database.upsert import Upsert
from holdfast.errors import HoldfastError, LeaseLostError, PermanentError, StepCancelled, TransientError
from holdfast.steps.outcome import Continue, Done, Effect, Reject, Snooze
from holdfast.steps.retry import Retry
from holdfast.steps.step import Step

__all__ = [
    "Continue",
    "Done",
    "Effect",
    "Holdfast",
    "HoldfastError",
    "Job",
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
