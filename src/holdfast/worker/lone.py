"""Processes that run suspects, each job alone, so that the next death convicts exactly one of them."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from typing import Any, Final

from holdfast.telemetry import happened

MOST: Final = 4  # at once
ANOTHER_AFTER: Final = 2.0  # seconds a suspect may wait before one more process is started


class LoneProcesses:
    """Starts children of the worker that claim one suspect at a time and end when none is left."""

    def __init__(self, target: str, options: dict[str, Any]) -> None:
        self._command = json.dumps({"target": target, "options": options, "lone": True})
        self._lock = threading.Lock()
        self._children: list[subprocess.Popen[bytes]] = []
        self._started_at = 0.0
        self._closed = False

    def ensure(self, waiting: int, oldest: float) -> None:
        """Start what is needed for `waiting` suspects, the oldest of which has waited `oldest` seconds."""
        with self._lock:
            self._children = [child for child in self._children if child.poll() is None]
            running = len(self._children)
            patient = running and (
                oldest < ANOTHER_AFTER or time.monotonic() - self._started_at < ANOTHER_AFTER
            )
            if self._closed or not waiting or running >= min(waiting, MOST) or patient:
                return
            # A session of its own: a Ctrl-C at the terminal is for the parent, which passes it on once.
            child = subprocess.Popen(  # noqa: S603 - our own interpreter and module
                [sys.executable, "-m", "holdfast.worker.command", self._command],
                stdin=subprocess.PIPE,
                start_new_session=True,
            )
            self._children.append(child)
            self._started_at = time.monotonic()
        happened("suspects.isolated", waiting=waiting, pid=child.pid)

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
