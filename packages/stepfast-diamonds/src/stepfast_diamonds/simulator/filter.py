"""A `DiamondQuery` as the search understands it: tables of allowed values, and intervals of numbers.

The rules that surprise clients live here: a certificate number overrides everything, two media flags mean either, a
range the wrong way round is not an error, and whole bounds are compared with fractions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import msgspec

from stepfast_diamonds.simulator import vocabulary as words
from stepfast_diamonds.simulator.vocabulary import IMAGE, KEYS, PDF, VIEW, Dimension, Trait, inside

if TYPE_CHECKING:
    from stepfast_diamonds.simulator.catalogue import Catalogue, Stone
    from stepfast_diamonds.simulator.faults import Knobs
    from stepfast_diamonds.simulator.search import Interval


Tables = tuple[tuple[Trait, bytes], ...]
Ranges = tuple[tuple[Dimension, tuple["Interval", ...]], ...]


class QueryError(Exception):
    """The query cannot be answered; the sentence goes to the client."""


@dataclass(frozen=True)
class Filter:
    """What a stone must be: hashable, so that answers can be kept by it."""

    tables: Tables
    ranges: Ranges = ()
    rows: frozenset[int] | None = None  # these only
    certificates: frozenset[str] | None = None  # carriers of these numbers only
    inverted: bool = False  # a range ends before it begins

    def matches(self, stone: Stone, catalogue: Catalogue) -> bool:
        """The slow and obvious way, one stone at a time."""
        traits = stone.traits
        return (
            all(table[traits[trait]] for trait, table in self.tables)
            and all(inside(KEYS[dimension](stone), intervals) for dimension, intervals in self.ranges)
            and (self.rows is None or stone.row in self.rows)
            and (
                self.certificates is None
                or catalogue.certificate_number(stone.row, stone.revision) in self.certificates
            )
        )


_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
EVERYTHING: Final = Filter(((Trait.PRESENT, bytes([0, 1, *bytes(254)])),))

_CHOICES: Final[Mapping[str, tuple[Trait, Sequence[str | None]]]] = {
    "shapes": (Trait.SHAPE, words.SHAPES),
    "availability": (Trait.AVAILABILITY, words.AVAILABILITY),
    "color": (Trait.COLOR, words.COLORS),
    "clarity": (Trait.CLARITY, words.CLARITIES),
    "cut": (Trait.CUT, words.QUALITIES),
    "polish": (Trait.POLISH, words.QUALITIES),
    "symmetry": (Trait.SYMMETRY, words.QUALITIES),
    "flouresence": (Trait.FLUORESCENCE, words.FLUORESCENCE),
    "certificate_lab": (Trait.LAB, words.LABS),
    "labgrown_type": (Trait.GROWTH, words.GROWTHS),
    "fancyColor": (Trait.FANCY, words.FANCY_COLORS),
    "fancyIntensity": (Trait.INTENSITY, words.INTENSITIES),
    "eyeClean": (Trait.EYE_CLEAN, words.EYE_CLEAN),
}
_RANGES: Final = (
    Dimension.DISCOUNT, Dimension.TABLE, Dimension.DEPTH, Dimension.RATIO, Dimension.LENGTH, Dimension.WIDTH,
    Dimension.HEIGHT,
)  # fmt: skip
_RANGED: Final = ("dollar_value", "dollar_per_carat", "sizes", "updated", "filter_ids", "ids", *_RANGES)
# Known to the real API; nothing is published about what they do.
UNKNOWN_EFFECT: Final = (
    "girdle", "culet", "fancyOvertone", "delivery_time", "search_on_preferred_currency", "add_taxes_on_search",
    "custom_query", "preferred_currency",
)  # fmt: skip


def read_query(query: Mapping[str, Any] | None, catalogue: Catalogue, knobs: Knobs) -> Filter:
    """Turn the (already type-checked) input into a filter."""
    given = {name: value for name, value in (query or {}).items() if value is not None and value != []}
    for name in UNKNOWN_EFFECT:
        if name in given:
            raise QueryError(f"the simulator knows `{name}` of DiamondQuery by name only; leave it out")
    if numbers := given.get("certificate_numbers"):
        return _by_certificate(numbers, catalogue)
    ranges = _read_ranges(given, knobs)
    plain = {name: value for name, value in given.items() if name not in _RANGED}
    lost = round(256 * knobs.dollar_value_loss) if Dimension.VALUE in ranges else 0
    ids = given.get("filter_ids") or given.get("ids")
    return Filter(
        _read_tables(msgspec.json.encode(plain), lost),
        tuple((it, _union(intervals)) for it, intervals in ranges.items()),
        None
        if ids is None
        else frozenset(row for it in ids if it and (row := catalogue.row_of(it)) is not None),
        inverted=any(
            low > high
            for dimension, intervals in ranges.items()
            for low, high in intervals
            if dimension is not Dimension.UPDATED  # a window that ends before it begins is empty
        ),
    )


@lru_cache(maxsize=64)
def _read_tables(plain: bytes, lost: int) -> Tables:
    """A client sends the same choices with every request, and only its ranges differ."""
    given = msgspec.json.decode(plain)
    tables = _Tables()
    for name, (trait, values) in _CHOICES.items():
        if name in given:
            tables.allow(trait, [n for n, it in enumerate(values) if it in given[name]])
    _read_flags(given, tables)
    _read_places(given, tables)
    if lost:
        tables.allow(Trait.LUCK, range(lost, 256))
    return tables.tables()


class _Tables:
    """What is allowed so far, by trait."""

    def __init__(self) -> None:
        self._found: dict[Trait, bytes] = dict(EVERYTHING.tables)

    def allow(self, trait: Trait, values: Iterable[int]) -> None:
        table = bytearray(256)
        for it in values:
            table[it] = self._found[trait][it] if trait in self._found else 1
        self._found[trait] = bytes(table)

    def keep(self, trait: Trait, wanted: Callable[[int], object]) -> None:
        self.allow(trait, [n for n in range(256) if wanted(n)])

    def tables(self) -> Tables:
        return tuple(sorted(self._found.items()))


def _by_certificate(numbers: Sequence[str], catalogue: Catalogue) -> Filter:
    rows = [row for it in numbers for row in catalogue.rows_of_certificate(it)]
    return Filter(EVERYTHING.tables, rows=frozenset(rows), certificates=frozenset(numbers))


def _read_flags(given: Mapping[str, Any], tables: _Tables) -> None:
    for name, trait in (("labgrown", Trait.LABGROWN), ("treated", Trait.TREATED)):
        if name in given:
            tables.allow(trait, [int(given[name])])
    image, view = given.get("has_image"), given.get("has_v360")
    if image and view:
        tables.keep(Trait.MEDIA, lambda it: it & (IMAGE | VIEW))  # either will do
    else:
        _read_medium(tables, IMAGE, wanted=image)
        _read_medium(tables, VIEW, wanted=view)
    _read_medium(tables, PDF, wanted=given.get("has_certpdf"))
    if given.get("hide_memo"):
        tables.keep(Trait.AVAILABILITY, lambda it: it not in _MEMOS)
    if given.get("excludeFairPoorCuts"):
        tables.keep(Trait.CUT, lambda it: it not in _FAIR_OR_POOR)
    if "returns" in given:
        tables.keep(Trait.RETURNS, lambda it: (it > 0) == given["returns"])
    if "return_window_timeline" in given:
        days = given["return_window_timeline"]
        tables.allow(Trait.RETURNS, [n for n, it in enumerate(words.RETURN_WINDOW_DAYS) if it >= days])


def _read_medium(tables: _Tables, bit: int, *, wanted: bool | None) -> None:
    if wanted is not None:
        tables.keep(Trait.MEDIA, lambda it: bool(it & bit) == wanted)


_MEMOS: Final = [words.AVAILABILITY.index(it) for it in ("MEMO", "ON_MEMO")]
_FAIR_OR_POOR: Final = [words.QUALITIES.index(it) for it in ("PR", "P", "FR", "F")]


def supplier_id(number: int) -> str:
    return f"00000000-5000-4000-8000-{number:012d}"


def location(supplier: int) -> str:
    return words.COUNTRIES[supplier % len(words.COUNTRIES)]


def _read_places(given: Mapping[str, Any], tables: _Tables) -> None:
    every = range(words.SUPPLIERS)
    if "suppliers" in given:
        tables.allow(Trait.SUPPLIER, [it for it in every if supplier_id(it) in given["suppliers"]])
    if "location" in given:
        tables.allow(Trait.SUPPLIER, [it for it in every if location(it) in given["location"]])


def _read_ranges(given: Mapping[str, Any], knobs: Knobs) -> dict[Dimension, list[Interval]]:
    found: dict[Dimension, list[Interval]] = {}
    if value := given.get("dollar_value"):
        factor = 1 + (knobs.markup_pct / 100 if given.get("search_on_markup_price") else 0)
        low, high = _bounds(value, knobs)
        found[Dimension.VALUE] = [(100 * low / factor, 100 * high / factor)]
    if per_carat := given.get("dollar_per_carat"):
        found[Dimension.PER_CARAT] = [_bounds(per_carat, knobs)]
    if sizes := [it for it in given.get("sizes") or () if it]:
        found[Dimension.CARATS] = [(100 * it["from"] - 1e-6, 100 * it["to"] + 1e-6) for it in sizes]
    if updated := given.get("updated"):
        found[Dimension.UPDATED] = [_dates(updated, knobs)]
    for dimension in _RANGES:
        if asked := given.get(dimension):
            found[dimension] = [(asked["from"], asked["to"])]
    return found


def _bounds(asked: Mapping[str, int], knobs: Knobs) -> Interval:
    low, high = float(asked["from"]), float(asked["to"])
    if knobs.compare == "rounded":
        return low - 0.5, math.nextafter(high + 0.5, -math.inf)
    return low, high


def _dates(asked: Mapping[str, str | None], knobs: Knobs) -> Interval:
    low = _date(asked["from"]) if asked.get("from") else -math.inf
    high = _date(asked["to"]) if asked.get("to") else math.inf
    return low, high if knobs.updated_inclusive else high - 1


def _date(text: Any) -> float:
    try:
        found = datetime.fromisoformat(text)
    except (TypeError, ValueError):
        raise QueryError(f"invalid date {text!r}; `updated` takes ISO-8601 texts") from None
    aware = found if found.tzinfo else found.replace(tzinfo=UTC)
    return float((aware - _EPOCH) // timedelta(microseconds=1))


def _union(intervals: Sequence[Interval]) -> tuple[Interval, ...]:
    """The same numbers in intervals that do not overlap."""
    found: list[Interval] = []
    for low, high in sorted(intervals):
        if found and low <= found[-1][1]:
            found[-1] = (found[-1][0], max(high, found[-1][1]))
        else:
            found.append((low, high))
    return tuple(found)
