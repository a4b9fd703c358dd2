"""`pages_load ROWS`: store this many raw rows, and a run whose partitions have not been read."""

from __future__ import annotations

import asyncio
import sys

from benchmarks.subjects.pages import TEXT
from benchmarks.subjects.pages_app import app
from stepfast.database.statement import sql
from stepfast.runs.partitioning.partitioners import Fixed
from stepfast.runs.plan import FanOut
from stepfast.runs.start import RunRequest, source_clock, start_run

PAYLOAD = '{"available":true,"id":"i","price":1,"title":"' + TEXT + '"}'
COLUMNS = "INSERT INTO stepfast_raw (feed, item_id, observed_at, run_id, content_hash, applied_hash, pending, payload)"
VALUES = f"1, 'earlier', 'the same', 'the same', 0, '{PAYLOAD}'"
NUMBERS = {
    "postgresql": "FROM generate_series({first}, {last}) AS n",
    "mariadb": "FROM (SELECT seq AS n FROM seq_{first}_to_{last}) AS numbers",
    "sqlite": "FROM (WITH RECURSIVE numbers(n) AS (SELECT {first} UNION ALL SELECT n + 1 FROM numbers WHERE n < {last})"
    " SELECT n FROM numbers)",
}
NAMED = {
    "postgresql": "'i' || lpad(CAST(n AS TEXT), 8, '0')",
    "mariadb": "concat('i', lpad(n, 8, '0'))",
    "sqlite": "printf('i%08d', n)",
}
BATCH = 100_000

FORGET_PLAN = sql("DELETE FROM stepfast_job WHERE kind = 'pages.plan'")


def fill(rows: int) -> None:
    connection, name = app.database.connect(), app.database.dialect.name
    for first in range(0, rows, BATCH):
        numbers = NUMBERS[name].format(first=first, last=min(first + BATCH, rows) - 1)
        connection.execute(f"{COLUMNS} SELECT 'pages', {NAMED[name]}, {VALUES} {numbers}")
    connection.close()


def begin() -> None:
    """Write the partitions as planning does, without a worker."""
    declared = app.feeds.get("pages")
    clock = asyncio.run(source_clock(app.database, declared))
    plan = Fixed(declared.feed.plan(None)).start().plan()  # type: ignore[arg-type]
    with app.transaction() as tx:
        run = start_run(tx, declared, RunRequest(), clock)
        FanOut(declared, run, plan, []).apply(tx)
        tx.run(FORGET_PLAN)


if __name__ == "__main__":
    fill(int(sys.argv[1]))
    begin()
    app.close()
