"""The processes that are measured: their CPU and memory, and the load of other programs."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from devtools.processes import family, kill_family

ROOT = Path(__file__).parents[1]
TICK = os.sysconf("SC_CLK_TCK")
PATIENCE = 120.0


class Subject:
    """A program in a process of its own."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        self._log = log
        with log.open("ab") as file:
            self.process = subprocess.Popen(
                command,
                cwd=ROOT,
                env={**os.environ, **environment},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
                text=True,
            )

    def answer(self) -> str:
        """Wait for its end; what it printed."""
        printed, _ = self.process.communicate(timeout=10 * PATIENCE)
        if self.process.returncode:
            raise SubjectError(f"{self.process.args!r} failed:\n{self._last_words()}")
        return printed.strip()

    def check(self) -> None:
        if self.process.poll() not in {None, 0}:
            raise SubjectError(f"{self.process.args!r} died:\n{self._last_words()}")

    def cpu_seconds(self) -> float:
        return sum(_precise_seconds(pid) for pid in family(self.process.pid))

    def memory(self) -> tuple[float, float]:
        """(resident, proportional) megabytes."""
        found = {"Rss": 0.0, "Pss": 0.0}
        for pid in family(self.process.pid):
            for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
                name, _, rest = line.partition(":")
                if name in found:
                    found[name] += int(rest.split()[0]) / 1024
        return found["Rss"], found["Pss"]

    def kill(self) -> None:
        kill_family(self.process.pid)
        self._close()

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(15)
        except subprocess.TimeoutExpired:
            self.kill()
        self._close()

    def _close(self) -> None:
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):
                    pipe.close()
        self.process.wait()

    def _last_words(self) -> str:
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-15:])


class SubjectError(Exception):
    """A measured program failed; the message ends with the last lines it wrote."""


class Meter:
    """How busy the machine was between two moments, and how much of it was the load of other programs."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._busy = _busy_seconds()
        self._ours = _our_seconds()

    def foreign(self) -> float:
        """Cores used by programs that we did not start, since the meter was made."""
        busy, ours = _busy_seconds() - self._busy, _our_seconds() - self._ours
        return max(0.0, (busy - ours) / (time.monotonic() - self._began))


def cpu_seconds(pid: int) -> float:
    """CPU time of a server and its processes, including those that have ended."""
    return sum(_seconds(member) for member in family(pid))


def _our_seconds() -> float:
    return cpu_seconds(os.getpid())


def _seconds(pid: int) -> float:
    with suppress(OSError):  # ended meanwhile; its time is counted in its parent
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return sum(int(it) for it in fields[11:15]) / TICK
    return 0.0


def _precise_seconds(pid: int) -> float:
    """Nanoseconds from the scheduler: an idle worker uses less than one clock tick in a second."""
    total = 0
    for path in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        with suppress(OSError):
            total += int(path.read_text().split()[0])
    return total / 1e9


def _busy_seconds() -> float:
    user, nice, system, _, _, irq, softirq, steal = map(
        int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
    )
    return (user + nice + system + irq + softirq + steal) / TICK
