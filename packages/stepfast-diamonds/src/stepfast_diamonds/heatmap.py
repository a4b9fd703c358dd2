"""How the catalogue is divided: by price, and where one dollar holds too many stones, by weight, colour and shape.

The partitions tile every price there can be, and neighbours share their bound: bounds are whole dollars, prices are
not. Stones of one upload share their place in the source's order, which shuffles them; in many small partitions few
of them meet, and a partition that fits on one page has no order at all. So there are at least two hundred, as long as
each has a page of stones.

To count each of them would take more counts than the reading is worth: a sample of sixty says where the stones are.
What holds more than twice its estimate is divided when it is read.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from stepfast import Choices, Dimension, Heatmap
from stepfast_diamonds.query import COLORS, LARGEST_CARATS, SHAPES, SMALLEST_CARATS
from stepfast_diamonds.source import open_source

if TYPE_CHECKING:
    from stepfast import Range, Stepfast, Window
    from stepfast.applications import Frontier
    from stepfast_diamonds.settings import NivodaSettings, Price
    from stepfast_diamonds.source import NivodaSource


TARGET: Final = 3_000  # stones
FEWEST: Final = 200
MOST: Final = 1_000
LEAST_ROWS: Final = 25  # with a fifth more it is a page
SAMPLE: Final = 60  # counts of planning
BUDGET: Final = 10_000  # counts of dividing one partition
AT_ONCE: Final = 6  # counts under way: at 25 a second and 150 ms each there is no use in more

# From here on nothing is cut by price any more: the last partition has no end.
DEAREST: Final[dict[Price, int]] = {"dollar_per_carat": 100_000, "dollar_value": 500_000}
# Up to where most stones are, and how finely it is looked there.
DENSE: Final[dict[tuple[Price, bool], tuple[int, int]]] = {
    ("dollar_per_carat", False): (5_000, 50),
    ("dollar_per_carat", True): (1_000, 10),
    ("dollar_value", False): (20_000, 100),
    ("dollar_value", True): (5_000, 50),
}
GRAIN: Final = 0.01  # of a carat


def nivoda_heatmap(
    *,
    lab_grown: bool,
    by: Price = "dollar_per_carat",
    target: int = TARGET,
    fewest: int = FEWEST,
    sample: int | None = SAMPLE,
) -> Heatmap:
    """The partitioner of a feed. `by`: prices per carat add up better than prices do."""
    until, step = DENSE[by, lab_grown]
    return Heatmap(
        Dimension(by, 0, DEAREST[by], above=True, dense_until=until, dense_step=step),
        Dimension("carats", SMALLEST_CARATS, LARGEST_CARATS, GRAIN),
        Choices("color", COLORS),
        Choices("shapes", SHAPES),
        target=target,
        fewest=fewest,
        most=max(MOST, fewest),
        least_rows=min(LEAST_ROWS, target),
        budget=BUDGET,
        at_once=AT_ONCE,
        sample=sample,
    )


# A preview counts as a run would, and changes nothing.
#
# Beside an application, pace and token are those of its workers, and `starts` gives each count its place in their rate.
# Without one the preview keeps to the rate of the settings, for itself.

NO_START_SECONDS: Final = 0.5  # until starts are asked for again, if there were none

StartTimes = Callable[[int], Sequence[float]]  # in how many seconds each of up to so many may start


def preview(
    settings: NivodaSettings,
    heatmap: Heatmap,
    *,
    lab_grown: bool,
    window: Window | None = None,
    told: Callable[[int], None] = lambda _: None,
    app: Stepfast | None = None,
    starts: StartTimes | None = None,
) -> Frontier:
    """The finished frontier; `told` is called with the number of counts so far. A throttle slows no worker down."""
    source = open_source(settings, app, tells=False)
    return asyncio.run(
        count_frontier(source, starts or _OwnRate(settings.rate).next, heatmap, lab_grown, window, told)
    )


async def count_frontier(  # noqa: PLR0917 - what `preview` was given
    source: NivodaSource,
    starts: StartTimes,
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
        waits = await asyncio.to_thread(starts, len(wanted))
        if not waits:
            await asyncio.sleep(NO_START_SECONDS)
        counts = await asyncio.gather(*map(count, wanted, waits))
        frontier = frontier.learn(dict(counts))
        asked += len(counts)
        told(asked)
    return frontier


class _OwnRate:
    """Starts that are evenly spaced, for a preview without an application."""

    def __init__(self, rate: int) -> None:
        self._gap = 1 / rate if rate else 0.0
        self._at = time.monotonic()

    def next(self, most: int) -> list[float]:
        now = time.monotonic()
        begin = max(self._at, now)
        self._at = begin + most * self._gap
        return [begin + number * self._gap - now for number in range(most)]
