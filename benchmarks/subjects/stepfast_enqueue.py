"""Enqueue: `stepfast_enqueue MODE KIND COUNT [BATCH]`. Prints the seconds it took.

bulk: so many to a call; single: one by one; paced: one every 20 ms, noting when each call began;
steady: keep a queue of COUNT ahead of the worker until standard input closes.
"""

from __future__ import annotations

import os
import select
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.pace import INTERVAL, paced
from benchmarks.subjects import stepfast_app
from benchmarks.tally import Tally

if TYPE_CHECKING:
    from stepfast import Job


def bulk(job: Job[Any, Any], count: int, batch: int) -> None:
    for start in range(0, count, batch):
        job.enqueue_many([{"n": n} for n in range(start, min(count, start + batch))])


def single(job: Job[Any, Any], count: int) -> None:
    for n in range(count):
        job.enqueue(n=n)


def steady(job: Job[Any, Any], ahead: int) -> None:
    asked = 0
    while not select.select([sys.stdin], [], [], 0)[0]:
        if asked - stepfast_app.tally.count < ahead:
            job.enqueue_many([{"n": asked + n} for n in range(1_000)])
            asked += 1_000
        else:
            time.sleep(0.002)


def main() -> None:
    mode, kind, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
    job: Job[Any, Any] = getattr(stepfast_app, kind)
    stepfast_app.app.database  # noqa: B018 - connect and check the tables before the clock starts
    began = time.monotonic()
    match mode:
        case "bulk":
            bulk(job, count, int(sys.argv[4]))
        case "single":
            single(job, count)
        case "steady":
            steady(job, count)
        case "paced":
            calls = Tally(Path(os.environ["BENCH_CALLS"]))
            for n in paced(count, INTERVAL):
                calls.note(n)
                job.enqueue(n=n)
        case _:
            raise SystemExit(__doc__)
    print(time.monotonic() - began)


if __name__ == "__main__":
    main()
