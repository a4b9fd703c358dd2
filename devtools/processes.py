"""Signals to a process and everything it has started.

A PostgreSQL backend leaves its postmaster's process group, so that signalling the group would miss it:
descendants are looked up in /proc. Where there is no /proc the process stands alone.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

POLL_SECONDS = 0.01


def family(pid: int) -> list[int]:
    """The process and its living descendants, parents before children."""
    children: dict[int, list[int]] = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # ended while we were looking
            state, parent = _state_and_parent(status)
            if state != "Z":
                children.setdefault(parent, []).append(int(status.parent.name))
    members = [pid]
    for member in members:  # grows while we walk it
        members.extend(children.get(member, []))
    return members


def send(pids: list[int], what: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, what)


def kill_family(pid: int, patience: float = 10.0) -> None:
    """SIGKILL to all at once, as when the machine loses power; returns when none of them runs."""
    send([pid], signal.SIGSTOP)  # so that it starts nothing new while we count
    members = family(pid)
    send(members, signal.SIGKILL)
    wait_until_gone(members, patience)


def wait_until_gone(pids: list[int], patience: float) -> bool:
    """Wait until none of these processes runs. Another one that gets the same number meanwhile does not count."""
    deadline = time.monotonic() + patience
    began = {pid: _began(pid) for pid in pids}
    while any(_runs(pid) and _began(pid) == began[pid] for pid in pids):
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_SECONDS)
    return True


def _runs(pid: int) -> bool:
    status = Path(f"/proc/{pid}/stat")
    try:
        os.kill(pid, 0)
        return not status.exists() or _state_and_parent(status)[0] != "Z"  # a zombie holds nothing any more
    except OSError:
        return False


def _began(pid: int) -> str | None:
    """When the process began, in ticks of the system's clock."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return None


def _state_and_parent(status: Path) -> tuple[str, int]:
    state, parent = status.read_text().rpartition(")")[2].split()[:2]
    return state, int(parent)
