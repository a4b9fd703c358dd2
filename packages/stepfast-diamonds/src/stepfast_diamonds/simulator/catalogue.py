"""Every stone as a row of columns: arrays of numbers and one byte per trait.

Half a million stones are about 30 MB this way, and a filter over all of them is `bytes.translate` and a bitwise and,
which run at the speed of C. Ids and certificate numbers are computed from the row and back again, so that nothing has
to be looked up.
"""

from __future__ import annotations

from array import array
from random import Random
from typing import TYPE_CHECKING, Final, NamedTuple

from stepfast_diamonds.simulator.profile import sample
from stepfast_diamonds.simulator.vocabulary import CERTIFIED, SPREADS, Trait

if TYPE_CHECKING:
    from stepfast_diamonds.simulator.profile import Part


DAY: Final = 86_400_000_000
OLDEST: Final = 730 * DAY
UPLOAD: Final = 200  # stones that arrive together share their creation
REPRICED: Final = 500  # stones, on average, that a supplier changes at one instant
TWINS: Final = 53  # one stone in so many is offered by a second supplier under the same certificate

_NODE: Final = 2**48
_NODE_STEP: Final = 0x5DEECE66D
_NODE_BACK: Final = pow(_NODE_STEP, -1, _NODE)
_NUMBERS: Final = 9_999_999_967  # a prime: every certificate number has ten digits at most
_NUMBER_STEP: Final = 7_640_891_576
_NUMBER_BACK: Final = pow(_NUMBER_STEP, -1, _NUMBERS)
_REVISIONS: Final = 64


class Stone(NamedTuple):
    """All that can change about a stone, at one instant. It is compared, kept and never altered."""

    row: int
    price: int  # cents
    carats: int  # hundredths
    created_at: int  # microseconds since 1970, hidden from clients
    updated_at: int  # the same
    revision: int  # of its certificate
    traits: bytes  # one byte per Trait

    @property
    def present(self) -> bool:
        return self.traits[Trait.PRESENT] == 1

    def with_trait(self, trait: Trait, value: int) -> Stone:
        return self._replace(traits=self.traits[:trait] + bytes([value]) + self.traits[trait + 1 :])


class Catalogue:
    """The columns. Rows are appended and changed, never removed: a deleted stone is one that is not present."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.price = array("I")
        self.carats = array("H")
        self.created_at = array("q")
        self.updated_at = array("q")
        self.revision = array("B")
        self.traits = [bytearray() for _ in Trait]
        self._salt = Random(f"ids {seed}").randrange(_NODE)

    def __len__(self) -> int:
        return len(self.price)

    def stone(self, row: int) -> Stone:
        return Stone(
            row,
            self.price[row],
            self.carats[row],
            self.created_at[row],
            self.updated_at[row],
            self.revision[row],
            bytes([column[row] for column in self.traits]),
        )

    def put(self, stone: Stone) -> None:
        """Write a stone into its row, which may be the one after the last."""
        row = stone.row
        if row == len(self):
            for column in (self.price, self.carats, self.created_at, self.updated_at, self.revision):
                column.append(0)
            for trait in self.traits:
                trait.append(0)
        self.price[row], self.carats[row] = stone.price, stone.carats
        self.created_at[row], self.updated_at[row] = stone.created_at, stone.updated_at
        self.revision[row] = stone.revision
        for trait, value in zip(self.traits, stone.traits, strict=True):
            trait[row] = value

    def diamond_id(self, row: int) -> str:
        node = (row * _NODE_STEP + self._salt) % _NODE
        head = node * 0x9E3779B97F4A7C15 >> 20 & 0xFFFFFFFFFFFFFF
        return f"{head >> 24:08x}-{head >> 8 & 0xFFFF:04x}-4{head & 0xFF:02x}0-8000-{node:012x}"

    def row_of(self, diamond_id: str) -> int | None:
        """The row behind an id, with or without the word of an offer in front."""
        plain = diamond_id.removeprefix("DIAMOND/")
        try:
            row = (int(plain[-12:], 16) - self._salt) * _NODE_BACK % _NODE
        except ValueError:
            return None
        return row if row < 2**32 and self.diamond_id(row) == plain else None

    def certificate_number(self, row: int, revision: int) -> str:
        return str((_first(row) * _REVISIONS + revision) * _NUMBER_STEP % _NUMBERS)

    def rows_of_certificate(self, number: str) -> list[int]:
        """The rows that may carry this number; whether they do now depends on their revision."""
        if not number.isdecimal() or int(number) >= _NUMBERS:
            return []
        row = int(number) * _NUMBER_BACK % _NUMBERS // _REVISIONS
        return [it for it in (row, row + 1) if _first(it) == _first(row)] if row < 2**32 else []

    def grow(self, part: Part, dice: Random, now: int) -> None:
        """Append a whole feed, as it has become over two years until `now`."""
        first, count = len(self), part.stones
        prices, carats = sample(part, dice)
        self.price += prices
        self.carats += carats
        self.revision.extend(bytes(count))
        for trait in Trait:
            column = self.traits[trait]
            if trait is Trait.PRESENT or (trait is Trait.LABGROWN and part.labgrown):
                column += b"\x01" * count
            elif trait is Trait.LABGROWN:
                column += bytes(count)
            else:
                column += dice.randbytes(count).translate(SPREADS[trait].table)
        self._date(first, count, dice, now)
        self._pair(first)

    def _date(self, first: int, count: int, dice: Random, now: int) -> None:
        newest = now - 60_000_000  # nothing happened during the last minute
        uploads = sorted(newest - int(OLDEST * dice.random() ** 2) for _ in range(count // UPLOAD + 1))
        prices = sorted(newest - int(OLDEST * dice.random() ** 3) for _ in range(count // REPRICED + 1))
        for n in range(count):
            created = uploads[n // UPLOAD]
            changed = prices[int(dice.random() * len(prices))]
            self.created_at.append(created)
            self.updated_at.append(max(created, changed))
        del first

    def _pair(self, first: int) -> None:
        """Twins share the certificate and so the weight; the price per carat stays."""
        start = first + (-first) % TWINS
        for row in range(start or TWINS, len(self), TWINS):
            if row - 1 < first:
                continue
            self.price[row] = round(self.price[row] * self.carats[row - 1] / self.carats[row])
            self.carats[row] = self.carats[row - 1]
            for trait in (Trait.SHAPE, *CERTIFIED):
                self.traits[trait][row] = self.traits[trait][row - 1]


def _first(row: int) -> int:
    """Of two twins the one whose number both carry."""
    return row - 1 if row and row % TWINS == 0 else row


def random_traits(dice: Random, *, labgrown: bool) -> bytes:
    """A stone as the dice want it: available, and there."""
    traits = bytearray(len(Trait))
    for trait, spread in SPREADS.items():
        traits[trait] = spread.table[dice.randrange(256)]
    traits[Trait.PRESENT], traits[Trait.LABGROWN] = 1, int(labgrown)
    traits[Trait.AVAILABILITY] = 0
    return bytes(traits)
