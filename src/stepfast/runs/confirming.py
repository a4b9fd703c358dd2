"""Before rows go, the source is asked whether it still has them.

A full run may miss a row that is there: one that moves to a partition which has been read already. If that happens to
it in several full runs in a row, it would go. A feed that can ask for rows by their identity (`still_there`) is asked
about those that would go with this strike, and about no others. Whom the source still has is not struck.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from stepfast.errors import AnswerError
from stepfast.runs.asking import answer_of

if TYPE_CHECKING:
    from stepfast.runs.declaration import Declaration
    from stepfast.runs.gone import Missed


def at_once(declared: Declaration, found: list[Missed]) -> list[Missed]:
    """As many of them, from the first on, as one question is about; all, if nobody is asked."""
    if not declared.confirms:
        return found
    going = 0
    for place, row in enumerate(found):
        going += row.goes
        if going == declared.confirm_lot:
            return found[: place + 1]
    return found


async def not_gone(declared: Declaration, ids: Sequence[str]) -> frozenset[str]:
    """Which of them the source still has."""
    answer = await answer_of(declared.feed.still_there, list(ids))
    if isinstance(answer, str | bytes) or not isinstance(answer, Collection):
        raise _wrong(f"is {type(answer).__name__}; answer a list of those ids that the source still has")
    strangers = [it for it in answer if it not in ids]
    if strangers:
        raise _wrong(f"names {strangers[0]!r:.80}, which nobody asked about; ids are what identify() answers")
    return frozenset(answer)


def told(number: int) -> str:
    """For people who look at the sweep."""
    rows = "1 row that was not seen is" if number == 1 else f"{number:,} rows that were not seen are"
    return f"{rows} still at the source"


def _wrong(problem: str) -> AnswerError:
    return AnswerError("answer of still_there()", problem)
