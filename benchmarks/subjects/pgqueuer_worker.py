"""PgQueuer as its documentation recommends for throughput: asyncpg, uvloop, large batches."""

from __future__ import annotations

import json
import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import asyncpg
import uvloop  # type: ignore[import-not-found]
from pgqueuer import PgQueuer  # type: ignore[import-not-found]
from pgqueuer.db import AsyncpgDriver  # type: ignore[import-not-found]

from benchmarks.tally import Tally

tally = Tally(Path(os.environ["BENCH_TALLY"]))


async def noop(_: Any) -> None:
    tally.start()


async def moment(job: Any) -> None:
    tally.note(json.loads(job.payload)["n"])
    tally.start()


async def main() -> None:
    connection = await asyncpg.connect(os.environ["BENCH_URL"])
    app = PgQueuer(AsyncpgDriver(connection))
    app.entrypoint("noop")(noop)
    app.entrypoint("moment")(moment)
    await app.run(dequeue_timeout=timedelta(seconds=1), batch_size=int(os.environ["BENCH_BATCH"]))


if __name__ == "__main__":
    uvloop.run(main())
