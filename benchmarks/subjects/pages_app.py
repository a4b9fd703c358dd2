"""A user's module: a feed that is read in pages of 30 rows, from a source that answers at once."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from benchmarks.subjects.pages import LANES, PAGE, page
from benchmarks.tally import Tally
from stepfast import Cursor, Feed, Keyset, Page, Range, Stepfast, Window

app = Stepfast()  # STEPFAST_DATABASE_URL says where
tally = Tally(Path(os.environ["BENCH_TALLY"]))


class Pages(Feed):
    name = "pages"
    page_size = PAGE
    paging = Keyset()
    table = "bench_item"

    def plan(self, window: Window, /) -> list[Range]:  # noqa: ARG002 - always the same
        return [Range.of(lane=[it]) for it in range(LANES)]

    async def fetch(self, part: Range, window: Window, cursor: Cursor, /) -> Page:  # noqa: ARG002 - as above
        tally.start()
        (lane,) = part.choices("lane") or (0,)
        first = cursor.after or 0
        items = page(lane, first)
        return Page(items, next=first + len(items))

    def identify(self, item: Any, /) -> str:
        return str(item["id"])

    def map(self, item: Any, /) -> dict[str, Any]:
        return {"id": item["id"], "price": item["price"]}


app.feed(Pages())
