"""The values that paging is made of: the state of a partition's pages, requests, answers, and decisions about them.

A decision carries the state after it: cursor and end are stored together, or not at all. What a page shows about the
order of the source, and what the end of a pass proves, is worked out here for all ways of paging. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, assert_never

import msgspec
from msgspec.structs import replace

from stepfast.runs.paging.paginators import Offset
from stepfast.runs.partition import PartitionState
from stepfast.telemetry.masking import without_secrets
from stepfast.telemetry.sinks import message_of

if TYPE_CHECKING:
    from stepfast.runs.paging.paginators import Paging


# The state between two requests, and the next request.


class Ask(StrEnum):
    """What the source is asked for."""

    COUNT = "count"  # how many rows the source has in this range
    PAGE = "page"


class Verdict(StrEnum):
    """What the end of a pass proves."""

    VERIFIED = "verified"  # every row that was there all the time was read
    UNVERIFIED = "unverified"  # nothing shows that: a debt
    ANOTHER_PASS = "another pass"  # nothing shows that yet  # noqa: S105 - no password


@dataclass(frozen=True, kw_only=True)
class Cursor:
    """Where a page begins, as `fetch` is told. Each paginator uses one of `offset` and `after`."""

    limit: int
    offset: int = 0
    after: Any = None  # what the page before gave as `next`; None: from the start
    descending: bool = False  # the source's order backwards, for Offset(reversible=True)
    attempt: int = 1  # 2: this page was asked for before, and its answer was refused


@dataclass(frozen=True, kw_only=True)
class Request:
    """What to ask the source now."""

    seq: int
    ask: Ask
    cursor: Cursor


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The answer of the source, and which rows of the page are known."""

    ids: Sequence[str | None] = ()  # in the page's order; None: a row without an identity
    seen: Mapping[str, int] = field(default_factory=dict)  # known rows, each with its last pass
    next: Any = None
    count: int | None = None
    expired: bool = False  # the source no longer knows the token


class PageState(msgspec.Struct, frozen=True, kw_only=True):  # a changed copy takes 1 µs; of a dataclass, 25
    """Everything that the next decision needs to know of the earlier ones; stored with the partition as JSON."""

    seq: int = 0  # of the next request; every decision adds one
    pass_: int = 1
    ask: Ask = Ask.PAGE
    ended: Verdict | None = None
    counts: bool = True  # whether the feed can count

    # Where we are. `position` is the number of rows behind us, as the source counted them on the last page.
    offset: int = 0  # of the next page
    position: int = 0
    after: Any = None
    back: int = 0  # how far we have stepped back so far to find our place; 0: we have it
    beyond: int | None = None  # an offset at which a page began with unread rows: our place is before it

    # What was read.
    seen: int = 0  # distinct rows of the partition
    read: int = 0  # distinct rows of this pass
    both: int = 0  # distinct rows of this pass and the one before it
    streak: int = 0  # pages since the last one with a row that is new in this pass
    moved: bool = True  # whether the last page led us on
    tail: tuple[str, ...] = ()  # the last rows of the last page with a new one
    widest: int = 0  # the most rows that a page has had
    full: bool = True  # whether the last page had as many as it was asked for
    holes: int = 0  # rows of this pass without an identity

    # What it proves.
    ordered: bool = True  # nothing in this pass contradicts the source's order
    smooth: bool = True  # every page of this pass but the last was full: the source hides no rows
    shown: int = 0  # pages in a row that showed that nothing comes after them
    closing: bool = False  # the pass is over once the source has counted
    count_before: int | None = None
    count: int | None = None  # the latest
    counted: bool = False  # no new row has been read since then

    # Bounds.
    requests: int = 0  # of this pass
    idle: int = 0  # those of them that brought no new row
    spent: int = 0  # requests of the earlier passes
    mark: str | None = None  # one of the earlier tokens: meeting it again is a loop
    mark_age: int = 0
    mark_life: int = 1

    def to_json(self) -> dict[str, Any]:
        stored: dict[str, Any] = msgspec.to_builtins(self)
        return stored

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> PageState:
        return msgspec.convert(stored, cls)


def first_state(*, counts: bool = True) -> PageState:
    """The state before the first request; a feed that cannot count begins with its first page.

    A partition that begins anew forgets the rows it has seen: known rows are what pages are anchored by.
    """
    return PageState(ask=Ask.COUNT if counts else Ask.PAGE, counts=counts)


def with_fresh_budget(state: PageState) -> PageState:
    """The state with a fresh budget of requests: where a failed partition goes on when it is retried."""
    spent = state.spent + state.requests
    return replace(state, ended=None, requests=0, idle=0, streak=0, spent=spent)


def next_request(paging: Paging, state: PageState, page_size: int) -> Request:
    """The request that the state asks for. The same state asks for the same, however often."""
    backwards = isinstance(paging, Offset) and paging.reversible and state.pass_ % 2 == 0
    cursor = Cursor(limit=page_size, offset=state.offset, after=state.after, descending=backwards)
    return Request(seq=state.seq, ask=state.ask, cursor=cursor)


# Decisions.


@dataclass(frozen=True, kw_only=True)
class Advance:
    """The rows of this page are kept; `state` says what to ask next."""

    state: PageState
    note: str
    got: int = 0
    fresh: int = 0  # rows the partition had not seen


@dataclass(frozen=True, kw_only=True)
class StepBack:
    """The page does not follow what was read: none of its rows is kept, and our place is looked for further back."""

    state: PageState
    note: str
    got: int = 0


@dataclass(frozen=True, kw_only=True)
class RestartPass:
    """Our place is lost: the next pass begins at the start. None of the page's rows is kept."""

    state: PageState
    note: str
    got: int = 0


@dataclass(frozen=True, kw_only=True)
class EndOfPass:
    """The pass is over, and perhaps the partition. The rows of this page are kept, unless it did not follow."""

    state: PageState
    verdict: Verdict
    note: str
    got: int = 0
    fresh: int = 0
    follows: bool = True


@dataclass(frozen=True, kw_only=True)
class Fail:
    """The partition cannot be read as its feed says: it fails, loudly."""

    state: PageState
    note: str
    got: int = 0


@dataclass(frozen=True, kw_only=True)
class StaleAnswer:
    """The answer to a request that was answered before. It ends nothing, moves nothing and writes nothing."""

    note: str


Decision = Advance | StepBack | RestartPass | EndOfPass | Fail | StaleAnswer


def keeps_rows(decision: Decision) -> bool:
    """Whether the page's rows are written and remembered as seen.

    Those of a page that was not accepted must not be remembered: they would pass for our place later.
    """
    return decision.follows if isinstance(decision, EndOfPass) else isinstance(decision, Advance)


def state_of_partition(decision: Decision) -> PartitionState | None:
    """The state of the partition after this decision; None: nothing may be written."""
    match decision:
        case EndOfPass(verdict=Verdict.VERIFIED):
            return PartitionState.DONE
        case EndOfPass(verdict=Verdict.UNVERIFIED):
            return PartitionState.DONE_UNVERIFIED
        case Advance() | StepBack() | RestartPass() | EndOfPass():
            return PartitionState.RUNNING
        case Fail():
            return PartitionState.FAILED
        case StaleAnswer():
            return None
        case _:
            assert_never(decision)


def ledger_word(decision: Decision) -> str:
    """The decision in one word or two, for the ledger."""
    match decision:
        case Advance():
            return "advance"
        case StepBack():
            return "step back"
        case RestartPass():
            return "restart"
        case EndOfPass(verdict=verdict):
            return verdict.value
        case Fail():
            return "fail"
        case StaleAnswer():
            return "stale"
        case _:
            assert_never(decision)


def explain(decision: Decision) -> str:  # noqa: PLR0911 - one line per meaning
    """What happened and what follows from it, as an operator reads it."""
    match decision:
        case Advance(state=state, note=note):
            return f"{note}; {_next(state)}"
        case StepBack(state=state, note=note):
            return f"{note}; looks for its place at offset {state.offset:,}"
        case RestartPass(state=state, note=note):
            return f"{note}; pass {state.pass_} begins at the start"
        case EndOfPass(state=state, verdict=Verdict.ANOTHER_PASS, note=note):
            return f"{note}; pass {state.pass_} begins"
        case EndOfPass(verdict=Verdict.UNVERIFIED, note=note):
            return f"unverified: {note}; what was read is kept, and the range is a debt that the next run reads again"
        case EndOfPass(note=note):
            return f"verified: {note}"
        case Fail(note=note):
            return f"failed: {note}"
        case StaleAnswer(note=note):
            return f"{note}; nothing was written"
        case _:
            assert_never(decision)


def _next(state: PageState) -> str:
    if state.ask is Ask.COUNT:
        return "asks the source for its count"
    return f"goes on at offset {state.offset:,}" if state.after is None else "goes on with the next page"


# A look at a page: which of its rows are new, and whether they stand where the source's order puts them.


@dataclass(frozen=True)
class PageLook:
    """What a page shows."""

    got: int  # rows of the page, as the source counts them
    new: int  # rows that this pass had not read
    fresh: int  # rows that the partition had not read
    again: int  # rows that the pass before read, and this one for the first time
    leading: int  # rows before the first new one, if this pass had read one of them
    late: int  # how far behind the first new row another stands that this pass had read
    holes: int  # rows without an identity


def look_at_page(state: PageState, request: Request, answer: Answer) -> PageLook:
    """Look at the rows of a page. A second pass finds its place, and its end, by the rows that it has read itself."""
    if not answer.seen:
        return _all_new(answer.ids)
    known = {item_id: answer.seen.get(item_id) for item_id in answer.ids if item_id is not None}
    new = {item_id for item_id, when in known.items() if when != state.pass_}
    rows = [(index, item_id) for index, item_id in enumerate(answer.ids) if item_id is not None]
    first = next((index for index, item_id in rows if item_id in new), None)
    inside = len(answer.ids) if state.count is None else state.count - request.cursor.offset
    before = len(answer.ids) if first is None else first
    old_after = [
        index
        for index, item_id in rows
        if item_id not in new and first is not None and first < index < inside
    ]
    return PageLook(
        got=len(answer.ids),
        new=len(new),
        fresh=sum(when is None for when in known.values()),
        again=sum(known[item_id] == state.pass_ - 1 for item_id in new),
        # A row without an identity counts as read: waiting for it would go round in circles.
        leading=before if any(index < before for index, _ in rows) else 0,
        late=old_after[-1] - first if old_after and first is not None else 0,
        holes=len(answer.ids) - len(rows),
    )


def _all_new(ids: Sequence[str | None]) -> PageLook:
    """A page of new rows, as most pages of a first pass are; takes a tenth of the time."""
    holes = ids.count(None)
    new = len(set(ids)) - (holes > 0)
    return PageLook(got=len(ids), new=new, fresh=new, again=0, leading=0, late=0, holes=holes)


def with_page(state: PageState, page: PageLook, limit: int) -> PageState:
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


# The rows of a page, each once. A source may name a row twice on one page, or leave holes; neither may stop the page.

LONGEST_ID: Final = 200
LONGEST_MESSAGE: Final = 2_000


@dataclass(frozen=True)
class UnidentifiedItem:
    """A row without an identity, and why it has none."""

    item: Any
    reason: str


@dataclass(frozen=True)
class PageContents:
    """The rows of a page, each once, by their identity."""

    ids: list[str | None] = field(default_factory=list)  # one for each row of the page, in its order
    rows: dict[str, Any] = field(default_factory=dict)  # of several with one identity the last
    duplicates: int = 0
    holes: int = 0  # rows for which the source gave nothing
    unidentified: list[UnidentifiedItem] = field(default_factory=list)

    @property
    def rejected(self) -> int:
        return self.holes + len(self.unidentified)

    def without(self, unfit: Mapping[str, str]) -> PageContents:
        """The page where these rows, which cannot be kept for a reason, count as unidentified."""
        return PageContents(
            [None if item_id in unfit else item_id for item_id in self.ids],
            {item_id: item for item_id, item in self.rows.items() if item_id not in unfit},
            self.duplicates,
            self.holes,
            self.unidentified
            + [UnidentifiedItem(self.rows[item_id], reason) for item_id, reason in unfit.items()],
        )


def page_contents(items: Sequence[Any], identify: Callable[[Any], object]) -> PageContents:
    """Identify the items of a page."""
    ids: list[str | None] = []
    rows: dict[str, Any] = {}
    unidentified: list[UnidentifiedItem] = []
    holes = 0
    for item in items:
        if item is None:
            holes += 1
            ids.append(None)
        elif isinstance(found := identity(item, identify), UnidentifiedItem):
            unidentified.append(found)
            ids.append(None)
        else:
            ids.append(found)
            rows[found] = item
    duplicates = len(items) - holes - len(unidentified) - len(rows)
    return PageContents(ids, rows, duplicates, holes, unidentified)


def identity(item: Any, identify: Callable[[Any], object]) -> str | UnidentifiedItem:
    """The identity of an item, or why it has none."""
    try:
        found = identify(item)
    except Exception as error:  # noqa: BLE001 - the user's code may raise anything; the row is put aside with it
        message = without_secrets(message_of(error)[:LONGEST_MESSAGE])
        return UnidentifiedItem(item, f"identify() raised {type(error).__name__}: {message}")
    if not isinstance(found, str) or not found:
        return UnidentifiedItem(item, f"identify() answered {found!r:.80}; a row's identity is a text")
    if found[-1] == " " or "\0" in found:  # not every database tells such texts apart, or stores them
        return UnidentifiedItem(
            item, f"identify() answered {found!r:.80}; no identity ends with a space or has a NUL in it"
        )
    if not found.isascii() and "\\" in found.encode("utf-8", "backslashreplace").decode():
        return UnidentifiedItem(item, f"identify() answered {found!a:.80}; half a character is no text")
    if len(found) > LONGEST_ID:
        return UnidentifiedItem(
            item, f"identify() answered {len(found):,} characters; at most {LONGEST_ID} fit"
        )
    return found


# The end of a pass: is anything proven?
#
# One pass is proof where the source keeps its order: every page began with rows that were read before, the last one
# showed the end, and there are as many rows as the source counted. Everywhere else two passes are needed. A row that two
# passes read was there at the count between them (unless it left and came back). If these are exactly as many as were
# counted, then they are all that were there, whatever order the pages came in.

NOVELTY: Final = 3  # pages without a new row that end a pass
SURE: Final = 2  # pages that must show the end: one of them may have been cut short on its way
GRACE: Final = 50  # requests that may bring nothing before they are weighed against those that did
MARGIN: Final = 10  # pages more than twice the count


def conclude(
    paging: Paging, state: PageState, note: str, page: PageLook | None = None
) -> Advance | EndOfPass:
    """Nothing more is to be read in this pass: count once more if the feed can, then judge."""
    got, fresh = (page.got, page.fresh) if page else (0, 0)
    if state.counts and not state.counted:
        return Advance(state=replace(state, ask=Ask.COUNT, closing=True), note=note, got=got, fresh=fresh)
    return end_of_pass(paging, state, got, fresh)


def end_of_pass(paging: Paging, state: PageState, got: int = 0, fresh: int = 0) -> EndOfPass:
    """Judge what the pass proves: verified, unverified after the last pass, or another pass."""
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


def restart_pass(paging: Paging, state: PageState, note: str, got: int = 0) -> RestartPass | EndOfPass:
    """Give this pass up: the next one begins at the start; after the last pass the partition is unverified."""
    if state.pass_ >= paging.passes:
        ended = replace(state, ended=Verdict.UNVERIFIED)
        words = f"{note} after {state.pass_} passes"
        return EndOfPass(state=ended, verdict=Verdict.UNVERIFIED, note=words, got=got, follows=False)
    return RestartPass(state=next_pass(state, count=None), note=note, got=got)


def next_pass(state: PageState, *, count: int | None) -> PageState:
    """The state at the start of the next pass. `count` was taken after the last row of this one: it stands between them."""
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


def with_count(state: PageState, count: int | None) -> PageState | Fail:
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
    page before the last was full: so no row can have been hidden from us. If the count is the same before and after, it may
    be that a source shuffled rows that are equal in its order: one came twice, and another was never shown.
    """
    changed = state.count_before != state.count
    level = isinstance(paging, Offset) and state.smooth and changed and state.position >= (state.count or 0)
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
