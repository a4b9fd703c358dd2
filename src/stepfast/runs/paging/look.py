"""A look at a page: which of its rows are new, and whether they stand where the source's order puts them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from msgspec.structs import replace

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepfast.runs.paging.state import Answer, PageState, Request


@dataclass(frozen=True)
class Look:
    got: int  # places of the page, as the source counts them
    new: int  # rows that this pass had not read
    fresh: int  # rows that the partition had not read
    again: int  # rows that the pass before read, and this one for the first time
    leading: int  # places before the first new row, if this pass had read one of them
    late: int  # how far behind the first new row another stands that this pass had read
    holes: int  # rows without an identity


def look(state: PageState, request: Request, answer: Answer) -> Look:
    """New in a pass is not new in the partition: a second pass finds its place, and its end, by its own rows."""
    if not answer.seen:
        return _all_new(answer.ids)
    known = {it: answer.seen.get(it) for it in answer.ids if it is not None}
    new = {it for it, when in known.items() if when != state.pass_}
    places = [(place, it) for place, it in enumerate(answer.ids) if it is not None]
    first = next((place for place, it in places if it in new), None)
    inside = len(answer.ids) if state.count is None else state.count - request.cursor.offset
    before = len(answer.ids) if first is None else first
    old_after = [p for p, it in places if it not in new and first is not None and first < p < inside]
    return Look(
        got=len(answer.ids),
        new=len(new),
        fresh=sum(when is None for when in known.values()),
        again=sum(known[it] == state.pass_ - 1 for it in new),
        # A row that the source fails to tell was one of those that were read: whoever waits for it goes round in circles.
        leading=before if any(place < before for place, _ in places) else 0,
        late=old_after[-1] - first if old_after and first is not None else 0,
        holes=len(answer.ids) - len(places),
    )


def _all_new(ids: Sequence[str | None]) -> Look:
    """Most pages of a first pass; a tenth of the time."""
    holes = ids.count(None)
    new = len(set(ids)) - (holes > 0)
    return Look(got=len(ids), new=new, fresh=new, again=0, leading=0, late=0, holes=holes)


def taken(state: PageState, page: Look, limit: int) -> PageState:
    """The state with the page's rows counted."""
    seen = replace(
        state,
        widest=max(state.widest, page.got),
        full=page.got >= limit,
        holes=state.holes + page.holes,
    )
    if not page.new:
        return replace(seen, idle=state.idle + 1)
    return replace(
        seen,
        seen=state.seen + page.fresh,
        read=state.read + page.new,
        both=state.both + page.again,
        smooth=state.smooth and state.full,
        streak=0,
        counted=False,
        shown=0,
        moved=True,
    )
