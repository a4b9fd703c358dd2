"""The partitioners that come with Stepfast: a heatmap found by counting, a fixed list, ranges of a key, slices of time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from stepfast.clock import Duration, duration
from stepfast.config import is_whole
from stepfast.errors import ConfigurationError
from stepfast.runs.partitioning import heatmap as heatmap_scan
from stepfast.runs.partitioning.contract import Plan, Planned, ask, checked, finished, learn, partitions
from stepfast.runs.partitioning.dimension import Dimension
from stepfast.runs.partitioning.heatmap import Scan, Settings
from stepfast.runs.partitioning.ranges import (
    EVERYTHING,
    ITEMS,
    Bounds,
    Closed,
    Range,
    Value,
    after,
    canonical,
    gap,
    steps_between,
    tiles,
)
from stepfast.runs.partitioning.sample import SAMPLE_KIND, Sample

if TYPE_CHECKING:
    from stepfast.runs.partitioning.contract import Span
    from stepfast.runs.partitioning.dimension import Axis
    from stepfast.runs.partitioning.heatmap import Box


def _check_number(what: str, name: str, value: object) -> None:
    if not is_whole(value) or value < 1:
        raise ConfigurationError(f"{what}({name}={value!r}): a whole number, 1 or more")


# The frontier of partitions that are known from the start: all there is to learn is how many rows each has.

LISTED_KIND: Final = "listed"


@dataclass(frozen=True, kw_only=True)
class Listed:
    """Partitions, and the counts of those that were counted."""

    ranges: tuple[Range, ...]
    domain: Range | None  # None: the list itself says what everything is
    at_once: int = 0  # ranges to count in one step; 0: they are not counted
    answers: Mapping[str, int] = field(default_factory=dict)

    @property
    def finished(self) -> bool:
        return not self.ask()

    def ask(self) -> list[Range]:
        return [range_ for range_ in self.ranges if range_.name not in self.answers][: self.at_once]

    def learn(self, counts: Mapping[str, int]) -> Listed:
        names = {range_.name for range_ in self.ranges}
        new = {name: count for name, count in checked(counts).items() if name in names}
        return replace(self, answers={**self.answers, **new})

    def plan(self) -> Plan:
        partitions = tuple(Planned(range_, self.answers.get(range_.name)) for range_ in self.ranges)
        return Plan(partitions=partitions, domain=self.domain, requests=len(self.answers))

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": LISTED_KIND,
            "ranges": [it.to_json() for it in self.ranges],
            "domain": None if self.domain is None else self.domain.to_json(),
            "at_once": self.at_once,
            "answers": dict(self.answers),
        }

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Listed:
        return cls(
            ranges=tuple(Range.from_json(it) for it in stored["ranges"]),
            domain=None if stored["domain"] is None else Range.from_json(stored["domain"]),
            at_once=stored["at_once"],
            answers=dict(stored["answers"]),
        )


def restore(stored: Mapping[str, Any]) -> Scan | Sample | Listed:
    """A frontier from its JSON, whichever partitioner of this module it belongs to."""
    kind = stored.get("kind")
    if kind == heatmap_scan.HEATMAP_KIND:
        return Scan.from_json(stored)
    if kind == SAMPLE_KIND:
        return Sample.from_json(stored)
    if kind == LISTED_KIND:
        return Listed.from_json(stored)
    raise ConfigurationError(
        f"a frontier of kind {kind!r} was not stored by this version of Stepfast; plan again"
    )


# Heatmap: partitions of about equal size, found by counting: adaptive cuts of a price, a date or any ordered dimension.
#
# Rows are not spread evenly: half of a catalogue may cost less than a thousandth of its dearest item. So planning counts
# a few ranges, cuts where the rows are, and counts again. Where a single value holds too many rows, it cuts along the
# next dimension. The partitions tile the whole domain, empty stretches included.

TARGET: Final = 3_000  # rows: small enough that many workers share a run, large enough to be worth a count
MOST_PARTITIONS: Final = 1_000
LEAST_ROWS: Final = 1_000
BUDGET: Final = 5_000
LEAST_SAMPLE: Final = 10
AT_ONCE: Final = 3


class Heatmap:
    """`Heatmap(prices("dollar_per_carat"), Dimension("carats", 0, 30, 0.01))`.

    `target`: rows of a partition, give or take a fifth. `fewest` and `most`: how many partitions, where the number of
    rows allows it; no partition is made smaller than `least_rows` for the sake of `fewest`. `budget`: counts that
    planning may ask for. `at_once`: how many of them in one step.

    With `sample`, planning asks for at most so many counts, whatever the number of partitions: it takes the rows between
    two counts to be evenly spread. A partition that then holds more than twice its estimate is divided when it is read.
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
        most: int = MOST_PARTITIONS,
        least_rows: int = LEAST_ROWS,
        budget: int = BUDGET,
        at_once: int = AT_ONCE,
        sample: int | None = None,
    ) -> None:
        self.dimensions = dimensions
        self.settings = Settings(
            target=target,
            fewest=fewest,
            most=most,
            least_rows=least_rows,
            budget=budget,
            at_once=at_once,
            sample=sample,
        )
        if wrong := [it for it in dimensions if not hasattr(it, "name") or not hasattr(it, "within")]:
            raise ConfigurationError(
                f"Heatmap({wrong[0]!r:.80}): give dimensions, such as Dimension('price', 0, 1_000, 1)"
            )
        names = [it.name for it in dimensions]
        if not dimensions or len(set(names)) < len(names):
            raise ConfigurationError(f"Heatmap needs dimensions with names of their own; it got {names}")
        for name, value in vars(self.settings).items():
            if name != "sample":
                _check_number("Heatmap", name, value)
        if sample is not None and (not is_whole(sample) or sample < LEAST_SAMPLE):
            raise ConfigurationError(
                f"Heatmap(sample={sample!r}): a number of counts, {LEAST_SAMPLE} or more; None counts each partition"
            )
        if fewest > most:
            raise ConfigurationError(
                f"Heatmap(fewest={fewest}, most={most}): there is no number between them"
            )

    def start(self, window: Span | None = None, prior: Sequence[Range] = ()) -> Scan | Sample:  # noqa: ARG002 - counts know it
        """Begin to plan. The first thing to count is everything: a Range that names no dimension."""
        axes, settings, boxes = self.dimensions, self.settings, self._boxes(prior)
        if settings.sample is not None:
            return Sample(axes=axes, settings=settings, prior=boxes)
        return Scan(axes=axes, settings=settings, base=EVERYTHING, prior=boxes)

    def divide(self, outgrown: Range) -> Scan | None:
        """Begin to plan the pieces of one partition; None if it is as small as it can be."""
        given = dict(outgrown.parts)
        if not given.keys() <= {axis.name for axis in self.dimensions}:
            return None
        axes = [axis.within(given[axis.name]) if axis.name in given else axis for axis in self.dimensions]
        known = tuple(axis for axis in axes if axis is not None)
        if len(known) < len(axes) or all(axis.size < 2 for axis in known):  # noqa: PLR2004 - nothing to cut
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


# Fixed: a list of partitions, such as regions, tenants, files, or ranges that were worked out elsewhere.


class Fixed:
    """`Fixed(["EU", "US"])`, `Fixed([["EU", "UK"], "US"])` or `Fixed([Range.of(…), …], domain=Range.of(…))`.

    With a `domain` the ranges must tile it. With `counted` each is counted while planning, so that its size is known.
    """

    ask = staticmethod(ask)
    learn = staticmethod(learn)
    finished = staticmethod(finished)
    partitions = staticmethod(partitions)
    restore = staticmethod(restore)

    def __init__(
        self,
        entries: Iterable[Range | Value | Sequence[Value]],
        *,
        domain: Range | None = None,
        counted: bool = False,
    ) -> None:
        if isinstance(entries, str) or not isinstance(entries, Iterable):
            raise ConfigurationError(
                f"Fixed({entries!r:.80}): give a list of them, such as Fixed([{entries!r:.80}])"
            )
        self.ranges = tuple(_range(it) for it in entries)
        if not self.ranges:
            raise ConfigurationError(
                "Fixed([]): nothing would ever be read; give at least one range, such as Fixed([Range()])"
            )
        self.domain = domain
        self.counted = counted
        names = [it.name for it in self.ranges]
        if twice := sorted({it for it in names if names.count(it) > 1}):
            raise ConfigurationError(f"Fixed lists {twice[0]} twice; each partition is read once")
        if domain is not None and (found := gap(domain, self.ranges)):
            raise ConfigurationError(f"Fixed leaves a gap in {domain.name}: nobody would read {found}")

    def start(self, window: Span | None = None, prior: Sequence[Range] = ()) -> Listed:  # noqa: ARG002 - it is fixed
        return self._listed(self.ranges, self.domain)

    def divide(self, outgrown: Range) -> Listed | None:
        """Half of the items each; None if there is only one, or none."""
        halves = outgrown.bisect(ITEMS)
        return self._listed(halves, outgrown) if halves else None

    def _listed(self, ranges: tuple[Range, ...], domain: Range | None) -> Listed:
        return Listed(ranges=ranges, domain=domain, at_once=AT_ONCE if self.counted else 0)


def _range(entry: Range | Value | Sequence[Value]) -> Range:
    if isinstance(entry, Range):
        return entry
    if isinstance(entry, Sequence) and not isinstance(entry, str):
        return Range.of({ITEMS: entry})
    return Range.of({ITEMS: [entry]})


# KeyRanges: ranges of a key, cut at given values. The first has no lower bound, the last no upper one: every key is in one.

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
        self.cuts = tuple(canonical(cut) for cut in cuts)
        self.closed = closed
        self.counted = counted
        self.target = target
        _check_number("KeyRanges", "target", target)
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
        if not is_whole(pieces) or pieces < 1 or high <= low:
            raise ConfigurationError(
                f"KeyRanges.even({dimension!r}, {low}, {high}, {pieces}): there is nothing to cut"
            )
        width = steps_between(low, high, 1)
        cuts = sorted({after(low, 1, width * it // pieces) for it in range(1, pieces)} - {low})
        return cls(dimension, cuts, closed=closed, counted=counted)

    @classmethod
    def hexadecimal(cls, dimension: str, pieces: int, *, counted: bool = False) -> KeyRanges:
        """As many pieces, of texts that begin with hexadecimal digits in lower case: random UUIDs, hashes."""
        if not is_whole(pieces) or not 1 <= pieces <= 16**DIGITS:
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


# TimeSlices: slices of the run's window, each as long as the others: a day, an hour.

MOST_SLICES: Final = 1_000
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
        most: int = MOST_SLICES,
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
        _check_number("TimeSlices", "most", most)
        _check_number("TimeSlices", "target", target)
        if not self.every:
            raise ConfigurationError(f"TimeSlices(every={every!r}): there must be a time in a slice")
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
