"""The words of the catalogue: every value that a stone may have, and how often it has it.

A trait is a value out of at most 256, kept as one byte per stone. Its weights decide how a random byte becomes a
value, so that a whole column of them is made by one `bytes.translate`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from operator import truediv
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from stepfast_diamonds.simulator.catalogue import Catalogue, Stone
    from stepfast_diamonds.simulator.search import Interval


class Trait(IntEnum):
    """The place of each trait among the columns."""

    PRESENT = 0  # 0: deleted, or not yet there
    LABGROWN = 1
    SHAPE = 2
    AVAILABILITY = 3
    MEDIA = 4  # bits: image, 360° view, PDF of the certificate
    SUPPLIER = 5
    RETURNS = 6
    EYE_CLEAN = 7
    FLAW = 8  # a random byte that decides which dirty values the stone has
    LUCK = 9  # a random byte for everything that needs no table: markups, losses, dimensions
    COLOR = 10  # from here on: what the certificate says
    CLARITY = 11
    CUT = 12
    POLISH = 13
    SYMMETRY = 14
    FLUORESCENCE = 15
    LAB = 16
    TREATED = 17
    GROWTH = 18  # how a lab-grown stone was made
    FANCY = 19
    INTENSITY = 20
    MEASURES = 21  # a random byte for the proportions


CERTIFIED: Final = tuple(it for it in Trait if it >= Trait.COLOR)
IMAGE, VIEW, PDF = 1, 2, 4

SHAPES: Final = (
    "ROUND", "OVAL", "EMERALD", "CUSHION", "CUSHION B", "CUSHION MODIFIED", "CUSHION BRILLIANT", "ASSCHER", "RADIANT",
    "MARQUISE", "PEAR", "PRINCESS", "ROSE", "OLD MINER", "TRILLIANT", "HEXAGONAL", "HEART", "ASCHER", "BAGUETTE",
    "TAPERED BAGUETTE", "BRIOLETTE", "BULLET", "CALF", "CIRCULAR", "DUCHESS", "EUROPEAN CUT", "EIGHTX", "FLANDERS",
    "HALF MOON", "HALFMOON", "KITE", "LOZENGE", "NONAGONAL", "OCTAGONAL", "OTHER", "PENTAGONAL", "RECTANGLE",
    "RECTANGULAR", "SHIELD", "SQUARE", "SQUARE EMERALD", "SQUARE RADIANT", "STAR", "TAPERED BULLET", "TRAPEZE",
    "TRAPEZOID", "TRIANGLE", "TRIANGULAR", "SQ EMERALD", "LONG RADIANT",
)  # fmt: skip
AVAILABILITY: Final = (
    "AVAILABLE", "HOLD", "MEMO", "CONSIGNMENT", "SOLD", "NOT_AVAILABLE", "ON_HOLD", "ON_MEMO", "SOLD_OUT",
)  # fmt: skip
COLORS: Final = (
    *"DEFGHIJKLMNOPQRSTUVWXYZ", "NO", "OP", "QR", "ST", "UV", "WX", "XY", "YZ", "SZ", "PR", "FANCY",
)  # fmt: skip
CLARITIES: Final = ("FL", "IF", "VVS1", "VVS2", "VS1", "VS2", "SI1", "SI2", "SI3", "I1", "I2", "I3")
QUALITIES: Final = ("PR", "P", "FR", "F", "GD", "G", "VG", "EX", "ID", "EIGHTX")
FLUORESCENCE: Final = ("NON", "VSL", "SLT", "FNT", "MED", "STG", "STN", "VST")
LABS: Final = (
    "GIA", "IGI", "HRD", "GCAL", "AGS", "EGL", "NONE", "STOCKID", "OTHER", "GSI", "IIDGR", "DF", "SGL", "RDC", "NGTC",
    "CGL", "GUILD", "GEMEX", "PGS", "DBIOD", "BGIL", "VGR", "LCS", "GHI", "SSEF", "GUBELIN", "ALGT", "DCLA", "GTL",
    "IDL", "UNKNOWN_LAB",
)  # fmt: skip
GROWTHS: Final = ("HPHT", "IIA", "CVD")
FANCY_COLORS: Final = (
    "YELLOW",
    "PINK",
    "BLUE",
    "GREY",
    "Gray",
    "ORANGE BROWN",
    "BROWN ORANGE",
    "EVEN",
    "U-V",
)
INTENSITIES: Final = ("FAINT", "LIGHT", "FANCY LIGHT", "FANCY", "FANCY INTENSE", "FANCY VIVID", "FANCY DEEP")
EYE_CLEAN: Final = (None, "Yes", "100%", "90%", "No", "95%", "YES", "")
COUNTRIES: Final = ("INDIA", "USA", "BELGIUM", "ISRAEL", "HONG KONG", "UAE", "UK", "THAILAND")
SUPPLIERS: Final = 160
RETURN_WINDOW_DAYS: Final = (0, 3, 7, 14)


@dataclass(frozen=True)
class Spread:
    """How often each value of a trait occurs: `table` turns a random byte into the number of a value."""

    table: bytes

    @staticmethod
    def of(weights: Sequence[float]) -> Spread:
        total, reached, table = sum(weights), 0.0, bytearray()
        for value, weight in enumerate(weights):
            reached += weight
            table += bytes([value]) * (round(256 * reached / total) - len(table))
        return Spread(bytes(table))


ANY: Final = Spread(bytes(range(256)))


def _weights(values: Sequence[str], often: Mapping[str, float]) -> Spread:
    return Spread.of([often.get(it, 0) for it in values])


_COMMON_SHAPES: Final = (90, 30, 14, 8, 6, 10, 4, 4, 10, 8, 18, 10, 1, 1, 1, 1, 5)  # the 17 that people sync
_GRADES: Final[Mapping[str, float]] = {"EX": 60, "VG": 20, "GD": 8, "ID": 6, "G": 3, "F": 2, "EIGHTX": 1}

SPREADS: Final[Mapping[Trait, Spread]] = {
    Trait.SHAPE: Spread.of([*_COMMON_SHAPES, *[1 if n % 4 == 0 else 0 for n in range(33)]]),
    Trait.AVAILABILITY: _weights(AVAILABILITY, {"AVAILABLE": 92, "HOLD": 3, "MEMO": 2, "ON_HOLD": 1, "SOLD": 2}),
    Trait.MEDIA: Spread.of([2, 6, 6, 6, 4, 20, 16, 196]),
    Trait.SUPPLIER: Spread.of([1 + 40 / (1 + n) for n in range(SUPPLIERS)]),
    Trait.RETURNS: Spread.of([40, 10, 30, 20]),
    Trait.EYE_CLEAN: Spread.of([40, 20, 25, 3, 4, 3, 3, 2]),
    Trait.FLAW: ANY,
    Trait.LUCK: ANY,
    Trait.COLOR: _weights(
        COLORS, dict(zip("DEFGHIJKLM", (30, 36, 36, 34, 30, 22, 16, 9, 6, 4), strict=True)) | {"FANCY": 6}
    ),
    Trait.CLARITY: Spread.of([1, 12, 26, 30, 44, 46, 40, 30, 4, 14, 6, 2]),
    Trait.CUT: _weights(QUALITIES, {**_GRADES, "FR": 2, "P": 1}),
    Trait.POLISH: _weights(QUALITIES, _GRADES),
    Trait.SYMMETRY: _weights(QUALITIES, _GRADES),
    Trait.FLUORESCENCE: Spread.of([60, 3, 4, 14, 10, 6, 1, 2]),
    Trait.LAB: _weights(LABS, {"GIA": 62, "IGI": 26, "HRD": 4, "GCAL": 3, "NONE": 2, "STOCKID": 1, "OTHER": 2}),
    Trait.TREATED: Spread.of([252, 4]),
    Trait.GROWTH: Spread.of([30, 2, 68]),
    Trait.FANCY: Spread.of([40, 16, 8, 6, 4, 6, 6, 7, 7]),
    Trait.INTENSITY: Spread.of([10, 14, 20, 26, 18, 8, 4]),
    Trait.MEASURES: ANY,
}  # fmt: skip


# What a range may be asked about: a number for every stone, from its columns or from the stone itself.


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
