"""How good a stone is, from 1 to 10: the first rule that it meets decides, else the fallback."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from operator import attrgetter
from typing import Any, Final, NamedTuple

from stepfast_diamonds.mapping_words import grade

FALLBACK: Final = 5
LOWEST, HIGHEST = 1, 10

# What a rule calls it, and the column of the stone.
RANGES: Final[Mapping[str, str]] = {
    "price": "feed_price",
    "carats": "carats",
    "table": "table_pct",
    "depth": "depth_pct",
    "crown_angle": "crown_angle",
    "pavilion_angle": "pavilion_angle",
    "ratio": "ratio",
}
WORDS: Final[Mapping[str, str]] = {
    "shape": "shape",
    "color": "color",
    "clarity": "clarity",
    "cut": "cut",
    "polish": "polish",
    "symmetry": "symmetry",
    "fluorescence": "fluorescence_intensity",
    "lab": "certificate_lab",
    "girdle": "girdle",
    "culet": "culet_size",
}
GRADED: Final = frozenset({"cut", "polish", "symmetry"})  # EX and EXCELLENT are the same


class Span(NamedTuple):
    """Half-open, as the tiers of prices; None: no end on this side."""

    low: Decimal | None
    high: Decimal | None

    def meets(self, other: Span) -> bool:
        """Whether some value lies in both."""
        return (self.low is None or other.high is None or self.low < other.high) and (
            other.low is None or self.high is None or other.low < self.high
        )


@dataclass(frozen=True, kw_only=True)
class RatingRule:
    """What a stone must be to get this rating. What it does not mention may be anything."""

    priority: int
    rating: int
    feed: str | None = None
    lab_grown: bool | None = None
    ranges: Mapping[str, Span] = field(default_factory=dict)  # by the names of RANGES
    words: Mapping[str, frozenset[str]] = field(default_factory=dict)  # by the names of WORDS, in capitals

    def meets(self, other: RatingRule) -> bool:
        """Whether some stone may be what both ask for."""
        return (
            (None in {self.feed, other.feed} or self.feed == other.feed)
            and (None in {self.lab_grown, other.lab_grown} or self.lab_grown == other.lab_grown)
            and all(
                span.meets(other.ranges[name]) for name, span in self.ranges.items() if name in other.ranges
            )
            and all(
                {canonical(name, it) for it in wanted} & {canonical(name, it) for it in other.words[name]}
                for name, wanted in self.words.items()
                if name in other.words
            )
        )


class Ratings:
    """The rating rules of a set, ready for many stones."""

    def __init__(self, rules: Sequence[RatingRule], fallback: int = FALLBACK) -> None:
        self._rules = [_Condition(it) for it in sorted(rules, key=lambda it: it.priority)]
        self._fallback = fallback

    def of(self, stone: Any) -> int:
        """`stone` has the columns of `RANGES` and `WORDS`, its feed, and whether it was grown in a laboratory."""
        for it in self._rules:
            if it.met_by(stone):
                return it.rating
        return self._fallback


class _Condition:
    """A rule with its columns looked up."""

    def __init__(self, rule: RatingRule) -> None:
        self.rating = rule.rating
        self._feed, self._lab_grown = rule.feed, rule.lab_grown
        self._ranges = [(attrgetter(RANGES[name]), span) for name, span in rule.ranges.items()]
        self._words = [
            (attrgetter(WORDS[name]), name in GRADED, {canonical(name, it) for it in wanted})
            for name, wanted in rule.words.items()
        ]

    def met_by(self, stone: Any) -> bool:
        if self._feed is not None and stone.feed != self._feed:
            return False
        if self._lab_grown is not None and stone.lab_grown != self._lab_grown:
            return False
        return all(_inside(read(stone), span) for read, span in self._ranges) and all(
            _among(read(stone), wanted, graded=graded) for read, graded, wanted in self._words
        )


def canonical(name: str, value: str) -> str:
    """A word of a rule as it is compared."""
    return grade(value.upper()) if name in GRADED else value.upper()


def _inside(value: Decimal | None, span: Span) -> bool:
    """What is not known lies in no range."""
    return (
        value is not None
        and (span.low is None or span.low <= value)
        and (span.high is None or value < span.high)
    )


def _among(value: str | None, wanted: set[str], *, graded: bool) -> bool:
    if value is None:
        return False
    value = value.upper()
    return (grade(value) if graded else value) in wanted
