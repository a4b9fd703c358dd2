"""Pages by key: each begins after the last key of the one before it, so rows that leave move nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from stepfast.runs.paging.decision import Advance, Decision, Fail
from stepfast.runs.paging.look import Look, look, taken
from stepfast.runs.paging.loops import follow
from stepfast.runs.paging.state import Ask
from stepfast.runs.paging.verification import NOVELTY, SURE, conclude

if TYPE_CHECKING:
    from stepfast.runs.paging.paginators import Keyset
    from stepfast.runs.paging.state import Answer, PageState, Request

TRIES: Final = 2  # empty pages that are believed where the feed cannot count


def judge(paging: Keyset, state: PageState, request: Request, answer: Answer) -> Decision:
    page = look(state, request, answer)
    if answer.next is None:
        return _without_key(paging, state, request, page)
    after, looped = follow(taken(state, page, request.cursor.limit), answer.next)
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


def after_count(paging: Keyset, state: PageState) -> Decision:
    if state.streak:
        return _after_empty(paging, state)
    return Advance(state=state, note=f"the source counts {state.count:,} rows")


def _without_key(paging: Keyset, state: PageState, request: Request, page: Look) -> Decision:
    if page.got:
        return Fail(
            state=state,
            got=page.got,
            note="a page with rows gives no key; answer Page(items, next=the key of the last row), "
            "and leave next out on an empty page only",
        )
    return _after_empty(
        paging, replace(taken(state, page, request.cursor.limit), shown=SURE, streak=state.streak + 1)
    )


def _after_empty(paging: Keyset, state: PageState) -> Decision:
    """An empty page is the end, unless the source has more rows than we have read: then it is asked again."""
    note = f"nothing after key {state.after!r:.80}"
    if not state.counts:
        return conclude(paging, state, note) if state.streak >= TRIES else Advance(state=state, note=note)
    if not state.counted:
        return Advance(state=replace(state, ask=Ask.COUNT), note=note)
    enough = state.read >= min(state.count or 0, state.count_before or 0)
    if enough or state.streak >= NOVELTY:
        return conclude(paging, state, note)
    return Advance(state=state, note=f"{note}, but the source counts {state.count:,} rows")
