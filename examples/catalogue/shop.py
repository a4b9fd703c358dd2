"""A shop with a paged API, as they are: it sells while you read, wants fewer requests, and has bad rows and bad days."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from stepfast.errors import ThrottledError

OPENED = datetime(2026, 1, 1, tzinfo=UTC)
HIGHEST = 1_000


class Asked(NamedTuple):
    """What a client asks for: prices from one to another, both included, changed at or after an instant."""

    low: int
    high: int
    since: datetime | None


class Shop:
    """Items in the order in which they came. The counters tell what it did to its client."""

    def __init__(self, items: int) -> None:
        self.items: dict[str, dict[str, Any]] = {}
        self.requests = self.sold = self.throttled = 0
        self.broken = True  # prices from 500 on: an answer that nobody can read
        self._lock = threading.Lock()
        for number in range(items):
            self.put(f"A-{number:04}", number * HIGHEST // items, OPENED + timedelta(seconds=number))

    def put(self, item_id: str, price: int | None, at: datetime | None = None) -> None:
        """A new item, or a new price."""
        at = at or datetime.now(UTC)
        known = self.items.get(item_id, {"added": at})
        self.items[item_id] = {"id": item_id, "price": price, "added": known["added"], "changed": at}

    def prices(self) -> dict[str, int]:
        """What a table that is in sync holds."""
        return {it["id"]: it["price"] for it in self.items.values() if it["price"] is not None}

    def count(self, asked: Asked) -> int:
        with self._lock:
            return len(self._select(asked))

    def page(self, asked: Asked, offset: int, limit: int) -> list[dict[str, Any]]:
        with self._lock:
            self.requests += 1
            if self.requests == 9:
                self.throttled += 1
                raise ThrottledError("429: too many requests", retry_after=0.05)
            if self.broken and asked.low >= HIGHEST // 2 and offset > 0:
                raise ValueError("the page is no JSON: <html>Internal error</html>")
            found = self._select(asked)[offset : offset + limit]
            if offset and asked.since is None and self.sold < 10:
                self._sell(asked)
        return [dict(it, added=it["added"].isoformat(), changed=it["changed"].isoformat()) for it in found]

    def _select(self, asked: Asked) -> list[dict[str, Any]]:
        found = [
            it
            for it in self.items.values()
            if asked.low <= (it["price"] or 0) <= asked.high
            and (asked.since is None or it["changed"] >= asked.since)
        ]
        return sorted(found, key=lambda it: (it["added"], it["id"]))

    def _sell(self, asked: Asked) -> None:
        """The first item of the list that is being read is gone: all the others move one place forward."""
        del self.items[self._select(asked)[0]["id"]]
        self.sold += 1
