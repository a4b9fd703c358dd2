"""The search index: counts and ordered rows for a filter, kept up to date change by change.

A selection is what the traits of a filter leave over (the shapes, the availability, the media ...): a client has one
or two of them for all its requests, and it is found by translating whole columns of bytes. Inside it, the ranges are
counted by blocks. A listing is the answer to one filter in one order; pages are cut out of it.
"""

from __future__ import annotations

import math
from array import array
from collections import OrderedDict
from itertools import compress
from typing import TYPE_CHECKING, Final

from stepfast.diamonds.simulator.blocks import Blocks
from stepfast.diamonds.simulator.dimension import KEYS, Dimension, column, inside, key_of_row
from stepfast.diamonds.simulator.listing import Listing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from stepfast.diamonds.simulator.blocks import Interval
    from stepfast.diamonds.simulator.catalogue import Catalogue, Stone
    from stepfast.diamonds.simulator.filter import Filter, Ranges, Tables

SCANNED: Final = 2_000  # so few rows are looked at one by one
SELECTIONS: Final = 12
LISTED_ROWS: Final = 4_000_000
MOST_LISTINGS: Final = 400


class Selection:
    """The rows that pass the tables, in order of whatever somebody has asked about."""

    def __init__(self, index: Index, tables: Tables) -> None:
        self._index = index
        self.tables = tables
        self._blocks: dict[Dimension, Blocks] = {}
        self._mask = _mask(index.catalogue, tables)

    def count(self, ranges: Ranges) -> int:
        if not ranges:
            return len(self.blocks(Dimension.PER_CARAT))
        if len(ranges) == 1:
            dimension, intervals = ranges[0]
            return sum(map(self.blocks(dimension).count, intervals))
        lead, others, rough = self._lead(ranges)
        if rough <= SCANNED:
            return len(self._scan(lead, others))
        for number, (dimension, intervals) in enumerate(others):
            outside = self._outside(dimension, intervals)
            if (
                outside is not None
            ):  # nearly everything: count without it, and take back the few that it leaves out
                rest = (lead, *others[:number], *others[number + 1 :])
                return self.count(rest) - len(self._filtered(outside, rest))
        if len(others) == 1:
            name, seconds = others[0]
            second, blocks = (name, self._index.key(name)), self.blocks(lead[0])
            return sum(blocks.count_both(it, second, other) for it in lead[1] for other in seconds)
        return len(self._scan(lead, others))

    def rows(self, ranges: Ranges) -> array[int]:
        if not ranges:
            return self.blocks(Dimension.PER_CARAT).rows((float("-inf"), float("inf")))
        lead, others, _ = self._lead(ranges)
        return self._scan(lead, others)

    def blocks(self, dimension: Dimension) -> Blocks:
        found = self._blocks.get(dimension)
        if found is None:
            order = self._index.order(dimension)
            rows = list(compress(order, map(self._mask.__getitem__, order)))
            found = Blocks(list(map(self._index.key(dimension), rows)), rows)
            self._blocks[dimension] = found
        return found

    def change(self, before: Stone | None, after: Stone) -> None:
        """A row becomes another stone."""
        will = self.allows(after)
        if after.row == len(self._mask):
            self._mask.append(will)
        else:
            self._mask[after.row] = will
        if before is not None and self.allows(before):
            old: dict[str, float] = {it: KEYS[it](before) for it in self._blocks}
            for dimension, blocks in self._blocks.items():
                blocks.remove(old[dimension], before.row, old)
        if will:
            new: dict[str, float] = {it: KEYS[it](after) for it in self._blocks}
            for dimension, blocks in self._blocks.items():
                blocks.add(new[dimension], after.row, new)

    def allows(self, stone: Stone) -> bool:
        return all(table[stone.traits[trait]] for trait, table in self.tables)

    def _lead(self, ranges: Ranges) -> tuple[tuple[Dimension, tuple[Interval, ...]], Ranges, int]:
        """The narrowest range, and the rest."""
        sizes = [sum(map(self.blocks(it).count, intervals)) for it, intervals in ranges]
        best = sizes.index(min(sizes))
        return ranges[best], ranges[:best] + ranges[best + 1 :], sizes[best]

    def _scan(self, lead: tuple[Dimension, tuple[Interval, ...]], others: Ranges) -> array[int]:
        dimension, intervals = lead
        rows = array("I")
        for interval in intervals:
            rows += self.blocks(dimension).rows(interval)
        return self._filtered(rows, others)

    def _filtered(self, rows: array[int], ranges: Ranges) -> array[int]:
        for other, intervals in ranges:
            key = self._index.key(other)
            rows = array("I", [it for it in rows if inside(key(it), intervals)])
        return rows

    def _outside(self, dimension: Dimension, intervals: tuple[Interval, ...]) -> array[int] | None:
        """The rows that one interval leaves out, if they are few."""
        blocks = self.blocks(dimension)
        if len(intervals) > 1 or len(blocks) - blocks.count(intervals[0]) > SCANNED:
            return None
        low, high = intervals[0]
        below = blocks.rows((-math.inf, math.nextafter(low, -math.inf)))
        return below + blocks.rows((math.nextafter(high, math.inf), math.inf))


class Index:
    """What the search knows. It follows the truth at a distance: `change` is called when a change becomes visible."""

    def __init__(self, catalogue: Catalogue) -> None:
        self.catalogue = catalogue
        self._orders: dict[Dimension, list[int]] = {}
        self._changed: set[Dimension] = set()
        self._extents: dict[Dimension, Interval] = {}
        self._selections: OrderedDict[Tables, Selection] = OrderedDict()
        self._listings: OrderedDict[tuple[Filter, str], Listing] = OrderedDict()

    def count(self, filter_: Filter) -> int:
        if filter_.rows is not None:
            return len(self._given(filter_))
        return self._selection(filter_.tables).count(self._narrowing(filter_.ranges))

    def rows(self, filter_: Filter) -> Sequence[int]:
        if filter_.rows is not None:
            return self._given(filter_)
        return self._selection(filter_.tables).rows(self._narrowing(filter_.ranges))

    def listing(self, filter_: Filter, order: str) -> Listing:
        """All rows of the filter in this order; kept for the next page."""
        found = self._listings.get((filter_, order))
        if found is None:
            found = Listing(self.catalogue, order, self.rows(filter_))
            self._listings[filter_, order] = found
            self._forget_the_oldest()
        else:
            self._listings.move_to_end((filter_, order))
        return found

    def change(self, before: Stone | None, after: Stone) -> None:
        """A row becomes another stone: everything that was kept follows, and so do the columns."""
        for selection in self._selections.values():
            selection.change(before, after)
        moves = []
        for (filter_, _), listing in self._listings.items():
            was = before is not None and filter_.matches(before, self.catalogue)
            if was:
                listing.remove(after.row)  # its order still reads the old columns
            if filter_.matches(after, self.catalogue):
                moves.append(listing)
        self.catalogue.put(after)
        for listing in moves:
            listing.add(after.row)
        for dimension, (low, high) in self._extents.items():
            value = KEYS[dimension](after)
            self._extents[dimension] = min(low, value), max(high, value)
        self._changed.update(self._orders)

    def key(self, dimension: Dimension) -> Callable[[int], float]:
        return key_of_row(self.catalogue, dimension)

    def order(self, dimension: Dimension) -> list[int]:
        """All rows by this number. Once sorted, sorting again after some changes is cheap."""
        order = self._orders.get(dimension)
        if order is None or dimension in self._changed:
            kept: Iterable[int] = [] if order is None else order
            start = 0 if order is None else len(order)
            keys = column(self.catalogue, dimension)
            order = sorted([*kept, *range(start, len(self.catalogue))], key=keys.__getitem__)
            self._orders[dimension] = order
            self._changed.discard(dimension)
        return order

    def forget_listings(self) -> None:
        self._listings.clear()

    def _given(self, filter_: Filter) -> list[int]:
        known = range(len(self.catalogue))
        return [
            it
            for it in sorted(filter_.rows or ())
            if it in known and filter_.matches(self.catalogue.stone(it), self.catalogue)
        ]

    def _selection(self, tables: Tables) -> Selection:
        found = self._selections.get(tables)
        if found is None:
            found = self._selections[tables] = Selection(self, tables)
            if len(self._selections) > SELECTIONS:
                self._selections.popitem(last=False)
        else:
            self._selections.move_to_end(tables)
        return found

    def _narrowing(self, ranges: Ranges) -> Ranges:
        """Without those that every stone satisfies, such as a window since the year 2000."""
        return tuple(it for it in ranges if not self._covers(*it))

    def _covers(self, dimension: Dimension, intervals: Sequence[Interval]) -> bool:
        extent = self._extents.get(dimension)
        if extent is None:
            values = column(self.catalogue, dimension)
            extent = self._extents[dimension] = (min(values), max(values)) if values else (0.0, 0.0)
        return any(low <= extent[0] and extent[1] <= high for low, high in intervals)

    def _forget_the_oldest(self) -> None:
        rows = sum(map(len, self._listings.values()))
        while len(self._listings) > 1 and (rows > LISTED_ROWS or len(self._listings) > MOST_LISTINGS):
            _, oldest = self._listings.popitem(last=False)
            rows -= len(oldest)


def _mask(catalogue: Catalogue, tables: Tables) -> bytearray:
    """One byte per row: 1 if all its traits are allowed."""
    size = len(catalogue)
    mask = int.from_bytes(b"\x01" * size, "little")
    for trait, table in tables:
        mask &= int.from_bytes(catalogue.traits[trait].translate(table), "little")
    return bytearray(mask.to_bytes(size, "little"))
