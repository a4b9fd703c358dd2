"""The search of the simulator: pages and counts of a filter, as unreliable as those of the real API.

`Search` adds the flaws. `Index` has the exact answers, kept up to date change by change: a `Selection` of rows for the
traits of a filter, whose ranges are counted by `Blocks`; a `Listing` of rows in one order, from which pages are cut.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left, bisect_right, insort
from collections import OrderedDict
from itertools import accumulate, chain, compress
from random import Random
from typing import TYPE_CHECKING, Any, Final

from stepfast_diamonds.simulator.vocabulary import KEYS, Dimension, Trait, column, inside, key_of_row

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from stepfast_diamonds.simulator.catalogue import Catalogue, Stone
    from stepfast_diamonds.simulator.faults import Knobs
    from stepfast_diamonds.simulator.filter import Filter, Ranges, Tables
    from stepfast_diamonds.simulator.history import History


UNRELATED: Final = 30  # rows that an inverted range finds
MOST_MISSING: Final = 5  # rows that a short page lacks
GHOST_SPAN: Final = 50  # places of the index that lose some of their rows together


class Search:
    """The answers of `diamonds_by_query` and its count. `dice` is new for every request."""

    def __init__(self, history: History, seed: int) -> None:
        self._history = history
        self._ghosts = Ghosts(seed)
        self._seed = seed

    def count(self, filter_: Filter, knobs: Knobs, now: int) -> int:
        if filter_.inverted:
            return min(UNRELATED, len(self._history.catalogue))
        seen = now - int(1e6 * (knobs.index_lag_s + knobs.count_lag_s))
        exact = self._history.count(filter_, seen if knobs.count_lag_s else None)
        return max(0, round(exact * (1 + knobs.count_skew)))

    def page(
        self,
        filter_: Filter,
        *,
        order: dict[str, str] | None,
        offset: int,
        limit: int,
        knobs: Knobs,
        dice: Random,
    ) -> list[int]:
        """Rows of one page."""
        if filter_.inverted:
            return self._unrelated()[offset : offset + limit]
        listing = self._history.index.listing(filter_, order["type"] if order else "none")
        look: dict[str, Any] = {
            "descending": order is not None and order["direction"] == "DESC",
            "dice": dice.getrandbits(30) if knobs.unstable_ties else None,
        }
        if knobs.short_page_mode == "postfilter":
            return self._without_ghosts(listing, offset, limit, knobs, look)
        if offset >= len(listing):
            return _overrun(listing, offset, limit, knobs, look)
        rows = listing.window(offset, offset + limit, **look)
        if len(rows) == limit and dice.random() < knobs.short_page_prob:
            del rows[-dice.randint(1, MOST_MISSING) :]
        return rows

    def _without_ghosts(
        self, listing: Listing, offset: int, limit: int, knobs: Knobs, look: dict[str, Any]
    ) -> list[int]:
        start = self._ghosts.rows_before(offset, knobs)
        stop = self._ghosts.rows_before(offset + limit, knobs)
        if start >= len(listing):
            return _overrun(listing, offset, limit, knobs, look)
        return listing.window(start, stop, **look)

    def _unrelated(self) -> list[int]:
        size = len(self._history.catalogue)
        return Random(f"unrelated {self._seed}").sample(range(size), min(UNRELATED, size))


def _overrun(listing: Listing, offset: int, limit: int, knobs: Knobs, look: dict[str, Any]) -> list[int]:
    """A page past the end: earlier rows again, for some pages."""
    size = len(listing)
    if not size or (offset - size) // limit >= knobs.overrun_pages:
        return []
    start = offset % size
    return listing.window(start, start + limit, **look)


class Ghosts:
    """Places of the index whose stone is gone: they count in an offset, and no row is delivered for them."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._knobs: tuple[float, float] | None = None
        self._kept = [0]  # rows that are left before each span

    def rows_before(self, place: int, knobs: Knobs) -> int:
        """How many of the places before this one have a row."""
        wanted = (knobs.short_page_prob, knobs.empty_page_prob)
        if wanted != self._knobs:
            self._knobs, self._kept = wanted, [0]
        span, inside = divmod(place, GHOST_SPAN)
        while len(self._kept) <= span + 1:
            self._kept.append(self._kept[-1] + GHOST_SPAN - self._missing(len(self._kept) - 1, *wanted))
        return self._kept[span] + min(inside, self._kept[span + 1] - self._kept[span])

    def _missing(self, span: int, short: float, empty: float) -> int:
        dice = Random(f"ghosts {self._seed} {span}")
        if dice.random() < empty:
            return GHOST_SPAN
        return dice.randint(1, MOST_MISSING) if dice.random() < short else 0


SCANNED: Final = 2_000  # so few rows are looked at one by one
SELECTIONS: Final = 12
LISTED_ROWS: Final = 4_000_000
MOST_LISTINGS: Final = 400


class Index:
    """Counts and ordered rows for a filter. It lags behind the truth: `change` is called when a change becomes visible."""

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
        """A row becomes another stone: selections, listings and columns follow."""
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
        """The ranges without those that every stone satisfies, such as a window since the year 2000."""
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


class Selection:
    """The rows that the traits of a filter leave over (shapes, availability, media), ordered by each requested dimension.

    A client has one or two of them for all its requests. They are found by translating whole columns of bytes; inside,
    ranges are counted by blocks.
    """

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
            ):  # nearly everything: count without it, and subtract the few that it leaves out
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


def _mask(catalogue: Catalogue, tables: Tables) -> bytearray:
    """One byte per row: 1 if all its traits are allowed."""
    size = len(catalogue)
    mask = int.from_bytes(b"\x01" * size, "little")
    for trait, table in tables:
        mask &= int.from_bytes(catalogue.traits[trait].translate(table), "little")
    return bytearray(mask.to_bytes(size, "little"))


ORDERS: Final = (
    "createdAt", "price", "discount", "size", "none", "insert", "color", "clarity", "cut", "price_per_carat", "popular",
)  # fmt: skip


class Listing:
    """All rows of an answer in one order, from which pages are cut.

    Rows stand by (key, row); one is taken out before its columns change, and put back after. No order of this API ends
    ties by an id: stones of one upload share their creation, and may change places between two requests (`shuffled`).
    """

    def __init__(self, catalogue: Catalogue, order: str, rows: Sequence[int]) -> None:
        key = self._key = order_key(catalogue, order)
        self._rows = array("I", sorted(sorted(rows), key=key))

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, row: int) -> None:
        self._rows.insert(bisect_left(self._rows, self._place(row), key=self._place), row)

    def remove(self, row: int) -> None:
        place = bisect_left(self._rows, self._place(row), key=self._place)
        if place == len(self._rows) or self._rows[place] != row:
            raise KeyError(row)
        del self._rows[place]

    def window(
        self, start: int, stop: int, *, descending: bool = False, dice: int | None = None
    ) -> list[int]:
        """Rows from place to place; with `dice`, rows that share a key are permuted as this number says."""
        size = len(self._rows)
        start, stop = max(0, min(start, size)), max(0, min(stop, size))
        places = range(size - 1 - start, size - 1 - stop, -1) if descending else range(start, stop)
        if dice is None:
            return [self._rows[it] for it in places]
        found: list[int] = []
        group = range(0)
        for place in places:
            if place not in group:
                group = self._group(place)
            found.append(self._rows[group.start + shuffled(place - group.start, len(group), dice)])
        return found

    def _place(self, row: int) -> tuple[float, int]:
        return self._key(row), row

    def _group(self, place: int) -> range:
        """The places whose rows share the key of this one."""
        key = self._key(self._rows[place])
        return range(
            bisect_left(self._rows, key, key=self._key), bisect_right(self._rows, key, key=self._key)
        )


def order_key(catalogue: Catalogue, order: str) -> Callable[[int], float]:
    """The sort key of an order; equal keys are ties."""
    columns: dict[str, Callable[[int], float]] = {
        "createdAt": catalogue.created_at.__getitem__,
        "price": catalogue.price.__getitem__,
        "size": catalogue.carats.__getitem__,
        "price_per_carat": key_of_row(catalogue, Dimension.PER_CARAT),
        "discount": key_of_row(catalogue, Dimension.DISCOUNT),
        "popular": catalogue.traits[Trait.LUCK].__getitem__,
    }
    if order in {"color", "clarity", "cut"}:
        return catalogue.traits[Trait[order.upper()]].__getitem__
    return columns.get(order, float)


def shuffled(place: int, size: int, dice: int) -> int:
    """A permutation of the places of a tie, chosen by `dice`."""
    step = 1 + dice % size
    while math.gcd(step, size) != 1:
        step += 1
    return (place * step + dice // 7) % size


BLOCK_SIZE: Final = 512  # keys in a block, at first
SHELF_SIZE: Final = 32  # blocks on a shelf, at first
Interval = tuple[float, float]  # both ends included
SecondKey = tuple[str, "Callable[[int], float]"]  # the name of a dimension, and its number for a row
Others = dict[str, list[float]]  # second keys in order, by the name of their dimension


class Blocks:
    """Rows by one key, cut into blocks on shelves: count a range, or a rectangle, while rows come and go.

    A block keeps some hundred keys in an array and their rows in another; a shelf keeps some dozen blocks. A range is a
    handful of bisections. A second dimension costs two bisections more for every shelf and every block that lies inside,
    because they keep the second keys of their rows in order, too, once they were asked for. So a rectangle over 900,000
    rows takes a fraction of a millisecond, a change some microseconds, and everything together about 12 bytes per row. A
    plain sorted array would be quicker to build, and each change would move megabytes; numpy would be quicker at
    everything, and is no dependency of ours.
    """

    def __init__(self, keys: Sequence[float], rows: Sequence[int]) -> None:
        """`keys` are in order already, and belong to `rows`."""
        blocks = [
            Block(array("d", keys[n : n + BLOCK_SIZE]), array("I", rows[n : n + BLOCK_SIZE]))
            for n in range(0, len(keys), BLOCK_SIZE)
        ] or [Block(array("d"), array("I"))]
        self._shelves = [Shelf(blocks[n : n + SHELF_SIZE]) for n in range(0, len(blocks), SHELF_SIZE)]
        self._last = [it.last[-1] for it in self._shelves]
        self._sums: list[int] | None = None  # None after a change: adding up waits for the next question

    def __len__(self) -> int:
        return self._ranks()[-1]

    def add(self, key: float, row: int, seconds: Mapping[str, float] | None = None) -> None:
        """`seconds` are the row's numbers in other dimensions; those that are not given are looked up again."""
        number = min(bisect_left(self._last, key), len(self._shelves) - 1)
        shelf = self._shelves[number]
        place = min(bisect_left(shelf.last, key), len(shelf.blocks) - 1)
        block = shelf.blocks[place]
        at = bisect_right(block.keys, key)
        block.keys.insert(at, key)
        block.rows.insert(at, row)
        shelf.size += 1
        for others in (block.others, shelf.others):
            for name in list(others):
                if seconds is not None and name in seconds:
                    insort(others[name], seconds[name])
                else:
                    del others[name]
        if len(block.keys) > 2 * BLOCK_SIZE:
            self._halve(shelf, place)
        shelf.last[place] = _last_key(block)
        self._last[number] = shelf.last[-1]
        if len(shelf.blocks) > 2 * SHELF_SIZE:
            self._shelves[number : number + 1] = [
                Shelf(shelf.blocks[:SHELF_SIZE]),
                Shelf(shelf.blocks[SHELF_SIZE:]),
            ]
            self._last[number : number + 1] = [it.last[-1] for it in self._shelves[number : number + 2]]
        self._sums = None

    def remove(self, key: float, row: int, seconds: Mapping[str, float] | None = None) -> None:
        for number in range(bisect_left(self._last, key), len(self._shelves)):
            shelf = self._shelves[number]
            for place in range(bisect_left(shelf.last, key), len(shelf.blocks)):
                block = shelf.blocks[place]
                low, high = bisect_left(block.keys, key), bisect_right(block.keys, key)
                if row in block.rows[low:high]:
                    self._take_out(number, place, block.rows.index(row, low, high), seconds or {})
                    return
                if high < len(block.keys):
                    raise KeyError(row)
        raise KeyError(row)

    def count(self, interval: Interval) -> int:
        """Rows whose key lies in the interval."""
        low, high = interval
        return max(0, self._rank(high, bisect_right) - self._rank(low, bisect_left))

    def count_both(self, interval: Interval, of: SecondKey, second: Interval) -> int:
        """Rows whose key lies in the interval and whose second key lies in the other one."""
        total, (least, most) = 0, second
        for found in self._overlaps(interval):
            if isinstance(found, Shelf | Block):
                keys = found.second(of)
                total += bisect_right(keys, most) - bisect_left(keys, least)
            else:
                total += sum(1 for it in map(of[1], found) if least <= it <= most)
        return total

    def rows(self, interval: Interval) -> array[int]:
        result = array("I")
        for found in self._overlaps(interval):
            blocks: Iterable[Block] = found.blocks if isinstance(found, Shelf) else ()
            for it in blocks:
                result += it.rows
            if isinstance(found, Block):
                result += found.rows
            elif not isinstance(found, Shelf):
                result += found
        return result

    def _overlaps(self, interval: Interval) -> Iterator[Shelf | Block | array[int]]:
        """Whole shelves, whole blocks, and parts of blocks."""
        low, high = interval
        for number in range(bisect_left(self._last, low), len(self._shelves)):
            shelf = self._shelves[number]
            if shelf.last[-1] <= high and shelf.size and shelf.blocks[0].keys[0] >= low:
                yield shelf
                continue
            for place in range(bisect_left(shelf.last, low), len(shelf.blocks)):
                block = shelf.blocks[place]
                start, stop = bisect_left(block.keys, low), bisect_right(block.keys, high)
                if stop - start == len(block.keys):
                    yield block
                elif start < stop:
                    yield block.rows[start:stop]
                if stop < len(block.keys):
                    return

    def _halve(self, shelf: Shelf, place: int) -> None:
        block = shelf.blocks[place]
        half = Block(block.keys[BLOCK_SIZE:], block.rows[BLOCK_SIZE:])
        del block.keys[BLOCK_SIZE:], block.rows[BLOCK_SIZE:]
        block.others.clear()
        shelf.blocks.insert(place + 1, half)
        shelf.last.insert(place + 1, _last_key(half))

    def _take_out(self, number: int, place: int, at: int, seconds: Mapping[str, float]) -> None:
        shelf = self._shelves[number]
        block = shelf.blocks[place]
        del block.keys[at], block.rows[at]
        shelf.size -= 1
        for others in (block.others, shelf.others):
            for name in list(others):
                if name in seconds:
                    del others[name][bisect_left(others[name], seconds[name])]
                else:
                    del others[name]
        shelf.last[place] = _last_key(block)
        if not block.keys and len(shelf.blocks) > 1:
            del shelf.blocks[place], shelf.last[place]
        self._last[number] = shelf.last[-1]
        if not shelf.size and len(self._shelves) > 1:
            del self._shelves[number], self._last[number]
        self._sums = None

    def _rank(self, key: float, side: Callable[[Sequence[float], float], int]) -> int:
        """How many keys stand before this one."""
        number = side(self._last, key)
        if number == len(self._shelves):
            return self._ranks()[-1]
        return self._ranks()[number] + self._shelves[number].before(key, side)

    def _ranks(self) -> list[int]:
        if self._sums is None:
            self._sums = [0, *accumulate(it.size for it in self._shelves)]
        return self._sums


class Shelf:
    """Neighbouring blocks."""

    __slots__ = ("blocks", "last", "others", "size")

    def __init__(self, blocks: list[Block]) -> None:
        self.blocks = blocks
        self.last = [_last_key(it) for it in blocks]
        self.size = sum(len(it.keys) for it in blocks)
        self.others: Others = {}

    def second(self, of: SecondKey) -> list[float]:
        found = self.others.get(of[0])
        if found is None:
            found = self.others[of[0]] = sorted(chain.from_iterable(it.second(of) for it in self.blocks))
        return found

    def before(self, key: float, side: Callable[[Sequence[float], float], int]) -> int:
        """How many of its keys stand before this one."""
        number = side(self.last, key)
        whole = sum(len(it.keys) for it in self.blocks[:number])
        return whole + (side(self.blocks[number].keys, key) if number < len(self.blocks) else 0)


class Block:
    """Neighbouring keys, up to twice as many as there were at first."""

    __slots__ = ("keys", "others", "rows")

    def __init__(self, keys: array[float], rows: array[int]) -> None:
        self.keys = keys
        self.rows = rows
        self.others: Others = {}

    def second(self, of: SecondKey) -> list[float]:
        name, key = of
        found = self.others.get(name)
        if found is None:
            found = self.others[name] = sorted(map(key, self.rows))
        return found


def _last_key(block: Block) -> float:
    return block.keys[-1] if block.keys else float("-inf")
