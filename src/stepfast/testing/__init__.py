"""For the tests of your own jobs: run them until idle, move the clock, look at what was enqueued, crash at a point.

Everything runs on a real database and through the real worker; nothing here imitates it.
"""

from __future__ import annotations

from stepfast.testing.assertions import assert_enqueued, assert_not_enqueued, enqueued
from stepfast.testing.crash import Crash, crash_at, kill_worker
from stepfast.testing.inline_mode import inline
from stepfast.testing.moved_clock import Clock, clock
from stepfast.testing.points import POINTS, Crashed
from stepfast.testing.report import Report, Run
from stepfast.testing.stored import StoredJob
from stepfast.testing.until_idle import drain

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
