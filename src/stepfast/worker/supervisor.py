"""`stepfast worker --processes 4`: keep so many children running, and pass signals on."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from stepfast.telemetry import happened
from stepfast.worker.children import start_child
from stepfast.worker.signals import on_stop_signal

if TYPE_CHECKING:
    from stepfast.telemetry.metrics import Metrics
    from stepfast.worker.children import ChildProcess

RECYCLE: Final = 75  # exit code: a handler could not be stopped; start me again


@dataclass
class Child:
    number: int
    running: ChildProcess | None = None
    started: float = 0.0
    crashes: int = 0
    restart_at: float = 0.0
    codes: list[int] = field(default_factory=list)

    def problems(self) -> list[str]:
        """What is wrong with it, in words that say which one it is."""
        if self.running is None:
            wait = max(0.0, self.restart_at - time.monotonic())
            return [f"process {self.number} has ended; it starts again in {wait:.0f} s"]
        told = [] if self.running.downlink is None else self.running.downlink.problems()
        return [f"process {self.number}: {it}" for it in told]


class Supervisor:
    def __init__(
        self, target: str, options: dict[str, Any], processes: int, metrics: Metrics | None = None
    ) -> None:
        self._target = target
        self._options = options
        self._metrics = metrics  # where all that they count is added up
        self._children = [Child(number + 1) for number in range(processes)]
        self._stopping = threading.Event()

    def run(self) -> int:
        on_stop_signal(self._stop)
        while True:
            now = time.monotonic()
            for child in self._children:
                self._look_after(child, now)
            if self._stopping.is_set() and all(child.running is None for child in self._children):
                return max((code for child in self._children for code in child.codes[-1:]), default=0)
            time.sleep(0.1)

    def problems(self) -> list[str]:
        return [problem for child in self._children for problem in child.problems()]

    def _look_after(self, child: Child, now: float) -> None:
        if child.running is not None:
            code = child.running.process.poll()
            if code is None:
                return
            child.running = None
            child.codes.append(code)
            if not self._stopping.is_set():
                # A child that keeps dying must not keep the machine busy: 1, 2, 4 … 30 s.
                child.crashes = 0 if now - child.started > 60 or code == RECYCLE else child.crashes + 1  # noqa: PLR2004 - a minute
                child.restart_at = now + min(30, 2**child.crashes / 2 if child.crashes else 0)
                happened("worker.ended", number=child.number, code=code, restart_in_s=child.restart_at - now)
        if not self._stopping.is_set() and now >= child.restart_at:
            self._start(child, now)

    def _start(self, child: Child, now: float) -> None:
        options = {**self._options, "supervised": True}
        if options.get("worker_id"):
            options["worker_id"] = f"{options['worker_id']}-{child.number}"
        child.started = now
        child.running = start_child(self._target, options, self._metrics)

    def _stop(self) -> None:
        self._stopping.set()
        for child in self._children:
            if child.running is not None and child.running.process.poll() is None:
                child.running.process.terminate()
