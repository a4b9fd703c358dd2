"""Money and measures are Decimal, from the source's cents to the database's column. A float is never calculated with.

What falls between two grains is rounded half up, away from zero: 12.345 becomes 12.35. That is what PostgreSQL's
round() and a person with a pencil do, so that a price can be checked by hand and by SQL.
"""

from __future__ import annotations

from decimal import ROUND_HALF_UP, Context, Decimal, InvalidOperation
from typing import Any, Final

EXACT: Final = Context(prec=34, rounding=ROUND_HALF_UP)  # whatever the program around us has set for its own
CENT: Final = Decimal("0.01")
THOUSANDTH: Final = Decimal("0.001")
MOST_MONEY: Final = Decimal("9999999999.99")  # what a column of 12 digits holds
LONGEST_NUMBER: Final = 40


def rounded(value: Decimal, grain: Decimal = CENT) -> Decimal:
    return value.quantize(grain, context=EXACT)


def from_cents(cents: int) -> Decimal:
    return Decimal(cents).scaleb(-2, context=EXACT)


def number(value: Any) -> Decimal | None:
    """A number however it is written; None for what is none. A float counts as the digits it is printed with."""
    if isinstance(value, str):
        text = value.strip()
    elif isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        return None
    else:
        text = repr(value) if isinstance(value, float) else str(value)
    if len(text) > LONGEST_NUMBER:
        return None
    try:
        found = Decimal(text)
    except InvalidOperation:
        return None
    return found if found.is_finite() else None


def stored(value: Any, grain: Decimal = CENT) -> Decimal:
    """Read it back. SQLite gives a float, which has more digits than any of our columns: none of them is lost."""
    found = number(value)
    if found is None:
        raise ValueError(f"{value!r} is no number")
    return rounded(found, grain)
