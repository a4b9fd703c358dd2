"""The application whose handlers run in processes of their own: `tests.crash.isolated_jobs:app`."""

from __future__ import annotations

import re
import subprocess

from stepfast import Step, Stepfast
from tests.crash.jobs import LOOK, is_open, leave_effect, note

app = Stepfast()


@app.job(isolation="process")
def hold_apart(step: Step, gate: str, busy: bool = False) -> None:  # noqa: FBT001, FBT002 - a payload field
    """Work until the file `gate` exists; a busy one blocks its whole process."""
    tool = subprocess.Popen(["sleep", "60"])
    note("started", step, tool=tool.pid)
    leave_effect(step)
    while not is_open(gate, step):
        if busy:
            re.match(r"(a+)+$", "a" * 40 + "b")  # minutes
        step.wait(LOOK)
    note("answered", step)


@app.job()
async def plain(n: int = 0) -> int:
    return n


KEPT: list[bytes] = []


@app.job()
async def grow(step: Step, megabytes: int) -> None:
    """Keep so much, and never let go of it."""
    note("started", step)
    KEPT.append(b"x" * (megabytes * 1_000_000))
