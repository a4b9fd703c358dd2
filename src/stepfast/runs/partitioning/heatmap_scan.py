"""The frontier of a heatmap: the regions so far, and the counts that the next round needs.

A round asks for everything that the regions want to know now. Its answers may come in any order, over any number of
steps; when the last one is there, all regions move on together. So the plan depends on the counts alone, not on how
many were asked at once, which of them failed, or where planning was interrupted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from itertools import islice, pairwise
from typing import TYPE_CHECKING, Any, Final

from stepfast.runs.partitioning.contract import Plan, Planned, checked
from stepfast.runs.partitioning.dimension import Axis, axis_from_json
from stepfast.runs.partitioning.heatmap_crowd import few_enough, joined_if_small, unfinished
from stepfast.runs.partitioning.heatmap_cut import Aim, loses_rows, settle, turned, wanted
from stepfast.runs.partitioning.heatmap_region import Box, Region, replaced
from stepfast.runs.ranges import Range

if TYPE_CHECKING:
    from collections.abc import Iterator

KIND: Final = "heatmap"


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What was asked for when planning began."""

    target: int
    fewest: int
    most: int
    least_rows: int
    budget: int
    at_once: int

    def target_for(self, rows: int) -> int:
        """The size of a partition of so many rows, within the numbers of partitions that are allowed."""
        not_too_many = max(self.target, -(-rows // self.most))
        enough = max(self.least_rows, rows // self.fewest)
        return min(not_too_many, enough) if enough < self.target else not_too_many


@dataclass(frozen=True, kw_only=True)
class Scan:
    """A heatmap in the making."""

    axes: tuple[Axis, ...]
    settings: Settings
    base: Range  # what is divided: everything, or one partition
    prior: tuple[Box, ...] = ()  # the partitions of the last run, until they have been counted again
    baseline: int | None = None
    regions: tuple[Region, ...] = ()
    answers: Mapping[int, int] = field(default_factory=dict)  # of this round: number of the box, rows
    requests: int = 0  # answers of earlier rounds
    rounds: int = 0
    barred: tuple[int, ...] = ()  # axes that lost rows

    @property
    def finished(self) -> bool:
        return not self.needs

    def ask(self) -> list[Range]:
        return [it for _, it in islice(self._missing(), self.settings.at_once)]

    def learn(self, counts: Mapping[str, int]) -> Scan:
        given, answers = dict(checked(counts)), dict(self.answers)
        for number, it in self._missing():
            if not given:
                break
            if it.name in given:
                answers[number] = given.pop(it.name)
        known = replace(self, answers=answers)
        return _moved_on(known) if self.needs and len(answers) == len(self.needs) else known

    def plan(self) -> Plan:
        most = self.aim.most
        regions = self.regions or (Region.uncut(self.whole),)
        parts = [part for it in regions for part in ([it] if it.settled else unfinished(it, most))]
        return Plan(
            partitions=tuple(
                Planned(self.range_of(it.box), None if None in it.counts else it.rows, it.problem)
                for it in few_enough(parts, self.settings.most, most)
            ),
            domain=Range.of({it.name: it.part(0, it.size) for it in self.axes}),
            baseline=self.baseline,
            requests=self.requests + len(self.answers),
        )

    @property
    def aim(self) -> Aim:
        return Aim(self.settings.target_for(self.baseline or 0))

    @property
    def whole(self) -> Box:
        return tuple((0, it.size) for it in self.axes)

    def range_of(self, box: Box) -> Range:
        """The first dimension is always named; another one only where it is cut: elsewhere no value is left out."""
        given = dict(self.base.parts)
        return Range.of(
            {
                axis.name: axis.part(*ticks)
                for number, (axis, ticks) in enumerate(zip(self.axes, box, strict=True))
                if number == 0 or axis.name in given or ticks != (0, axis.size)
            }
        )

    @cached_property
    def needs(self) -> list[Box]:
        """What this round has to count. Nothing if that would cost more than is left of the budget."""
        if self.baseline is None:
            return [self.whole]
        boxes = [box for it in self.regions for box in _wanted_boxes(self, it)]
        return boxes if self.requests + len(boxes) <= self.settings.budget else []

    def _missing(self) -> Iterator[tuple[int, Range]]:
        for number, box in enumerate(self.needs):
            if number not in self.answers:
                yield number, self.base if self.baseline is None else self.range_of(box)

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": KIND,
            "axes": [it.to_json() for it in self.axes],
            "settings": asdict(self.settings),
            "base": self.base.to_json(),
            "prior": [[list(ticks) for ticks in box] for box in self.prior],
            "baseline": self.baseline,
            "regions": [it.to_json() for it in self.regions],
            "answers": sorted(self.answers.items()),
            "requests": self.requests,
            "rounds": self.rounds,
            "barred": list(self.barred),
        }

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Scan:
        return cls(
            axes=tuple(axis_from_json(it) for it in stored["axes"]),
            settings=Settings(**stored["settings"]),
            base=Range.from_json(stored["base"]),
            prior=tuple(tuple((first, last) for first, last in box) for box in stored["prior"]),
            baseline=stored["baseline"],
            regions=tuple(Region.from_json(it) for it in stored["regions"]),
            answers=dict(stored["answers"]),
            requests=stored["requests"],
            rounds=stored["rounds"],
            barred=tuple(stored["barred"]),
        )


def _cuts(scan: Scan, region: Region) -> dict[int, list[int]]:
    return wanted(region, scan.aim, scan.axes[region.axis], scan.rounds)


def _wanted_boxes(scan: Scan, region: Region) -> Iterator[Box]:
    for ticks, count in zip(region.cells, region.counts, strict=True):
        if count is None:
            yield replaced(region.box, region.axis, ticks)
    for cell, cuts in _cuts(scan, region).items():
        for ticks in pairwise((region.cuts[cell], *cuts, region.cuts[cell + 1])):
            yield replaced(region.box, region.axis, ticks)


def _moved_on(scan: Scan) -> Scan:
    """Every answer of the round is there."""
    answers = iter([scan.answers[it] for it in range(len(scan.needs))])
    if scan.baseline is None:
        begun = replace(scan, baseline=next(answers))
        pieces = begun.aim.pieces(begun.baseline or 0)
        prior = scan.prior if len(scan.prior) <= 2 * pieces else ()
        regions = [Region.uncut(it) for it in prior] or [_first_region(begun, pieces)]
        begun = replace(begun, prior=prior)
    else:
        regions = [_counted(scan, it, answers) for it in scan.regions]
        regions = joined_if_small(regions, scan.aim) if scan.prior else regions
        begun = replace(scan, prior=())
    ended = replace(begun, requests=scan.requests + len(scan.needs), rounds=scan.rounds + 1, answers={})
    return _decided(ended, regions)


def _first_region(scan: Scan, pieces: int) -> Region:
    # A domain that will be cut needs no count of its own: the baseline says how finely to look.
    known = scan.baseline if pieces > 1 else None
    return replace(Region.uncut(scan.whole, 0, known), whole=scan.baseline)


def _counted(scan: Scan, region: Region, answers: Iterator[int]) -> Region:
    """The region with its answers, which come in the order in which it asked."""
    cuts, counts = [region.cuts[0]], []
    chosen = _cuts(scan, region)
    for cell, ((first, last), count) in enumerate(zip(region.cells, region.counts, strict=True)):
        for _, end in pairwise((first, *chosen.get(cell, []), last)):
            counts.append(next(answers) if count is None or cell in chosen else count)
            cuts.append(end)
    whole = counts[0] if len(counts) == 1 else region.whole
    return replace(region, cuts=tuple(cuts), counts=tuple(counts), whole=whole)


def _decided(scan: Scan, regions: list[Region]) -> Scan:
    """Whatever follows without another count."""
    done: list[Region] = []
    barred = scan.barred
    waiting = regions[::-1]
    while waiting:
        region = waiting.pop()
        if region.settled or None in region.counts:
            done.append(region)
        elif region.axis and loses_rows(region, scan.axes[region.axis]):
            barred = (*barred, region.axis)
            waiting.append(turned(region, barred))
        elif _cuts(scan, region):
            done.append(region)
        else:
            waiting += [*settle(region, scan.aim, barred)][::-1]
    return replace(scan, regions=tuple(done), barred=barred)
