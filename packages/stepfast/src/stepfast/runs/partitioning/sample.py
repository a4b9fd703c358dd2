"""The sample of a heatmap: a few counts say where the rows are, and between two of them rows are taken to be even.

To count every partition takes more counts than there are partitions. A sample counts the first dimension coarsely, then
halves the fullest cells while it has counts left. The partitions are cut between the counted places by arithmetic: what
is planned for them is an estimate. A partition is counted again before its first page, and one that holds far more than
its estimate is divided by its own job. A value that holds too many rows for one partition begins with its division.

At every moment the cells tile the domain, whatever has been counted.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Any, Final

from stepfast.runs.partitioning.contract import Plan, Planned, Problem, outgrown
from stepfast.runs.partitioning.dimension import axis_from_json
from stepfast.runs.partitioning.heatmap import (
    SMALL,
    Box,
    Rounds,
    Settings,
    common_axis,
    range_of_box,
    with_ticks,
)

SAMPLE_KIND: Final = "sample"
FIRST_SHARE: Final = 6  # looks at the dense zone: twice the sample by this; the rest goes where the rows are
EVEN_ENOUGH: Final = 4  # a cell whose end is further away than so many times its beginning is cut at its root


@dataclass(frozen=True)
class Cell:
    """A box, and how many rows it holds (None: not counted yet)."""

    box: Box
    rows: int | None = None
    half: int | None = None  # the tick up to which it is being counted; the rest of its rows lie beyond

    @property
    def asked(self) -> Box | None:
        """What has to be counted."""
        if self.half is not None:
            return with_ticks(self.box, 0, (self.box[0][0], self.half))
        return self.box if self.rows is None else None

    def answered(self, count: int) -> Iterator[Cell]:
        if self.half is None:
            yield Cell(self.box, count)
            return
        first, last = self.box[0]
        yield Cell(with_ticks(self.box, 0, (first, self.half)), count)
        yield Cell(with_ticks(self.box, 0, (self.half, last)), max(0, (self.rows or 0) - count))


@dataclass(frozen=True, kw_only=True)
class Sample(Rounds):
    """A sample in the making: the frontier of a heatmap with few counts."""

    cells: tuple[Cell, ...] = ()

    def next_round(self) -> Sample:
        return _moved_on(self)

    def plan(self) -> Plan:
        planned = _planned_again(self) if self.prior and self.cells else _planned_evenly(self)
        return self.planned(planned)

    @property
    def left(self) -> int:
        """Counts that it may still ask for."""
        return max(0, (self.settings.sample or 0) - self.requests)

    @cached_property
    def needs(self) -> list[Box]:
        """What this round has to count."""
        if self.baseline is None:
            return [self.whole]
        return [box for cell in self.cells if (box := cell.asked) is not None]

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": SAMPLE_KIND,
            "axes": [it.to_json() for it in self.axes],
            "settings": asdict(self.settings),
            "prior": [[list(ticks) for ticks in box] for box in self.prior],
            "baseline": self.baseline,
            "cells": [[[list(ticks) for ticks in it.box], it.rows, it.half] for it in self.cells],
            "answers": sorted(self.answers.items()),
            "requests": self.requests,
        }

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Sample:
        return cls(
            axes=tuple(axis_from_json(it) for it in stored["axes"]),
            settings=Settings(**stored["settings"]),
            prior=tuple(_box(it) for it in stored["prior"]),
            baseline=stored["baseline"],
            cells=tuple(Cell(_box(box), rows, half) for box, rows, half in stored["cells"]),
            answers=dict(stored["answers"]),
            requests=stored["requests"],
        )


def _box(stored: Sequence[Sequence[int]]) -> Box:
    return tuple((first, last) for first, last in stored)


# Rounds: everything, then coarse cells, then the halves of the fullest.


def _moved_on(sample: Sample) -> Sample:
    """The sample after a round: every answer is there."""
    answers = iter([sample.answers[it] for it in range(len(sample.needs))])
    ended = replace(sample, requests=sample.requests + len(sample.needs), answers={})
    if sample.baseline is None:
        return _begun(replace(ended, baseline=next(answers)))
    counted = [it for cell in sample.cells for it in (cell.answered(next(answers)) if cell.asked else [cell])]
    known = replace(ended, cells=tuple(counted))
    return known if known.prior else replace(known, cells=_with_halves(known))


def _begun(sample: Sample) -> Sample:
    """The first cells: what the last run was divided into, or a coarse look."""
    pieces = sample.aim.pieces(sample.baseline or 0)
    if groups := _groups(sample.prior, pieces, sample.left):
        return replace(sample, cells=tuple(Cell(box) for box in groups))
    cuts = _first_cuts(sample, pieces) if pieces > 1 else []
    ends = pairwise([0, *cuts, sample.axes[0].size])
    return replace(sample, prior=(), cells=tuple(Cell(with_ticks(sample.whole, 0, it)) for it in ends))


def _first_cuts(sample: Sample, pieces: int) -> list[int]:
    """Where to look first; fewer places if these would take more than half of the counts."""
    looks = max(2, (sample.settings.sample or 0) // FIRST_SHARE)
    cuts = sample.axes[0].first_look(min(pieces, looks))
    most = max(1, sample.left // 2 - 1)
    return cuts[:: -(-len(cuts) // most)] if cuts else []


def _with_halves(sample: Sample) -> tuple[Cell, ...]:
    """The cells, of which the fullest are counted more finely: as many as half of the counts that are left allow."""
    most = min(sample.left, max(sample.settings.at_once, sample.left // 2))
    full = [it for it in sample.cells if (it.rows or 0) > sample.aim.most and _middle(*it.box[0]) is not None]
    chosen = {it.box for it in sorted(full, key=lambda it: -(it.rows or 0))[:most]}
    return tuple(replace(it, half=_middle(*it.box[0])) if it.box in chosen else it for it in sample.cells)


def _middle(first: int, last: int) -> int | None:
    """Where a cell is halved. Far out rows become ever fewer, so the middle lies closer to the beginning."""
    if last - first < 2:  # noqa: PLR2004 - one tick is all there is
        return None
    if first and last > EVEN_ENOUGH * first:
        return min(last - 1, max(first + 1, math.isqrt(first * last)))
    return (first + last) // 2


# The plan without a prior: between two counted places rows are taken to be even.


def _planned_evenly(sample: Sample) -> Iterator[Planned]:
    cells = sample.cells or (Cell(sample.whole),)
    if any(cell.rows is None for cell in cells):
        yield from (Planned(range_of_box(sample.axes, cell.box), cell.rows) for cell in cells)
        return
    rows = [cell.rows or 0 for cell in cells]
    edges = [0, *accumulate(rows)]
    pieces = sample.aim.pieces(edges[-1])
    places = sorted({_place(cells, edges, edges[-1] * number / pieces) for number in range(1, pieces)})
    cuts = [cells[0].box[0][0], *(it for it in places if 0 < it < sample.axes[0].size), cells[-1].box[0][1]]
    for ticks in pairwise(cuts):
        estimate = _rows_before(cells, edges, ticks[1]) - _rows_before(cells, edges, ticks[0])
        yield _planned(sample, with_ticks(sample.whole, 0, ticks), estimate)


def _place(cells: Sequence[Cell], edges: Sequence[int], goal: float) -> int:
    """The tick that has about so many rows before it."""
    number = next(it for it in range(len(cells)) if goal < edges[it + 1] or it == len(cells) - 1)
    first, last = cells[number].box[0]
    share = (goal - edges[number]) / max(1, edges[number + 1] - edges[number])
    return first + round((last - first) * min(1.0, share))


def _rows_before(cells: Sequence[Cell], edges: Sequence[int], tick: int) -> int:
    for number, cell in enumerate(cells):
        first, last = cell.box[0]
        if tick < last:
            return edges[number] + round(
                (edges[number + 1] - edges[number]) * (tick - first) / (last - first)
            )
    return edges[-1]


def _planned(sample: Sample, box: Box, estimate: int) -> Planned:
    """A partition; if it holds too many rows, it says that its own job divides it, or that nothing can."""
    problem: Problem | None = None
    if outgrown(sample.aim.target, estimate):
        problem = "undivided" if any(last - first > 1 for first, last in box) else "dense"
    return Planned(range_of_box(sample.axes, box), estimate, problem)


# The plan with a prior: neighbouring partitions of the last run are counted together, and share the rows evenly.


def _groups(prior: Sequence[Box], pieces: int, most: int) -> list[Box]:
    """Boxes of neighbouring partitions, at most so many; none if the last run had far more or fewer than now."""
    if not pieces <= 2 * len(prior) <= 4 * pieces:
        return []
    size = -(-len(prior) // max(1, most))
    while size <= len(prior):
        found = _joined(prior, size)
        if len(found) <= most:
            return found
        size += 1
    return []


def _joined(boxes: Sequence[Box], size: int) -> list[Box]:
    """The boxes in their order, up to `size` of them joined where together they are a box."""
    found: list[tuple[Box, int]] = []
    for box in boxes:
        before, number = found[-1] if found else (box, size)
        axis = common_axis(before, box) if number < size else None
        if axis is None:
            found.append((box, 1))
        else:
            found[-1] = (with_ticks(before, axis, (before[axis][0], box[axis][1])), number + 1)
    return [box for box, _ in found]


def _planned_again(sample: Sample) -> Iterator[Planned]:
    for cell in sample.cells:
        members = [it for it in sample.prior if _holds(cell.box, it)]
        if cell.rows is None:
            yield from (Planned(range_of_box(sample.axes, it)) for it in members)
            continue
        if cell.rows < SMALL * sample.aim.target * len(members):
            members = _joined(members, -(-len(members) // sample.aim.pieces(cell.rows)))
        ends = [cell.rows * number // len(members) for number in range(len(members) + 1)]
        for box, (before, after) in zip(members, pairwise(ends), strict=True):
            yield _planned(sample, box, after - before)


def _holds(box: Box, other: Box) -> bool:
    return all(a <= c and d <= b for (a, b), (c, d) in zip(box, other, strict=True))
