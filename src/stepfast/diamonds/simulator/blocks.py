"""Numbers in order, cut into blocks on shelves: count a range, or a rectangle, while rows come and go.

A block keeps some hundred keys in an array and the rows they belong to in another; a shelf keeps some dozen blocks. A
range is a handful of bisections. A second dimension costs two bisections more for every shelf and every block that
lies inside, because they keep the second keys of their rows in order too, once somebody has asked. So a rectangle over
900,000 rows takes a fraction of a millisecond, a change some microseconds, and everything together about 12 bytes per
row. A plain sorted array would be quicker to build, and each change would move megabytes; numpy would be quicker at
everything, and is no dependency of ours.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right, insort
from itertools import accumulate, chain
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

SIZE: Final = 512  # keys in a block, at first
WIDTH: Final = 32  # blocks on a shelf, at first

Interval = tuple[float, float]  # both ends included
SecondKey = tuple[str, "Callable[[int], float]"]  # the name of a dimension, and its number for a row
Others = dict[str, list[float]]  # second keys in order, by the name of their dimension


class Block:
    """Up to twice as many neighbours as there were at first."""

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


class Shelf:
    """Neighbouring blocks."""

    __slots__ = ("blocks", "last", "others", "size")

    def __init__(self, blocks: list[Block]) -> None:
        self.blocks = blocks
        self.last = [_last(it) for it in blocks]
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


class Blocks:
    """Rows by one key."""

    def __init__(self, keys: Sequence[float], rows: Sequence[int]) -> None:
        """`keys` are in order already, and belong to `rows`."""
        blocks = [
            Block(array("d", keys[n : n + SIZE]), array("I", rows[n : n + SIZE]))
            for n in range(0, len(keys), SIZE)
        ] or [Block(array("d"), array("I"))]
        self._shelves = [Shelf(blocks[n : n + WIDTH]) for n in range(0, len(blocks), WIDTH)]
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
        if len(block.keys) > 2 * SIZE:
            self._halve(shelf, place)
        shelf.last[place] = _last(block)
        self._last[number] = shelf.last[-1]
        if len(shelf.blocks) > 2 * WIDTH:
            self._shelves[number : number + 1] = [Shelf(shelf.blocks[:WIDTH]), Shelf(shelf.blocks[WIDTH:])]
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
        half = Block(block.keys[SIZE:], block.rows[SIZE:])
        del block.keys[SIZE:], block.rows[SIZE:]
        block.others.clear()
        shelf.blocks.insert(place + 1, half)
        shelf.last.insert(place + 1, _last(half))

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
        shelf.last[place] = _last(block)
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


def _last(block: Block) -> float:
    return block.keys[-1] if block.keys else float("-inf")
