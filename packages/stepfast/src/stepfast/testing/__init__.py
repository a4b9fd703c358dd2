"""For the tests of your own jobs: drain them, move the clock, look at what was enqueued, crash at a point.

Everything runs on a real database and through the real worker; nothing here imitates it.
"""

from __future__ import annotations

from stepfast.testing.assertions import assert_enqueued, assert_not_enqueued, enqueued
from stepfast.testing.crash import POINTS, Crash, Crashed, crash_at, kill_worker
from stepfast.testing.draining import Report, Run, drain
from stepfast.testing.inline_run import inline
from stepfast.testing.jobs import StoredJob
from stepfast.testing.test_clock import Clock, clock

__all__ = [
    "POINTS",
    "Clock",
    "Crash",
    "Crashed",
    "Report",
    "Run",
    "StoredJob",
    "assert_enqueued",
    "assert_not_enqueued",
    "clock",
    "crash_at",
    "drain",
    "enqueued",
    "inline",
    "kill_worker",
]
