"""Partitions of about equal size, found by counting: adaptive cuts of a price, a date or any ordered dimension.

Rows are not spread evenly: half of a catalogue may cost less than a thousandth of its dearest item. So planning counts
a few ranges, cuts where the rows are, and counts again. Where a single value holds too many rows, it cuts along the
next dimension. The partitions tile the whole domain, empty stretches included.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from stepfast.errors import ConfigurationError
from stepfast.runs.partitioning.contract import ask, finished, learn, partitions
from stepfast.runs.partitioning.heatmap_scan import Scan, Settings
from stepfast.runs.partitioning.restoring import restore
from stepfast.runs.ranges import EVERYTHING, Range, tiles

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepfast.runs.partitioning.contract import Span
    from stepfast.runs.partitioning.dimension import Axis
    from stepfast.runs.partitioning.heatmap_region import Box

TARGET: Final = 3_000  # rows: small enough that many workers share a run, large enough to be worth a count
MOST: Final = 1_000
LEAST_ROWS: Final = 1_000
BUDGET: Final = 5_000
AT_ONCE: Final = 3


class Heatmap:
    """`Heatmap(prices("dollar_per_carat"), Dimension("carats", 0, 30, 0.01))`.

    `target`: rows of a partition, give or take a fifth. `fewest` and `most`: how many partitions, where the number of
    rows allows it; no partition is made smaller than `least_rows` for the sake of `fewest`. `budget`: counts that
    planning may ask for. `at_once`: how many of them in one step.
    """

    counted = True
    ask = staticmethod(ask)
    learn = staticmethod(learn)
    finished = staticmethod(finished)
    partitions = staticmethod(partitions)
    restore = staticmethod(restore)

    def __init__(
        self,
        *dimensions: Axis,
        target: int = TARGET,
        fewest: int = 1,
        most: int = MOST,
        least_rows: int = LEAST_ROWS,
        budget: int = BUDGET,
        at_once: int = AT_ONCE,
    ) -> None:
        self.dimensions = dimensions
        self.settings = Settings(
            target=target, fewest=fewest, most=most, least_rows=least_rows, budget=budget, at_once=at_once
        )
        if wrong := [it for it in dimensions if not hasattr(it, "name") or not hasattr(it, "within")]:
            raise ConfigurationError(
                f"Heatmap({wrong[0]!r:.80}): give dimensions, such as Dimension('price', 0, 1_000, 1)"
            )
        names = [it.name for it in dimensions]
        if not dimensions or len(set(names)) < len(names):
            raise ConfigurationError(f"Heatmap needs dimensions with names of their own; it got {names}")
        for name, value in vars(self.settings).items():
            if value < 1:
                raise ConfigurationError(f"Heatmap({name}={value}): use 1 or more")
        if fewest > most:
            raise ConfigurationError(
                f"Heatmap(fewest={fewest}, most={most}): there is no number between them"
            )

    def start(self, window: Span | None = None, prior: Sequence[Range] = ()) -> Scan:  # noqa: ARG002 - counts know it
        """Begin to plan. The first thing to count is everything: a Range that names no dimension."""
        return Scan(
            axes=self.dimensions,
            settings=self.settings,
            base=EVERYTHING,
            prior=self._boxes(prior),
        )

    def divide(self, outgrown: Range) -> Scan | None:
        """Begin to plan the pieces of one partition; None if it is as small as it can be."""
        given = dict(outgrown.parts)
        if not given.keys() <= {it.name for it in self.dimensions}:
            return None
        axes = [it.within(given[it.name]) if it.name in given else it for it in self.dimensions]
        known = tuple(it for it in axes if it is not None)
        if len(known) < len(axes) or all(it.size < 2 for it in known):  # noqa: PLR2004 - nothing to cut
            return None
        return Scan(axes=known, settings=replace(self.settings, fewest=1), base=outgrown)

    def _boxes(self, prior: Sequence[Range]) -> tuple[Box, ...]:
        """The ranges as boxes of our own ticks; none if one is not ours, or if together they do not tile the domain."""
        domain = Range.of({it.name: it.part(0, it.size) for it in self.dimensions})
        boxes = []
        for parts in (dict(it.parts) for it in prior):
            ticks = [it.ticks(parts[it.name]) if it.name in parts else (0, it.size) for it in self.dimensions]
            box = tuple(it for it in ticks if it is not None)
            if len(box) < len(ticks):
                return ()
            boxes.append(box)
        return tuple(sorted(boxes)) if tiles(domain, prior) else ()
