"""A user's module: an app and its jobs."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from benchmarks.tally import Tally
from stepfast import Concurrency, Rate, Step, Stepfast

app = Stepfast()  # STEPFAST_DATABASE_URL says where
tally = Tally(Path(os.environ["BENCH_TALLY"]))


@app.job()
async def noop(n: int) -> None:  # noqa: ARG001 - every system's job carries it
    tally.start()


@app.job()
async def moment(n: int) -> None:
    tally.note(n)
    tally.start()


@app.job()
async def effect(step: Step, n: int) -> None:
    tally.start()
    step.upsert("bench_effect", [{"id": n, "note": "done"}], key="id")


@app.job(limits=[Concurrency(5_000), Rate(1_000_000)])
async def limited(n: int) -> None:  # noqa: ARG001 - as above
    tally.start()


@app.job(limits=[Concurrency(10, by="n"), Rate(100, by="n")])
async def keyed(n: int) -> None:  # noqa: ARG001 - each has a limit of its own
    tally.start()


@app.job()
async def endless(n: int) -> None:  # noqa: ARG001 - as above
    tally.start()
    await asyncio.sleep(600)
