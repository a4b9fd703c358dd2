"""What a range may be asked about: a number for every stone, from its columns or from the stone itself."""

from __future__ import annotations

from enum import StrEnum
from operator import truediv
from typing import TYPE_CHECKING, Final

from stepfast.diamonds.simulator.vocabulary import Trait

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from stepfast.diamonds.simulator.blocks import Interval
    from stepfast.diamonds.simulator.catalogue import Catalogue, Stone


class Dimension(StrEnum):
    """By the name of its field of `DiamondQuery`."""

    PER_CARAT = "dollar_per_carat"  # dollars, with all their fractions
    VALUE = "dollar_value"  # cents
    CARATS = "sizes"  # hundredths
    UPDATED = "updated"  # microseconds since 1970
    DISCOUNT = "discount"  # hundredths of a percent
    TABLE = "table_percentage"
    DEPTH = "depth_percentage"
    RATIO = "ratio"
    LENGTH = "length_mm"
    WIDTH = "width_mm"
    HEIGHT = "depth_mm"


def discount(stone: Stone) -> int:
    """-6543 is 65.43 % below the list price."""
    return -stone.traits[Trait.LUCK] * 29 + stone.traits[Trait.FLAW] % 7 * 3


def length(stone: Stone) -> float:
    return round(float(6.45 * (stone.carats / 100) ** (1 / 3) * _stretch(stone)), 2)


def width(stone: Stone) -> float:
    return round(float(6.45 * (stone.carats / 100) ** (1 / 3)), 2)


def height(stone: Stone) -> float:
    return round(width(stone) * depth(stone) / 100, 2)


def depth(stone: Stone) -> float:
    return 55 + stone.traits[Trait.MEASURES] % 16 + stone.traits[Trait.CUT] / 10


def table(stone: Stone) -> float:
    return 52 + stone.traits[Trait.MEASURES] // 16


def _stretch(stone: Stone) -> float:
    if stone.traits[Trait.SHAPE] == 0:  # round
        return 1.0 + stone.traits[Trait.MEASURES] % 3 / 500
    return 1.0 + stone.traits[Trait.MEASURES] / 400


KEYS: Final[dict[Dimension, Callable[[Stone], float]]] = {
    Dimension.PER_CARAT: lambda it: it.price / it.carats,  # cents by hundredths of a carat: dollars by carat
    Dimension.VALUE: lambda it: it.price,
    Dimension.CARATS: lambda it: it.carats,
    Dimension.UPDATED: lambda it: it.updated_at,
    Dimension.DISCOUNT: discount,
    Dimension.TABLE: table,
    Dimension.DEPTH: depth,
    Dimension.RATIO: lambda it: length(it) / width(it),
    Dimension.LENGTH: length,
    Dimension.WIDTH: width,
    Dimension.HEIGHT: height,
}


def inside(value: float, intervals: Sequence[Interval]) -> bool:
    return any(low <= value <= high for low, high in intervals)


def key_of_row(catalogue: Catalogue, dimension: Dimension) -> Callable[[int], float]:
    """The same numbers by row, as fast as the columns allow."""
    price, carats = catalogue.price, catalogue.carats
    match dimension:
        case Dimension.PER_CARAT:
            return lambda row: price[row] / carats[row]
        case Dimension.VALUE:
            return price.__getitem__
        case Dimension.CARATS:
            return carats.__getitem__
        case Dimension.UPDATED:
            return catalogue.updated_at.__getitem__
        case _:
            key = KEYS[dimension]
            return lambda row: key(catalogue.stone(row))


def column(catalogue: Catalogue, dimension: Dimension) -> Sequence[float]:
    """The numbers of all rows."""
    match dimension:
        case Dimension.PER_CARAT:
            return list(map(truediv, catalogue.price, catalogue.carats))
        case Dimension.VALUE:
            return catalogue.price
        case Dimension.CARATS:
            return catalogue.carats
        case Dimension.UPDATED:
            return catalogue.updated_at
        case _:
            return list(map(key_of_row(catalogue, dimension), range(len(catalogue))))
