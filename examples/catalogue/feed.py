"""The feed: how the shop is asked, and what becomes of an item. There is no queue, progress or recovery code."""

from __future__ import annotations

from typing import Any

from examples.catalogue.shop import HIGHEST, Asked, Shop
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
    attempts_page = 2  # no patience: this is a demonstration
    sweep = Sweep(column="gone_at", strikes=1, fuse=0.5)

    def __init__(self, shop: Shop) -> None:
        self.shop = shop

    async def count(self, part: Range, window: Window, /) -> int:
        return self.shop.count(_asked(part, window))

    async def fetch(self, part: Range, window: Window, cursor: Cursor, /) -> Page:
        return Page(self.shop.page(_asked(part, window), cursor.offset, cursor.limit))

    def identify(self, item: Any, /) -> str:
        return str(item["id"])

    def map(self, item: Any, /) -> dict[str, Any]:
        if item["price"] is None:
            raise ValueError(f"{item['id']} has no price")
        return {"id": item["id"], "price": item["price"]}


def _asked(part: Range, window: Window) -> Asked:
    price: Any = part.bounds("price")
    return Asked(price.from_, price.to, window.from_)
