"""A source that changes while it is read, and a reader that sends the requests that the page decisions ask for.

The source keeps its rows in the order of their keys; rows that share a key come in any order. Between two requests
anything may happen to it. The rows that were there all the time are those that a reader must not miss.
"""

from __future__ import annotations

import json
import math
from bisect import bisect_right, insort
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from itertools import accumulate
from random import Random
from typing import TYPE_CHECKING, Any

from stepfast.runs.paging.decide import decide
from stepfast.runs.paging.decision import (
    Answer,
    Ask,
    Cursor,
    EndOfPass,
    Fail,
    PageState,
    StaleAnswer,
    explain,
    first_state,
    keeps_rows,
    next_request,
)

if TYPE_CHECKING:
    from stepfast.runs.paging.decision import Decision
    from stepfast.runs.paging.paginators import Paging
    from stepfast.runs.partitioning.contract import Frontier, Partitioner
    from stepfast.runs.partitioning.ranges import Range


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
    state, seen = first_state(counts=counts), dict[str, int]()
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
        assert not isinstance(decision, StaleAnswer)
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


# Sources that only know how to count: the published densities of two catalogues, and handfuls of items.

PRICE = "dollar_per_carat"

# Rows by price per carat: up to this price, so many.
NATURAL = {
    500: 29_999, 1_000: 103_412, 1_500: 96_907, 2_000: 58_818, 2_500: 36_719, 3_000: 23_955, 3_500: 16_690,
    4_000: 12_599, 4_500: 9_190, 5_000: 7_350, 6_000: 10_671, 7_000: 7_347, 8_000: 5_014, 9_000: 3_802, 10_000: 3_051,
    15_000: 7_334, 20_000: 2_270, 25_000: 837, 30_000: 454, 40_000: 407, 50_000: 143, 100_000: 208,
}  # fmt: skip
# 904,000 rows, 770,000 of them below 250; single dollars with tens of thousands.
LAB_GROWN = {
    50: 40_000, 99: 240_000, 100: 25_000, 149: 200_000, 150: 40_000, 200: 165_000, 250: 60_000, 500: 80_000,
    1_000: 35_000, 5_000: 15_000, 100_000: 4_000,
}  # fmt: skip


class Density:
    """Rows spread evenly inside each bin, and in every bin alike by carats: most are small."""

    def __init__(self, bins: Mapping[int, int], growth: float = 1) -> None:
        self.ends = [0, *bins]
        self.sums = [0, *accumulate(rows * growth for rows in bins.values())]
        self.asked: list[str] = []

    @property
    def rows(self) -> int:
        return round(self.sums[-1])

    def __call__(self, asked: Range) -> int:
        self.asked.append(asked.name)
        price, carats = asked.bounds(PRICE), asked.bounds("carats")
        rows = self._below(price.to) - (0 if price.from_ is None else self._below(price.from_))
        share = _lighter(carats.to) - (0 if carats.from_ is None else _lighter(carats.from_))
        return math.ceil(rows * share - 1e-6)

    def _below(self, price: Any) -> float:
        if price is None or price >= self.ends[-1]:
            return self.sums[-1]
        number = bisect_right(self.ends, price) - 1
        low, high = self.ends[number], self.ends[number + 1]
        return self.sums[number] + (self.sums[number + 1] - self.sums[number]) * float(price - low) / (
            high - low
        )


def _lighter(carats: Any) -> float:
    return 1 if carats is None else 1 - math.exp(-max(0.0, float(carats) - 0.3) / 0.8)


class Items:
    """A few items, counted one by one: what a range contains is what it counts."""

    def __init__(self, items: Sequence[Mapping[str, int | str | Decimal]]) -> None:
        self.items = items
        self.asked: list[str] = []

    def __call__(self, asked: Range) -> int:
        self.asked.append(asked.name)
        return self.count(asked)

    def count(self, inside: Range) -> int:
        return sum(inside.contains(it) for it in self.items)


def through_json(frontier: Frontier, partitioner: Partitioner) -> Frontier:
    """What a step finds that another one stored."""
    return partitioner.restore(json.loads(json.dumps(frontier.to_json())))


def explore(
    partitioner: Partitioner,
    source: Callable[[Range], int],
    frontier: Frontier,
    *,
    fails: Callable[[str], bool] = lambda _: False,
) -> list[Frontier]:
    """Plan to the end, one stored step after the other; `fails` says which counts come back with nothing."""
    steps = [frontier]
    while not partitioner.finished(steps[-1]):
        frontier = through_json(steps[-1], partitioner)
        asked = partitioner.ask(frontier)
        assert asked, "planning is not finished and asks for nothing"
        answers = {it.name: source(it) for it in asked if not fails(it.name)}
        steps.append(partitioner.learn(frontier, answers))
    return steps
