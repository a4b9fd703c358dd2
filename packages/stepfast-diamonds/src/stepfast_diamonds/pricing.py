"""What a stone is sold for: a base margin by its type, changed by the first tier that its price lies in.

Tiers are half-open: `[0, 500)` and `[500, 1000)` leave no price between them and share none. `rules` checks that a
rule set leaves no gap before it may be used, so that a stone without a tier is refused, never sold at a margin that
nobody has chosen.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from stepfast_diamonds.mapping import RejectedError
from stepfast_diamonds.money import EXACT, rounded

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


RATIO_GRAIN: Final = Decimal("0.0001")
HUNDRED: Final = Decimal(100)


class StoneType(StrEnum):
    """What decides about the base margin."""

    NATURAL = "natural"
    LAB = "lab"
    FANCY = "fancy"  # of a fancy colour, grown or not


BASE_MARGINS: Final[Mapping[StoneType, Decimal]] = {
    StoneType.NATURAL: Decimal(40),
    StoneType.LAB: Decimal(79),
    StoneType.FANCY: Decimal(40),
}


class Priceable(Protocol):
    """What a price depends on."""

    @property
    def feed(self) -> str: ...
    @property
    def feed_price(self) -> Decimal: ...
    @property
    def lab_grown(self) -> bool: ...
    @property
    def fancy_color(self) -> str | None: ...


@dataclass(frozen=True, kw_only=True)
class PricingRule:
    """One tier. None means any type, any feed, or a tier without end."""

    priority: int
    price_min: Decimal
    price_max: Decimal | None
    margin_modifier: Decimal  # percentage points
    stone_type: StoneType | None = None
    feed: str | None = None
    rating: int | None = None

    def holds(self, price: Decimal) -> bool:
        return self.price_min <= price and (self.price_max is None or price < self.price_max)

    def meets(self, other: PricingRule) -> bool:
        """Whether some price lies in both."""
        return (other.price_max is None or self.price_min < other.price_max) and (
            self.price_max is None or other.price_min < self.price_max
        )


class Price(NamedTuple):
    markup_ratio: Decimal
    price_model_price: Decimal
    pricing_rating: int | None


def type_of(stone: Priceable) -> StoneType:
    if stone.fancy_color is not None:
        return StoneType.FANCY
    return StoneType.LAB if stone.lab_grown else StoneType.NATURAL


def applicable(rules: Sequence[PricingRule], kind: StoneType, feed: str | None) -> list[PricingRule]:
    """The rules for stones of this type and feed (None: of a feed that no rule names), the first to be asked first."""
    found = [it for it in rules if it.stone_type in {None, kind} and it.feed in {None, feed}]
    return sorted(found, key=lambda it: it.priority)


def markup(base: Decimal, modifier: Decimal) -> Decimal:
    """By how much a price is multiplied: 40 % and 6 points more make 1.46."""
    return rounded(EXACT.add(1, EXACT.divide(EXACT.add(base, modifier), HUNDRED)), RATIO_GRAIN)


class Prices:
    """A rule set, ready for many stones."""

    def __init__(
        self, margins: Mapping[StoneType, Decimal], rules: Sequence[PricingRule], *, empty: bool = False
    ) -> None:
        self._margins = margins
        self._rules = rules
        self._empty = empty  # declared to have no rules: base margins for all
        self._tiers: dict[tuple[StoneType, str], list[PricingRule]] = {}

    def of(self, stone: Priceable) -> Price:
        kind, price = type_of(stone), stone.feed_price
        rule = self._find(kind, stone.feed, price)
        ratio = markup(self._margins[kind], Decimal(0) if rule is None else rule.margin_modifier)
        return Price(ratio, rounded(EXACT.multiply(price, ratio)), None if rule is None else rule.rating)

    def _find(self, kind: StoneType, feed: str, price: Decimal) -> PricingRule | None:
        tiers = self._tiers.get((kind, feed))
        if tiers is None:
            tiers = self._tiers[kind, feed] = applicable(self._rules, kind, feed)
        for rule in tiers:
            if rule.holds(price):
                return rule
        if self._empty:
            return None
        raise RejectedError("no tier", f"no pricing rule is for {kind} stones of feed {feed} at this price")
