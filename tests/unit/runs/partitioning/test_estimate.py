"""The estimated cost of a plan, and when a partition has outgrown it."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepfast.errors import ConfigurationError
from stepfast.runs.paging.paginators import Offset
from stepfast.runs.partitioning.contract import Plan, Planned, estimate, outgrown, pieces_of
from stepfast.runs.partitioning.ranges import Bounds, Range
from tests.support.paged_source import Source, read
from tests.support.paged_source import rows as rows_of


def plan_of(*sizes: int | None) -> Plan:
    pieces = tuple(Planned(Range.of(id=Bounds(it, it + 1)), size) for it, size in enumerate(sizes))
    return Plan(partitions=pieces, domain=None, requests=17)


def test_the_requests_of_a_run_are_its_pages_and_the_counts_that_verify_them() -> None:
    cost = estimate(plan_of(30, 84, 0), page_size=30)

    assert cost.pages == (1 + 2) + (3 + 2) + 1  # 84 = 30 + 27 + 27
    assert cost.counts == 2 + 2 + 1
    assert cost.requests == 14
    assert cost.longest == 5
    assert cost.planning == 17


def test_two_passes_cost_twice_the_pages_and_a_count_more() -> None:
    cost = estimate(plan_of(84, 0), page_size=30, passes=2)

    assert (cost.pages, cost.counts) == (2 * (3 + 2) + 1, 3 + 1)


@pytest.mark.parametrize("rows", [0, 1, 29, 30, 31, 100, 500])
@pytest.mark.parametrize("paging", [Offset(), Offset(overlap=8, ties=8)], ids=["3", "8"])
def test_a_quiet_source_is_asked_as_often_as_estimated(rows: int, paging: Offset) -> None:
    source = Source(rows_of(rows))

    read(paging, source)

    assert source.requests == estimate(plan_of(rows), 30, overlap=paging.overlap).requests


def test_overlapping_pages_cost_a_tenth_more() -> None:
    """3 rows of 30: what anchored paging was measured to cost."""
    plain = estimate(plan_of(*[3_000] * 150), 30, overlap=0)
    anchored = estimate(plan_of(*[3_000] * 150), 30)

    assert anchored.pages / plain.pages == pytest.approx(1.11, abs=0.01)


@given(st.integers(1, 5_000), st.integers(1, 100), st.data())
def test_so_many_pages_are_needed_and_no_fewer_suffice(
    rows: int, page_size: int, data: st.DataObject
) -> None:
    overlap = data.draw(st.integers(0, page_size - 1))

    pages = estimate(plan_of(rows), page_size, overlap=overlap, closing=0).pages

    reached, walked = 0, 0
    while reached < rows:
        reached = page_size if not walked else reached + page_size - overlap
        walked += 1
    assert pages == walked


def test_partitions_that_nobody_counted_are_told_apart() -> None:
    cost = estimate(plan_of(None, 10, None), 10)

    assert (cost.unknown, cost.counts) == (2, 2)
    assert estimate(plan_of(), 10).longest == 0


def test_the_rate_says_how_long_it_takes() -> None:
    cost = estimate(plan_of(*[3_000] * 150), 50)

    assert cost.duration(25) == timedelta(seconds=cost.requests / 25)
    with pytest.raises(ConfigurationError, match="never end"):
        cost.duration(0)


def test_pages_that_overlap_completely_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="cannot overlap"):
        estimate(plan_of(1), 3)


@pytest.mark.parametrize(("planned", "rows"), [(3_000, 6_001), (100, 1_001), (0, 1_001)])
def test_a_partition_outgrows_its_estimate_at_twice_the_rows(planned: int, rows: int) -> None:
    assert outgrown(planned, rows)


@pytest.mark.parametrize(("planned", "rows"), [(3_000, 6_000), (100, 900), (None, 99_999)])
def test_a_small_partition_and_one_that_nobody_counted_are_read_to_their_end(
    planned: int | None, rows: int
) -> None:
    assert not outgrown(planned, rows)


def test_pieces_that_do_not_tile_their_parent_replace_nothing() -> None:
    parent = Range.of(price=Bounds(0, 10))
    left, right = (Planned(it, 1) for it in parent.split("price", 5))

    assert pieces_of(parent, Plan(partitions=(left, right), domain=parent)) == (left, right)
    with pytest.raises(ConfigurationError, match="nobody would read price >5"):
        pieces_of(parent, Plan(partitions=(left,), domain=parent))


def test_pieces_of_another_partition_replace_nothing() -> None:
    parent = Range.of(price=Bounds(0, 10))
    elsewhere = Range.of(price=Bounds(0, 9))

    with pytest.raises(ConfigurationError, match=r"not about price 0\.\.10"):
        pieces_of(parent, Plan(partitions=(Planned(elsewhere),), domain=elsewhere))


def test_one_piece_is_no_division() -> None:
    parent = Range.of(price=Bounds(0, 10))

    assert pieces_of(parent, Plan(partitions=(Planned(parent, 3),), domain=parent)) == ()
