"""The search index finds what a look at every stone would find, before and after any changes."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepfast.clock import moment
from stepfast_diamonds.simulator import search as blocks
from stepfast_diamonds.simulator import search as selection
from stepfast_diamonds.simulator.faults import POLITE
from stepfast_diamonds.simulator.filter import QueryError, read_query
from stepfast_diamonds.simulator.history import BURST, MUTATIONS
from stepfast_diamonds.simulator.search import ORDERS, shuffled
from stepfast_diamonds.simulator.virtual_clock import VirtualClock
from stepfast_diamonds.simulator.vocabulary import AVAILABILITY, CLARITIES, COLORS, LABS, QUALITIES, SHAPES
from stepfast_diamonds.simulator.world import World, make_world

START = 1_700_000_000_000_000


@pytest.fixture(autouse=True, scope="module")
def small_blocks() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "BLOCK_SIZE", 16)
        patch.setattr(blocks, "SHELF_SIZE", 3)
        patch.setattr(selection, "SCANNED", 20)  # so that the quick ways are taken with few stones
        yield


def world(profile: str = "300+200-labgrown", seed: int = 3) -> World:
    return make_world(profile, seed, POLITE, VirtualClock(START, 0))


def some(values: Any, most: int = 4) -> Any:
    return st.lists(st.sampled_from([it for it in values if it]), min_size=1, max_size=most)


def ranges(low: int, high: int) -> Any:
    return st.tuples(st.integers(low, high), st.integers(low, high)).map(
        lambda it: {"from": min(it), "to": max(it)}
    )


def dates() -> Any:
    days = st.integers(-800, 2).map(lambda it: moment(START + it * 86_400_000_000).isoformat())
    return st.fixed_dictionaries({}, optional={"from": days, "to": days})


QUERIES = st.fixed_dictionaries(
    {},
    optional={
        "shapes": some(SHAPES),
        "availability": some(AVAILABILITY),
        "color": some(COLORS),
        "clarity": some(CLARITIES),
        "cut": some(QUALITIES),
        "certificate_lab": some(LABS[:8]),
        "labgrown": st.booleans(),
        "has_image": st.booleans(),
        "has_v360": st.booleans(),
        "hide_memo": st.booleans(),
        "excludeFairPoorCuts": st.booleans(),
        "returns": st.booleans(),
        "dollar_per_carat": ranges(0, 4_000),
        "dollar_value": ranges(0, 8_000),
        "discount": ranges(-7_400, 0),
        "sizes": st.lists(
            st.tuples(st.floats(0.3, 5), st.floats(0.3, 5)).map(lambda it: {"from": min(it), "to": max(it)}),
            min_size=1,
            max_size=3,
        ),
        "updated": dates(),
    },
)
CHANGES = st.lists(st.tuples(st.sampled_from([*MUTATIONS, BURST]), st.integers(1, 12)), max_size=8)


def assert_finds(it: World, query: dict[str, Any]) -> None:
    filter_ = read_query(query, it.catalogue, it.knobs)
    if filter_.inverted:
        return
    naive = [
        row for row in range(len(it.catalogue)) if filter_.matches(it.catalogue.stone(row), it.catalogue)
    ]

    assert it.history.count(filter_) == len(naive)
    for order in ("createdAt", "price_per_carat"):
        listing = it.history.index.listing(filter_, order)
        assert sorted(listing.window(0, len(listing))) == naive


@settings(max_examples=150, deadline=None)
@given(QUERIES)
def test_the_index_finds_what_a_look_at_every_stone_finds(query: dict[str, Any]) -> None:
    assert_finds(UNCHANGED, query)


@settings(max_examples=80, deadline=None)
@given(ranges(0, 3_000), ranges(40, 400), st.none() | dates())
def test_rectangles_and_boxes_are_counted_like_everything_else(
    per_carat: dict[str, int], hundredths: dict[str, int], updated: dict[str, str] | None
) -> None:
    sizes = [{"from": hundredths["from"] / 100, "to": hundredths["to"] / 100}]
    query: dict[str, Any] = {"dollar_per_carat": per_carat, "sizes": sizes}

    assert_finds(UNCHANGED, query | {"updated": updated})


UNCHANGED = world()


@settings(max_examples=60, deadline=None)
@given(st.lists(QUERIES, min_size=1, max_size=3), CHANGES, st.integers(0, 99))
def test_the_index_stays_right_while_stones_change(
    queries: list[dict[str, Any]], changes: list[tuple[str, int]], seed: int
) -> None:
    it = world("120+80-labgrown", seed)
    for kind, count in changes:
        for query in queries:
            assert_finds(it, query)  # what is kept for the next time must follow
        it.clock.advance(1)
        it.mutations.ask(kind, it.look(), count=count)
        it.look()

    for query in queries:
        assert_finds(it, query)


@pytest.mark.parametrize("order", ORDERS)
def test_a_listing_is_in_its_order_both_ways(order: str) -> None:
    it = world()
    listing = it.history.index.listing(read_query({}, it.catalogue, it.knobs), order)

    rows = listing.window(0, len(listing))
    keys = [listing._key(row) for row in rows]

    assert keys == sorted(keys)
    assert listing.window(0, len(listing), descending=True) == rows[::-1]
    assert [row for n in range(0, 500, 37) for row in listing.window(n, n + 37)] == rows


def test_ties_are_permuted_and_nothing_is_lost_inside_one_request() -> None:
    it = world()
    listing = it.history.index.listing(read_query({}, it.catalogue, it.knobs), "createdAt")

    plain = listing.window(0, len(listing))
    other = listing.window(0, len(listing), dice=12_345)

    assert plain != other
    assert sorted(plain) == sorted(other)
    assert [it.catalogue.created_at[row] for row in plain] == [it.catalogue.created_at[row] for row in other]


@given(st.integers(1, 300), st.integers(0, 2**30))
def test_a_permutation_of_ties_uses_every_place_once(size: int, dice: int) -> None:
    assert sorted(shuffled(it, size, dice) for it in range(size)) == list(range(size))


def test_an_index_forgets_what_nobody_asked_for_lately(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selection, "MOST_LISTINGS", 3)
    it = world()
    for dollars in range(100, 2_000, 100):
        query = {"dollar_per_carat": {"from": 0, "to": dollars}}
        it.history.index.listing(read_query(query, it.catalogue, it.knobs), "price")

    assert len(it.history.index._listings) == 3


def test_ids_and_certificate_numbers_lead_back_to_their_stone() -> None:
    it = world()
    for row in range(len(it.catalogue)):
        id_ = it.catalogue.diamond_id(row)
        assert it.catalogue.row_of(id_) == it.catalogue.row_of(f"DIAMOND/{id_}") == row
        number = it.catalogue.certificate_number(row, it.catalogue.revision[row])
        assert row in it.catalogue.rows_of_certificate(number)
    assert len({it.catalogue.diamond_id(row) for row in range(500)}) == 500
    assert [it.catalogue.row_of(odd) for odd in ("", "nonsense", "0" * 36, "DIAMOND/")] == [None] * 4
    assert it.catalogue.rows_of_certificate("no number") == []


@pytest.mark.parametrize("name", ["custom_query", "girdle", "add_taxes_on_search"])
def test_what_is_known_by_name_only_is_refused_with_its_name(name: str) -> None:
    it = world()

    with pytest.raises(QueryError, match=name):
        read_query({name: "x"}, it.catalogue, it.knobs)


def test_a_date_must_be_one() -> None:
    it = world()

    with pytest.raises(QueryError, match="ISO-8601"):
        read_query({"updated": {"from": "yesterday"}}, it.catalogue, it.knobs)


def test_a_naive_date_is_utc() -> None:
    it = world()
    aware = read_query({"updated": {"from": "2023-01-01T00:00:00Z"}}, it.catalogue, it.knobs)

    assert read_query({"updated": {"from": "2023-01-01T00:00:00"}}, it.catalogue, it.knobs) == aware
    assert datetime(2023, 1, 1, tzinfo=UTC).timestamp() * 1e6 == aware.ranges[0][1][0][0]
