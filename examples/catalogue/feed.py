"""The feed: how to request pages of the shop and how to map an item. No queue, progress or recovery code is needed."""

from __future__ import annotations

from typing import Any

from examples.catalogue.shop import HIGHEST, Query, Shop
from stepfast import Bounds, Cursor, Feed, Fixed, Page, Range, Sweep, Window


class Catalogue(Feed):
    name = "catalogue"
    table, key = "item", "id"
    page_size = 30
    partitioner = Fixed(
        [Range.of(price=Bounds(low, low + HIGHEST // 4)) for low in range(0, HIGHEST, HIGHEST // 4)],
        domain=Range.of(price=Bounds(0, HIGHEST)),
    )
    settle, lookback = "0s", "0s"  # this shop shows a change at once
    attempts_page = 2  # fails soon: this is a demonstration
    sweep = Sweep(column="gone_at", strikes=1, fuse=0.5)

    def __init__(self, shop: Shop) -> None:
        self.shop = shop

    async def count(self, part: Range, window: Window, /) -> int:
        return self.shop.count(_query(part, window))

    async def fetch(self, part: Range, window: Window, cursor: Cursor, /) -> Page:
        return Page(self.shop.page(_query(part, window), cursor.offset, cursor.limit))

    def identify(self, item: Any, /) -> str:
        return str(item["id"])

    def map(self, item: Any, /) -> dict[str, Any]:
        if item["price"] is None:
            raise ValueError(f"{item['id']} has no price")
        return {"id": item["id"], "price": item["price"]}


def _query(part: Range, window: Window) -> Query:
    price: Any = part.bounds("price")
    return Query(price.from_, price.to, window.from_)
