"""Leaving in good order: stop taking, let steps finish or give them back, then go."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from stepfast.steps.step import Halt

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepfast.worker.claimer import Claimer
    from stepfast.worker.execution import Execution
    from stepfast.worker.incarnation import Heartbeat
    from stepfast.worker.lone import LoneProcesses
    from stepfast.worker.maintenance import Maintenance
    from stepfast.worker.reporter import Reporter
    from stepfast.worker.services import Service
    from stepfast.worker.settlement import Settlement
    from stepfast.worker.wakeups import Wakeups

UNWIND: Final = 2.0  # seconds that interrupted handlers get to clean up before the worker leaves


@dataclass(frozen=True, kw_only=True)
class Parts:
    """Everything that has to stop, in an order in which nobody needs what has stopped before."""

    claimer: Claimer
    execution: Execution
    settlement: Settlement
    suspects: LoneProcesses | None
    wakeups: Wakeups
    maintenance: Maintenance | None
    services: Sequence[Service]
    reporter: Reporter
    heartbeat: Heartbeat


def shut_down(parts: Parts, grace: timedelta, at_once: threading.Event) -> int:
    """Called when nothing is claimed any more; returns how many running steps were given back."""
    parts.settlement.stays = False
    parts.execution.stop_accepting()
    deadline = time.monotonic() + grace.total_seconds()
    while True:
        parts.claimer.give_back(parts.execution.take_unstarted())
        if not parts.execution.held or at_once.is_set() or time.monotonic() >= deadline:
            break
        at_once.wait(0.02)
    left = parts.execution.halt_all(Halt.SHUTDOWN)
    parts.claimer.give_back(left)
    unwound = time.monotonic() + UNWIND
    while parts.execution.running() and time.monotonic() < unwound:
        time.sleep(0.01)
    if parts.suspects is not None:
        parts.suspects.close(at_once=at_once.is_set())
    parts.wakeups.stop()
    if parts.maintenance is not None:
        parts.maintenance.stop()
    for service in reversed(parts.services):
        service.stop()
    parts.settlement.stop(time.monotonic() if at_once.is_set() else deadline + UNWIND)
    parts.reporter.stop()
    parts.heartbeat.stop()  # last: until here our leases are in force
    parts.execution.close()
    return len(left)


def leave_stuck_loop(parts: Parts) -> None:
    """No handler can finish any more: fail the guilty and give the others back."""
    for it in parts.execution.overdue():
        parts.execution.abandon(it)
    parts.claimer.give_back(parts.execution.take_unstarted())
    parts.claimer.give_back(parts.execution.halt_all(Halt.SHUTDOWN))
    parts.settlement.stop(time.monotonic() + UNWIND)
