"""The machine on which the figures were measured."""

from __future__ import annotations

import os
import platform
import statistics
import time
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.environments import PINS

if TYPE_CHECKING:
    from benchmarks.databases import Databases

DRIVERS = ("psycopg", "PyMySQL", "msgspec")


@dataclass(frozen=True)
class Machine:
    """The machine at the beginning of the run."""

    processor: str
    cores: int
    memory_gb: float
    system: str
    python: str
    servers: tuple[str, ...]
    packages: tuple[str, ...]
    fsync_ms: float
    load: str

    def lines(self) -> list[str]:
        return [
            (
                f"{self.cores} cores ({self.processor}), {self.memory_gb:.0f} GB, {self.system}, Python {self.python}; "
                "clients, workers and servers share them"
            ),
            "; ".join(self.servers),
            ", ".join(self.packages),
            f"fdatasync of 8 kB: median {self.fsync_ms:.2f} ms; load average before the run: {self.load}",
        ]


def machine(databases: Databases) -> Machine:
    return Machine(
        processor=_processor(),
        cores=os.cpu_count() or 1,
        memory_gb=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9,
        system=f"{platform.system()} {platform.release()}",
        python=platform.python_version(),
        servers=(
            databases.version("postgresql").split(" on ")[0],
            "MariaDB " + databases.version("mariadb").split("-")[0],
            "SQLite " + databases.version("sqlite"),
        ),
        packages=(
            *(f"{name} {version(name)}" for name in DRIVERS),
            *(pin.replace("==", " ") for pins in PINS.values() for pin in pins),
        ),
        fsync_ms=fsync_milliseconds(databases.folder),
        load=" ".join(Path("/proc/loadavg").read_text().split()[:3]),
    )


def fsync_milliseconds(folder: Path, times: int = 40) -> float:
    """The time of one fdatasync, which every durable commit waits for."""
    waits = []
    with (folder / "fsync").open("wb") as file:
        for _ in range(times):
            file.write(bytes(8192))
            file.flush()
            began = time.perf_counter()
            os.fdatasync(file.fileno())
            waits.append(time.perf_counter() - began)
    return 1000 * statistics.median(waits)


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()
