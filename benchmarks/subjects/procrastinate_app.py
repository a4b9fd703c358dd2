"""Procrastinate's app, enqueuing and worker: `procrastinate_app work CONCURRENCY`, or `procrastinate_app bulk COUNT`."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from pathlib import Path

from procrastinate import App, PsycopgConnector  # type: ignore[import-not-found]

from benchmarks.tally import Tally

tally = Tally(Path(os.environ["BENCH_TALLY"]))
connector = PsycopgConnector(conninfo=os.environ["BENCH_URL"], min_size=4, max_size=20)
app = App(connector=connector)


async def noop(n: int) -> None:  # noqa: ARG001 - every system's job carries it
    tally.start()


task = app.task(name="noop")(noop)


async def bulk(count: int) -> None:
    async with app.open_async():
        if not await app.check_connection_async():
            await app.schema_manager.apply_schema_async()
        began = time.monotonic()
        for start in range(0, count, 500):
            await task.batch_defer_async(*({"n": n} for n in range(start, min(count, start + 500))))
        print(time.monotonic() - began)


async def work(concurrency: int) -> None:
    async with app.open_async():
        await app.run_worker_async(concurrency=concurrency)


if __name__ == "__main__":
    asyncio.run((bulk if sys.argv[1] == "bulk" else work)(int(sys.argv[2])))
