"""Where a region is cut, so that its pieces are about as large as the target.

A region with p pieces has p - 1 goals: the places that have 1/p, 2/p, … of its rows before them. A goal is reached by
a cut that is close enough. One that is not reached asks for the cell it lies in to be cut, near the goal if rows are
even. A goal inside a cell of one tick cannot be reached; what lies between the nearest reached goals is then
divided along another axis, into as many pieces.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from stepfast.runs.partitioning.contract import SHORTFALL
from stepfast.runs.partitioning.heatmap_region import Region

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepfast.runs.partitioning.dimension import Axis
    from stepfast.runs.partitioning.heatmap_region import Box

BAND: Final = 0.2  # a partition may differ from the target by so much
NARROWEST: Final = 0.04  # of a piece: a goal is not aimed at more closely than this
WIDEST_CUT: Final = 8  # cells that one cell is cut into at once
HALVING: Final = 3  # every third round halves instead of interpolating: rows may be anything but even


@dataclass(frozen=True)
class Aim:
    """How large the pieces shall be."""

    target: int

    @property
    def most(self) -> int:
        """Rows of a partition above which it is divided, if that is possible."""
        return int(self.target * (1 + BAND))

    def pieces(self, rows: int) -> int:
        nearest = max(1, (2 * rows + self.target) // (2 * self.target))
        limit = 1 + BAND if nearest == 1 else (1 + BAND) / (1 + 2 * NARROWEST)
        return nearest + 1 if rows > limit * nearest * self.target else nearest

    def slack(self, rows: int) -> float:
        """How far from its goal a cut may be: both ends of a piece may be off, and it must stay inside the band."""
        piece = rows / self.pieces(rows)
        room = min((1 + BAND) * self.target - piece, piece - (1 - BAND) * self.target)
        return max(NARROWEST * piece, room / 2)


def wanted(region: Region, aim: Aim, axis: Axis, round_: int) -> dict[int, list[int]]:
    """The cells to be cut, by number, and the ticks at which; nothing once every goal is reached or out of reach."""
    if region.settled or None in region.counts:
        return {}
    edges, rows = region.edges, region.rows
    pieces, slack = aim.pieces(rows), aim.slack(rows)
    goals: dict[int, list[float]] = {}
    cell = 0
    for number in range(1, pieces):
        goal = rows * number / pieces
        while edges[cell + 1] < goal:
            cell += 1
        if goal - edges[cell] > slack and edges[cell + 1] - goal > slack:
            goals.setdefault(cell, []).append((goal - edges[cell]) / (edges[cell + 1] - edges[cell]))
    found = {}
    for number, shares in goals.items():
        first, last = region.cuts[number], region.cuts[number + 1]
        cuts = axis.first_look(pieces) if (first, last) == (0, axis.size) else []
        if not cuts:
            cuts = _between(first, last, shares, halve=round_ % HALVING == 0)
        if cuts:
            found[number] = cuts
    return found


def _between(first: int, last: int, shares: Sequence[float], *, halve: bool) -> list[int]:
    if last - first < 2:  # noqa: PLR2004 - one tick is all there is
        return []
    if len(shares) >= WIDEST_CUT:
        shares = [it / WIDEST_CUT for it in range(1, WIDEST_CUT)]
    elif halve:
        shares = [0.5] if len(shares) == 1 else [*shares, 0.5]
    return sorted({min(last - 1, max(first + 1, first + round((last - first) * it))) for it in shares})


def loses_rows(region: Region, axis: Axis) -> bool:
    """Whether cutting along this axis made rows disappear: some have a value that the axis does not know, or none."""
    spans_all = region.box[region.axis] == (0, axis.size)
    if not spans_all or region.whole is None or len(region.counts) == 1:
        return False
    return region.rows < region.whole * (1 - SHORTFALL)


def turned(region: Region, barred: Sequence[int]) -> Region:
    """The same box, to be cut along another axis; or a partition, if there is none."""
    tried = (*region.tried, region.axis)
    axis = _other_axis(region.box, tried, barred)
    if axis is None:
        return Region.uncut(region.box, region.axis, region.whole, settled=True, problem="dense")
    return Region.uncut(region.box, axis, region.whole, tried=tried)


def settle(region: Region, aim: Aim, barred: Sequence[int]) -> Iterator[Region]:
    """What a region becomes once nothing more can be learnt along its axis: partitions, and boxes to be turned."""
    for (first, start), (last, end) in pairwise(_reached(region, aim)):
        if last - first == 1:
            yield region.slice(start, end, settled=True)
        else:
            for ends in pairwise(_blocks(region, start, end, aim)):
                yield from _stuck(region, *ends, aim, barred)


def _blocks(region: Region, start: int, end: int, aim: Aim) -> list[int]:
    """Where to divide cells that no goal divides: each block, but perhaps the last, makes pieces of the right size.

    Short blocks are better than long ones: another axis has to divide them.
    """
    edges, found = region.edges, [start]
    for cut in range(start + 1, end):
        if _divides_well(edges[cut] - edges[found[-1]], aim) and _divides_well(edges[end] - edges[cut], aim):
            found.append(cut)
    return [*found, end]


def _divides_well(rows: int, aim: Aim) -> bool:
    return abs(rows / aim.pieces(rows) - aim.target) <= aim.target * BAND / 2


def _reached(region: Region, aim: Aim) -> list[tuple[int, int]]:
    """The goals that have a cut close to them, and its number; the outer ends are always reached."""
    edges, rows = region.edges, region.rows
    pieces, slack = aim.pieces(rows), aim.slack(rows)
    found = [(0, 0)]
    cut = 0
    for number in range(1, pieces):
        goal = rows * number / pieces
        while cut + 1 < len(edges) - 1 and abs(edges[cut + 1] - goal) <= abs(edges[cut] - goal):
            cut += 1
        if cut > found[-1][1] and abs(edges[cut] - goal) <= slack:
            found.append((number, cut))
    return [*found, (pieces, len(edges) - 1)]


def _stuck(region: Region, start: int, end: int, aim: Aim, barred: Sequence[int]) -> Iterator[Region]:
    """Cells that cannot be put together to pieces of the right size along this axis."""
    box = region.box_of(start, end)
    tried = (*region.tried, region.axis) if box == region.box else (region.axis,)
    axis = _other_axis(box, tried, barred)
    cells = region.known[start:end]
    if aim.pieces(sum(cells)) == 1:
        yield region.slice(start, end, settled=True)
    elif axis is None:
        yield from _as_they_are(region, start, end, aim, barred)
    else:
        known = cells[0] if len(cells) == 1 else None  # of several cells the sum counts their bounds twice
        yield replace(Region.uncut(box, axis, known, tried=tried), whole=sum(cells))


def _as_they_are(region: Region, start: int, end: int, aim: Aim, barred: Sequence[int]) -> Iterator[Region]:
    """Neighbouring cells together as long as they are not too many rows.

    A cell that has too many by itself is one tick wide here, so it is a smaller box, which other axes may divide.
    """
    first, rows = start, 0
    for cell in range(start, end):
        count = region.known[cell]
        if first < cell and rows + count > aim.most:
            yield from _together(region, first, cell, aim, barred)
            first, rows = cell, 0
        rows += count
    yield from _together(region, first, end, aim, barred)


def _together(region: Region, start: int, end: int, aim: Aim, barred: Sequence[int]) -> Iterator[Region]:
    whole = region.slice(start, end, settled=True)
    if whole.rows <= aim.most:
        yield whole
        return
    axis = None if whole.box == region.box else _other_axis(whole.box, (region.axis,), barred)
    if axis is None:
        yield replace(whole, problem="dense")
    else:
        yield Region.uncut(whole.box, axis, whole.rows, tried=(region.axis,))


def _other_axis(box: Box, tried: Sequence[int], barred: Sequence[int]) -> int | None:
    """The next axis after the last one tried along which the box can still be cut."""
    after = [(tried[-1] + it) % len(box) for it in range(1, len(box))]
    return next((it for it in after if it not in (*tried, *barred) and box[it][1] - box[it][0] > 1), None)
