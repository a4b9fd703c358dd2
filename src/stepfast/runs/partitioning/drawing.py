"""A plan as a person sees it in a terminal: where the rows are dense, and how the partitions follow them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

from stepfast.runs.bounds import Bounds, say

if TYPE_CHECKING:
    from stepfast.runs.partitioning.contract import Frontier, Plan, Planned
    from stepfast.runs.ranges import Part

LINES: Final = 24
WIDTH: Final = 80
BLOCKS: Final = " ▏▎▍▌▋▊▉█"
LEAST_BAR: Final = 8
DECADES: Final = 3  # a thousandth of the highest density is hardly to be seen
PROBLEMS: Final = {
    "dense": "too dense to be divided",
    "budget": "large, because there were no counts left",
    "crowded": "large, because there may not be more",
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
    headline = describe(plan)
    if not frontier.finished:
        headline = f"planning: {headline}"
    dimension = _main_dimension(plan.partitions)
    if dimension is None:
        return headline
    drawn = _lines(plan.partitions, dimension, max(1, lines))
    return "\n".join([headline, dimension, *_rows(drawn, width)])


def describe(plan: Plan) -> str:
    """The plan in one sentence, with what is wrong with it."""
    number = len(plan.partitions)
    sizes = [it.estimate for it in plan.partitions if it.estimate is not None]
    told = f"{number:,} partition{'' if number == 1 else 's'}"
    if sizes and plan.rows is not None:
        told = f"{plan.rows:,} rows in {told} of {min(sizes):,} to {max(sizes):,}"
    told += f"; {plan.requests:,} counts"
    if plan.misses_rows:
        told += f"; {plan.shortfall:,} of {plan.baseline:,} rows are in no partition"
    if plan.scope == "partial":
        told += f"; partial: it leaves out {plan.gap}"
    problems = [it.problem for it in plan.partitions if it.problem]
    told += "".join(f"; {problems.count(it):,} {PROBLEMS[it]}" for it in sorted(set(problems)))
    return told


def _main_dimension(partitions: Sequence[Planned]) -> str | None:
    """The one that every partition names; of several, the one with the most different parts."""
    named = [dict(it.range.parts) for it in partitions]
    shared = [name for name in (named[0] if named else ()) if all(name in it for it in named)]
    return max(shared, key=lambda name: len({it[name] for it in named}), default=None)


def _lines(partitions: Sequence[Planned], dimension: str, lines: int) -> list[Line]:
    """Partitions with the same part of the dimension stand on one line; so do neighbours, if lines are few."""
    columns = [
        list(group) for _, group in groupby(partitions, key=lambda it: dict(it.range.parts)[dimension])
    ]
    each = -(-len(columns) // lines)
    return [
        _line([it for column in columns[first : first + each] for it in column], dimension)
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
    labels = max(len(it.label) for it in drawn)
    texts = [_text(it) for it in drawn]
    room = max(LEAST_BAR, width - labels - max(map(len, texts)) - 4)
    densest = max((it.density or 0 for it in drawn), default=0)
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
