"""A handler that crashes, one that hangs and one that needs too much memory: each fails alone, no other step is affected.

python -m examples.isolation
"""

from __future__ import annotations

import ctypes
import os
import tempfile
import time
from pathlib import Path

from stepfast import Retry, Step, Stepfast

app = Stepfast()
SOON = Retry(attempts=1, first="10ms")


@app.job(isolation="process", retry=SOON)
def scan(path: str) -> bytes:
    """A parser written in C that crashes on a broken file."""
    return ctypes.string_at(0 * len(path))


@app.job(isolation="process", timeout="500ms", retry=SOON)
def convert(path: str) -> str:
    """It ignores the request to stop, so its process is killed after some seconds."""
    time.sleep(3600)
    return path


@app.job(isolation="process", memory="300MB", retry=SOON)
def unpack(path: str, megabytes: int) -> str:
    content = bytearray(megabytes * 1_000_000)
    return f"{path}: {len(content) // 1_000_000} MB in process {os.getpid()}"


@app.job()
async def greet(step: Step, name: str) -> str:
    """This one runs in the worker's own process."""
    return f"hello {name}, try {step.attempt}, process {os.getpid()}"


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        app.use(Stepfast(f"sqlite:///{Path(folder) / 'work.db'}").database)
        jobs = {
            "scan": scan.enqueue(path="a.pdf"),
            "convert": convert.enqueue(path="b.mov"),
            "unpack 400 MB": unpack.enqueue(path="c.zip", megabytes=400),
            "unpack 100 MB": unpack.enqueue(path="d.zip", megabytes=100),
            "greet": greet.enqueue(name="Ada"),
        }
        with app.worker(concurrency=3, crash_limit=2):
            for name, job in jobs.items():
                outcome = job.wait(timeout="30s")
                answer = outcome.result if outcome.state == "done" else outcome.error
                print(f"{name}: {outcome.state}: {answer}")
        print(f"the worker, process {os.getpid()}, is not affected")
        app.close()


if __name__ == "__main__":
    main()
