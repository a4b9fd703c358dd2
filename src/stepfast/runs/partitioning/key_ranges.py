"""Ranges of a key, cut at given places. The first has no lower bound and the last no upper one: every key is in one."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Final

from stepfast.errors import ConfigurationError
from stepfast.runs.bounds import Bounds, Closed, Value, after, canonical, steps_between
from stepfast.runs.partitioning.contract import ask, finished, learn, partitions
from stepfast.runs.partitioning.dimension import Dimension
from stepfast.runs.partitioning.heatmap import TARGET, Heatmap
from stepfast.runs.partitioning.listed import Listed
from stepfast.runs.partitioning.restoring import restore
from stepfast.runs.ranges import EVERYTHING, Range

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from stepfast.runs.partitioning.contract import Span
    from stepfast.runs.partitioning.heatmap_scan import Scan

AT_ONCE: Final = 3
DIGITS: Final = 4  # hexadecimal digits of a cut: enough for 65,536 pieces


class KeyRanges:
    """`KeyRanges("id", cuts=["g", "p"])`, `KeyRanges.even("id", 1, 900_000, 50)` or `KeyRanges.hexadecimal("uuid", 16)`.

    `closed` is "both" for a source that includes the end of a range: neighbours then share their bound.
    """

    ask = staticmethod(ask)
    learn = staticmethod(learn)
    finished = staticmethod(finished)
    partitions = staticmethod(partitions)
    restore = staticmethod(restore)

    def __init__(
        self,
        dimension: str,
        cuts: Iterable[Value],
        *,
        closed: Closed = "left",
        counted: bool = False,
        target: int = TARGET,
    ) -> None:
        self.dimension = dimension
        self.cuts = tuple(canonical(it) for it in cuts)
        self.closed = closed
        self.counted = counted
        self.target = target
        for low, high in pairwise(self.cuts):
            Bounds(low, high, "left")  # refuses cuts that do not go upwards

    @classmethod
    def even(
        cls,
        dimension: str,
        low: int,
        high: int,
        pieces: int,
        *,
        closed: Closed = "left",
        counted: bool = False,
    ) -> KeyRanges:
        """As many pieces, of numbers that are spread evenly from `low` to `high`."""
        if pieces < 1 or high <= low:
            raise ConfigurationError(
                f"KeyRanges.even({dimension!r}, {low}, {high}, {pieces}): there is nothing to cut"
            )
        width = steps_between(low, high, 1)
        cuts = sorted({after(low, 1, width * it // pieces) for it in range(1, pieces)} - {low})
        return cls(dimension, cuts, closed=closed, counted=counted)

    @classmethod
    def hexadecimal(cls, dimension: str, pieces: int, *, counted: bool = False) -> KeyRanges:
        """As many pieces, of texts that begin with hexadecimal digits in lower case: random UUIDs, hashes."""
        if not 1 <= pieces <= 16**DIGITS:
            raise ConfigurationError(
                f"KeyRanges.hexadecimal({dimension!r}, {pieces}): use 1 to {16**DIGITS} pieces"
            )
        cuts = [f"{16**DIGITS * it // pieces:0{DIGITS}x}" for it in range(1, pieces)]
        return cls(dimension, cuts, counted=counted)

    def start(self, window: Span | None = None, prior: Sequence[Range] = ()) -> Listed:  # noqa: ARG002 - keys decide
        ends = pairwise([None, *self.cuts, None])
        ranges = tuple(Range.of({self.dimension: Bounds(low, high, self.closed)}) for low, high in ends)
        return Listed(ranges=ranges, domain=EVERYTHING, at_once=AT_ONCE if self.counted else 0)

    def divide(self, outgrown: Range) -> Scan | None:
        """Into ranges with about as many rows each, found by counting; None for texts and for the outermost ranges."""
        part = outgrown.bounds(self.dimension)
        if part.from_ is None or part.to is None or isinstance(part.from_, str):
            return None
        dimension = Dimension(self.dimension, part.from_, part.to, closed=part.closed)
        return Heatmap(dimension, target=self.target).divide(outgrown)
