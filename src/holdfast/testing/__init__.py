"""For the tests of your own jobs: run them until idle, move the clock, look at what was enqueued, crash at a point.

Everything runs on a real database and through the real worker; nothing here imitates it.
"""

from __future__ import annotations

from holdfast.testing.assertions import assert_enqueued, assert_not_enqueued, enqueued
from holdfast.testing.crash import Crash, crash_at, kill_worker
from holdfast.testing.inline_mode import inline
from holdfast.testing.moved_clock import Clock, clock
from holdfast.testing.points import POINTS, Crashed
from holdfast.testing.report import Report, Run
from holdfast.testing.stored import StoredJob
from holdfast.testing.until_idle import drain

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
