"""A shop whose catalogue is read by runs, and a feed that reads it: all in memory, with everything that can go wrong.

shop = Shop.with_items(100)
app.feed(Catalogue(shop))
prepare(app)                      # creates the target table
run = app.runs.start("catalogue")
drain(app)
assert target(app) == shop.prices()
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from stepfast.runs.feed import Feed, Page, Row
from stepfast.runs.partitioning.partitioners import Fixed
from stepfast.runs.partitioning.ranges import Bounds, Range

if TYPE_CHECKING:
    from stepfast import Stepfast
    from stepfast.runs.paging.decision import Cursor
    from stepfast.runs.partitioning.contract import Partitioner
    from stepfast.runs.window import Window

PRICE = "price"
HIGHEST = 1_000
LONG_AGO = datetime(2026, 1, 1, tzinfo=UTC)
EVERYTHING = Range()

Before = Callable[
    [str, Range, "Cursor | None"], None
]  # what happens before a request: "count", "page" or "still_there"


def nothing(what: str, part: Range, cursor: Cursor | None) -> None:
    """A request is answered."""


@dataclass
class Shop:
    """The source. Items are ordered by when they were created, then by id."""

    items: dict[str, dict[str, Any]] = field(default_factory=dict)
    hidden: set[str] = field(
        default_factory=set
    )  # there, and on no page: as if they moved from one to another
    before: Before = nothing
    requests: list[tuple[str, str, int | None]] = field(default_factory=list)
    lock: threading.RLock = field(default_factory=threading.RLock)

    @classmethod
    def with_items(cls, count: int, *, highest: int = HIGHEST) -> Shop:
        shop = cls()
        for number in range(count):
            shop.put(f"d{number:05}", number * highest // max(1, count), LONG_AGO + timedelta(seconds=number))
        return shop

    def put(self, item_id: str, price: int, at: datetime | None = None, **more: Any) -> None:
        """A new item, or a new price."""
        with self.lock:
            known = self.items.get(item_id, {})
            at = at or datetime.now(UTC)
            created = known.get("created", at.isoformat())
            self.items[item_id] = {
                "id": item_id,
                "price": price,
                "created": created,
                "updated": at.isoformat(),
                **more,
            }

    def remove(self, item_id: str) -> None:
        with self.lock:
            del self.items[item_id]

    def prices(self) -> dict[str, int]:
        """What the target should hold in the end."""
        with self.lock:
            return {name: item["price"] for name, item in self.items.items()}

    def count(self, part: Range, window: Window) -> int:
        self._request("count", part, None)
        return len(self.select(part, window))

    def page(self, part: Range, window: Window, cursor: Cursor) -> list[dict[str, Any]]:
        self._request("page", part, cursor)
        found = self.select(part, window)
        if cursor.descending:
            found = found[::-1]
        return [dict(it) for it in found[cursor.offset : cursor.offset + cursor.limit]]

    def still_there(self, ids: Sequence[str]) -> list[str]:
        self._request("still_there", EVERYTHING, None, ",".join(ids))
        with self.lock:
            return [it for it in ids if it in self.items]

    def select(self, part: Range, window: Window) -> list[dict[str, Any]]:
        with self.lock:
            inside = [
                it
                for it in self.items.values()
                if part.contains({PRICE: it["price"]})
                and it["id"] not in self.hidden
                and (window.from_ is None or datetime.fromisoformat(it["updated"]) >= window.from_)
            ]
        return sorted(inside, key=lambda it: (it["created"], it["id"]))

    def asked_about(self) -> list[str]:
        """Whether they are still there, in order."""
        return [it for what, ids, _ in self.requests if what == "still_there" for it in ids.split(",")]

    def _request(self, what: str, part: Range, cursor: Cursor | None, ids: str = "") -> None:
        with self.lock:
            self.requests.append((what, ids or part.name, None if cursor is None else cursor.offset))
        self.before(what, part, cursor)


def price_ranges(*cuts: int) -> list[Range]:
    """Ranges that tile all prices, cut here and there."""
    bounds = [0, *cuts, HIGHEST]
    return [Range.of(price=Bounds(low, high)) for low, high in pairwise(bounds)]


class Catalogue(Feed):
    """Four partitions, pages of ten."""

    name = "catalogue"
    page_size = 10
    table = "item"
    settle = "0s"
    partitioner: Partitioner | None = Fixed(price_ranges(250, 500, 750))

    def __init__(self, shop: Shop, **settings: Any) -> None:
        self.shop = shop
        for setting, value in settings.items():
            setattr(self, setting, value)

    async def count(self, part: Range, window: Window, /) -> int:
        return self.shop.count(part, window)

    async def fetch(self, part: Range, window: Window, cursor: Cursor, /) -> Page:
        return Page(self.shop.page(part, window, cursor))

    def identify(self, item: Any, /) -> str:
        return str(item["id"])

    def map(self, item: Any, /) -> Row:
        if item["price"] is None:
            raise ValueError(f"item {item['id']} has no price")
        return {"id": item["id"], "price": item["price"]}


class Confirming(Catalogue):
    """Is asked before rows go."""

    async def still_there(self, ids: Sequence[str], /) -> Sequence[str]:
        return self.shop.still_there(ids)


CREATE_TARGET = "CREATE TABLE item (id VARCHAR(100) NOT NULL PRIMARY KEY, price INTEGER NOT NULL, deleted_at BIGINT, stale_since BIGINT)"


def prepare(app: Stepfast) -> None:
    """Create the target table, outside of any transaction: MariaDB would end it."""
    connection = app.database.connect()
    try:
        connection.execute(CREATE_TARGET)
    finally:
        connection.close()


def target(app: Stepfast) -> Mapping[str, int]:
    """What is in the target, except what was swept away."""
    with app.reading() as tx:
        return {
            str(row["id"]): int(row["price"])
            for row in tx.query("SELECT id, price FROM item WHERE deleted_at IS NULL")
        }
