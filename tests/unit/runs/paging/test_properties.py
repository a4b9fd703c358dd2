"""The promise of paging, against sources that do what they like: what is called verified was read, all of it.

Rows come and go between any two requests, one by one and in bursts; pages are empty, or cut short at any length; the
source gives fewer rows than it is asked for, answers past its end, shuffles rows that share a place, and where the
feed does not trust its order, moves rows about in it.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count
from random import Random
from typing import Any

from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from stepfast.runs.paging.paginators import Keyset, Offset, Token
from tests.support.paged_source import (
    Change,
    Glitch,
    Reading,
    Source,
    by_key,
    by_token,
    each_in_turn,
    missed,
    read,
    rows,
)

PLACES = st.integers(0, 60)
KEYS = st.integers(0, 600)
thorough = settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@dataclass(frozen=True)
class Leaves:
    """So many rows leave at one place."""

    place: int
    many: int = 1

    def __call__(self, source: Source) -> None:
        for _ in range(self.many):
            source.leave(self.place)


@dataclass(frozen=True)
class Arrives:
    """New rows, at most so many at one place of the order."""

    key: int
    ties: int
    numbers: Any
    many: int = 1

    def __call__(self, source: Source) -> None:
        for n in range(self.many):
            number, key = next(self.numbers), self.key + n
            if sum(it == key for it, _ in source.rows) < self.ties:
                source.arrive(key, f"new{number}")


@dataclass(frozen=True)
class Moves:
    """A row gets another place."""

    place: int
    key: int

    def __call__(self, source: Source) -> None:
        source.move(self.place, self.key)


@st.composite
def histories(draw: st.DrawFn, ties: int, *, moving: bool = False) -> Change:
    """What happens before each of the first requests."""
    numbers = count()
    kinds: list[st.SearchStrategy[Change]] = [
        st.builds(Leaves, PLACES),
        st.builds(Leaves, PLACES, st.integers(2, 12)),
        st.builds(Arrives, KEYS, st.just(ties), st.just(numbers)),
        st.builds(Arrives, st.integers(-900, -1), st.just(ties), st.just(numbers), st.integers(2, 12)),
    ]
    if moving:
        kinds.append(st.builds(Moves, PLACES, KEYS))
    return each_in_turn(draw(st.lists(st.lists(st.one_of(kinds), max_size=3), max_size=50)))


@st.composite
def glitches(draw: st.DrawFn, *, in_a_row: bool = False) -> Glitch:
    """Pages that are empty, or cut short; never two cut pages in a row unless `in_a_row`."""
    kinds = iter(draw(st.lists(st.sampled_from(["whole", "cut", "empty"]), max_size=50)))
    dice = Random(draw(st.integers(0, 1_000)))
    cut_before = False

    def glitch(page: list[str]) -> list[str]:
        nonlocal cut_before
        kind = next(kinds, "whole")
        if kind == "empty":
            return []
        cut_before = kind == "cut" and (in_a_row or not cut_before)
        return page[: dice.randint(0, len(page))] if cut_before else page

    return glitch


def kept(source: Source, reading: Reading) -> None:
    """The promise."""
    event(f"{reading.verdict} in pass {reading.passes}")
    assert reading.verdict in ("verified", "unverified", "failed")
    if reading.verdict == "verified":
        assert missed(source, reading) == set(), reading.words


def within_bounds(source: Source, reading: Reading, page_size: int) -> None:
    """Three passes over what there was, each with a bounded number of requests that bring nothing."""
    most = 3 * (2 * (len(reading.seen) + 1) + 2 * len(source.rows) / page_size + 110)
    assert source.requests <= most


@thorough
@given(st.data())
def test_what_is_verified_in_the_order_of_its_source_was_read_completely(data: st.DataObject) -> None:
    ties = data.draw(st.integers(1, 3))
    overlap = ties + data.draw(st.integers(0, 2))
    page_size = 2 * overlap + data.draw(st.integers(1, 8))
    source = Source(
        rows(data.draw(PLACES), ties),
        change=data.draw(histories(ties)),
        glitch=data.draw(glitches()),
        served=data.draw(st.integers(2 * overlap + 1, page_size)),
        overrun=data.draw(st.booleans()),
        shuffles=Random(data.draw(st.integers(0, 9))),
    )

    reading = read(Offset(overlap=overlap, ties=ties), source, page_size)

    kept(source, reading)
    within_bounds(source, reading, page_size)


@thorough
@given(st.data())
def test_what_is_verified_in_no_order_at_all_was_read_completely(data: st.DataObject) -> None:
    sharing = data.draw(st.sampled_from([1, 2, 5, 100]))
    source = Source(
        rows(data.draw(PLACES), sharing),
        change=data.draw(histories(1_000, moving=True)),
        glitch=data.draw(glitches(in_a_row=True)),
        served=data.draw(st.integers(4, 12)),
        overrun=data.draw(st.booleans()),
        shuffles=Random(data.draw(st.integers(0, 99))),
    )

    reading = read(Offset(overlap=1, ties=None, reversible=data.draw(st.booleans())), source, 10)

    kept(source, reading)
    within_bounds(source, reading, 10)


@thorough
@given(st.data())
def test_what_is_verified_by_key_was_read_completely(data: st.DataObject) -> None:
    source = Source(
        rows(data.draw(PLACES)),
        change=data.draw(histories(1)),
        glitch=data.draw(glitches(in_a_row=True).map(_never_empty)),
    )

    reading = read(Keyset(), source, 10, fetch=by_key(source))

    kept(source, reading)
    within_bounds(source, reading, 10)


@thorough
@given(st.data())
def test_what_is_verified_by_token_was_read_completely(data: st.DataObject) -> None:
    source = Source(rows(data.draw(PLACES)), change=data.draw(histories(1)))

    reading = read(Token(), source, 10, fetch=by_token(source))

    kept(source, reading)
    within_bounds(source, reading, 10)


@thorough
@given(size=PLACES, glitch=glitches(in_a_row=True), served=st.integers(7, 12))
def test_rows_that_stay_as_they_are_are_never_lost_however_bad_the_pages_are(
    size: int, glitch: Glitch, served: int
) -> None:
    """Nothing changes, so the count is right: whatever the pages leave out is noticed."""
    source = Source(rows(size), glitch=glitch, served=served)

    reading = read(Offset(), source, 12)

    kept(source, reading)


@thorough
@given(size=st.integers(1, 60), hidden=st.sets(st.integers(0, 59), min_size=1, max_size=20))
def test_rows_that_are_counted_and_never_shown_are_never_called_read(size: int, hidden: set[int]) -> None:
    names = frozenset(f"r{n % size:05}" for n in hidden)
    source = Source(rows(size), hidden=names)

    reading = read(Offset(), source, 10)

    assert reading.verdict != "verified"


def _never_empty(glitch: Glitch) -> Glitch:
    """By key an empty page is the end: a source must not make one up."""
    return lambda page: glitch(page) or page
