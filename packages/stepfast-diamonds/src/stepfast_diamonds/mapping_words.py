"""The source's words, cleaned: what means the same is written the same, and what means nothing is not written."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any, Final

NOTHING: Final = frozenset(
    {"", "NULL", "UNDEFINED", "N/A", "NA", "NAN", "-", "--"}
)  # NONE means something: no culet
LONGEST_NOTHING: Final = max(map(len, NOTHING))
SHORT: Final = 40  # characters of a word that is worth remembering
SAME_SHAPE: Final = {"ASCHER": "ASSCHER", "HALFMOON": "HALF MOON", "SQ EMERALD": "SQUARE EMERALD"}
INTENSITIES: Final = {
    "NON": "NONE",
    "VSL": "VERY_SLIGHT",
    "SLT": "SLIGHT",
    "FNT": "FAINT",
    "MED": "MEDIUM",
    "STG": "STRONG",
    "STN": "STRONG",
    "VST": "VERY_STRONG",
}
GLOWS: Final = {
    "B": "BLUE",
    "Y": "YELLOW",
    "W": "WHITE",
    "G": "GREEN",
    "O": "ORANGE",
    "R": "RED",
    "N": None,
    "NONE": None,
}
AVAILABILITIES: Final = {
    "AVAILABLE": "available",
    "HOLD": "on_hold",
    "ON_HOLD": "on_hold",
    "SOLD": "sold",
    "SOLD_OUT": "sold",
    "NOT_AVAILABLE": "unavailable",  # though the word has "available" in it
    "MEMO": "unavailable",
    "ON_MEMO": "unavailable",
    "CONSIGNMENT": "unavailable",
}
GRADES: Final = {
    "EXCELLENT": "EX",
    "VERY GOOD": "VG",
    "VERY_GOOD": "VG",
    "GOOD": "GD",
    "G": "GD",
    "FAIR": "FR",
    "F": "FR",
    "POOR": "PR",
    "P": "PR",
    "IDEAL": "ID",
    "8X": "EIGHTX",
}
UNKNOWN_COLOUR: Final = "Unknown"
_SPELLINGS: Final = {"GREY": "GRAY", "GREYISH": "GRAYISH"}
_NO_COLOUR: Final = frozenset({"EVEN", "UNEVEN", "NONE", "UNKNOWN", "FANCY", "OTHER"})
_GRADE_RANGE: Final = re.compile(r"\b[D-Z]\s?-\s?[D-Z]\b")  # U-V: a grade of white, no colour
_BETWEEN: Final = re.compile(r"[\s,/&+-]+")


def text(value: Any) -> str | None:
    """What a person would read, on one line; None if that is nothing."""
    if isinstance(value, str):
        return _cleaned(value)
    if value is None or isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return _cleaned(str(value))


def word(value: Any) -> str | None:
    """The word in capitals, as the source's enums are. An unknown value is kept."""
    if isinstance(value, str) and len(value) <= SHORT:
        return _capitals(value)
    found = text(value)
    return None if found is None else found.upper()


def _cleaned(value: str) -> str | None:
    # No database stores NUL or half a character, and nobody reads a line feed here.
    if not value.isprintable():
        value = "".join(it if it.isprintable() else " " for it in value)
    value = " ".join(value.split()) if " " in value else value
    return None if len(value) <= LONGEST_NOTHING and value.upper() in NOTHING else value


@lru_cache(maxsize=4_096)  # the words of a catalogue are few
def _capitals(value: str) -> str | None:
    found = _cleaned(value)
    return None if found is None else found.upper()


def title(value: Any) -> str | None:
    found = word(value)
    if found is None or found in _NO_COLOUR - {"FANCY"}:
        return None
    return " ".join(_SPELLINGS.get(it, it) for it in found.split()).title()


def shape(value: Any) -> str | None:
    found = word(value)
    return None if found is None else SAME_SHAPE.get(found, found)


def intensity(value: Any) -> str | None:
    found = word(value)
    return None if found is None else INTENSITIES.get(found, found)


def glow(value: Any) -> str | None:
    """The colour of the fluorescence."""
    found = word(value)
    return None if found is None else GLOWS.get(found, found)


def availability(value: Any) -> str:
    """Whether the stone can be bought. An unknown word never means that it can."""
    found = word(value) or ""
    known = AVAILABILITIES.get(found)
    if known is not None:
        return known
    if "HOLD" in found:
        return "on_hold"
    return "sold" if "SOLD" in found and "UNSOLD" not in found else "unavailable"


def fancy_color(value: Any) -> str:
    """`ORANGE BROWN` and `BROWN ORANGE` are one colour; `EVEN` and `U-V` are none."""
    found = word(value)
    if found is None:
        return UNKNOWN_COLOUR
    names = {_SPELLINGS.get(it, it) for it in _BETWEEN.split(_GRADE_RANGE.sub(" ", found)) if it} - _NO_COLOUR
    ordered = sorted(names, key=lambda it: (not it.endswith("ISH"), it))  # what only tinges it comes first
    return " ".join(ordered).title() or UNKNOWN_COLOUR


def grade(value: str) -> str:
    """For comparing: EXCELLENT and EX are the same cut."""
    return GRADES.get(value, value)
