"""Which crash points are tried today.

SQLite is tried at all of them. A server takes longer: it gets a sample that changes daily, and with --chaos all.
STEPFAST_CRASH_SEED brings a day back.
"""

from __future__ import annotations

import os
import random
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Sequence

T = TypeVar("T")

SEED = os.environ.get("STEPFAST_CRASH_SEED") or f"{datetime.now(UTC):%Y-%m-%d}"


@dataclass(frozen=True)
class Sample:
    database_kind: str
    everything: bool

    def of(self, name: str, points: Sequence[T], most: int) -> Sequence[T]:
        """All points of the operation called `name`, or `most` of them."""
        if self.everything or self.database_kind == "sqlite" or len(points) <= most:
            return points
        return random.Random(f"{SEED} {self.database_kind} {name}").sample(points, most)
