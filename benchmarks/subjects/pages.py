"""The source of the page benchmark: numbered rows, each of which can be requested.

With `BENCH_DOMAIN` there are only so many different ones, `BENCH_STRIDE` apart, and partitions read them again, each
with a content of its own and from another place on. The rows of a page are neighbours, as a source tells them that is
read by key, or with `BENCH_SCATTERED` far apart, as one tells them that sorts by price or time.
"""

from __future__ import annotations

import os
from typing import Any

PAGE = 30
LANES = int(os.environ.get("BENCH_LANES", "8"))  # partitions
PAGES = int(os.environ.get("BENCH_PAGES", "100"))  # of one partition
STRIDE = int(os.environ.get("BENCH_STRIDE", "1"))
DOMAIN = int(os.environ.get("BENCH_DOMAIN", "0"))
SCATTERED = bool(os.environ.get("BENCH_SCATTERED"))
APART = 307  # rows between two partitions that read the same ones
FACTOR = 7_919  # a prime: times this, modulo the domain, every row comes once
TEXT = "A round brilliant of good colour, with a certificate and a short story. " * 3


def item(lane: int, number: int) -> dict[str, Any]:
    """About 300 bytes of JSON."""
    place = lane * PAGES * PAGE + number
    if SCATTERED:
        place = (place + lane * APART) * FACTOR % DOMAIN
    elif DOMAIN:
        place = (lane * DOMAIN // LANES + number) % DOMAIN
    return {"id": f"i{place * STRIDE:08}", "price": lane, "title": TEXT, "available": True}


def page(lane: int, first: int) -> list[dict[str, Any]]:
    """The rows of a partition from this one on."""
    return [item(lane, number) for number in range(first, min(first + PAGE, PAGES * PAGE))]
