"""The two feeds of Nivoda: natural stones and lab-grown ones. They share an account, its token and its limits.

    app = Stepfast()
    nivoda(app)

The account and the address are in the environment: NIVODA_USERNAME, NIVODA_PASSWORD, NIVODA_URL.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, ClassVar, Final

from stepfast import Concurrency, Feed, Offset, PermanentError, Rate, Sweep, sql
from stepfast.errors import DatabaseError, HeldError, SchemaError
from stepfast_diamonds.datasets import bump_version
from stepfast_diamonds.heatmap import nivoda_heatmap
from stepfast_diamonds.mapping import Need, identity_of, map_offer
from stepfast_diamonds.repricing import Repricing, RepricingScope
from stepfast_diamonds.rule_sets import is_usable, pin, pinned, rules_or_active, version_of
from stepfast_diamonds.schema import naming_the_command
from stepfast_diamonds.settings import NivodaSettings, from_environment
from stepfast_diamonds.source import open_source
from stepfast_diamonds.stone import columns_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from datetime import datetime

    from stepfast import Cursor, Page, Range, Stepfast, Transaction, Window
    from stepfast_diamonds.rules import RuleSet
    from stepfast_diamonds.source import NivodaSource


NATURAL: Final = "nivoda-natural"
LABGROWN: Final = "nivoda-labgrown"
LIMIT: Final = "nivoda"  # one for both feeds
ASKED_AT_ONCE: Final = 4  # stones that are asked about by one step
# Stones of one upload that may meet in a partition; more are noticed, and a second pass decides.
TIES: Final = 8


def nivoda(
    app: Stepfast,
    *,
    settings: NivodaSettings | None = None,
    repricing: Repricing | None = None,
    natural: dict[str, Any] | None = None,
    labgrown: dict[str, Any] | None = None,
) -> tuple[NivodaFeed, NivodaFeed]:
    """Register both feeds, and the job that reprices. `natural` and `labgrown` change settings of one: schedule, queue."""
    known = from_environment() if settings is None else settings
    repricing = Repricing(app) if repricing is None else repricing
    source = open_source(known, app)
    shared: dict[str, Any] = {"settings": known, "source": source, "repricing": repricing}
    return (
        app.feed(NivodaFeed(app, lab_grown=False, **shared, **(natural or {}))),
        app.feed(NivodaFeed(app, lab_grown=True, **shared, **(labgrown or {}))),
    )


CLOCK = sql("SELECT {now}")


class CanonicalFeed(Feed):
    """What every feed of diamonds has in common below its source: identity, mapping, prices, and where the rows go.

    A subclass sets `name` and `lab_grown`, and writes `count`, `fetch` and a plan. All rows of a run are priced by the
    rule set that is active when it begins; if another one is active when it has published them, `repricing` is asked to
    price what it wrote. A run without a set that can be used is held, and goes on once rules are imported.
    """

    table = "diamonds"
    key = ("feed", "supplier_stone_id")
    item_column = "supplier_stone_id"
    feed_column = "feed"
    stale = "stale_since"
    sweep = Sweep()
    mapping_phase = "mapping and pricing"
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
            self._rules(tx, run_id)
        except DatabaseError as error:
            raise naming_the_command(error) from error

    def mapping(self, tx: Transaction, run_id: str | None, /) -> Callable[[Any], Mapping[str, Any]]:
        try:
            rules = self._rules(tx, run_id)
        except DatabaseError as error:
            named = naming_the_command(error)
            raise (HeldError(str(named)) if isinstance(named, SchemaError) else error) from error
        return self.priced_by(rules, int(tx.first(CLOCK)))

    def _rules(self, tx: Transaction, run_id: str | None) -> RuleSet:
        version = version_of(tx, run_id)
        if version not in self._known:
            rules = rules_or_active(tx, version)
            self._known[rules.version] = rules
            return rules
        return self._known[version]

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
        bump_version(tx, self.name)
        found, active = pinned(tx, run_id), version_of(tx, None)
        if self.repricing is None or found is None or active in (0, found[0]):
            return
        version, since = found
        # Other stones keep their prices: no operator asked. Of a run that lost its set, others have priced a part.
        wrote = version if is_usable(tx, version) else None
        self.repricing.ask(tx, RepricingScope(wrote, self.name, since))


class NivodaFeed(CanonicalFeed):
    """One of the two feeds. Token and pace are shared on the database of `app`; settings are the environment's by default."""

    paging = Offset(overlap=TIES, ties=TIES, reversible=True)
    confirm_lot = 1  # each is a request of its own, and so the limits count it
    may_be_empty = False  # a catalogue without a single stone is an account that sees none, far more often

    def __init__(
        self,
        app: Stepfast,
        *,
        lab_grown: bool = False,
        settings: NivodaSettings | None = None,
        source: NivodaSource | None = None,
        **more: Any,
    ) -> None:
        super().__init__()
        known = from_environment() if settings is None else settings
        self._source = open_source(known, app) if source is None else source
        self.name = LABGROWN if lab_grown else NATURAL
        self.lab_grown = lab_grown
        self.page_size = known.page_size
        self.price_dimension = known.partition_by
        self.partitioner = nivoda_heatmap(lab_grown=lab_grown, by=known.partition_by)
        self.limits = limits_of(known)
        for name, value in more.items():
            setattr(self, name, value)

    async def count(self, part: Range, window: Window, /) -> int:
        found = await self._source.count(part, window, lab_grown=self.lab_grown)
        if not found and not part.parts and window.from_ is None and not self.may_be_empty:
            raise PermanentError(
                f"{no_stone_sentence(self.name)}; a feed that is empty for good is declared with may_be_empty=True"
            )
        return found

    async def fetch(self, part: Range, window: Window, cursor: Cursor, /) -> Page:
        return await self._source.page(part, window, cursor, lab_grown=self.lab_grown)

    async def still_there(self, ids: Sequence[str], /) -> list[str]:
        """The stones that are still on offer. One that is held, or that the base query would not find, is gone."""
        places = asyncio.Semaphore(ASKED_AT_ONCE)

        async def asked(stone: str) -> bool:
            async with places:
                return await self._source.still_offers(stone, lab_grown=self.lab_grown)

        answers = await asyncio.gather(*map(asked, ids), return_exceptions=True)
        for it in answers:
            if isinstance(it, BaseException):
                raise it
        return [stone for stone, there in zip(ids, answers, strict=True) if there]

    async def now(self) -> datetime | None:
        return await self._source.now(lab_grown=self.lab_grown)


def limits_of(settings: NivodaSettings) -> list[Rate | Concurrency]:
    """The limits of the account, which all its requests keep to."""
    return [
        *([Rate(settings.rate, per="1s", name=LIMIT)] if settings.rate else []),
        *([Concurrency(settings.concurrency, name=LIMIT)] if settings.concurrency else []),
    ]


def no_stone_sentence(feed: str) -> str:
    return f"Nivoda has no stone for {feed}: ask whether the account may see them"
