"""The history of the catalogue: what happened to every stone, and when; and the driver that makes it happen.

The columns of the catalogue are what searches see. A change is written into a log with its stamp at once, and into the
columns when the index has caught up. So the truth at any time is the columns with the log replayed forwards, or taken
back, and nothing has to be copied.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Final

from stepfast.errors import ConfigurationError
from stepfast_diamonds.simulator.catalogue import Stone, random_traits
from stepfast_diamonds.simulator.search import Index
from stepfast_diamonds.simulator.vocabulary import AVAILABILITY, CERTIFIED, SPREADS, Trait

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from stepfast_diamonds.simulator.catalogue import Catalogue
    from stepfast_diamonds.simulator.filter import Filter


MANY_CHANGES: Final = 200  # changes at once: making the listings anew is cheaper than changing all of them


@dataclass(frozen=True)
class Change:
    """One stone became another at an instant; `before` is None for a new one."""

    at: int
    kind: str
    before: Stone | None
    after: Stone

    @property
    def row(self) -> int:
        return self.after.row


class History:
    """The catalogue, the search index over it, and the log of changes."""

    def __init__(self, catalogue: Catalogue) -> None:
        self.catalogue = catalogue
        self.index = Index(catalogue)
        self.log: list[Change] = []
        self._stamps: list[int] = []
        self._visible = 0  # so many changes are in the columns
        self._pending: dict[int, Stone] = {}  # rows whose newest change is not
        self._rows = len(catalogue)

    def __len__(self) -> int:
        """How many rows there have ever been."""
        return self._rows

    def truth(self, row: int) -> Stone | None:
        """The stone as the source's database has it now."""
        if not 0 <= row < self._rows:
            return None
        return self._pending.get(row) or self.catalogue.stone(row)

    def record(self, kind: str, after: Stone) -> Change:
        """A stone changes at its own `updated_at`; stamps never go backwards."""
        if self._stamps and after.updated_at < self._stamps[-1]:
            raise ValueError("a change cannot be older than the one before it")
        change = Change(after.updated_at, kind, self.truth(after.row), after)
        self._rows = max(self._rows, after.row + 1)
        self.log.append(change)
        self._stamps.append(change.at)
        self._pending[after.row] = after
        return change

    def reveal(self, until: int) -> None:
        """Searches now see every change up to this stamp."""
        end = bisect_right(self._stamps, until)
        if end - self._visible > MANY_CHANGES:
            self.index.forget_listings()
        for change in self.log[self._visible : end]:
            self.index.change(change.before, change.after)
            if self._pending.get(change.row) == change.after:
                del self._pending[change.row]
        self._visible = max(end, self._visible)

    def count(self, filter_: Filter, until: int | None = None) -> int:
        """The count that searches see; with `until`, the one they saw when the log had come so far."""
        total = self.index.count(filter_)
        if until is not None:
            for change in self.log[bisect_right(self._stamps, until) : self._visible]:
                total += self._fits(filter_, change.before) - self._fits(filter_, change.after)
        return total

    def position(self, at: int | None = None) -> int:
        """How many changes had happened at an instant, its own included; until now, without one."""
        return len(self.log) if at is None else bisect_right(self._stamps, at)

    def snapshot(
        self, position: int, filter_: Filter | None = None, rows: range | None = None
    ) -> Iterator[Stone]:
        """Every stone (of these rows) that was there after so many changes, whatever searches knew of it."""
        moved = self._moved(position)
        for row in range(self._rows) if rows is None else rows:
            stone = moved[row] if row in moved else self.catalogue.stone(row)
            if (
                stone is not None
                and stone.present
                and (filter_ is None or filter_.matches(stone, self.catalogue))
            ):
                yield stone

    def changes(self, since: int, until: int) -> list[Change]:
        """The changes in (since, until]."""
        return self.log[bisect_right(self._stamps, since) : bisect_right(self._stamps, until)]

    def _moved(self, end: int) -> dict[int, Stone | None]:
        """The rows whose stone after so many changes is not the one in the columns."""
        moved: dict[int, Stone | None] = {}
        for change in reversed(self.log[end : self._visible]):
            moved[change.row] = change.before
        for change in self.log[self._visible :]:
            moved.setdefault(change.row, change.before)  # rows that are not in the columns yet
        for change in self.log[self._visible : end]:
            moved[change.row] = change.after
        return moved

    def _fits(self, filter_: Filter, stone: Stone | None) -> int:
        return int(stone is not None and filter_.matches(stone, self.catalogue))


MUTATIONS: Final = {
    "insert": 10,
    "price": 50,
    "availability": 12,
    "hold": 10,
    "delete": 8,
    "relist": 8,
    "recertificate": 2,
}  # by how often they happen
BURST: Final = "burst"  # one supplier, one instant, thousands of prices
ATTEMPTS: Final = 200  # to find a stone that a mutation fits

_AVAILABLE, _HOLD, _SOLD = (AVAILABILITY.index(it) for it in ("AVAILABLE", "HOLD", "SOLD"))


class Mutations:
    """The driver of the history: stones arrive, change their price, are held, sold, deleted and listed again.

    It acts at each request: it makes up for the time that has passed since the last one, change by change, at stamps that
    the seed alone decides. So two simulators with one seed have the same history at the same virtual time.
    """

    def __init__(self, history: History, seed: int, start: int) -> None:
        self._history = history
        self._dice = Random(f"mutations {seed}")
        self._chosen = Random(f"asked-for mutations {seed}")  # what tests ask for does not move the driver
        self._last = float(start)
        self._gap = self._dice.expovariate(1.0)  # until the next change, in units of their rate
        self._labgrown = any(history.catalogue.traits[Trait.LABGROWN])
        self._natural = not all(history.catalogue.traits[Trait.LABGROWN])

    def catch_up(self, now: int, per_minute: float) -> None:
        """Make the changes that are due by `now`."""
        if per_minute <= 0:
            self._last = max(self._last, now)
            return
        unit = 60_000_000 / per_minute
        while self._last + self._gap * unit <= now:
            self._last += self._gap * unit
            self._gap = self._dice.expovariate(1.0)
            kind = self._dice.choices(list(MUTATIONS), list(MUTATIONS.values()))[0]
            self._one(kind, int(self._last), self._dice)

    def ask(self, kind: str, now: int, *, count: int = 1, rows: Sequence[int] | None = None) -> list[Change]:
        """Make so many changes of one kind at once, to random stones or to these rows."""
        if kind not in {*MUTATIONS, BURST}:
            raise ConfigurationError(
                f"mutate: there is no kind {kind!r}; there are {', '.join([*MUTATIONS, BURST])}"
            )
        if rows is not None:
            return [self._change(kind, now, it, self._chosen) for it in rows]
        if kind == BURST:
            return self._burst(now, count)
        return [self._one(kind, now, self._chosen) for _ in range(count)]

    def _burst(self, now: int, count: int) -> list[Change]:
        """Change the prices of neighbours that are present: the stones of one upload."""
        first = self._chosen.randrange(max(1, len(self._history) - count))
        found: list[Change] = []
        for row in range(first, len(self._history)):
            stone = self._history.truth(row)
            if stone is not None and stone.present and len(found) < count:
                found.append(self._change("price", now, row, self._chosen))
        return found

    def _one(self, kind: str, at: int, dice: Random) -> Change:
        if kind == "insert":
            return self._history.record(kind, self._new(at, dice))
        for _ in range(ATTEMPTS):
            row = dice.randrange(len(self._history))
            stone = self._history.truth(row)
            if stone is not None and _fits(kind, stone):
                return self._change(kind, at, row, dice)
        return self._history.record("insert", self._new(at, dice))  # hardly a stone is left to change

    def _change(self, kind: str, at: int, row: int, dice: Random) -> Change:
        stone = self._history.truth(row)
        if stone is None:
            raise ConfigurationError(f"mutate: there is no row {row}")
        return self._history.record(kind, _changed(kind, stone, dice)._replace(updated_at=at))

    def _new(self, at: int, dice: Random) -> Stone:
        """A new stone, priced like another one of its feed."""
        labgrown = self._labgrown and (not self._natural or dice.random() < 0.5)  # noqa: PLR2004 - as many of both
        model = self._model(dice, labgrown=labgrown)
        price = max(100, round(model.price * (0.9 + 0.2 * dice.random())))
        traits = random_traits(dice, labgrown=labgrown)
        return Stone(len(self._history), price, model.carats, at, at, 0, traits)

    def _model(self, dice: Random, *, labgrown: bool) -> Stone:
        for _ in range(ATTEMPTS):
            stone = self._history.truth(dice.randrange(len(self._history)))
            if stone is not None and stone.traits[Trait.LABGROWN] == labgrown:
                return stone
        return Stone(0, 100_000, 100, 0, 0, 0, bytes(len(Trait)))


def _fits(kind: str, stone: Stone) -> bool:
    """Whether a mutation fits a stone: a relist needs one that is gone or not for sale, all others a present one."""
    if kind == "relist":
        return not stone.present or stone.traits[Trait.AVAILABILITY] != _AVAILABLE
    if kind == "hold":
        return stone.present and stone.traits[Trait.AVAILABILITY] == _AVAILABLE
    return stone.present


def _changed(kind: str, stone: Stone, dice: Random) -> Stone:
    match kind:
        case "price":
            moved = round(stone.price * (0.85 + 0.3 * dice.random()))
            return stone._replace(price=max(100, moved if moved != stone.price else stone.price + 1))
        case "availability":
            now = stone.traits[Trait.AVAILABILITY]
            return stone.with_trait(
                Trait.AVAILABILITY, dice.choice([it for it in range(len(AVAILABILITY)) if it != now])
            )
        case "hold":
            return stone.with_trait(Trait.AVAILABILITY, _HOLD)
        case "delete":
            return stone.with_trait(Trait.PRESENT, 0)
        case "relist":
            return stone.with_trait(Trait.PRESENT, 1).with_trait(Trait.AVAILABILITY, _AVAILABLE)
        case _:
            for trait in CERTIFIED:
                stone = stone.with_trait(trait, SPREADS[trait].table[dice.randrange(256)])
            return stone._replace(revision=(stone.revision + 1) % 64)
