"""A heatmap made from here, as a run would make it: only counts are asked for, at the pace of the settings."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from holdfast.diamonds.source import open_source

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast import Heatmap, Range, Window
    from holdfast.diamonds.settings import NivodaSettings
    from holdfast.diamonds.source import NivodaSource
    from holdfast.runs.partitioning.contract import Frontier


def preview(
    settings: NivodaSettings,
    heatmap: Heatmap,
    *,
    lab_grown: bool,
    window: Window | None = None,
    told: Callable[[int], None] = lambda _: None,
) -> Frontier:
    """The finished frontier; `told` hears how many counts there were so far."""
    return asyncio.run(explore(open_source(settings), settings, heatmap, lab_grown, window, told))


async def explore(  # noqa: PLR0917 - what `preview` was given
    source: NivodaSource,
    settings: NivodaSettings,
    heatmap: Heatmap,
    lab_grown: bool,  # noqa: FBT001 - which feed
    window: Window | None,
    told: Callable[[int], None],
) -> Frontier:
    frontier: Frontier = heatmap.start()
    stream = _Stream(settings.rate)
    asked = 0

    async def count(part: Range) -> tuple[str, int]:
        await stream.next()
        return part.name, await source.count(part, window, lab_grown=lab_grown)

    while not frontier.finished:
        wanted = frontier.ask()
        frontier = frontier.learn(dict(await asyncio.gather(*map(count, wanted))))
        asked += len(wanted)
        told(asked)
    return frontier


class _Stream:
    """Evenly spaced: nobody else keeps to a rate here."""

    def __init__(self, rate: int) -> None:
        self._gap = 1 / rate if rate else 0.0
        self._at = time.monotonic()

    async def next(self) -> None:
        now = time.monotonic()
        self._at = max(self._at, now) + self._gap
        if self._at - self._gap > now:
            await asyncio.sleep(self._at - self._gap - now)
