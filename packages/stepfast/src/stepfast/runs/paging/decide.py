"""One answer of the source, one decision, for each way of paging. Pure: everything it depends on is an argument."""

from __future__ import annotations

import dataclasses
import hashlib
from typing import TYPE_CHECKING, Any, Final, assert_never

import msgspec
from msgspec.structs import replace

from stepfast.runs.paging.decision import (
    NOVELTY,
    SURE,
    Advance,
    Ask,
    Decision,
    EndOfPass,
    Fail,
    PageLook,
    RestartPass,
    StaleAnswer,
    StepBack,
    conclude,
    crowded,
    end_of_pass,
    look_at_page,
    over_budget,
    restart_pass,
    with_count,
    with_page,
)
from stepfast.runs.paging.paginators import Keyset, Offset, Token

if TYPE_CHECKING:
    from stepfast.runs.paging.decision import Answer, Cursor, PageState, Request
    from stepfast.runs.paging.paginators import Paging


def decide(paging: Paging, state: PageState, request: Request, answer: Answer) -> Decision:
    """What the answer to this request means. Only the answer to the state's own request means anything."""
    if state.ended is not None:
        return StaleAnswer(note=f"request {request.seq} came after the end")
    if request.seq != state.seq:
        return StaleAnswer(note=f"request {request.seq} was answered before; the next one is {state.seq}")
    asked = replace(state, seq=state.seq + 1, requests=state.requests + 1)
    decision: Decision
    if request.ask is Ask.COUNT:
        decision = _after_count(paging, asked, request, answer)
    elif answer.expired:
        decision = restart_pass(paging, asked, "the source no longer knows where we were")
    elif isinstance(paging, Offset):
        decision = judge_offset(paging, asked, request, answer)
    elif isinstance(paging, Token):
        decision = judge_token(paging, asked, request, answer)
    else:
        decision = judge_keyset(paging, asked, request, answer)
    return _within_budget(paging, asked, decision, request.cursor.limit)


def _within_budget(paging: Paging, asked: PageState, decision: Decision, limit: int) -> Decision:
    """The decision, unless it would go on for too long: then the partition fails."""
    if isinstance(decision, Advance) and crowded(decision.state, limit) and not decision.state.counted:
        # The set may have grown: the source counts again.
        decision = dataclasses.replace(decision, state=replace(decision.state, ask=Ask.COUNT))
    if isinstance(decision, Advance | StepBack):
        problem = over_budget(paging, decision.state, limit)
        if problem is not None:
            # The page's rows are not kept, so the state is the one before it.
            return Fail(state=asked, note=problem, got=decision.got)
    return decision


def _after_count(paging: Paging, state: PageState, request: Request, answer: Answer) -> Decision:
    known = with_count(state, answer.count)
    if isinstance(known, Fail):
        return known
    if known.closing:
        return end_of_pass(paging, known)
    match paging:
        case Offset():
            return after_count_offset(paging, known, request.cursor.limit)
        case Keyset():
            return after_count_keyset(paging, known)
        case Token():
            return Advance(state=known, note=f"the source counts {known.count:,} rows")
        case _:
            assert_never(paging)


# Pages by offset, anchored: a page counts only if it begins with rows that this pass has read.
#
# A row that leaves the set behind us moves all later rows one place forward, and the page at the old offset would skip
# one. So each page begins a few rows early, and if none of those is known, we step back: twice as far each time, then by
# halves to the first unread row. Where the order is total, all rows that were read stand before the first unread one;
# a page that begins with one of them leaves no gap, however many rows came and went.

FURTHEST: Final = 4_096  # rows we step back before we rather begin again
EMPTY_PAGES_BEFORE_HOLE: Final = (
    2  # pages at a place where the source has rows and shows none, before we go past it
)


def judge_offset(paging: Offset, state: PageState, request: Request, answer: Answer) -> Decision:
    page = look_at_page(state, request, answer)
    here, limit = request.cursor.offset, request.cursor.limit
    hole = page.got == 0 and state.streak >= EMPTY_PAGES_BEFORE_HOLE  # we have been back, and came here again
    if here > 0 and page.leading < _anchors(paging, state) and not hole:
        return _step_back(paging, state, here, page)
    after = _accepted(paging, state, request.cursor, answer, page)
    if not page.new:
        return _without_news(paging, after, limit, page)
    note = f"offset {here:,}: {page.got} rows, {page.new} of them new"
    return Advance(state=_aimed(paging, after), note=note, got=page.got, fresh=page.fresh)


def after_count_offset(paging: Offset, state: PageState, limit: int) -> Decision:
    """The source has counted: at the start, when too many rows came, or when pages brought nothing new."""
    if state.streak:
        return _without_news(paging, state, limit)
    return Advance(state=_aimed(paging, state), note=f"the source counts {state.count:,} rows")


def _anchors(paging: Offset, state: PageState) -> int:
    """How many known rows a page must begin with; none where the order is not to be trusted."""
    return 0 if paging.ties is None or not state.ordered else paging.ties


def _accepted(paging: Offset, state: PageState, cursor: Cursor, answer: Answer, page: PageLook) -> PageState:
    after = with_page(state, page, cursor.limit)
    anchored = _anchors(paging, state) > 0
    reached = cursor.offset + page.got
    position = reached if anchored and page.got else max(state.position, reached)
    # A page that is not full ends where the rows end, or was cut short on its way: so two of them must agree.
    half = max(after.widest, 2 * paging.overlap + 1) / 2
    ends = anchored and not page.new and 0 < page.got <= half and not set(state.tail).isdisjoint(answer.ids)
    tail = tuple(item_id for item_id in answer.ids if item_id is not None)[-paging.overlap :]
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


def _step_back(
    paging: Offset, state: PageState, here: int, page: PageLook
) -> StepBack | RestartPass | EndOfPass:
    what = "does not begin with rows that were read before" if page.got else "is empty"
    note = f"the page at offset {here:,} {what}"
    lost = replace(state, beyond=here, idle=state.idle + 1)
    if here > max(0, state.position - paging.overlap):  # it was a leap forward: too far
        return StepBack(state=_aimed(paging, lost), note=note, got=page.got)
    back = 2 * max(paging.overlap, state.back)
    if back > FURTHEST:
        return restart_pass(paging, lost, f"{note}, nor does any up to {FURTHEST:,} rows before it", page.got)
    lost = replace(lost, back=back, offset=max(0, state.position - back))
    return StepBack(state=lost, note=note, got=page.got)


def _without_news(paging: Offset, state: PageState, limit: int, page: PageLook | None = None) -> Decision:
    """The page has nothing new: we are behind our place, at the end, or before a hole."""
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


def _before_rows(paging: Offset, state: PageState, limit: int, note: str, page: PageLook | None) -> Decision:
    """The source counts more rows than it shows here: the page was cut short, or there is a hole to go past."""
    got = page.got if page else 0
    if state.moved and state.streak >= NOVELTY:
        return conclude(paging, replace(state, shown=0), note, page)
    if not state.moved and state.streak >= EMPTY_PAGES_BEFORE_HOLE:
        past = replace(state, position=state.position + limit, ordered=False, shown=0)
        return Advance(state=_aimed(paging, past), note=note, got=got)
    return Advance(state=_aimed(paging, state), note=note, got=got)


def _aimed(paging: Offset, state: PageState) -> PageState:
    """Where the next page begins: where we are, or halfway to where we are surely too far."""
    plain = max(0, state.position - paging.overlap)
    if state.beyond is None or plain + max(state.widest, 1) >= state.beyond:
        return replace(state, offset=plain, beyond=None)
    return replace(state, offset=(state.position + state.beyond) // 2)


# Pages by key: each begins after the last key of the one before it, so rows that leave move nothing.

EMPTY_PAGES_BEFORE_END: Final = 2  # empty pages that are believed where the feed cannot count


def judge_keyset(paging: Keyset, state: PageState, request: Request, answer: Answer) -> Decision:
    page = look_at_page(state, request, answer)
    if answer.next is None:
        return _without_key(paging, state, request, page)
    after, looped = follow(with_page(state, page, request.cursor.limit), answer.next)
    if looped:
        return Fail(
            state=state,
            got=page.got,
            note=f"the page after key {request.cursor.after!r:.80} leads to {answer.next!r:.80}, where we have been: "
            "more rows share a key than fit on a page, or the source does not page by it",
        )
    repeats = page.got > 0 and not page.new
    after = replace(after, streak=state.streak + 1 if repeats else 0)
    note = f"{page.got} rows up to key {answer.next!r:.80}, {page.new} of them new"
    if after.streak >= NOVELTY:
        return conclude(
            paging, replace(after, ordered=False), f"{note}; {NOVELTY} pages in a row were known", page
        )
    return Advance(state=after, note=note, got=page.got, fresh=page.fresh)


def after_count_keyset(paging: Keyset, state: PageState) -> Decision:
    """The source has counted: at the start, when too many rows came, or after an empty page."""
    if state.streak:
        return _after_empty(paging, state)
    return Advance(state=state, note=f"the source counts {state.count:,} rows")


def _without_key(paging: Keyset, state: PageState, request: Request, page: PageLook) -> Decision:
    if page.got:
        return Fail(
            state=state,
            got=page.got,
            note="a page with rows gives no key; answer Page(items, next=the key of the last row), "
            "and leave next out on an empty page only",
        )
    return _after_empty(
        paging, replace(with_page(state, page, request.cursor.limit), shown=SURE, streak=state.streak + 1)
    )


def _after_empty(paging: Keyset, state: PageState) -> Decision:
    """An empty page is the end, unless the source has more rows than we have read: then it is asked again."""
    note = f"nothing after key {state.after!r:.80}"
    if not state.counts:
        return (
            conclude(paging, state, note)
            if state.streak >= EMPTY_PAGES_BEFORE_END
            else Advance(state=state, note=note)
        )
    if not state.counted:
        return Advance(state=replace(state, ask=Ask.COUNT), note=note)
    enough = state.read >= min(state.count or 0, state.count_before or 0)
    if enough or state.streak >= NOVELTY:
        return conclude(paging, state, note)
    return Advance(state=state, note=f"{note}, but the source counts {state.count:,} rows")


# Pages by token: the source says which page comes next, and when there is none. It may be wrong about both.


def judge_token(paging: Token, state: PageState, request: Request, answer: Answer) -> Decision:
    """A page may be empty and not the last one; a row that comes again may, too. Three such pages in a row may not."""
    page = look_at_page(state, request, answer)
    repeats = page.got > 0 and not page.new
    after = replace(with_page(state, page, request.cursor.limit), streak=state.streak + 1 if repeats else 0)
    note = f"page {state.requests:,}: {page.got} rows, {page.new} of them new"
    if answer.next is None:
        return conclude(
            paging, replace(after, shown=SURE), f"{note}, and the source knows no further page", page
        )
    after, looped = follow(after, answer.next)
    if looped:
        return conclude(paging, replace(after, ordered=False), f"{note}; its token was met before", page)
    if after.streak >= NOVELTY:
        return conclude(
            paging, replace(after, ordered=False), f"{note}; {NOVELTY} pages in a row were known", page
        )
    return Advance(state=after, note=note, got=page.got, fresh=page.fresh)


# Loops: tokens or keys that lead round in a circle are found with one remembered token (Brent's way), however long it is.


def follow(state: PageState, token: Any) -> tuple[PageState, bool]:
    """The state with this token as the next one, and whether it was met before."""
    name = fingerprint(token)
    if name == state.mark or (state.after is not None and name == fingerprint(state.after)):
        return state, True
    age = state.mark_age + 1
    if age < state.mark_life:
        return replace(state, after=token, mark_age=age), False
    return replace(state, after=token, mark=name, mark_age=0, mark_life=2 * state.mark_life), False


def fingerprint(token: Any) -> str:
    return hashlib.sha256(msgspec.json.encode(token, order="deterministic")).hexdigest()[:24]
