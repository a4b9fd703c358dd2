"""How many stones, and how dear: the published densities, sampled without numpy.

The natural feed publishes two margins, by price per carat and by price. A prior (most stones weigh about a carat)
fitted to both by iterative proportional fitting gives their joint table; quotas, not dice, fill its cells, so that a
thousand stones are spread like half a million. Of the lab-grown feed only the heap is known: 770,000 of 904,000 below
250 dollars per carat, and single dollars with tens of thousands.
"""

from __future__ import annotations

import math
import re
from array import array
from dataclasses import dataclass
from functools import cache
from random import Random
from typing import TYPE_CHECKING, Final

from stepfast.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


# Up to this many dollars per carat, so many stones.
NATURAL_PER_CARAT: Final = {
    500: 29_999, 1_000: 103_412, 1_500: 96_907, 2_000: 58_818, 2_500: 36_719, 3_000: 23_955, 3_500: 16_690,
    4_000: 12_599, 4_500: 9_190, 5_000: 7_350, 6_000: 10_671, 7_000: 7_347, 8_000: 5_014, 9_000: 3_802, 10_000: 3_051,
    15_000: 7_334, 20_000: 2_270, 25_000: 837, 30_000: 454, 40_000: 407, 50_000: 143, 100_000: 208,
}  # fmt: skip
# Up to this many dollars, so many stones.
NATURAL_VALUE: Final = {
    500: 100_451, 1_000: 90_198, 1_500: 48_195, 2_000: 37_391, 5_000: 84_608, 10_000: 33_294, 20_000: 18_711,
    50_000: 11_992, 100_000: 2_808, 250_000: 1_123,
}  # fmt: skip
LABGROWN_PER_CARAT: Final = {
    50: 40_000, 99: 240_000, 100: 25_000, 149: 200_000, 150: 40_000, 200: 165_000, 250: 60_000, 500: 80_000,
    1_000: 35_000, 5_000: 15_000, 100_000: 4_000,
}  # fmt: skip

CHEAPEST_PER_CARAT: Final = 20.0
CHEAPEST: Final = 60.0
LIGHTEST, HEAVIEST = 40, 1501  # hundredths of a carat
FITTINGS: Final = 200
PROFILES: Final = ("1k", "50k", "500k", "900k-labgrown")

_PART: Final = re.compile(r"(\d+)(k|m)?(-labgrown)?")


@dataclass(frozen=True)
class Part:
    """So many stones of one feed."""

    stones: int
    labgrown: bool


def parse_profile(text: str) -> tuple[Part, ...]:
    """Read `500k`, `900k-labgrown`, or several with a plus: `50k+50k-labgrown`."""
    parts = []
    for word in text.split("+"):
        match = _PART.fullmatch(word.strip())
        if match is None:
            raise ConfigurationError(
                f"profile: {text!r} is not understood; write {', '.join(PROFILES)}, "
                "another number, or several joined by a plus, such as 50k+50k-labgrown"
            )
        stones = int(match[1]) * {None: 1, "k": 1_000, "m": 1_000_000}[match[2]]
        parts.append(Part(stones, match[3] is not None))
    if not 0 < sum(it.stones for it in parts) <= 10_000_000:  # noqa: PLR2004 - what fits into memory
        raise ConfigurationError(f"profile: {text!r} must have between 1 and 10 million stones")
    return tuple(parts)


@dataclass(frozen=True)
class Cell:
    """A share of the catalogue inside a rectangle of price per carat and, where it is known, of price."""

    share: float
    per_carat: tuple[float, float]
    value: tuple[float, float] | None


def sample(part: Part, dice: Random) -> tuple[array[int], array[int]]:
    """Prices in cents and weights in hundredths of a carat, in an order that says nothing."""
    cells = _labgrown_cells() if part.labgrown else _natural_cells()
    prices, carats = array("I", bytes(4 * part.stones)), array("H", bytes(2 * part.stones))
    step, place = _stride(part.stones, dice), dice.randrange(part.stones)
    for cell, count in zip(cells, quotas([it.share for it in cells], part.stones), strict=True):
        for price, weight in _stones(cell, count, dice):
            prices[place], carats[place] = price, weight
            place = (place + step) % part.stones
    return prices, carats


def quotas(shares: Sequence[float], total: int) -> list[int]:
    """Whole numbers in these proportions that sum up to `total`: largest remainders first."""
    exact = [it * total / math.fsum(shares) for it in shares]
    counts = [math.floor(it) for it in exact]
    neediest = sorted(range(len(shares)), key=lambda n: counts[n] - exact[n])
    for n in neediest[: total - sum(counts)]:
        counts[n] += 1
    return counts


def _stones(cell: Cell, count: int, dice: Random) -> Iterator[tuple[int, int]]:
    """Evenly inside the bin by price per carat, fractions and all; the weight follows from the price."""
    low, high = cell.per_carat
    if cell.value is not None:  # where a weight leads from the one to the other
        low = max(low, 100 * cell.value[0] / HEAVIEST)
        high = min(high, 100 * cell.value[1] / LIGHTEST)
    margin = 0.02  # cents are rounded: no stone may leave its bin
    for _ in range(count):
        per_carat = low + margin + (high - low - 2 * margin) * dice.random()
        if cell.value is None:
            weight = 100 * math.exp(0.25 + 0.55 * _bell(dice))
        else:
            least = max(cell.value[0], per_carat * LIGHTEST / 100)
            most = min(cell.value[1], per_carat * HEAVIEST / 100)
            weight = 100 * least * (max(most / least, 1.0)) ** dice.random() / per_carat
        hundredths = min(max(round(weight), LIGHTEST), HEAVIEST)
        yield round(per_carat * hundredths), hundredths


def _bell(dice: Random) -> float:
    """Nearly normal, and four times as fast."""
    return (dice.random() + dice.random() + dice.random() + dice.random() - 2) * math.sqrt(3)


def _stride(length: int, dice: Random) -> int:
    """A step that visits every place of a ring once, in no order that an eye would see."""
    step = dice.randrange(length) | 1
    while math.gcd(step, length) != 1:
        step += 2
    return step


def _bins(upper: Sequence[int], lowest: float) -> list[tuple[float, float]]:
    return list(zip([lowest, *upper], upper, strict=False))


@cache
def _labgrown_cells() -> tuple[Cell, ...]:
    bins = _bins(list(LABGROWN_PER_CARAT), CHEAPEST_PER_CARAT)
    return tuple(Cell(share, it, None) for it, share in zip(bins, LABGROWN_PER_CARAT.values(), strict=True))


@cache
def _natural_cells() -> tuple[Cell, ...]:
    per_carat = _bins(list(NATURAL_PER_CARAT), 100.0)
    value = _bins(list(NATURAL_VALUE), CHEAPEST)
    table = [[_prior(row, column) for column in value] for row in per_carat]
    rows = list(NATURAL_PER_CARAT.values())
    scale = sum(rows) / sum(NATURAL_VALUE.values())  # the second margin misses two stones in a hundred
    columns = [it * scale for it in NATURAL_VALUE.values()]
    for _ in range(FITTINGS):
        for n, wanted in enumerate(columns):
            factor = wanted / (sum(row[n] for row in table) or 1)
            for row in table:
                row[n] *= factor
        for row, wanted in zip(table, rows, strict=True):
            factor = wanted / (sum(row) or 1)
            row[:] = [it * factor for it in row]
    return tuple(
        Cell(table[i][j], per_carat[i], value[j])
        for i in range(len(per_carat))
        for j in range(len(value))
        if table[i][j] > 0
    )


def _prior(per_carat: tuple[float, float], value: tuple[float, float]) -> float:
    """How likely the weight is that leads from the middle of one bin to the middle of the other."""
    if value[1] <= per_carat[0] * LIGHTEST / 100 or value[0] >= per_carat[1] * HEAVIEST / 100:
        return 0.0
    weight = math.sqrt(value[0] * value[1]) / math.sqrt(per_carat[0] * per_carat[1])
    return math.exp(-((math.log(weight) / 0.8) ** 2) / 2) + 1e-9
