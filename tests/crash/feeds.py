"""The application with a feed that worker processes of the crash tests run: `tests.crash.feeds:app`.

The source is the same in every process, because it follows from a number. A test may hold the first request or the
first row that reaches a place, in whichever process, until it opens the gate.
"""

from __future__ import annotations

import asyncio
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepfast.runs.partitioning.partitioners import Fixed
from tests.support.feeds import Catalogue, Shop, price_ranges

if TYPE_CHECKING:
    from stepfast import Stepfast
    from stepfast.runs.feed import Page, Row
    from stepfast.runs.paging.decision import Cursor
    from stepfast.runs.partitioning.ranges import Range
    from stepfast.runs.window import Window

FOLDER = Path(os.environ.get("STEPFAST_TEST_FOLDER", "."))
ITEMS = 400
LOOK = 0.005  # seconds between looks for a file


def stock() -> Shop:
    return Shop.with_items(ITEMS)


class Warehouse(Catalogue):
    page_size = 20
    partitioner = Fixed(price_ranges(*range(125, 1_000, 125)))  # eight
    shards = 2
    batch = 100

    async def fetch(self, part: Range, window: Window, cursor: Cursor, /) -> Page:
        page = await super().fetch(part, window, cursor)
        await asyncio.sleep(LOOK)
        if cursor.offset > 0 and held("page"):
            waiting = asyncio.ensure_future(asyncio.to_thread(wait))
            while not waiting.done():
                with suppress(asyncio.CancelledError):  # it goes on when it is told to stop
                    await asyncio.shield(waiting)
        return page

    def map(self, item: Any, /) -> Row:
        if held("map"):
            wait()
        return super().map(item)


def hanging() -> Catalogue:
    """A feed whose source never answers, and whose function is plain."""
    return Catalogue(stock(), name="hanging", fetch=hang, timeout="1s")


def hang(*_: object) -> Page:
    (FOLDER / "hangs").touch()
    time.sleep(3_600)
    raise AssertionError("nobody waits so long")


def wait() -> None:
    while not (FOLDER / "open").exists():
        time.sleep(LOOK)


def held(where: str) -> bool:
    """Whether this is the first to come there, and a test wants to hold it."""
    if not (FOLDER / f"hold-{where}").exists():
        return False
    try:
        with (FOLDER / f"held-{where}").open("x") as file:
            file.write(str(os.getpid()))
    except FileExistsError:
        return False
    return True


def registered(app: Stepfast) -> Shop:
    """Let an application know the feed; returns its source."""
    return app.feed(Warehouse(stock())).shop


if "STEPFAST_TEST_FOLDER" in os.environ:
    from tests.crash.jobs import app  # with its constants

    registered(app)
    app.feed(hanging())
