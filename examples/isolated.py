"""A library that crashes, one that hangs and one that eats memory: each costs its own step, and nobody else's.

python -m examples.isolated

"""

from __future__ import annotations

import ctypes
import os
import tempfile
import time
from pathlib import Path

from stepfast import Retry, Step, Stepfast
from stepfast.config import spoken_size

app = Stepfast()
SOON = Retry(attempts=1, first="10ms")


@app.job(isolation="process", retry=SOON)
def scan(path: str) -> bytes:
    """A parser written in C meets a file that it does not understand."""
    return ctypes.string_at(0 * len(path))


@app.job(isolation="process", timeout="500ms", retry=SOON)
def convert(path: str) -> str:
    """Asked to stop it would not hear; after some seconds its process is killed."""
    time.sleep(3600)
    return path


@app.job(isolation="process", memory="300MB", retry=SOON)
def unpack(path: str, megabytes: int) -> str:
    return f"{path}: {spoken_size(len(bytearray(megabytes * 1_000_000)))} in process {os.getpid()}"


@app.job()
async def greet(step: Step, name: str) -> str:
    """This one runs in the worker's own process, beside all that."""
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
                said = outcome.result if outcome.state == "done" else outcome.error
                print(f"{name}: {outcome.state}: {said}")
        print(f"the worker, process {os.getpid()}, is as well as before")
        app.close()


if __name__ == "__main__":
    main()
