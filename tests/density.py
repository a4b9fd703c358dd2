"""Sources that only know how to count: the published densities of two catalogues, and handfuls of items."""

from __future__ import annotations

import json
import math
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from itertools import accumulate
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stepfast.runs.partitioning.contract import Frontier, Partitioner
    from stepfast.runs.partitioning.ranges import Range

PRICE = "dollar_per_carat"

# Rows by price per carat: up to this price, so many.
NATURAL = {
    500: 29_999, 1_000: 103_412, 1_500: 96_907, 2_000: 58_818, 2_500: 36_719, 3_000: 23_955, 3_500: 16_690,
    4_000: 12_599, 4_500: 9_190, 5_000: 7_350, 6_000: 10_671, 7_000: 7_347, 8_000: 5_014, 9_000: 3_802, 10_000: 3_051,
    15_000: 7_334, 20_000: 2_270, 25_000: 837, 30_000: 454, 40_000: 407, 50_000: 143, 100_000: 208,
}  # fmt: skip
# 904,000 rows, 770,000 of them below 250; single dollars with tens of thousands.
LAB_GROWN = {
    50: 40_000, 99: 240_000, 100: 25_000, 149: 200_000, 150: 40_000, 200: 165_000, 250: 60_000, 500: 80_000,
    1_000: 35_000, 5_000: 15_000, 100_000: 4_000,
}  # fmt: skip


class Density:
    """Rows spread evenly inside each bin, and in every bin alike by carats: most are small."""

    def __init__(self, bins: Mapping[int, int], growth: float = 1) -> None:
        self.ends = [0, *bins]
        self.sums = [0, *accumulate(rows * growth for rows in bins.values())]
        self.asked: list[str] = []

    @property
    def rows(self) -> int:
        return round(self.sums[-1])

    def __call__(self, asked: Range) -> int:
        self.asked.append(asked.name)
        price, carats = asked.bounds(PRICE), asked.bounds("carats")
        rows = self._below(price.to) - (0 if price.from_ is None else self._below(price.from_))
        share = _lighter(carats.to) - (0 if carats.from_ is None else _lighter(carats.from_))
        return math.ceil(rows * share - 1e-6)

    def _below(self, price: Any) -> float:
        if price is None or price >= self.ends[-1]:
            return self.sums[-1]
        number = bisect_right(self.ends, price) - 1
        low, high = self.ends[number], self.ends[number + 1]
        return self.sums[number] + (self.sums[number + 1] - self.sums[number]) * float(price - low) / (
            high - low
        )


def _lighter(carats: Any) -> float:
    return 1 if carats is None else 1 - math.exp(-max(0.0, float(carats) - 0.3) / 0.8)


class Items:
    """A few items, counted one by one: what a range contains is what it counts."""

    def __init__(self, items: Sequence[Mapping[str, int | str | Decimal]]) -> None:
        self.items = items
        self.asked: list[str] = []

    def __call__(self, asked: Range) -> int:
        self.asked.append(asked.name)
        return self.count(asked)

    def count(self, inside: Range) -> int:
        return sum(inside.contains(it) for it in self.items)


def through_json(frontier: Frontier, partitioner: Partitioner) -> Frontier:
    """What a step finds that another one stored."""
    return partitioner.restore(json.loads(json.dumps(frontier.to_json())))


def explore(
    partitioner: Partitioner,
    source: Callable[[Range], int],
    frontier: Frontier,
    *,
    fails: Callable[[str], bool] = lambda _: False,
) -> list[Frontier]:
    """Plan to the end, one stored step after the other; `fails` says which counts come back with nothing."""
    steps = [frontier]
    while not partitioner.finished(steps[-1]):
        frontier = through_json(steps[-1], partitioner)
        asked = partitioner.ask(frontier)
        assert asked, "planning is not finished and asks for nothing"
        answers = {it.name: source(it) for it in asked if not fails(it.name)}
        steps.append(partitioner.learn(frontier, answers))
    return steps
