"""The program that kills what isolated handlers have started when their worker is gone, however it went.

A worker that is killed cannot do it, and the processes of its handlers are killed at the same moment. So one more
process hears from the worker which process groups there are, over a pipe that ends with it. It imports nothing of
Stepfast: it is small, and starts at once.
"""

from __future__ import annotations

import os
import select
import signal
import sys
from contextlib import suppress


def guard(pipe: int, worker: int) -> None:
    """Read `+group` and `-group`, a line each; when the worker is gone, kill the groups that are left."""
    groups: set[int] = set()
    rest = b""
    os.set_blocking(pipe, False)
    poll = select.poll()
    poll.register(pipe, select.POLLIN)
    # Where the system has it: a copy of the worker may hold the pipe open.
    with suppress(AttributeError, OSError):
        poll.register(os.pidfd_open(worker), select.POLLIN)
    gone = os.getppid() != worker
    while not gone:
        gone = any(ready != pipe for ready, _ in poll.poll())
        with suppress(BlockingIOError):
            while text := os.read(pipe, 65_536):
                *lines, rest = (rest + text).split(b"\n")
                for line in lines:
                    (groups.add if line.startswith(b"+") else groups.discard)(int(line[1:]))
            gone = True
    for group in groups:
        with suppress(OSError):
            os.killpg(group, signal.SIGKILL)


if __name__ == "__main__":
    # It has to outlive a worker that is asked to stop.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    guard(sys.stdin.fileno(), int(sys.argv[1]))
