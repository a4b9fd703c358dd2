"""Processes that a worker starts: colleagues of a supervisor, or lone ones for suspects.

Each has a pipe as its standard input; when the parent dies, however it dies, the pipe closes and the child stops.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from stepfast.jobs.rescue import process_age
from stepfast.telemetry import happened
from stepfast.telemetry.metrics import HEARD, Metrics
from stepfast.telemetry.sinks import listen, unlisten
from stepfast.worker.periodic import NEVER, Periodic

if TYPE_CHECKING:
    from collections.abc import Callable


# Children tell the process that started them what they counted and how they feel, so that one port answers for all.
#
# A pipe, a line of JSON each second. What a child counted is added to what its parent counted, so nothing is lost when a
# child ends; one that is killed takes its last second with it.

UPLINK_EVERY: Final = 1.0  # seconds between lines
OVERDUE: Final = 5.0  # seconds without a line after which a child is a problem


class Uplink:
    """In the child: sends its counts and its problems."""

    def __init__(self, pipe: int, problems: Callable[[], list[str]]) -> None:
        self._pipe = os.fdopen(pipe, "w", encoding="utf-8")
        self._problems = problems
        self.metrics = Metrics()  # our own children add theirs
        self._thread = Periodic("uplink", last_call=True)
        self._thread.add(self._send, first=UPLINK_EVERY)

    def start(self) -> None:
        listen(self.metrics, HEARD)
        self._thread.start()

    def stop(self) -> None:
        """Send the rest."""
        self._thread.stop()
        with suppress(OSError):
            self._pipe.close()
        unlisten(self.metrics)

    def _send(self) -> float:
        try:
            json.dump({"metrics": self.metrics.take(), "problems": self._problems()}, self._pipe)
            self._pipe.write("\n")
            self._pipe.flush()
        except OSError:  # our parent is gone
            return NEVER
        return UPLINK_EVERY


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


# What is for the command alone: a child has no port of its own, and its pipe is not its children's.
OF_THE_COMMAND: Final = frozenset(
    {"log_level", "log_format", "metrics_port", "metrics_host", "supervised", "uplink"}
)
_NOT_INHERITED: Final = frozenset({"metrics_port", "metrics_host", "uplink"})


class ChildProcess(NamedTuple):
    process: subprocess.Popen[bytes]
    downlink: Downlink | None  # None: nobody asks what it counts


def command(target: str, options: dict[str, Any], *, lone: bool = False) -> list[str]:
    """What runs a worker for the app at `target`; its one argument is read by `command.main`."""
    job = json.dumps({"target": target, "options": options, "lone": lone})
    return [sys.executable, "-m", "stepfast.worker.process", job]


def start_child(
    target: str, options: dict[str, Any], metrics: Metrics | None, *, lone: bool = False
) -> ChildProcess:
    """Start one. With `metrics`, it tells us what it counts, and that is added there."""
    given = {name: value for name, value in options.items() if name not in _NOT_INHERITED}
    downlink = None if metrics is None else Downlink(metrics)
    if downlink is not None:
        given["uplink"] = downlink.theirs
    try:
        # A session of its own: a Ctrl-C at the terminal is for the parent, which passes it on once.
        process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
            command(target, given, lone=lone),
            stdin=subprocess.PIPE,
            start_new_session=True,
            pass_fds=() if downlink is None else (downlink.theirs,),
        )
    finally:
        if downlink is not None:
            downlink.start()  # without a child it ends at once
    return ChildProcess(process, downlink)


# Processes that run suspects, each job alone, so that the next death convicts exactly one of them.

MOST: Final = 32  # at once, whatever the concurrency
FEWEST: Final = 10
BURST: Final = 8  # started in one go
SHORTEST_PATIENCE: Final = 0.8  # seconds to see how fast those get on that were started last
LONGEST_PATIENCE: Final = 5.0


class SuspectProcesses:
    """Starts children of the worker that claim one suspect at a time and end when none is left."""

    def __init__(
        self, target: str, options: dict[str, Any], concurrency: int, metrics: Metrics | None
    ) -> None:
        self._most = max(FEWEST, min(concurrency, MOST))  # what ran side by side may do so again
        self._patience = patience(process_age())
        self._target = target
        self._options = options
        self._metrics = metrics
        self._lock = threading.Lock()
        self._children: list[subprocess.Popen[bytes]] = []
        self._waited = 0  # how many suspects waited when we last looked
        self._started_at = 0.0
        self._closed = False

    def run_suspects(self, waiting: int) -> None:
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
