"""A source on a simulator, and what a test asks it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

from stepfast import Cursor, Range, Window
from stepfast_diamonds.query import BASE
from stepfast_diamonds.settings import NivodaSettings
from stepfast_diamonds.source import NivodaSource, open_source

if TYPE_CHECKING:
    from stepfast import Stepfast
    from stepfast_diamonds.simulator import Simulator

T = TypeVar("T")
KEY = "a key that nobody can guess: 40 letters"


def settings_for(sim: Simulator, **more: Any) -> NivodaSettings:
    given: dict[str, Any] = {
        "url": sim.url,
        "username": sim.username,
        "password": sim.password,
        "rate": 0,
        "concurrency": 0,
    }
    return NivodaSettings(**given | more)


class Asking:
    """Asks as a feed of natural stones does, each time with a loop of its own, as the command line does."""

    def __init__(self, sim: Simulator, app: Stepfast | None = None, **settings: Any) -> None:
        self.sim = sim
        self.source = open_source(settings_for(sim, **settings), app)

    def run(self, work: Callable[[NivodaSource], Awaitable[T]]) -> T:
        async def asked() -> T:
            return await work(self.source)

        return asyncio.run(asked())

    def count(self, part: Range | None = None, window: Window | None = None) -> int:
        return self.run(lambda it: it.count(part or Range(), window, lab_grown=False))

    def page(
        self,
        part: Range | None = None,
        window: Window | None = None,
        *,
        offset: int = 0,
        limit: int = 30,
        descending: bool = False,
        attempt: int = 1,
    ) -> list[Any]:
        cursor = Cursor(offset=offset, limit=limit, descending=descending, attempt=attempt)
        return list(self.run(lambda it: it.page(part or Range(), window, cursor, lab_grown=False)).items)

    def ids(self, part: Range | None = None, window: Window | None = None, **more: Any) -> list[str]:
        return [it["diamond"]["id"] for it in self.page(part, window, **more)]


def truth(sim: Simulator, *, lab_grown: bool = False) -> dict[str, Any]:
    """What the feed should find."""
    return sim.oracle(query={**BASE, "labgrown": lab_grown})
