"""Neighbours put together: because they are small, because they are too many, or because planning stopped."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from stepfast.runs.partitioning.heatmap_region import Region, joined, joint

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepfast.runs.partitioning.contract import Problem
    from stepfast.runs.partitioning.heatmap_cut import Aim

SMALL: Final = 0.5  # of the target: a partition of the last run that has shrunk below it joins its neighbour


def joined_if_small(regions: Sequence[Region], aim: Aim) -> list[Region]:
    """The partitions of the last run, counted again; what became small is joined with what stands before it."""
    found: list[Region] = []
    for region in regions:
        before = found[-1] if found else None
        if before is not None and min(before.rows, region.rows) < SMALL * aim.target:
            axis = joint(before.box, region.box)
            if axis is not None and before.rows + region.rows <= aim.most:
                found[-1] = joined(before, region, axis)
                continue
        found.append(region)
    return found


def few_enough(regions: Sequence[Region], most: int, most_rows: int) -> list[Region]:
    """At most so many regions, by joining the smallest neighbours."""
    found = list(regions)
    while len(found) > most:
        pairs = [
            (one.rows + other.rows, number, axis)
            for number, (one, other) in enumerate(pairwise(found))
            if (axis := joint(one.box, other.box)) is not None
        ]
        if not pairs:  # only after a plan that somebody else made: pieces of one cut stand side by side
            break
        _, number, axis = min(pairs)
        both = joined(found[number], found[number + 1], axis)
        found[number : number + 2] = [_partition(both, most_rows, "crowded")]
    return found


def unfinished(region: Region, most_rows: int) -> Iterator[Region]:
    """The cells of a region that planning had no more counts for."""
    if None in region.counts:
        yield _partition(region, most_rows, "budget")
        return
    first = 0
    for cell in range(1, len(region.counts) + 1):
        if cell == len(region.counts) or sum(region.known[first : cell + 1]) > most_rows:
            yield _partition(region.slice(first, cell), most_rows, "budget")
            first = cell


def _partition(region: Region, most_rows: int, problem: Problem) -> Region:
    return replace(region, settled=True, problem=problem if region.rows > most_rows else None)
