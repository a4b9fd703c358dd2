"""Numbers at even intervals."""

from __future__ import annotations

import time
from collections.abc import Iterator

INTERVAL = 0.020  # seconds between two jobs of the latency measurement


def paced(count: int, interval: float) -> Iterator[int]:
    """Yield 0, 1, 2 … at their times; a late one does not delay the others."""
    began = time.monotonic()
    for number in range(count):
        time.sleep(max(0.0, began + number * interval - time.monotonic()))
        yield number
