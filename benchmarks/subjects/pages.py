"""What the subjects of the page benchmark read: numbered rows, so that any of them can be asked for.

With `BENCH_DOMAIN` there are only so many different ones, `BENCH_STRIDE` apart, and partitions read them again, each
with a content of its own and from another place on. The rows of a page lie far apart, however many there are: sources
seldom have the order of our keys.
"""

from __future__ import annotations

import os
from typing import Any

PAGE = 30
LANES = int(os.environ.get("BENCH_LANES", "8"))  # partitions
PAGES = int(os.environ.get("BENCH_PAGES", "100"))  # of one partition
STRIDE = int(os.environ.get("BENCH_STRIDE", "1"))
DOMAIN = int(os.environ.get("BENCH_DOMAIN", "0"))
APART = 307  # rows between two partitions that read the same ones
SCATTERED = 7_919  # a prime: times this, modulo the domain, every row comes once
TEXT = "A round brilliant of good colour, with a certificate and a short story. " * 3


def item(lane: int, number: int) -> dict[str, Any]:
    """About 300 bytes of JSON."""
    place = lane * PAGES * PAGE + number
    place = (place + lane * APART) * SCATTERED % DOMAIN if DOMAIN else place
    return {"id": f"i{place * STRIDE:08}", "price": lane, "title": TEXT, "available": True}


def page(lane: int, first: int) -> list[dict[str, Any]]:
    """The rows of a partition from this one on."""
    return [item(lane, number) for number in range(first, min(first + PAGE, PAGES * PAGE))]
