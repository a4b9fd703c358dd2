"""Enqueue with PgQueuer: `pgqueuer_enqueue MODE KIND COUNT [BATCH]`; the modes of `stepfast_enqueue`."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from pathlib import Path
from typing import Any

import asyncpg
import uvloop  # type: ignore[import-not-found]
from pgqueuer.db import AsyncpgDriver  # type: ignore[import-not-found]
from pgqueuer.queries import Queries  # type: ignore[import-not-found]

from benchmarks.pace import INTERVAL
from benchmarks.tally import Tally


async def bulk(queries: Any, kind: str, count: int, batch: int) -> None:
    for start in range(0, count, batch):
        size = min(count - start, batch)
        payloads = [b'{"n":%d}' % n for n in range(start, start + size)]
        await queries.enqueue([kind] * size, payloads, [0] * size)


async def main() -> None:
    mode, kind, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
    queries = Queries(AsyncpgDriver(await asyncpg.connect(os.environ["BENCH_URL"])))
    if not await queries.has_table("pgqueuer"):
        await queries.install()
    began = time.monotonic()
    match mode:
        case "bulk":
            await bulk(queries, kind, count, int(sys.argv[4]))
        case "single":
            for n in range(count):
                await queries.enqueue(kind, b'{"n":%d}' % n)
        case "paced":
            calls = Tally(Path(os.environ["BENCH_CALLS"]))
            for n in range(count):
                await asyncio.sleep(max(0.0, began + n * INTERVAL - time.monotonic()))
                calls.note(n)
                await queries.enqueue(kind, b'{"n":%d}' % n)
        case _:
            raise SystemExit(__doc__)
    print(time.monotonic() - began)


if __name__ == "__main__":
    uvloop.run(main())
