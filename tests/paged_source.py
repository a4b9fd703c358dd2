"""A source that changes while it is read, and a reader that asks it for what the page decisions say.

The source keeps its rows in the order of their keys; rows that share a key come in any order. Between two requests
anything may happen to it. The rows that were there all the time are those that a reader may not miss.
"""

from __future__ import annotations

import json
from bisect import insort
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import TYPE_CHECKING

from stepfast.runs.paging.decide import decide
from stepfast.runs.paging.decision import (
    Answer,
    Ask,
    Cursor,
    EndOfPass,
    Fail,
    PageState,
    Stale,
    begin,
    explain,
    keeps_rows,
    next_request,
)

if TYPE_CHECKING:
    from stepfast.runs.paging.decision import Decision
    from stepfast.runs.paging.paginators import Paging

Row = tuple[int, str]  # its place in the order, and its identity
Change = Callable[["Source"], None]
Glitch = Callable[[list[str]], list[str]]
Fetch = Callable[[Cursor], Answer]


def nothing(_: Source) -> None:
    """Between two requests, nothing happens."""


@dataclass
class Source:
    rows: list[Row]
    change: Change = nothing  # what happens before each request
    glitch: Glitch = list  # what becomes of a page on its way
    served: int = 1_000  # the most rows it gives, whatever it is asked for
    overrun: bool = False  # past its end it answers with its first rows again
    deepest: int = 1_000_000  # from this offset on it answers with nothing
    hidden: frozenset[str] = frozenset()  # counted, and never shown
    shuffles: Random | None = None  # rows that share a key, anew for each request
    miscounts: Callable[[int], int] = int
    requests: int = 0
    always: set[str] = field(init=False)  # the rows that have been there all the time

    def __post_init__(self) -> None:
        self.rows = sorted(self.rows)
        self.always = {name for _, name in self.rows}

    def leave(self, place: int) -> None:
        if self.rows:
            _, name = self.rows.pop(place % len(self.rows))
            self.always.discard(name)

    def arrive(self, key: int, name: str) -> None:
        insort(self.rows, (key, name))

    def move(self, place: int, key: int) -> None:
        """A row gets another place in the order, and is there all the time."""
        if self.rows:
            _, name = self.rows.pop(place % len(self.rows))
            insort(self.rows, (key, name))

    def count(self) -> int:
        self._tick()
        return self.miscounts(len(self.rows))

    def page(self, cursor: Cursor) -> list[str]:
        self._tick()
        order = self._in_order()
        if cursor.descending:
            order = order[::-1]
        size = min(cursor.limit, self.served)
        window = order[cursor.offset : cursor.offset + size] if cursor.offset < self.deepest else []
        if self.overrun and cursor.offset >= len(order):
            window = order[:size]
        return self.glitch([name for _, name in window if name not in self.hidden])

    def page_after(self, cursor: Cursor) -> list[str]:
        """By key, which is the row's identity here."""
        self._tick()
        names = sorted(name for _, name in self.rows)
        later = [it for it in names if cursor.after is None or it > cursor.after]
        return self.glitch(later[: min(cursor.limit, self.served)])

    def _in_order(self) -> list[Row]:
        if self.shuffles is None:
            return self.rows
        dice = self.shuffles
        return [row for _, _, row in sorted((row[0], dice.random(), row) for row in self.rows)]

    def _tick(self) -> None:
        self.requests += 1
        self.change(self)


def rows(count: int, ties: int = 1) -> list[Row]:
    """So many of them share each place."""
    return [(10 * (n // ties), f"r{n:05}") for n in range(count)]


@dataclass(frozen=True)
class Reading:
    """What became of reading a partition to its end."""

    decisions: list[Decision]
    seen: dict[str, int]

    @property
    def last(self) -> EndOfPass | Fail:
        last = self.decisions[-1]
        assert isinstance(last, EndOfPass | Fail)
        return last

    @property
    def verdict(self) -> str:
        return self.last.verdict.value if isinstance(self.last, EndOfPass) else "failed"

    @property
    def passes(self) -> int:
        return self.last.state.pass_

    @property
    def words(self) -> list[str]:
        return [explain(it) for it in self.decisions]


def read(
    paging: Paging, source: Source, page_size: int = 30, *, fetch: Fetch | None = None, counts: bool = True
) -> Reading:
    """Read a partition as the page step does; between any two requests its state is JSON."""
    fetch = fetch or by_offset(source)
    state, seen = begin(counts=counts), dict[str, int]()
    decisions: list[Decision] = []
    for _ in range(100_000):
        state = PageState.from_json(json.loads(json.dumps(state.to_json())))
        request = next_request(paging, state, page_size)
        if request.ask is Ask.COUNT:
            answer = Answer(count=source.count())
        else:
            page = fetch(request.cursor)
            ids = [it for it in page.ids if it is not None]
            answer = replace(page, seen={it: seen[it] for it in ids if it in seen})
        decision = decide(paging, state, request, answer)
        decisions.append(decision)
        assert not isinstance(decision, Stale)
        if keeps_rows(decision):
            seen.update(dict.fromkeys([it for it in answer.ids if it is not None], state.pass_))
        state = decision.state
        assert state.seen == len(seen), "what the state counts is what was kept"
        if state.ended is not None or isinstance(decision, Fail):
            return Reading(decisions, seen)
    raise AssertionError("the reading does not end")


def by_offset(source: Source) -> Fetch:
    return lambda cursor: Answer(ids=source.page(cursor))


def by_key(source: Source) -> Fetch:
    def fetch(cursor: Cursor) -> Answer:
        ids = source.page_after(cursor)
        return Answer(ids=ids, next=ids[-1] if ids else None)

    return fetch


def by_token(source: Source) -> Fetch:
    """A token that hides a key: the last page has none."""

    def fetch(cursor: Cursor) -> Answer:
        ids = source.page_after(cursor)
        return Answer(ids=ids, next=ids[-1] if ids and len(ids) == cursor.limit else None)

    return fetch


def missed(source: Source, reading: Reading) -> set[str]:
    """The rows that were there all the time, and were never read."""
    return source.always - set(reading.seen)


def naively(source: Source, page_size: int = 30) -> set[str]:
    """What a reader sees that adds up its offsets until a page is empty."""
    seen: set[str] = set()
    offset = 0
    while ids := source.page(Cursor(limit=page_size, offset=offset)):
        seen.update(ids)
        offset += len(ids)
    return seen


def departures(count: int, requests: int, seed: int) -> Change:
    """So many rows leave during so many requests, anywhere."""
    dice = Random(seed)
    when = sorted((dice.randrange(requests) for _ in range(count)), reverse=True)

    def change(source: Source) -> None:
        while when and when[-1] < source.requests:
            when.pop()
            source.leave(dice.randrange(1_000_000))

    return change


def before_request(number: int, *changes: Change) -> Change:
    """All of these happen just before the request of this number, from 1."""

    def change(source: Source) -> None:
        if source.requests == number:
            for it in changes:
                it(source)

    return change


def each_in_turn(changes: Iterable[Sequence[Change]]) -> Change:
    """Some before the first request, some before the second, and so on."""
    waiting = iter(changes)

    def change(source: Source) -> None:
        for it in next(waiting, ()):
            it(source)

    return change
