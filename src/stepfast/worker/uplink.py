"""Children tell the process that started them what they counted and how they feel, so that one port answers for all.

A pipe, a line of JSON each second. What a child counted is added to what its parent counted, so nothing is lost when a
child ends; one that is killed takes its last second with it.
"""

from __future__ import annotations

import json
import os
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from stepfast.telemetry.metrics import HEARD, Metrics
from stepfast.telemetry.sinks import listen, unlisten

if TYPE_CHECKING:
    from collections.abc import Callable

EVERY: Final = 1.0  # seconds between lines
OVERDUE: Final = 5.0  # seconds without a line after which a child is a problem


class Uplink:
    """In the child: sends its counts and its problems."""

    def __init__(self, pipe: int, problems: Callable[[], list[str]]) -> None:
        self._pipe = pipe
        self._problems = problems
        self.metrics = Metrics()  # our own children add theirs
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._send_until_stopped, name="stepfast-uplink", daemon=True)

    def start(self) -> None:
        listen(self.metrics, HEARD)
        self._thread.start()

    def stop(self) -> None:
        """Send the rest."""
        self._stop.set()
        self._thread.join(timeout=5)
        unlisten(self.metrics)

    def _send_until_stopped(self) -> None:
        stopping = False
        with suppress(OSError), os.fdopen(self._pipe, "w", encoding="utf-8") as pipe:  # our parent is gone
            while not stopping:
                stopping = self._stop.wait(EVERY)
                json.dump({"metrics": self.metrics.take(), "problems": self._problems()}, pipe)
                pipe.write("\n")
                pipe.flush()


class Downlink:
    """In the parent: one child's line, added to what the parent counts."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._mine, self.theirs = os.pipe()
        self._problems: list[str] = ["it has not reported yet"]
        self._heard_at = time.monotonic()

    def start(self) -> None:
        """Called once the child has its end of the pipe."""
        os.close(self.theirs)
        threading.Thread(target=self._hear, name="stepfast-downlink", daemon=True).start()

    def problems(self) -> list[str]:
        silence = time.monotonic() - self._heard_at
        if silence > OVERDUE:
            return [f"it has not reported for {silence:.0f} s", *self._problems]
        return self._problems

    def _hear(self) -> None:
        with os.fdopen(self._mine, encoding="utf-8", errors="replace") as pipe:
            for line in pipe:
                with suppress(ValueError, KeyError, TypeError):  # the last words of a child that was killed
                    told: dict[str, Any] = json.loads(line)
                    self._metrics.add(told["metrics"])
                    self._problems = [str(it) for it in told["problems"]]
                    self._heard_at = time.monotonic()
