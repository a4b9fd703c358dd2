"""What every feed of diamonds has in common below its source: identity, mapping, prices, and where the rows go.

A subclass says where the offers come from. The rule set that counts when a run begins is the one by which all of its
rows are priced; when it has published them, and another set counts by then, a repricing of what it wrote is asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from stepfast import Feed, Sweep
from stepfast.database.statement import sql
from stepfast.diamonds.behind import Scope
from stepfast.diamonds.datasets import bump
from stepfast.diamonds.mapping import Need, identity_of, map_offer
from stepfast.diamonds.rules_rows import active_version, find_rules, pin, pinned, version_of
from stepfast.diamonds.schema import saying_so
from stepfast.diamonds.stone import columns_of
from stepfast.errors import DatabaseError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from stepfast import Transaction
    from stepfast.diamonds.repricing import Repricing
    from stepfast.diamonds.rules import RuleSet

CLOCK = sql("SELECT {now}")


class CanonicalFeed(Feed):
    """Set `name` and `lab_grown`, and write `count`, `fetch` and a plan. `repricing`: who is asked when rules have changed."""

    table = "diamonds"
    key = ("feed", "supplier_stone_id")
    item_column = "supplier_stone_id"
    feed_column = "feed"
    stale = "stale_since"
    sweep = Sweep()
    mapper_version = "1"

    lab_grown: bool = False
    needs: ClassVar[frozenset[Need]] = frozenset()  # media without which a stone is put into quarantine
    repricing: Repricing | None = None

    def __init__(self) -> None:
        self._known: dict[int, RuleSet] = {}  # a version never changes

    def identify(self, item: Any, /) -> str:
        return identity_of(item)

    def map(self, item: Any, /) -> dict[str, Any]:
        """The canonical columns; `mapping` adds the price."""
        return columns_of(map_offer(item, self.name, lab_grown=self.lab_grown, needs=self.needs))

    def started(self, tx: Transaction, run_id: str, /) -> None:
        try:
            pin(tx, self.name, run_id)
        except DatabaseError as error:
            raise saying_so(error) from error

    def mapping(self, tx: Transaction, run_id: str | None, /) -> Callable[[Any], Mapping[str, Any]]:
        version = version_of(tx, run_id)
        rules = self._known.get(version)
        if rules is None:
            rules = self._known[version] = find_rules(tx, version)
        return self.priced_by(rules, int(tx.first(CLOCK)))

    def priced_by(self, rules: RuleSet, now: int) -> Callable[[Any], Mapping[str, Any]]:
        """From an offer to a row of `diamonds`."""
        feed, lab_grown, needs = self.name, self.lab_grown, self.needs

        def to_row(item: Any) -> Mapping[str, Any]:
            stone = map_offer(item, feed, lab_grown=lab_grown, needs=needs)
            quote = rules.quote(stone)
            row = columns_of(stone)
            row["price_model_price"] = str(quote.price_model_price)
            row["markup_ratio"] = str(quote.markup_ratio)
            row["pricing_rating"] = quote.pricing_rating
            row["rating"] = quote.rating
            row["ruleset_version"] = rules.version
            row["updated_at"] = now
            return row

        return to_row

    def published(self, tx: Transaction, run_id: str, /) -> None:
        bump(tx, self.name)
        found = pinned(tx, run_id)
        if self.repricing is None or found is None or found[0] == active_version(tx):
            return
        version, since = found
        self.repricing.ask(tx, Scope(version, self.name, since))  # others keep what they cost: nobody asked
