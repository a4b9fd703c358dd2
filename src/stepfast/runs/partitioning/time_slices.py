"""Slices of the run's window, each as long as the others: a day, an hour."""

from __future__ import annotations

from datetime import datetime, timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from stepfast.clock import Duration, duration
from stepfast.errors import ConfigurationError
from stepfast.runs.bounds import Bounds, Closed
from stepfast.runs.partitioning.contract import ask, finished, learn, partitions
from stepfast.runs.partitioning.dimension import Dimension
from stepfast.runs.partitioning.heatmap import TARGET, Heatmap
from stepfast.runs.partitioning.listed import Listed
from stepfast.runs.partitioning.restoring import restore
from stepfast.runs.ranges import Range

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepfast.runs.partitioning.contract import Span
    from stepfast.runs.partitioning.heatmap_scan import Scan

AT_ONCE: Final = 3
MOST: Final = 1_000
FINEST: Final = timedelta(seconds=1)  # a slice that outgrows its estimate is divided down to this


class TimeSlices:
    """`TimeSlices("updated_at", every="1d")`.

    A window without a beginning starts at `since`; what is older belongs to the first slice, which then has no lower
    bound. No more than `most` slices: they become longer instead. `closed` is "both" for a source that includes the
    end of a range.
    """

    ask = staticmethod(ask)
    learn = staticmethod(learn)
    finished = staticmethod(finished)
    partitions = staticmethod(partitions)
    restore = staticmethod(restore)

    def __init__(
        self,
        dimension: str,
        *,
        every: Duration,
        since: datetime | None = None,
        most: int = MOST,
        closed: Closed = "left",
        counted: bool = False,
        target: int = TARGET,
    ) -> None:
        self.dimension = dimension
        self.every = duration(every, "TimeSlices(every=…)")
        self.since = since
        self.most = most
        self.closed = closed
        self.counted = counted
        self.target = target
        if not self.every or most < 1:
            raise ConfigurationError(
                f"TimeSlices(every={every!r}, most={most}): there must be a slice, and a time in it"
            )
        Range.of({dimension: Bounds(since, None, closed)})  # checks the name and the time zone

    def start(self, window: Span, prior: Sequence[Range] = ()) -> Listed:  # noqa: ARG002 - the clock decides
        if window.from_ is not None and window.from_ >= window.to:
            return Listed(ranges=(), domain=None)  # an empty window has no slices
        ranges = tuple(Range.of({self.dimension: it}) for it in self._slices(window))
        domain = Range.of({self.dimension: Bounds(window.from_, window.to, self.closed)})
        return Listed(ranges=ranges, domain=domain, at_once=AT_ONCE if self.counted else 0)

    def divide(self, outgrown: Range) -> Scan | None:
        """Into slices with about as many rows each, found by counting; None for a slice without a beginning."""
        part = outgrown.bounds(self.dimension)
        if part.from_ is None or part.to is None:
            return None
        dimension = Dimension(self.dimension, part.from_, part.to, FINEST, part.closed)
        return Heatmap(dimension, target=self.target).divide(outgrown)

    def _slices(self, window: Span) -> list[Bounds]:
        begin = window.from_ or min(self.since or window.to, window.to)
        whole = window.to - begin
        every = max(self.every, whole / self.most)
        number = max(1, -(-whole // every))
        inner = (begin + every * it for it in range(1, number))
        return [Bounds(low, high, self.closed) for low, high in pairwise([window.from_, *inner, window.to])]
