"""Where the reading of a partition stands between two requests: a value that is stored with the partition as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import structs

from stepfast.runs.paging.paginators import Offset

if TYPE_CHECKING:
    from stepfast.runs.paging.paginators import Paging


class Ask(StrEnum):
    COUNT = "count"  # how many rows the source has in this range
    PAGE = "page"


class Verdict(StrEnum):
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
    """What the source said, and which rows of the page are known."""

    ids: Sequence[str | None] = ()  # in the page's order; None: a row without an identity
    seen: Mapping[str, int] = field(
        default_factory=dict
    )  # rows that were read before: the pass that did last
    next: Any = None
    count: int | None = None
    expired: bool = False  # the source no longer knows the token


class PageState(msgspec.Struct, frozen=True, kw_only=True):  # a changed copy takes 1 µs; of a dataclass, 25
    """Everything that the next decision needs to know of the earlier ones."""

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


def begin(*, counts: bool = True) -> PageState:
    """Before the first request; a feed that cannot count begins with its first page.

    Who begins a partition anew forgets the rows it has seen: known rows are what pages are anchored by.
    """
    return PageState(ask=Ask.COUNT if counts else Ask.PAGE, counts=counts)


def retried(state: PageState) -> PageState:
    """The same place with a fresh budget: where a partition that failed goes on when somebody retries it."""
    spent = state.spent + state.requests
    return structs.replace(state, ended=None, requests=0, idle=0, streak=0, spent=spent)


def next_request(paging: Paging, state: PageState, page_size: int) -> Request:
    """What the state asks for. The same state asks for the same, however often."""
    backwards = isinstance(paging, Offset) and paging.reversible and state.pass_ % 2 == 0
    cursor = Cursor(limit=page_size, offset=state.offset, after=state.after, descending=backwards)
    return Request(seq=state.seq, ask=state.ask, cursor=cursor)
