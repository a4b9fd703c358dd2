"""A box of the domain that planning is cutting into partitions, or has made one.

At every moment the regions of a plan tile its domain, whatever has been counted: a region is only ever replaced by
regions that tile it. So nothing can fall between the partitions, wherever planning stops.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stepfast.runs.partitioning.contract import Problem

Ticks = tuple[int, int]
Box = tuple[Ticks, ...]  # one stretch of ticks for each dimension


@dataclass(frozen=True)
class Region:
    """The box, cut along one of its axes. Between two cuts is a cell, with its count (None: not known yet)."""

    box: Box
    axis: int
    cuts: tuple[int, ...]
    counts: tuple[int | None, ...]
    whole: int | None = None  # rows of the box before it was cut; a guess while the only cell is not counted
    tried: tuple[int, ...] = ()  # axes that could not divide this box
    settled: bool = False  # it is a partition
    problem: Problem | None = None

    @classmethod
    def uncut(cls, box: Box, axis: int = 0, count: int | None = None, **more: Any) -> Region:
        return cls(box, axis, box[axis], (count,), **{"whole": count, **more})

    @property
    def cells(self) -> list[Ticks]:
        return list(pairwise(self.cuts))

    @property
    def rows(self) -> int:
        """Rows of all cells that were counted; before that, what we believe."""
        if None in self.counts:
            return self.whole or 0
        return sum(self.known)

    @property
    def known(self) -> list[int]:
        return [it for it in self.counts if it is not None]

    @property
    def edges(self) -> list[int]:
        """Rows before each cut."""
        return [0, *accumulate(self.known)]

    def box_of(self, first: int, last: int) -> Box:
        """The box between two cuts."""
        return replaced(self.box, self.axis, (self.cuts[first], self.cuts[last]))

    def slice(self, first: int, last: int, **more: Any) -> Region:
        """The cells between two cuts, as a region."""
        counts = self.counts[first:last]
        return Region(self.box_of(first, last), self.axis, self.cuts[first : last + 1], counts, **more)

    def to_json(self) -> dict[str, Any]:
        more: dict[str, Any] = {
            "whole": self.whole,
            "tried": list(self.tried),
            "settled": self.settled,
            "problem": self.problem,
        }
        return {
            "box": [list(it) for it in self.box],
            "axis": self.axis,
            "cuts": list(self.cuts),
            "counts": list(self.counts),
        } | {name: it for name, it in more.items() if it}

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Region:
        return cls(
            box=tuple((first, last) for first, last in stored["box"]),
            axis=stored["axis"],
            cuts=tuple(stored["cuts"]),
            counts=tuple(stored["counts"]),
            whole=stored.get("whole"),
            tried=tuple(stored.get("tried", ())),
            settled=stored.get("settled", False),
            problem=stored.get("problem"),
        )


def replaced(box: Box, axis: int, ticks: Ticks) -> Box:
    return (*box[:axis], ticks, *box[axis + 1 :])


def joint(one: Box, other: Box) -> int | None:
    """The axis along which two boxes touch, so that together they are a box; None if they are not."""
    differing = [axis for axis, (mine, theirs) in enumerate(zip(one, other, strict=True)) if mine != theirs]
    if len(differing) != 1:
        return None
    return differing[0] if one[differing[0]][1] == other[differing[0]][0] else None


def joined(one: Region, other: Region, axis: int) -> Region:
    """Two neighbours as one region, with the cells of both where that can be said."""
    box = replaced(one.box, axis, (one.box[axis][0], other.box[axis][1]))
    if one.axis == other.axis == axis:
        return Region(box, axis, one.cuts + other.cuts[1:], one.counts + other.counts)
    return Region(box, axis, (*one.box[axis], other.box[axis][1]), (one.rows, other.rows))
