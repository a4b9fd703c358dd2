"""Whether a stone that no page has shown is still on offer: the base query, asked about one stone.

For a feed a stone is gone if it is held or sold, if it has lost its picture and its film, or if it is of another kind,
shape, size or cut by now than the feed asks for. The words are those of the mapping. What a stone does not tell counts
for it: nobody goes because a value was lost on the way.
"""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

from stepfast.diamonds import mapping_words as words
from stepfast.diamonds.answers import BadAnswerError
from stepfast.diamonds.mapping import can_be_shown
from stepfast.diamonds.money import number
from stepfast.diamonds.query import BY_ID, LARGEST_CARATS, SHAPES, SMALLEST_CARATS

if TYPE_CHECKING:
    from stepfast.diamonds.answers import Answer, Problem

FAIR_OR_POOR: Final = frozenset({"FR", "F", "FAIR", "PR", "P", "POOR"})
LIGHTEST: Final = Decimal(str(SMALLEST_CARATS))
HEAVIEST: Final = Decimal(str(LARGEST_CARATS))


def still_offered(answer: Answer, *, lab_grown: bool) -> bool:
    """What the answer to a question about one stone means."""
    found = None if answer.data is None else answer.data.get(BY_ID)
    if found is None and any(it.is_missing and _is_about_all(it) for it in answer.problems):
        return False
    if any(not _is_about_all(it) for it in answer.problems):
        return True  # there is a stone, of which something cannot be told
    offer = answer.field(BY_ID)
    diamond = offer.get("diamond") if isinstance(offer, dict) else None
    if not isinstance(diamond, dict):
        raise BadAnswerError(f"Nivoda answered {type(diamond).__name__} instead of a stone")
    certificate = diamond.get("certificate")
    return fits(diamond, certificate if isinstance(certificate, dict) else {}, lab_grown=lab_grown)


def fits(diamond: Mapping[str, Any], certificate: Mapping[str, Any], *, lab_grown: bool) -> bool:
    """Whether the base query would find it."""
    shape, carats = words.word(certificate.get("shape")), number(certificate.get("carats"))
    grown, available = certificate.get("labgrown"), diamond.get("availability")
    return (
        (available is None or words.availability(available) == "available")
        and can_be_shown(diamond, certificate)
        and (grown is None or grown is lab_grown)
        and (shape is None or shape in SHAPES)
        and (carats is None or LIGHTEST <= carats <= HEAVIEST)
        and words.word(certificate.get("cut")) not in FAIR_OR_POOR
    )


def _is_about_all(problem: Problem) -> bool:
    """Whether it names no field of the stone."""
    return not problem.path or problem.path[-1] in {BY_ID, "as"}
