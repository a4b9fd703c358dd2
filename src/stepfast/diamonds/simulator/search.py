"""Pages and counts, as unreliable as they are in life."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from stepfast.diamonds.simulator.filter import Filter
    from stepfast.diamonds.simulator.history import History
    from stepfast.diamonds.simulator.knobs import Knobs
    from stepfast.diamonds.simulator.listing import Listing

UNRELATED: Final = 30  # rows that an inverted range finds
MOST_MISSING: Final = 5  # rows that a short page lacks
SPAN: Final = 50  # places of the index that lose some of their rows together


class Search:
    """What `diamonds_by_query` and its count say. `dice` is new for every request."""

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
    """Past the end: earlier rows again, for some pages."""
    size = len(listing)
    if not size or (offset - size) // limit >= knobs.overrun_pages:
        return []
    start = offset % size
    return listing.window(start, start + limit, **look)


class Ghosts:
    """Places of the index whose stone is gone: they take room in an offset, and nothing is delivered for them."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._knobs: tuple[float, float] | None = None
        self._kept = [0]  # rows that are left before each span

    def rows_before(self, place: int, knobs: Knobs) -> int:
        """How many of the places before this one have a row."""
        wanted = (knobs.short_page_prob, knobs.empty_page_prob)
        if wanted != self._knobs:
            self._knobs, self._kept = wanted, [0]
        span, inside = divmod(place, SPAN)
        while len(self._kept) <= span + 1:
            self._kept.append(self._kept[-1] + SPAN - self._missing(len(self._kept) - 1, *wanted))
        return self._kept[span] + min(inside, self._kept[span + 1] - self._kept[span])

    def _missing(self, span: int, short: float, empty: float) -> int:
        dice = Random(f"ghosts {self._seed} {span}")
        if dice.random() < empty:
            return SPAN
        return dice.randint(1, MOST_MISSING) if dice.random() < short else 0
