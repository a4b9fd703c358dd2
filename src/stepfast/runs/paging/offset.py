"""Pages by offset, anchored: a page counts only if it begins with rows that this pass has read.

A row that leaves the set behind us moves all later rows one place forward, and the page at the old offset would skip
one. So each page begins a few rows early, and if none of those is known, we step back: twice as far each time, then by
halves to the first unread row. Where the order is total, all rows that were read stand before the first unread one;
a page that begins with one of them leaves no gap, however many rows came and went.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from stepfast.runs.paging.decision import Advance, Decision, EndOfPass, RestartPass, StepBack
from stepfast.runs.paging.look import Look, look, taken
from stepfast.runs.paging.state import Ask
from stepfast.runs.paging.verification import NOVELTY, SURE, conclude, restart

if TYPE_CHECKING:
    from stepfast.runs.paging.paginators import Offset
    from stepfast.runs.paging.state import Answer, Cursor, PageState, Request

FURTHEST: Final = 4_096  # rows we step back before we rather begin again
TRIES: Final = 2  # pages at a place where the source has rows and shows none, before we go past it


def judge(paging: Offset, state: PageState, request: Request, answer: Answer) -> Decision:
    page = look(state, request, answer)
    here, limit = request.cursor.offset, request.cursor.limit
    hole = page.got == 0 and state.streak >= TRIES  # we have been back, and came here again
    if here > 0 and page.leading < _anchors(paging, state) and not hole:
        return _step_back(paging, state, here, page)
    after = _accepted(paging, state, request.cursor, answer, page)
    if not page.new:
        return _without_news(paging, after, limit, page)
    note = f"offset {here:,}: {page.got} rows, {page.new} of them new"
    return Advance(state=_aimed(paging, after), note=note, got=page.got, fresh=page.fresh)


def after_count(paging: Offset, state: PageState, limit: int) -> Decision:
    """The source has counted: at the start, when too many rows came, or when pages brought nothing new."""
    if state.streak:
        return _without_news(paging, state, limit)
    return Advance(state=_aimed(paging, state), note=f"the source counts {state.count:,} rows")


def _anchors(paging: Offset, state: PageState) -> int:
    """How many known rows a page must begin with; none where the order is not to be trusted."""
    return 0 if paging.ties is None or not state.ordered else paging.ties


def _accepted(paging: Offset, state: PageState, cursor: Cursor, answer: Answer, page: Look) -> PageState:
    after = taken(state, page, cursor.limit)
    anchored = _anchors(paging, state) > 0
    reached = cursor.offset + page.got
    position = reached if anchored and page.got else max(state.position, reached)
    # A page that is not full ends where the rows end, or was cut short on its way: so two of them must agree.
    half = max(after.widest, 2 * paging.overlap + 1) / 2
    ends = anchored and not page.new and 0 < page.got <= half and not set(state.tail).isdisjoint(answer.ids)
    tail = tuple(it for it in answer.ids if it is not None)[-paging.overlap :]
    return replace(
        after,
        position=position,
        moved=position > state.position,
        counted=after.counted and position >= state.position,  # rows have left since
        back=0,
        tail=tail if page.new else state.tail,
        ordered=state.ordered and page.late < (paging.ties or 1),
        smooth=after.smooth and (page.new > 0 or position <= state.position),
        shown=state.shown + 1 if ends else 0,
        streak=0 if page.new else state.streak + 1,
    )


def _step_back(paging: Offset, state: PageState, here: int, page: Look) -> StepBack | RestartPass | EndOfPass:
    what = "does not begin with rows that were read before" if page.got else "is empty"
    note = f"the page at offset {here:,} {what}"
    lost = replace(state, beyond=here, idle=state.idle + 1)
    if here > max(0, state.position - paging.overlap):  # it was a leap forward: too far
        return StepBack(state=_aimed(paging, lost), note=note, got=page.got)
    back = 2 * max(paging.overlap, state.back)
    if back > FURTHEST:
        return restart(paging, lost, f"{note}, nor does any up to {FURTHEST:,} rows before it", page.got)
    lost = replace(lost, back=back, offset=max(0, state.position - back))
    return StepBack(state=lost, note=note, got=page.got)


def _without_news(paging: Offset, state: PageState, limit: int, page: Look | None = None) -> Decision:
    """Nothing new: are we behind our place, at the end, or before a hole?"""
    note, got = f"nothing new up to row {state.position:,}", page.got if page else 0
    if state.beyond is not None:
        # There are unread rows ahead: one of the pages that we refused began with them.
        return Advance(state=_aimed(paging, state), note=note, got=got)
    if not state.counted:
        return Advance(state=replace(_aimed(paging, state), ask=Ask.COUNT), note=note, got=got)
    count = state.count or 0
    if state.position < count:
        return _before_rows(paging, state, limit, f"{note}, but the source counts {count:,}", page)
    if state.shown >= SURE or state.streak >= NOVELTY or count == 0 or not _anchors(paging, state):
        return conclude(paging, state, note, page)
    # Known rows that are not the last we read come from a source that answers past its end: that is nearer then.
    nearer = state if state.shown else replace(state, position=count)
    return Advance(state=_aimed(paging, nearer), note=note, got=got)


def _before_rows(paging: Offset, state: PageState, limit: int, note: str, page: Look | None) -> Decision:
    """The source has more rows than it shows here: the page was cut short, or there is a hole to go past."""
    got = page.got if page else 0
    if state.moved and state.streak >= NOVELTY:
        return conclude(paging, replace(state, shown=0), note, page)
    if not state.moved and state.streak >= TRIES:
        past = replace(state, position=state.position + limit, ordered=False, shown=0)
        return Advance(state=_aimed(paging, past), note=note, got=got)
    return Advance(state=_aimed(paging, state), note=note, got=got)


def _aimed(paging: Offset, state: PageState) -> PageState:
    """Where the next page begins: where we are, or halfway to where we are surely too far."""
    plain = max(0, state.position - paging.overlap)
    if state.beyond is None or plain + max(state.widest, 1) >= state.beyond:
        return replace(state, offset=plain, beyond=None)
    return replace(state, offset=(state.position + state.beyond) // 2)
