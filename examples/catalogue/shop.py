"""A shop with a paged API and typical faults: items are sold while you read, requests are throttled, rows and pages are broken."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from stepfast.errors import ThrottledError

OPENED = datetime(2026, 1, 1, tzinfo=UTC)
HIGHEST = 1_000


class Query(NamedTuple):
    """A search: prices from `low` to `high`, both included, changed at or after `since`."""

    low: int
    high: int
    since: datetime | None


class Shop:
    """Items in the order in which they were added; counters of requests, sales and throttles."""

    def __init__(self, items: int) -> None:
        self.items: dict[str, dict[str, Any]] = {}
        self.requests = self.sold = self.throttled = 0
        self.broken = True  # for prices from 500 on: answers are not JSON
        self._lock = threading.Lock()
        for number in range(items):
            self.put(f"A-{number:04}", number * HIGHEST // items, OPENED + timedelta(seconds=number))

    def put(self, item_id: str, price: int | None, at: datetime | None = None) -> None:
        """A new item, or a new price."""
        at = at or datetime.now(UTC)
        known = self.items.get(item_id, {"added": at})
        self.items[item_id] = {"id": item_id, "price": price, "added": known["added"], "changed": at}

    def prices(self) -> dict[str, int]:
        """The content of a table that is in sync."""
        return {it["id"]: it["price"] for it in self.items.values() if it["price"] is not None}

    def count(self, query: Query) -> int:
        with self._lock:
            return len(self._select(query))

    def page(self, query: Query, offset: int, limit: int) -> list[dict[str, Any]]:
        with self._lock:
            self.requests += 1
            if self.requests == 9:
                self.throttled += 1
                raise ThrottledError("429: too many requests", retry_after=0.05)
            if self.broken and query.low >= HIGHEST // 2 and offset > 0:
                raise ValueError("the page is no JSON: <html>Internal error</html>")
            found = self._select(query)[offset : offset + limit]
            if offset and query.since is None and self.sold < 10:
                self._sell(query)
        return [dict(it, added=it["added"].isoformat(), changed=it["changed"].isoformat()) for it in found]

    def _select(self, query: Query) -> list[dict[str, Any]]:
        found = [
            it
            for it in self.items.values()
            if query.low <= (it["price"] or 0) <= query.high
            and (query.since is None or it["changed"] >= query.since)
        ]
        return sorted(found, key=lambda it: (it["added"], it["id"]))

    def _sell(self, query: Query) -> None:
        """Remove the first item of the list that is being read: all others move one place forward."""
        del self.items[self._select(query)[0]["id"]]
        self.sold += 1
