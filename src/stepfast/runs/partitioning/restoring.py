"""A frontier from its JSON, whichever partitioner of ours it belongs to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stepfast.errors import ConfigurationError
from stepfast.runs.partitioning import heatmap_scan, listed
from stepfast.runs.partitioning.heatmap_scan import Scan
from stepfast.runs.partitioning.listed import Listed


def restore(stored: Mapping[str, Any]) -> Scan | Listed:
    kind = stored.get("kind")
    if kind == heatmap_scan.KIND:
        return Scan.from_json(stored)
    if kind == listed.KIND:
        return Listed.from_json(stored)
    raise ConfigurationError(
        f"a frontier of kind {kind!r} was not stored by this version of Stepfast; plan again"
    )
