"""All rows of an answer in one order, and the pages cut out of it.

No order of this API ends ties by an id: stones of one upload share their creation, and may change places between two
requests. `shuffled` says how.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING, Final

from stepfast.diamonds.simulator.dimension import Dimension, key_of_row
from stepfast.diamonds.simulator.vocabulary import Trait

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from stepfast.diamonds.simulator.catalogue import Catalogue

ORDERS: Final = (
    "createdAt", "price", "discount", "size", "none", "insert", "color", "clarity", "cut", "price_per_carat", "popular",
)  # fmt: skip


def order_key(catalogue: Catalogue, order: str) -> Callable[[int], float]:
    """The number that this order goes by; equal numbers are ties."""
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


class Listing:
    """Rows by (key, row). A row is taken out before its columns change and put back after."""

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


def shuffled(place: int, size: int, dice: int) -> int:
    """Another place of the same ring: every place is the image of exactly one."""
    step = 1 + dice % size
    while math.gcd(step, size) != 1:
        step += 1
    return (place * step + dice // 7) % size
