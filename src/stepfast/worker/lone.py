"""Processes that run suspects, each job alone, so that the next death convicts exactly one of them."""

from __future__ import annotations

import subprocess
import threading
import time
from typing import TYPE_CHECKING, Any, Final

from stepfast.steps.identity import age
from stepfast.telemetry import happened
from stepfast.worker.children import start_child

if TYPE_CHECKING:
    from stepfast.telemetry.metrics import Metrics

MOST: Final = 32  # at once, whatever the concurrency
FEWEST: Final = 10
BURST: Final = 8  # started in one go
SHORTEST_PATIENCE: Final = 0.8  # seconds to see how fast those get on that were started last
LONGEST_PATIENCE: Final = 5.0


class LoneProcesses:
    """Starts children of the worker that claim one suspect at a time and end when none is left."""

    def __init__(
        self, target: str, options: dict[str, Any], concurrency: int, metrics: Metrics | None
    ) -> None:
        self._most = max(FEWEST, min(concurrency, MOST))  # what ran side by side may do so again
        self._patience = patience(age())
        self._target = target
        self._options = options
        self._metrics = metrics
        self._lock = threading.Lock()
        self._children: list[subprocess.Popen[bytes]] = []
        self._waited = 0  # how many suspects waited when we last looked
        self._started_at = 0.0
        self._closed = False

    def ensure(self, waiting: int) -> None:
        """Start what `waiting` suspects need. Called about twice a second while there are any."""
        with self._lock:
            self._children = [child for child in self._children if child.poll() is None]
            now = time.monotonic()
            if self._closed or (self._children and now - self._started_at < self._patience):
                return
            wanted = additional(waiting, self._waited, len(self._children), self._most)
            self._waited = waiting
            for _ in range(wanted):
                self._started_at = now
                try:
                    child = start_child(self._target, self._options, self._metrics, lone=True)
                    self._children.append(child.process)
                except OSError as error:  # no memory or no processes left: later, perhaps
                    happened("worker.failed", error=error, note="cannot start a process for suspects")
                    return
        if wanted:
            happened("suspects.isolated", waiting=waiting, processes=wanted)

    def close(self, *, at_once: bool) -> None:
        """Ask the children to stop, and wait for them; they give back what they hold."""
        with self._lock:
            self._closed = True
            children = [child for child in self._children if child.poll() is None]
        for _ in range(2 if at_once else 1):
            for child in children:
                child.terminate()
        for child in children:
            try:
                child.wait(timeout=40)
            except subprocess.TimeoutExpired:
                child.kill()


def patience(own_start: float) -> float:
    """How long to wait before more are started. One that is only starting is not slow: it needs as long as we did.

    On a busy machine eight more at once would make it slower still.
    """
    return min(LONGEST_PATIENCE, max(SHORTEST_PATIENCE, 2 * own_start))


def additional(waiting: int, waited: int, running: int, most: int) -> int:
    """How many processes to start: one is enough while it gets through them; slow jobs get one each."""
    if not waiting:
        return 0
    if not running:
        return 1
    slow = waiting > waited / 2
    return max(0, min(waiting, most - running, BURST)) if slow else 0
