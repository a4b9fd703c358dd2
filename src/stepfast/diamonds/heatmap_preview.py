"""A heatmap made from here, as a run would make it: only counts are asked for.

Beside an application the pace and the token are those of its workers, and `places` gives each count its place in
their rate. Without one it keeps to the rate of the settings, for itself.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from stepfast.diamonds.source import open_source

if TYPE_CHECKING:
    from stepfast import Heatmap, Range, Stepfast, Window
    from stepfast.diamonds.settings import NivodaSettings
    from stepfast.diamonds.source import NivodaSource
    from stepfast.runs.partitioning.contract import Frontier

NO_PLACE: Final = 0.5  # seconds until somebody who got none asks again

Places = Callable[[int], Sequence[float]]  # in how many seconds each of up to so many may start


def preview(
    settings: NivodaSettings,
    heatmap: Heatmap,
    *,
    lab_grown: bool,
    window: Window | None = None,
    told: Callable[[int], None] = lambda _: None,
    app: Stepfast | None = None,
    places: Places | None = None,
) -> Frontier:
    """The finished frontier; `told` hears how many counts there were so far. Nobody is slowed down by what it meets."""
    source = open_source(settings, app, tells=False)
    return asyncio.run(
        explore(source, places or _Stream(settings.rate).next, heatmap, lab_grown, window, told)
    )


async def explore(  # noqa: PLR0917 - what `preview` was given
    source: NivodaSource,
    places: Places,
    heatmap: Heatmap,
    lab_grown: bool,  # noqa: FBT001 - which feed
    window: Window | None,
    told: Callable[[int], None],
) -> Frontier:
    frontier: Frontier = heatmap.start()
    asked = 0

    async def count(part: Range, wait: float) -> tuple[str, int]:
        await asyncio.sleep(wait)
        return part.name, await source.count(part, window, lab_grown=lab_grown)

    while not frontier.finished:
        wanted = frontier.ask()
        waits = await asyncio.to_thread(places, len(wanted))
        if not waits:
            await asyncio.sleep(NO_PLACE)
        counts = await asyncio.gather(*map(count, wanted, waits))
        frontier = frontier.learn(dict(counts))
        asked += len(counts)
        told(asked)
    return frontier


class _Stream:
    """Evenly spaced: nobody else keeps to a rate here."""

    def __init__(self, rate: int) -> None:
        self._gap = 1 / rate if rate else 0.0
        self._at = time.monotonic()

    def next(self, most: int) -> list[float]:
        now = time.monotonic()
        begin = max(self._at, now)
        self._at = begin + most * self._gap
        return [begin + number * self._gap - now for number in range(most)]
