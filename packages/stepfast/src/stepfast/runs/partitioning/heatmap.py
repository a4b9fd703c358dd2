"""How a heatmap plans: it counts boxes of the domain, cuts where the rows are, and counts again.

    Region: a box that is being cut ──► wanted_cuts, settle_region: where and into what ──► Scan: the frontier, in rounds

At every moment the regions of a plan tile its domain, whatever has been counted: a region is only ever replaced by
regions that tile it. So nothing can fall between the partitions, wherever planning stops.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import timedelta
from functools import cached_property
from itertools import accumulate, groupby, islice, pairwise
from typing import TYPE_CHECKING, Any, Final, Self

from stepfast.runs.partitioning.contract import SHORTFALL, Plan, Planned, checked
from stepfast.runs.partitioning.dimension import Axis, axis_from_json
from stepfast.runs.partitioning.ranges import Bounds, Range, say

if TYPE_CHECKING:
    from stepfast.runs.partitioning.contract import Frontier, Problem
    from stepfast.runs.partitioning.ranges import Part


# Regions: boxes of the domain that planning is cutting into partitions, or has made one.

Ticks = tuple[int, int]
Box = tuple[Ticks, ...]  # one stretch of ticks for each dimension


@dataclass(frozen=True)
class Region:
    """The box, cut along one of its axes. Between two cuts is a cell, with its count (None: not known yet)."""

    box: Box
    axis: int
    cuts: tuple[int, ...]
    counts: tuple[int | None, ...]
    whole: int | None = (
        None  # rows of the box before it was cut; an estimate while the only cell is not counted
    )
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
        """Rows of all cells; before they are counted, the estimate."""
        if None in self.counts:
            return self.whole or 0
        return sum(self.known)

    @property
    def known(self) -> list[int]:
        return [count for count in self.counts if count is not None]

    @property
    def edges(self) -> list[int]:
        """Rows before each cut."""
        return [0, *accumulate(self.known)]

    def box_of(self, first: int, last: int) -> Box:
        """The box between two cuts."""
        return with_ticks(self.box, self.axis, (self.cuts[first], self.cuts[last]))

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


def with_ticks(box: Box, axis: int, ticks: Ticks) -> Box:
    return (*box[:axis], ticks, *box[axis + 1 :])


def common_axis(one: Box, other: Box) -> int | None:
    """The axis along which two boxes touch, so that together they are a box; None if there is none."""
    differing = [axis for axis, (mine, theirs) in enumerate(zip(one, other, strict=True)) if mine != theirs]
    if len(differing) != 1:
        return None
    return differing[0] if one[differing[0]][1] == other[differing[0]][0] else None


def join_regions(one: Region, other: Region, axis: int) -> Region:
    """Two neighbours as one region, with the cells of both if they are cut along this axis."""
    box = with_ticks(one.box, axis, (one.box[axis][0], other.box[axis][1]))
    if one.axis == other.axis == axis:
        return Region(box, axis, one.cuts + other.cuts[1:], one.counts + other.counts)
    return Region(box, axis, (*one.box[axis], other.box[axis][1]), (one.rows, other.rows))


# Neighbours are joined: because they are small, because there are too many, or because planning stopped.

SMALL: Final = 0.5  # of the target: a partition of the last run that has shrunk below it joins its neighbour


def join_small(regions: Sequence[Region], aim: Aim) -> list[Region]:
    """The partitions of the last run, counted again; what became small is joined with what stands before it."""
    found: list[Region] = []
    for region in regions:
        before = found[-1] if found else None
        if before is not None and min(before.rows, region.rows) < SMALL * aim.target:
            axis = common_axis(before.box, region.box)
            if axis is not None and before.rows + region.rows <= aim.most:
                found[-1] = join_regions(before, region, axis)
                continue
        found.append(region)
    return found


def join_to_at_most(regions: Sequence[Region], most: int, most_rows: int) -> list[Region]:
    """At most so many regions, by joining the smallest neighbours."""
    found = list(regions)
    while len(found) > most:
        pairs = [
            (one.rows + other.rows, number, axis)
            for number, (one, other) in enumerate(pairwise(found))
            if (axis := common_axis(one.box, other.box)) is not None
        ]
        if not pairs:  # only if the prior plan was not made here: pieces of one cut stand side by side
            break
        _, number, axis = min(pairs)
        both = join_regions(found[number], found[number + 1], axis)
        found[number : number + 2] = [_partition(both, most_rows, "crowded")]
    return found


def cells_without_counts(region: Region, most_rows: int) -> Iterator[Region]:
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


# Cuts: where a region is divided, so that its pieces are about as large as the target.
#
# A region with p pieces has p - 1 goals: the places that have 1/p, 2/p, … of its rows before them. A goal is reached by
# a cut that is close enough. One that is not reached asks for the cell it lies in to be cut, near the goal if rows are
# even. A goal inside a cell of one tick cannot be reached; what lies between the nearest reached goals is then
# divided along another axis, into as many pieces.

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


def wanted_cuts(region: Region, aim: Aim, axis: Axis, round_: int) -> dict[int, list[int]]:
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
        shares = [number / WIDEST_CUT for number in range(1, WIDEST_CUT)]
    elif halve:
        shares = [0.5] if len(shares) == 1 else [*shares, 0.5]
    return sorted({min(last - 1, max(first + 1, first + round((last - first) * share))) for share in shares})


def loses_rows(region: Region, axis: Axis) -> bool:
    """Whether cutting along this axis made rows disappear: some have a value that the axis does not know, or none."""
    spans_all = region.box[region.axis] == (0, axis.size)
    if not spans_all or region.whole is None or len(region.counts) == 1:
        return False
    return region.rows < region.whole * (1 - SHORTFALL)


def turn_region(region: Region, barred: Sequence[int]) -> Region:
    """The same box, to be cut along another axis; or a partition, if there is none."""
    tried = (*region.tried, region.axis)
    axis = _other_axis(region.box, tried, barred)
    if axis is None:
        return Region.uncut(region.box, region.axis, region.whole, settled=True, problem="dense")
    return Region.uncut(region.box, axis, region.whole, tried=tried)


def settle_region(region: Region, aim: Aim, barred: Sequence[int]) -> Iterator[Region]:
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


# The scan: the frontier of a heatmap, with the regions so far and the counts that the next round needs.
#
# A round asks for everything that the regions want to know now. Its answers may come in any order, over any number of
# steps; when the last one is there, all regions move on together. So the plan depends on the counts alone, not on how
# many were asked at once, which of them failed, or where planning was interrupted.

HEATMAP_KIND: Final = "heatmap"


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings of a heatmap when planning began."""

    target: int
    fewest: int
    most: int
    least_rows: int
    budget: int
    at_once: int
    sample: int | None = None

    def target_for(self, rows: int) -> int:
        """The size of a partition of so many rows, within the numbers of partitions that are allowed."""
        not_too_many = max(self.target, -(-rows // self.most))
        enough = max(self.least_rows, rows // self.fewest)
        return min(not_too_many, enough) if enough < self.target else not_too_many


@dataclass(frozen=True, kw_only=True)
class Rounds:
    """Planning in rounds: some boxes are counted, and what they hold decides about the boxes of the next round."""

    axes: tuple[Axis, ...]
    settings: Settings
    base: Range = field(default_factory=Range)  # what is divided: everything, or one partition
    prior: tuple[Box, ...] = ()  # the partitions of the last run, if they are used again
    baseline: int | None = None
    answers: Mapping[int, int] = field(default_factory=dict)  # of this round: number of the box, rows
    requests: int = 0  # answers of earlier rounds

    @cached_property
    def needs(self) -> list[Box]:
        """What this round has to count."""
        raise NotImplementedError

    def next_round(self) -> Self:
        """The same, with everything that this round had to count."""
        raise NotImplementedError

    @property
    def finished(self) -> bool:
        return not self.needs

    def ask(self) -> list[Range]:
        return [it for _, it in islice(self._missing(), self.settings.at_once)]

    def learn(self, counts: Mapping[str, int]) -> Self:
        given, answers = dict(checked(counts)), dict(self.answers)
        for number, range_ in self._missing():
            if not given:
                break
            if range_.name in given:
                answers[number] = given.pop(range_.name)
        known = replace(self, answers=answers)
        return known.next_round() if self.needs and len(answers) == len(self.needs) else known

    @property
    def aim(self) -> Aim:
        return Aim(self.settings.target_for(self.baseline or 0))

    @property
    def whole(self) -> Box:
        return tuple((0, axis.size) for axis in self.axes)

    def range_of(self, box: Box) -> Range:
        return range_of_box(self.axes, box, dict(self.base.parts))

    def planned(self, partitions: Iterable[Planned]) -> Plan:
        """The plan with these partitions."""
        return Plan(
            partitions=tuple(partitions),
            domain=Range.of({it.name: it.part(0, it.size) for it in self.axes}),
            baseline=self.baseline,
            requests=self.requests + len(self.answers),
        )

    def _missing(self) -> Iterator[tuple[int, Range]]:
        for number, box in enumerate(self.needs):
            if number not in self.answers:
                yield number, self.base if self.baseline is None else self.range_of(box)


@dataclass(frozen=True, kw_only=True)
class Scan(Rounds):
    """A heatmap in the making."""

    regions: tuple[Region, ...] = ()
    rounds: int = 0
    barred: tuple[int, ...] = ()  # axes that lost rows

    def next_round(self) -> Scan:
        return _moved_on(self)

    def plan(self) -> Plan:
        most = self.aim.most
        regions = self.regions or (Region.uncut(self.whole),)
        parts = [part for it in regions for part in ([it] if it.settled else cells_without_counts(it, most))]
        return self.planned(
            Planned(self.range_of(it.box), None if None in it.counts else it.rows, it.problem)
            for it in join_to_at_most(parts, self.settings.most, most)
        )

    @cached_property
    def needs(self) -> list[Box]:
        """What this round has to count. Nothing if that would cost more than is left of the budget."""
        if self.baseline is None:
            return [self.whole]
        boxes = [box for region in self.regions for box in _wanted_boxes(self, region)]
        return boxes if self.requests + len(boxes) <= self.settings.budget else []

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": HEATMAP_KIND,
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


def range_of_box(axes: Sequence[Axis], box: Box, given: Collection[str] = ()) -> Range:
    """The first dimension is always named; another one only where it is cut: elsewhere no value is left out."""
    return Range.of(
        {
            axis.name: axis.part(*ticks)
            for number, (axis, ticks) in enumerate(zip(axes, box, strict=True))
            if number == 0 or axis.name in given or ticks != (0, axis.size)
        }
    )


def _cuts(scan: Scan, region: Region) -> dict[int, list[int]]:
    return wanted_cuts(region, scan.aim, scan.axes[region.axis], scan.rounds)


def _wanted_boxes(scan: Scan, region: Region) -> Iterator[Box]:
    for ticks, count in zip(region.cells, region.counts, strict=True):
        if count is None:
            yield with_ticks(region.box, region.axis, ticks)
    for cell, cuts in _cuts(scan, region).items():
        for ticks in pairwise((region.cuts[cell], *cuts, region.cuts[cell + 1])):
            yield with_ticks(region.box, region.axis, ticks)


def _moved_on(scan: Scan) -> Scan:
    """The scan after a round: every answer is there, and all regions move on together."""
    answers = iter([scan.answers[it] for it in range(len(scan.needs))])
    if scan.baseline is None:
        begun = replace(scan, baseline=next(answers))
        pieces = begun.aim.pieces(begun.baseline or 0)
        prior = scan.prior if len(scan.prior) <= 2 * pieces else ()
        regions = [Region.uncut(it) for it in prior] or [_first_region(begun, pieces)]
        begun = replace(begun, prior=prior)
    else:
        regions = [_counted(scan, it, answers) for it in scan.regions]
        regions = join_small(regions, scan.aim) if scan.prior else regions
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
    """The scan with everything decided that needs no other count."""
    done: list[Region] = []
    barred = scan.barred
    waiting = regions[::-1]
    while waiting:
        region = waiting.pop()
        if region.settled or None in region.counts:
            done.append(region)
        elif region.axis and loses_rows(region, scan.axes[region.axis]):
            barred = (*barred, region.axis)
            waiting.append(turn_region(region, barred))
        elif _cuts(scan, region):
            done.append(region)
        else:
            waiting += [*settle_region(region, scan.aim, barred)][::-1]
    return replace(scan, regions=tuple(done), barred=barred)


# Drawing: a plan as a person sees it in a terminal: where the rows are dense, and how the partitions follow them.

LINES: Final = 24
WIDTH: Final = 80
BLOCKS: Final = " ▏▎▍▌▋▊▉█"
LEAST_BAR: Final = 8
DECADES: Final = 3  # a thousandth of the highest density is hardly to be seen
PROBLEMS: Final = {
    "dense": "too dense to be divided",
    "budget": "large, because there were no counts left",
    "crowded": "large, because there may not be more",
    "undivided": "large, and divided when they are read",
}


@dataclass(frozen=True)
class Line:
    """Neighbouring partitions that are drawn together."""

    label: str
    density: float | None  # rows for each unit of the dimension; None where that cannot be said
    rows: int | None
    partitions: int
    remarks: tuple[str, ...]


def draw(frontier: Frontier, *, lines: int = LINES, width: int = WIDTH) -> str:
    """A line for each stretch of the main dimension; its bar grows with the logarithm of the density."""
    plan = frontier.plan()
    headline = describe_plan(plan)
    if not frontier.finished:
        headline = f"planning: {headline}"
    dimension = _main_dimension(plan.partitions)
    if dimension is None:
        return headline
    drawn = _lines(plan.partitions, dimension, max(1, lines))
    return "\n".join([headline, dimension, *_rows(drawn, width)])


def describe_plan(plan: Plan) -> str:
    """The plan in one sentence, with what is wrong with it."""
    number = len(plan.partitions)
    sizes = [it.estimate for it in plan.partitions if it.estimate is not None]
    sentence = f"{number:,} partition{'' if number == 1 else 's'}"
    if sizes and plan.rows is not None:
        sentence = f"{plan.rows:,} rows in {sentence} of {min(sizes):,} to {max(sizes):,}"
    sentence += f"; {plan.requests:,} counts"
    if plan.misses_rows:
        sentence += f"; {plan.shortfall:,} of {plan.baseline:,} rows are in no partition"
    if plan.scope == "partial":
        sentence += f"; partial: it leaves out {plan.gap}"
    problems = [it.problem for it in plan.partitions if it.problem]
    sentence += "".join(f"; {problems.count(it):,} {PROBLEMS[it]}" for it in sorted(set(problems)))
    return sentence


def _main_dimension(partitions: Sequence[Planned]) -> str | None:
    """The one that every partition names; of several, the one with the most different parts."""
    named = [dict(it.range.parts) for it in partitions]
    shared = [name for name in (named[0] if named else ()) if all(name in it for it in named)]
    return max(shared, key=lambda name: len({it[name] for it in named}), default=None)


def _lines(partitions: Sequence[Planned], dimension: str, lines: int) -> list[Line]:
    """Partitions with the same part of the dimension stand on one line; so do neighbours, if lines are few."""
    columns = [
        list(group)
        for _, group in groupby(partitions, key=lambda planned: dict(planned.range.parts)[dimension])
    ]
    each = -(-len(columns) // lines)
    return [
        _line([planned for column in columns[first : first + each] for planned in column], dimension)
        for first in range(0, len(columns), each)
    ]


def _line(group: Sequence[Planned], dimension: str) -> Line:
    parts = [dict(it.range.parts)[dimension] for it in group]
    counts = [it.estimate for it in group]
    rows = None if None in counts else sum(it or 0 for it in counts)
    others = {name for it in group for name, _ in it.range.parts} - {dimension}
    problems = {it.problem for it in group if it.problem}
    label, span = _stretch(parts)
    return Line(
        label=label,
        density=None if rows is None or not span else rows / span,
        rows=rows,
        partitions=len(group),
        remarks=tuple([f"by {it}" for it in sorted(others)] + sorted(problems)),
    )


def _stretch(parts: Sequence[Part]) -> tuple[str, float | None]:
    """From where to where, and how wide that is; a value of a list is as wide as any other."""
    bounds = [it for it in parts if isinstance(it, Bounds)]
    if not bounds:
        values = list(dict.fromkeys(value for it in parts if not isinstance(it, Bounds) for value in it))
        return " ".join(say(it) for it in values), float(len(values))
    whole = Bounds(min(bounds, key=lambda it: it.start).from_, max(bounds, key=lambda it: it.end).to)
    return whole.text.replace("..", " .. "), _span(whole.from_, whole.to)


def _span(low: Any, high: Any) -> float | None:
    if low is None or high is None or isinstance(low, str):
        return None
    wide = high - low
    return wide.total_seconds() if isinstance(wide, timedelta) else float(wide)


def _rows(drawn: Sequence[Line], width: int) -> list[str]:
    labels = max(len(line.label) for line in drawn)
    texts = [_text(line) for line in drawn]
    room = max(LEAST_BAR, width - labels - max(map(len, texts)) - 4)
    densest = max((line.density or 0 for line in drawn), default=0)
    return [
        f"{line.label:>{labels}}  {_bar(line.density, densest, room)}  {text}".rstrip()
        for line, text in zip(drawn, texts, strict=True)
    ]


def _text(line: Line) -> str:
    rows = "not counted" if line.rows is None else f"{line.rows:,} rows"
    number = f"{line.partitions} partition{'' if line.partitions == 1 else 's'}"
    return f"{rows:>14}  {number:<14}{', '.join(line.remarks)}".rstrip()


def _bar(density: float | None, densest: float, room: int) -> str:
    if not density:
        return " " * room
    share = 1 + math.log10(density / densest) / DECADES
    eighths = max(1, round(share * room * 8))
    return (BLOCKS[8] * (eighths // 8) + BLOCKS[eighths % 8]).rstrip().ljust(room)
