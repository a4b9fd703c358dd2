"""Which process this is, so that another one on the same machine can see that it is gone.

A process is named by the machine's boot, its PID namespace, its PID and its start time. Only a process
in the same namespace of the same boot can judge; everybody else waits for the lease to run out.
"""

from __future__ import annotations

import os
import time
from pathlib import Path


def this_process() -> str:
    return f"{_machine()}/{os.getpid()}/{_started(os.getpid())}"


def is_gone(process: str) -> bool:
    """True only if that process certainly runs no more."""
    machine, _, rest = process.partition("/")
    pid, _, started = rest.partition("/")
    if not machine or machine != _machine() or not pid.isdigit() or not started:
        return False
    return _started(int(pid)) != started


def age() -> float:
    """For how many seconds this process has been there; 0 where the system does not tell."""
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
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    fields = text.rpartition(")")[2].split()  # the name in front may contain anything
    return "" if fields[0] in {"Z", "X"} else fields[19]
