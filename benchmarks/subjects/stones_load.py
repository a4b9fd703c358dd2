"""`stones_load ROWS VERSION`: store this many pending raw rows, each with a new content."""

from __future__ import annotations

import sys

from benchmarks.subjects.stones import FEED, stone
from benchmarks.subjects.stones_app import app
from stepfast.runs.raw_rows import observe, observed

BATCH = 10_000


def fill(rows: int, version: int) -> None:
    for first in range(0, rows, BATCH):
        numbers = range(first, min(first + BATCH, rows))
        seen = [observed(f"s{number:08}", stone(number, version)) for number in numbers]
        with app.transaction() as tx:
            observe(tx, FEED, "earlier", version, seen)


if __name__ == "__main__":
    fill(int(sys.argv[1]), int(sys.argv[2]))
    app.close()
