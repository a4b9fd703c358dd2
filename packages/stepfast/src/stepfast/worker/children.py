"""Child processes of a worker: further workers of a supervisor, and lone processes for suspects.

Each child has a pipe as its standard input; when the parent dies, however it dies, the pipe closes and the child stops.
Through another pipe a child sends its parent what it counted and what is wrong with it, so that one port answers for all.
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
    from stepfast.worker.metrics import Health


# Options that are the command's alone, and not settings of the worker ...
OF_THE_COMMAND: Final = frozenset(
    {"log_level", "log_format", "metrics_port", "metrics_host", "supervised", "uplink"}
)
# ... and those that a child does not get: it has no port of its own, and a pipe of its own.
_NOT_INHERITED: Final = frozenset({"metrics_port", "metrics_host", "uplink"})


class ChildProcess(NamedTuple):
    process: subprocess.Popen[bytes]
    downlink: Downlink | None  # None: its counts are not wanted


def worker_command(target: str, options: dict[str, Any], *, lone: bool = False) -> list[str]:
    """The command line of a worker for the app at `target`; its one argument is read by `process.main`."""
    job = json.dumps({"target": target, "options": options, "lone": lone})
    return [sys.executable, "-m", "stepfast.worker.process", job]


def start_child(
    target: str, options: dict[str, Any], metrics: Metrics | None, *, lone: bool = False
) -> ChildProcess:
    """Start a worker as a child. With `metrics`, what it counts is added there."""
    given = {name: value for name, value in options.items() if name not in _NOT_INHERITED}
    downlink = None if metrics is None else Downlink(metrics)
    if downlink is not None:
        given["uplink"] = downlink.theirs
    try:
        # A session of its own: a Ctrl-C at the terminal is for the parent, which passes it on once.
        process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
            worker_command(target, given, lone=lone),
            stdin=subprocess.PIPE,
            start_new_session=True,
            pass_fds=() if downlink is None else (downlink.theirs,),
        )
    finally:
        if downlink is not None:
            downlink.start()  # without a child it ends at once
    return ChildProcess(process, downlink)


MOST: Final = 32  # lone processes at once, whatever the concurrency
FEWEST: Final = 10
BURST: Final = 8  # processes started in one go
SHORTEST_PATIENCE: Final = 0.8  # seconds to see how fast the processes get on that were started last
LONGEST_PATIENCE: Final = 5.0


class SuspectProcesses:
    """Starts lone processes: children of the worker that claim one suspect at a time and end when none is left.

    A suspect runs alone, so that the next death convicts exactly one job.
    """

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
        """Start the processes that `waiting` suspects need. Called about twice a second while there are any."""
        with self._lock:
            self._children = [child for child in self._children if child.poll() is None]
            now = time.monotonic()
            if self._closed or (self._children and now - self._started_at < self._patience):
                return
            wanted = additional_processes(waiting, self._waited, len(self._children), self._most)
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
    """Seconds to wait before more processes are started: a process that is starting needs as long as this one did.

    On a busy machine eight more at once would make it slower still.
    """
    return min(LONGEST_PATIENCE, max(SHORTEST_PATIENCE, 2 * own_start))


def additional_processes(waiting: int, waited: int, running: int, most: int) -> int:
    """How many processes to start: one is enough while it gets through the suspects; slow jobs get one each."""
    if not waiting:
        return 0
    if not running:
        return 1
    slow = waiting > waited / 2
    return max(0, min(waiting, most - running, BURST)) if slow else 0


# The pipe between a child and its parent: a line of JSON each second, with counts and problems.
#
# What a child counted is added to what its parent counted, so that nothing is lost when a child ends; a child that is
# killed takes its last second with it.

UPLINK_EVERY: Final = 1.0  # seconds between lines
OVERDUE: Final = 5.0  # seconds without a line after which a child is a problem


class Uplink:
    """In the child: sends its counts and its problems."""

    def __init__(self, pipe: int) -> None:
        self.metrics = Metrics()  # our own children add theirs
        self._pipe = os.fdopen(pipe, "w", encoding="utf-8")
        self._health: Health | None = None
        self._thread = Periodic("uplink", last_call=True)
        self._thread.add(self._send, first=UPLINK_EVERY)

    def start(self, health: Health) -> None:
        """Begin to send; `health` says what is wrong with this process."""
        self._health = health
        listen(self.metrics, HEARD)
        self._thread.start()

    def stop(self) -> None:
        """Send the rest."""
        self._thread.stop()
        with suppress(OSError):
            self._pipe.close()
        unlisten(self.metrics)

    def _send(self) -> float:
        problems = [] if self._health is None else self._health.problems()
        try:
            json.dump({"metrics": self.metrics.take(), "problems": problems}, self._pipe)
            self._pipe.write("\n")
            self._pipe.flush()
        except OSError:  # our parent is gone
            return NEVER
        return UPLINK_EVERY


class Downlink:
    """In the parent: hears one child, and adds its counts to those of the parent."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._mine, self.theirs = os.pipe()
        self._problems: list[str] = ["it has not reported yet"]
        self._heard_at = time.monotonic()

    def start(self) -> None:
        """Begin to listen; called once the child has its end of the pipe."""
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
                    heard: dict[str, Any] = json.loads(line)
                    self._metrics.add(heard["metrics"])
                    self._problems = [str(problem) for problem in heard["problems"]]
                    self._heard_at = time.monotonic()
