"""A rule set: base margins, pricing rules and rating rules under one number, which never change again.

`problems` says everything that is wrong with one at once. A set with a hole would sell some stones at a margin that
nobody has chosen; one in which two rules are for the same stone would leave the choice to chance.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from decimal import Decimal
from functools import cached_property
from itertools import combinations, groupby, islice
from typing import Any, Final, NamedTuple

from stepfast_diamonds.mapping import RejectedError
from stepfast_diamonds.money import MOST_MONEY
from stepfast_diamonds.pricing import BASE_MARGINS, Prices, PricingRule, StoneType, applicable, markup
from stepfast_diamonds.rating import FALLBACK, HIGHEST, LOWEST, RatingRule, Ratings

LEAST_RATIO: Final = Decimal("0.0001")
MOST_RATIO: Final = Decimal("9.9999")
LEAST_PRIORITY, MOST_PRIORITY = 0, 1_000_000
MOST_OVERLAPS: Final = 50  # that are told; one mistake may have made them all
MOST_MODIFIER: Final = Decimal("999.99")
TIERS: Final = ((0, 500, 6), (500, 1_000, 6), (1_000, 3_000, 3), (3_000, 6_000, 0), (6_000, 10_000, -4),
                (10_000, 20_000, -9), (20_000, None, -14))  # fmt: skip


class Quote(NamedTuple):
    """What a rule set says about a stone."""

    markup_ratio: Decimal
    price_model_price: Decimal
    pricing_rating: int | None
    rating: int


@dataclass(frozen=True, kw_only=True)
class RuleSet:
    """`version` 0: not stored yet."""

    version: int = 0
    name: str = ""
    margins: Mapping[StoneType, Decimal] = field(default_factory=lambda: dict(BASE_MARGINS))
    pricing: tuple[PricingRule, ...] = ()
    rating: tuple[RatingRule, ...] = ()
    fallback: int = FALLBACK
    empty: bool = False  # declared to have no pricing rules: base margins for all

    @cached_property
    def _prices(self) -> Prices:
        return Prices(self.margins, self.pricing, empty=self.empty)

    @cached_property
    def _ratings(self) -> Ratings:
        return Ratings(self.rating, self.fallback)

    def quote(self, stone: Any) -> Quote:
        """Price and rate it. Raises `RejectedError` where no rule is for it."""
        price = self._prices.of(stone)
        if not 0 < price.price_model_price <= MOST_MONEY:
            raise RejectedError(
                "no price", "its price with the margin is more than can be stored, or nothing"
            )
        return Quote(*price, self._ratings.of(stone))


def default_rules() -> RuleSet:
    """What a new catalogue begins with: the same tiers for every type of stone."""
    rules = tuple(
        PricingRule(
            priority=10 * number + place,
            stone_type=kind,
            price_min=Decimal(low),
            price_max=None if high is None else Decimal(high),
            margin_modifier=Decimal(modifier),
        )
        for number, kind in enumerate(StoneType, start=1)
        for place, (low, high, modifier) in enumerate(TIERS)
    )
    return RuleSet(name="default tiers", pricing=rules)


def problems(rules: RuleSet, present: AbstractSet[tuple[str, StoneType]] = frozenset()) -> list[str]:
    """Everything that keeps the set from being used, in sentences; none if it may be.

    `present`: feeds and types of stones that there are, for which the set must have rules.
    """
    found = [*_values(rules), *_margins(rules), *_few(_ties(rules.rating), "and more rating rules compete")]
    if not rules.pricing:
        if not rules.empty:
            found.append(
                'there is no pricing rule; if base margins are meant for all stones, declare it: "empty": true'
            )
        return found
    if rules.empty:
        found.append(f"it is declared to be empty and has {len(rules.pricing)} pricing rules")
    overlaps = _few(_overlaps(rules.pricing), "and more pricing rules overlap")
    return [*found, *overlaps, *_gaps(rules.pricing, present)]


def _few(told: Iterator[str], more: str) -> list[str]:
    found = list(islice(told, MOST_OVERLAPS + 1))
    return [*found[:MOST_OVERLAPS], more] if len(found) > MOST_OVERLAPS else found


def _values(rules: RuleSet) -> Iterator[str]:
    for number, it in enumerate(rules.pricing, start=1):
        for problem in _of_tier(it):
            yield f"pricing rule {number}: {problem}"
    for number, rule in enumerate(rules.rating, start=1):
        for problem in _of_rating(rule):
            yield f"rating rule {number}: {problem}"
    if not LOWEST <= rules.fallback <= HIGHEST:
        yield f"rating_fallback {rules.fallback} is not from {LOWEST} to {HIGHEST}"


def _of_tier(it: PricingRule) -> Iterator[str]:
    if it.price_min < 0:
        yield f"price_min {it.price_min} is less than nothing"
    if it.price_max is not None and it.price_max <= it.price_min:
        yield f"{_tier(it)} holds no price; price_max is where the next tier begins"
    if it.price_min > MOST_MONEY or (it.price_max is not None and it.price_max > MOST_MONEY):
        yield f"no price is above {MOST_MONEY}"
    if it.rating is not None and not LOWEST <= it.rating <= HIGHEST:
        yield f"rating {it.rating} is not from {LOWEST} to {HIGHEST}"
    yield from _of_priority(it.priority)


def _of_rating(it: RatingRule) -> Iterator[str]:
    if not LOWEST <= it.rating <= HIGHEST:
        yield f"rating {it.rating} is not from {LOWEST} to {HIGHEST}"
    for name, span in it.ranges.items():
        if span.low is not None and span.high is not None and span.high <= span.low:
            yield f"{name} from {span.low} to {span.high} holds nothing"
    for name, wanted in it.words.items():
        if not wanted:
            yield f"{name} is an empty list, which no stone meets; leave it out"
    yield from _of_priority(it.priority)


def _of_priority(priority: int) -> Iterator[str]:
    if not LEAST_PRIORITY <= priority <= MOST_PRIORITY:
        yield f"priority {priority} is not from {LEAST_PRIORITY} to {MOST_PRIORITY}"


def _margins(rules: RuleSet) -> Iterator[str]:
    for kind in StoneType:
        if kind not in rules.margins:
            yield f"there is no base margin for {kind} stones"
    for kind, base in rules.margins.items():
        if abs(base) > MOST_MODIFIER:
            yield f"the base margin of {kind} stones is {base} %; at most {MOST_MODIFIER}"
        elif rules.empty and not LEAST_RATIO <= markup(base, Decimal(0)) <= MOST_RATIO:
            yield f"{kind} stones with {base} % would cost {markup(base, Decimal(0))} times their price"
    for number, it in enumerate(rules.pricing, start=1):
        if abs(it.margin_modifier) > MOST_MODIFIER:
            yield f"pricing rule {number}: margin_modifier {it.margin_modifier} is more than {MOST_MODIFIER}"
            continue
        for kind in StoneType if it.stone_type is None else (it.stone_type,):
            base = rules.margins.get(kind, Decimal(0))
            ratio = markup(base, it.margin_modifier)
            if abs(base) <= MOST_MODIFIER and not LEAST_RATIO <= ratio <= MOST_RATIO:
                yield f"pricing rule {number}: with it {kind} stones would cost {ratio} times their price"


def _overlaps(rules: Sequence[PricingRule]) -> Iterator[str]:
    """Between a rule for all and one for a feed the priority decides. Of one kind, no two may hold the same price."""
    for place, one in enumerate(rules):
        for other_place, other in enumerate(rules[place + 1 :], start=place + 1):
            if not one.meets(other):
                continue
            both = f"pricing rules {place + 1} {_tier(one)} and {other_place + 1} {_tier(other)}"
            if (one.stone_type, one.feed) == (other.stone_type, other.feed):
                yield f"{both} overlap, both for {_for(one.stone_type, one.feed)}"
            elif one.priority == other.priority and _compatible(one, other):
                yield f"{both} are for the same stones and have the same priority, {one.priority}"


def _ties(rules: Sequence[RatingRule]) -> Iterator[str]:
    """Where two rules may be met by one stone, the priority decides which rating it gets."""
    numbered = sorted(enumerate(rules, start=1), key=lambda it: (it[1].priority, it[0]))
    for priority, group in groupby(numbered, key=lambda it: it[1].priority):
        for (number, one), (other_number, other) in combinations(group, 2):
            if one.rating != other.rating and one.meets(other):
                yield (
                    f"rating rules {number} and {other_number} may be for the same stones and have the same priority, "
                    f"{priority}"
                )


def _compatible(one: PricingRule, other: PricingRule) -> bool:
    types, feeds = {one.stone_type, other.stone_type}, {one.feed, other.feed}
    return (None in types or len(types) == 1) and (None in feeds or len(feeds) == 1)


def _gaps(rules: Sequence[PricingRule], present: AbstractSet[tuple[str, StoneType]]) -> Iterator[str]:
    """Rules for one feed must cover all its prices; rules for any feed must cover all prices of all feeds."""
    for kind in StoneType:
        feeds: set[str | None] = {it.feed for it in rules if it.stone_type in {None, kind}}
        feeds |= {feed for feed, stones in present if stones is kind and None not in feeds}
        if not feeds:
            yield f"there is no pricing rule for {kind} stones"
        for feed in sorted(feeds, key=str):
            for low, high in _holes(applicable(rules, kind, feed)):
                end = "and above" if high is None else f"to {high}"
                yield f"no pricing rule is for {_for(kind, feed)} from {low} {end}"


def _holes(rules: Sequence[PricingRule]) -> Iterator[tuple[Decimal, Decimal | None]]:
    reached: Decimal | None = Decimal(0)
    for it in sorted(rules, key=lambda it: it.price_min):
        if reached is None:
            return
        if it.price_min > reached:
            yield reached, it.price_min
        reached = None if it.price_max is None else max(reached, it.price_max)
    if reached is not None:
        yield reached, None


def _tier(rule: PricingRule) -> str:
    return f"[{rule.price_min}, {'…' if rule.price_max is None else rule.price_max})"


def _for(kind: StoneType | None, feed: str | None) -> str:
    return f"{'all' if kind is None else kind} stones of {'any feed' if feed is None else f'feed {feed}'}"
