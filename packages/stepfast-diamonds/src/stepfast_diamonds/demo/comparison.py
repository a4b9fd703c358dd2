"""The table against the oracle: every stone of the source, with all that the oracle tells about it.

An index keeps a stone from being in a feed twice. So a stone counts as doubled if its offer is in the table twice, under
another identity or in another feed: nothing but the work itself keeps that from happening.

A stone that was sold or held leaves the source without a word. An incremental run cannot see that; two full runs can
(the sweep). So stones that have left are counted apart, if the oracle confirms that something happened to them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from stepfast import sql
from stepfast_diamonds.mapping_words import availability, shape
from stepfast_diamonds.money import from_cents, number, stored

if TYPE_CHECKING:
    from stepfast import Stepfast
    from stepfast_diamonds.demo.source import Stone


BATCH: Final = 10_000

ROWS = sql("""
    SELECT id, supplier_stone_id, offer_id, feed, feed_price, carats, shape, color, availability, certificate_number,
           stale_since
      FROM diamonds
     WHERE deleted_at IS NULL AND id > :after ORDER BY id LIMIT :limit
""")


@dataclass(frozen=True)
class Row:
    """A stone as the table has it."""

    id: int
    stone_id: str
    offer_id: str
    feed: str
    price: Any
    carats: Any
    shape: str
    color: str | None
    availability: str
    certificate: str | None  # None: its laboratory gives no numbers
    stale_since: int | None

    def tells(self, stone: Stone) -> bool:
        """Whether it is the newest version."""
        return (
            self.stale_since is None
            and stored(self.price) == from_cents(stone.price)
            and stored(self.carats) == number(stone.carats)
            and self.certificate in {None, stone.certificate}
            and self.offer_id == f"DIAMOND/{stone.id}"
            and self.shape == shape(stone.shape)
            and self.color == stone.color
            and self.availability == availability(stone.availability)
        )


@dataclass(frozen=True)
class Comparison:
    """Stones, counted."""

    source: int  # at the source now
    table: int  # in the table
    missing: int  # at the source, and not in the table
    doubled: int  # in the table more than once, in whatever feed
    stale: int  # with other values than the source has
    made_up: int  # in the table, and never at the source
    left: int  # in the table, and no longer at the source

    @property
    def clean(self) -> bool:
        return not (self.missing or self.doubled or self.stale or self.made_up)


def compare(stones: Iterable[Stone], rows: Iterable[Row], changed: Collection[str]) -> Comparison:
    """`changed`: the ids of all stones to which anything happened since the source exists."""
    truth = {it.id: it for it in stones}
    seen: set[str] = set()
    offers: set[str] = set()
    table = doubled = stale = made_up = left = 0
    for row in rows:
        table += 1
        stone = truth.get(row.stone_id)
        if row.stone_id in seen or row.offer_id in offers:
            doubled += 1
            continue
        seen.add(row.stone_id)
        offers.add(row.offer_id)
        if stone is not None:
            stale += not row.tells(stone)
        elif row.stone_id in changed:
            left += 1
        else:
            made_up += 1
    return Comparison(
        source=len(truth),
        table=table,
        missing=len(truth.keys() - seen),
        doubled=doubled,
        stale=stale,
        made_up=made_up,
        left=left,
    )


def rows_of(app: Stepfast) -> Iterator[Row]:
    """What the table has, of all feeds, some thousand at a time."""
    after = 0
    while True:
        with app.reading() as tx:
            found = tx.all(ROWS, Row, after=after, limit=BATCH)
        yield from found
        if len(found) < BATCH:
            return
        after = found[-1].id
