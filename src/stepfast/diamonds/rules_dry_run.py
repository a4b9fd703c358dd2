"""What a rule set would change, before it is activated. Looks at every stone, and writes nothing."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from heapq import nlargest
from typing import TYPE_CHECKING, Final, NamedTuple

from stepfast.diamonds.money import rounded
from stepfast.diamonds.repricing_rows import Sold, quoted, read_all

if TYPE_CHECKING:
    from collections.abc import Callable

    from stepfast import Transaction
    from stepfast.diamonds.rules import Quote, RuleSet

BATCH: Final = 5_000
NOTHING: Final = Decimal("0.00")


class Example(NamedTuple):
    """A stone whose price would change."""

    feed: str
    supplier_stone_id: str
    feed_price: Decimal
    before: Decimal
    after: Decimal

    @property
    def percent(self) -> Decimal:
        return rounded((self.after - self.before) / self.before * 100)


@dataclass
class DryRun:
    """Counts and sums over all stones that are not deleted."""

    version: int
    stones: int = 0
    dearer: int = 0
    cheaper: int = 0
    rated_anew: int = 0
    unpriced: int = 0  # no rule of the set is for them
    before: Decimal = NOTHING  # the sum of all prices
    after: Decimal = NOTHING
    examples: tuple[Example, ...] = ()  # those that change most, relatively

    @property
    def changed(self) -> int:
        return self.dearer + self.cheaper

    def add(self, it: Sold, quote: Quote | None) -> Example | None:
        self.stones += 1
        self.before += it.price_model_price
        if quote is None:
            self.unpriced += 1
            self.after += it.price_model_price
            return None
        self.after += quote.price_model_price
        self.rated_anew += quote.rating != it.rating
        self.dearer += quote.price_model_price > it.price_model_price
        self.cheaper += quote.price_model_price < it.price_model_price
        if quote.price_model_price == it.price_model_price:
            return None
        return Example(
            it.feed, it.supplier_stone_id, it.feed_price, it.price_model_price, quote.price_model_price
        )


def dry_run(
    tx: Transaction, rules: RuleSet, *, examples: int = 5, told: Callable[[int], None] = lambda _: None
) -> DryRun:
    """Price all stones by `rules`; `told` hears how many are behind us."""
    found = DryRun(rules.version)
    after = 0
    while rows := read_all(tx, after, BATCH):
        changed = filter(None, [found.add(it, quoted(it, rules)) for it in rows])
        found.examples = tuple(
            nlargest(
                examples, (*found.examples, *changed), key=lambda it: (abs(it.percent), it.supplier_stone_id)
            )
        )
        after = rows[-1].id
        told(found.stones)
    return found
