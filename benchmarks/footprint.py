"""Section: installed size, import time and memory."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.environments import core_environment
from benchmarks.figures import Figure, Sample, Section, at_most

if TYPE_CHECKING:
    from benchmarks.bench import Bench

IMPORT = "import time; began = time.perf_counter(); import stepfast; print(time.perf_counter() - began)"
TASK = '{"task_id": "t1", "task_type": "note", "payload": {}}'
LONE = (sys.executable, "-m", "stepfast", "tasks", "work", "benchmarks.subjects.lone_task:app")
ROOT = Path(__file__).parents[1]
NOT_OURS = ("pip", "setuptools", "_distutils_hack", "pkg_resources", "distutils-precedence")


def footprint(bench: Bench) -> Section:
    environment = core_environment()
    times = bench.size(11, 3)
    imported = Sample(tuple(_import(environment) for _ in range(times)), "ms")
    helped = Sample(tuple(_help(environment) for _ in range(times)), "ms")
    started = Sample(tuple(_start_of_task() for _ in range(times)), "ms")
    size = Sample((_megabytes(next((environment / "lib").glob("python*/site-packages"))),), "MB")
    return Section(
        "Footprint",
        f"A fresh environment without extras, installed from the wheel; {times} times, byte code present. A single task "
        "(`TASK_DATA`) runs in the environment of the benchmarks, with no database and no file before: the file, its tables "
        "and the child process count.",
        [
            Figure("import stepfast", imported, (at_most("import", imported, 150),)),
            Figure("stepfast --help", helped, (at_most("the whole process", helped, 350),)),
            Figure(
                "a single task begins", started, (at_most("from the start of its process", started, 1000),)
            ),
            Figure("installed, with its dependencies", size, (at_most("on disk", size, 30),)),
        ],
    )


def _import(environment: Path) -> float:
    asked = [str(environment / "bin" / "python"), "-c", IMPORT]
    return 1000 * float(subprocess.run(asked, check=True, capture_output=True, text=True).stdout)


def _help(environment: Path) -> float:
    began = time.perf_counter()
    subprocess.run([str(environment / "bin" / "stepfast"), "--help"], check=True, capture_output=True)
    return 1000 * (time.perf_counter() - began)


def _start_of_task() -> float:
    """From the call to the first line of the handler."""
    given = {
        name: value for name, value in os.environ.items() if not name.startswith(("STEPFAST_", "AZURE_"))
    }
    with tempfile.TemporaryDirectory() as folder:
        began = Path(folder) / "began"
        more = {"TASK_DATA": TASK, "BENCH_BEGAN": str(began), "PYTHONPATH": str(ROOT)}
        asked = time.time()
        subprocess.run(LONE, check=True, capture_output=True, cwd=folder, env=given | more)
        return 1000 * (float(began.read_text(encoding="utf-8")) - asked)


def _megabytes(folder: Path) -> float:
    """The size of all installed packages except pip; byte code counts, because it is written at the first import."""
    ours = [it for it in folder.iterdir() if not it.name.startswith(NOT_OURS)]
    files = [file for top in ours for file in ([top] if top.is_file() else top.rglob("*")) if file.is_file()]
    return sum(file.stat().st_size for file in files) / 1e6
