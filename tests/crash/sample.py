"""Which crash points are tried today.

SQLite is tried at all of them. A server takes longer: it gets a sample that changes daily, and with --chaos all.
HOLDFAST_CRASH_SEED brings a day back.
"""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.crash.points import Point

SEED = os.environ.get("HOLDFAST_CRASH_SEED") or f"{datetime.now(UTC):%Y-%m-%d}"


def chosen(
    name: str,
    points: Sequence[Point],
    database_kind: str,
    chaos: bool,
    most: int,  # noqa: FBT001 - a fact
) -> Sequence[Point]:
    """All points of the operation called `name`, or `most` of them."""
    if chaos or database_kind == "sqlite" or len(points) <= most:
        return points
    dice = random.Random(f"{SEED} {database_kind} {name}")  # noqa: S311 - a sample, not a secret
    return dice.sample(points, most)
