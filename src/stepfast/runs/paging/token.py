"""Pages by token: the source says which page comes next, and when there is none. It may be wrong about both."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from stepfast.runs.paging.decision import Advance, Decision
from stepfast.runs.paging.look import look, taken
from stepfast.runs.paging.loops import follow
from stepfast.runs.paging.verification import NOVELTY, SURE, conclude

if TYPE_CHECKING:
    from stepfast.runs.paging.paginators import Token
    from stepfast.runs.paging.state import Answer, PageState, Request


def judge(paging: Token, state: PageState, request: Request, answer: Answer) -> Decision:
    """A page may be empty and not the last one; a row that comes again may, too. Three such pages in a row may not."""
    page = look(state, request, answer)
    repeats = page.got > 0 and not page.new
    after = replace(taken(state, page, request.cursor.limit), streak=state.streak + 1 if repeats else 0)
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
