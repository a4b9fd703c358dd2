"""The identity of a process, so that another process on the same machine can see that it is gone.

A process is named by the boot of its machine, its PID namespace, its PID and its start time. Only a process in the same
namespace of the same boot can judge; all others wait for the lease to run out. Nothing but the standard library is
imported here.
"""

from __future__ import annotations

import os
import time
from pathlib import Path


def this_process() -> str:
    """The name of this process, as `process_is_gone` reads it."""
    return identity_of(os.getpid())


def identity_of(pid: int) -> str:
    """The name of a process of this machine, as `process_is_gone` reads it."""
    return f"{_machine()}/{pid}/{_started(pid)}"


def process_is_gone(process: str) -> bool:
    """True only if that process certainly runs no more."""
    machine, _, rest = process.partition("/")
    pid, _, started = rest.partition("/")
    if not machine or machine != _machine() or not pid.isdigit() or not started:
        return False
    found = _started(int(pid))
    return found != started and (bool(found) or _is_free(int(pid)))


def _is_free(pid: int) -> bool:
    """Whether no living process has this number. /proc may hide those of other users."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return _fields(pid) != []  # ours to see, so it is only its shell; else it is hidden


def process_lives(process: str) -> bool:
    """True only if that process certainly runs, and is not stopped by a signal."""
    machine, _, rest = process.partition("/")
    pid, _, started = rest.partition("/")
    if not machine or machine != _machine() or not pid.isdigit() or not started:
        return False
    return _started(int(pid)) == started and _state(int(pid)) not in {"T", "t"}


def process_age() -> float:
    """For how many seconds this process has been running; 0 where the system does not tell."""
    started = _started(os.getpid())
    if not started:
        return 0.0
    return time.clock_gettime(time.CLOCK_BOOTTIME) - int(started) / os.sysconf("SC_CLK_TCK")


def _machine() -> str:
    """The boot and the PID namespace; empty where the system does not tell."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot}:{Path('/proc/self/ns/pid').stat().st_ino}"
    except OSError:
        return ""


def _started(pid: int) -> str:
    """When the process started, in ticks since boot; empty if there is none, or only its shell."""
    fields = _fields(pid)
    return "" if not fields or fields[0] in {"Z", "X"} else fields[19]


def _state(pid: int) -> str:
    fields = _fields(pid)
    return fields[0] if fields else ""


def _fields(pid: int) -> list[str]:
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    return text.rpartition(")")[2].split()  # the name in front may contain anything
