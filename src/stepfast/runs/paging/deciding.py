"""One answer of the source, one decision. Everything it depends on is an argument, and everything it changes is in it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, assert_never

from msgspec import structs

from stepfast.runs.paging import keyset, offset, token
from stepfast.runs.paging.decision import Advance, Decision, Fail, Stale, StepBack
from stepfast.runs.paging.paginators import Keyset, Offset, Token
from stepfast.runs.paging.state import Ask
from stepfast.runs.paging.verification import counted, crowded, end_of_pass, over_budget, restart

if TYPE_CHECKING:
    from stepfast.runs.paging.paginators import Paging
    from stepfast.runs.paging.state import Answer, PageState, Request


def decide(paging: Paging, state: PageState, request: Request, answer: Answer) -> Decision:
    """What the answer to this request means. Only the answer to the state's own request means anything."""
    if state.ended is not None:
        return Stale(note=f"request {request.seq} came after the end")
    if request.seq != state.seq:
        return Stale(note=f"request {request.seq} was answered before; the next one is {state.seq}")
    asked = structs.replace(state, seq=state.seq + 1, requests=state.requests + 1)
    decision = _judge(paging, asked, request, answer)
    limit = request.cursor.limit
    if isinstance(decision, Advance) and crowded(decision.state, limit) and not decision.state.counted:
        # It may have grown.
        decision = replace(decision, state=structs.replace(decision.state, ask=Ask.COUNT))
    if isinstance(decision, Advance | StepBack):
        problem = over_budget(paging, decision.state, limit)
        if problem is not None:
            # The page's rows are not kept, so the state is the one before it.
            return Fail(state=asked, note=problem, got=decision.got)
    return decision


def _judge(paging: Paging, state: PageState, request: Request, answer: Answer) -> Decision:
    if request.ask is Ask.COUNT:
        return _after_count(paging, state, request, answer)
    if answer.expired:
        return restart(paging, state, "the source no longer knows where we were")
    match paging:
        case Offset():
            return offset.judge(paging, state, request, answer)
        case Token():
            return token.judge(paging, state, request, answer)
        case Keyset():
            return keyset.judge(paging, state, request, answer)
        case _:
            assert_never(paging)


def _after_count(paging: Paging, state: PageState, request: Request, answer: Answer) -> Decision:
    known = counted(state, answer.count)
    if isinstance(known, Fail):
        return known
    if known.closing:
        return end_of_pass(paging, known)
    match paging:
        case Offset():
            return offset.after_count(paging, known, request.cursor.limit)
        case Keyset():
            return keyset.after_count(paging, known)
        case Token():
            return Advance(state=known, note=f"the source counts {known.count:,} rows")
        case _:
            assert_never(paging)
