"""The end of a pass: is anything proven?

One pass is proof where the source keeps its order: every page began with rows that were read before, the last one
showed the end, and there are as many rows as the source counted. Everywhere else two passes are needed. A row that two
passes read was there at the count between them (unless it left and came back). If these are exactly as many as were
counted, then they are all that were there, whatever order the pages came in.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from stepfast.runs.paging.decision import Advance, EndOfPass, Fail, RestartPass
from stepfast.runs.paging.paginators import Offset
from stepfast.runs.paging.state import Ask, PageState, Verdict

if TYPE_CHECKING:
    from stepfast.runs.paging.look import Look
    from stepfast.runs.paging.paginators import Paging

NOVELTY: Final = 3  # pages without a new row that end a pass
SURE: Final = 2  # pages that must show the end: one of them may have been cut short on its way
GRACE: Final = 50  # requests that may bring nothing before they are weighed against those that did
MARGIN: Final = 10  # pages more than twice the count


def conclude(paging: Paging, state: PageState, note: str, page: Look | None = None) -> Advance | EndOfPass:
    """Nothing more is to be read in this pass: count once more if the feed can, then judge."""
    got, fresh = (page.got, page.fresh) if page else (0, 0)
    if state.counts and not state.counted:
        return Advance(state=replace(state, ask=Ask.COUNT, closing=True), note=note, got=got, fresh=fresh)
    return end_of_pass(paging, state, got, fresh)


def end_of_pass(paging: Paging, state: PageState, got: int = 0, fresh: int = 0) -> EndOfPass:
    proof, doubt = _proof(paging, state), _doubt(paging, state)
    if proof is not None:
        ended = replace(state, ended=Verdict.VERIFIED)
        return EndOfPass(state=ended, verdict=Verdict.VERIFIED, note=proof, got=got, fresh=fresh)
    if state.pass_ >= paging.passes:
        note = f"{doubt} after {state.pass_} passes"
        ended = replace(state, ended=Verdict.UNVERIFIED)
        return EndOfPass(state=ended, verdict=Verdict.UNVERIFIED, note=note, got=got, fresh=fresh)
    following = next_pass(state, count=state.count if state.counted else None)
    return EndOfPass(state=following, verdict=Verdict.ANOTHER_PASS, note=doubt, got=got, fresh=fresh)


def restart(paging: Paging, state: PageState, note: str, got: int = 0) -> RestartPass | EndOfPass:
    """Give this pass up."""
    if state.pass_ >= paging.passes:
        ended = replace(state, ended=Verdict.UNVERIFIED)
        words = f"{note} after {state.pass_} passes"
        return EndOfPass(state=ended, verdict=Verdict.UNVERIFIED, note=words, got=got, follows=False)
    return RestartPass(state=next_pass(state, count=None), note=note, got=got)


def next_pass(state: PageState, *, count: int | None) -> PageState:
    """From the start. `count` was taken after the last row of this pass: it stands between the two."""
    return PageState(
        seq=state.seq,
        pass_=state.pass_ + 1,
        ask=Ask.COUNT if state.counts and count is None else Ask.PAGE,
        counts=state.counts,
        seen=state.seen,
        widest=state.widest,
        count_before=count,
        count=count,
        counted=count is not None,
        spent=state.spent + state.requests,
    )


def counted(state: PageState, count: int | None) -> PageState | Fail:
    """The state with what the source counted."""
    if isinstance(count, bool) or not isinstance(count, int) or count < 0:
        return Fail(
            state=state, note=f"count() answered {count!r:.80}; it must answer how many rows are there"
        )
    before = count if state.count_before is None else state.count_before
    return replace(state, count=count, count_before=before, counted=True, ask=Ask.PAGE)


def over_budget(paging: Paging, state: PageState, limit: int) -> str | None:
    """Why this pass must not go on; None if it may."""
    productive = state.requests - state.idle
    if state.requests >= paging.most_requests:
        return f"{state.requests:,} requests in one pass, as many as most_requests allows"
    if state.idle > GRACE + productive:
        return f"{state.idle:,} of {state.requests:,} requests brought no new row; the source goes round in circles"
    if state.counted and crowded(state, limit):
        return f"{state.read:,} rows read where the source counts {state.count:,}; the range is not what it seems"
    return None


def crowded(state: PageState, limit: int) -> bool:
    """Whether far more rows came than the source counted."""
    most = max(state.count or 0, state.count_before or 0)
    return state.count is not None and state.read > 2 * most + MARGIN * limit


def _proof(paging: Paging, state: PageState) -> str | None:
    before, after = state.count_before, state.count
    in_order = paging.trusted and state.ordered and state.shown >= SURE and state.holes == 0
    if before is None or after is None:
        words = f"{state.read:,} rows in order up to the end; the feed does not count"
        return words if in_order and not state.counts else None
    if before == after == state.read == 0:
        return "there are no rows"
    if in_order and _enough(paging, state, min(before, after)):
        return f"{state.read:,} rows in order up to the end; the source counted {before:,} before and {after:,} after"
    if state.pass_ > 1 and state.both == before:
        return f"two passes read the same {before:,} rows, as many as the source counted between them"
    return None


def _enough(paging: Paging, state: PageState, count: int) -> bool:
    """As many rows as were counted.

    Or fewer, where rows came behind us and others left before us. Then the end stands where the count says, and every
    page before the last was full: so no row can have been hidden from us.
    """
    level = isinstance(paging, Offset) and state.smooth and state.position >= (state.count or 0)
    return state.read >= count or level


def _doubt(paging: Paging, state: PageState) -> str:
    read = f"{state.read:,} rows read"
    before, after = state.count_before, state.count
    if before is not None and after is not None and state.read < min(before, after):
        return f"{read}, but the source counts {min(before, after):,}"
    if state.holes:
        return f"{read}, and {state.holes:,} more that have no identity"
    if not state.ordered:
        return f"{read}, but not in the order that the feed declares"
    if paging.trusted:
        return f"{read}, but no page showed the end"
    if state.pass_ > 1 and before is not None:
        return f"two passes have {state.both:,} rows in common, the source counted {before:,} between them"
    return f"{read} in an order that proves nothing yet"
