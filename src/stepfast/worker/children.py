"""Processes that a worker starts: colleagues of a supervisor, or lone ones for suspects.

Each has a pipe as its standard input; when the parent dies, however it dies, the pipe closes and the child stops.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from stepfast.worker.uplink import Downlink

if TYPE_CHECKING:
    from stepfast.telemetry.metrics import Metrics

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
    return [sys.executable, "-m", "stepfast.worker.command", job]


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
