"""Partitions that are known from the start: fixed lists, time slices, key ranges."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepfast.errors import ConfigurationError
from stepfast.runs.partitioning.contract import Partitioner, capped
from stepfast.runs.partitioning.dimension import Dimension
from stepfast.runs.partitioning.partitioners import Fixed, Heatmap, KeyRanges, TimeSlices
from stepfast.runs.partitioning.ranges import EVERYTHING, Bounds, Range, tiles
from tests.support.paged_source import explore, through_json

if TYPE_CHECKING:
    from collections.abc import Callable

some = settings(max_examples=60, deadline=None, database=None)

NEW_YEAR = datetime(2026, 1, 1, tzinfo=UTC)
DAY = timedelta(days=1)


@dataclass(frozen=True)
class Window:
    from_: datetime | None
    to: datetime


WEEK = Window(NEW_YEAR, NEW_YEAR + 7 * DAY)


def names(partitioner: Partitioner, window: Window = WEEK) -> list[str]:
    return [it.range.name for it in partitioner.partitions(partitioner.start(window))]


# All of them


@pytest.mark.parametrize(
    "partitioner",
    [
        Fixed(["EU", "US", "JP"], counted=True),
        TimeSlices("updated_at", every="12h", counted=True),
        KeyRanges.even("id", 0, 1_000, 10, counted=True),
    ],
    ids=lambda it: type(it).__name__,
)
def test_partitions_are_counted_a_few_at_a_time_if_that_is_wanted(partitioner: Partitioner) -> None:
    failed = set[str]()

    def fails_once(name: str) -> bool:
        first = name not in failed
        failed.add(name)
        return first and len(name) % 2 == 0

    steps = explore(partitioner, lambda it: len(it.name), partitioner.start(WEEK), fails=fails_once)

    assert max(len(partitioner.ask(it)) for it in steps) == 3
    last = partitioner.partitions(steps[-1])
    assert [it.range.name for it in last] == names(partitioner)
    assert [it.estimate for it in last] == [len(it.range.name) for it in last]


@pytest.mark.parametrize(
    "partitioner",
    [Fixed(["EU"]), TimeSlices("updated_at", every="1d"), KeyRanges("id", ["m"])],
    ids=["fixed", "slices", "keys"],
)
def test_nothing_is_counted_otherwise(partitioner: Partitioner) -> None:
    frontier = partitioner.start(WEEK)

    assert partitioner.finished(frontier)
    assert partitioner.ask(frontier) == []
    assert through_json(frontier, partitioner) == frontier
    assert [it.estimate for it in partitioner.partitions(frontier)] == [None] * len(
        frontier.plan().partitions
    )


# A fixed list


def test_a_fixed_list_is_one_partition_for_each_entry() -> None:
    assert names(Fixed(["EU", ["US", "CA"], 7])) == ["items EU", "items US CA", "items 7"]


def test_a_fixed_list_of_ranges_must_tile_the_domain_it_claims_to_cover() -> None:
    holey = [Range.of(price=Bounds(0, 249)), Range.of(price=Bounds(250, 500))]

    with pytest.raises(ConfigurationError, match="nobody would read price >249"):
        Fixed(holey, domain=Range.of(price=Bounds(0, 500)))
    assert len(names(Fixed(holey))) == 2


def test_an_entry_that_is_listed_twice_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="twice"):
        Fixed(["EU", "US", "EU"])


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        (lambda: Fixed([]), r"Fixed\(\[\]\): nothing would ever be read; give at least one range"),
        (lambda: Fixed("EU"), r"Fixed\('EU'\): give a list of them, such as Fixed\(\['EU'\]\)"),
        (lambda: Fixed(5), r"Fixed\(5\): give a list of them"),  # type: ignore[arg-type]
        (lambda: Heatmap("price", 0, 9), r"Heatmap\('price'\): give dimensions"),  # type: ignore[arg-type]
    ],
)
def test_what_divides_nothing_is_refused(wrong: Callable[[], object], sentence: str) -> None:
    with pytest.raises(ConfigurationError, match=sentence):
        wrong()


def test_a_list_that_nobody_counted_is_capped_after_its_first_partition() -> None:
    plan = Fixed(["EU", "US"]).start().plan()

    assert [it.range.name for it in capped(plan, 1_000_000).partitions] == ["items EU"]
    assert capped(plan, 1_000_000).gap == "items US"


def test_a_capped_list_is_partial() -> None:
    plan = Fixed(["EU", "US"], counted=True).start().learn({"items EU": 10, "items US": 10}).plan()

    assert (plan.scope, capped(plan, 15).scope, capped(plan, 10).scope) == ("complete", "complete", "partial")
    assert capped(plan, 10).gap == "items US"
    with pytest.raises(ConfigurationError, match="at least one"):
        capped(plan, 0)


def test_a_group_of_items_is_divided_into_halves() -> None:
    group = Range.of(items=["EU", "US", "JP"])
    divided = Fixed([["EU", "US", "JP"]]).divide(group)

    assert divided is not None
    assert [it.range.items for it in divided.plan().partitions] == [("EU",), ("US", "JP")]
    assert divided.plan().scope == "complete"
    assert Fixed(["EU"]).divide(Range.of(items=["EU"])) is None


# Time slices


def test_a_window_is_cut_into_slices_of_equal_length() -> None:
    assert names(TimeSlices("updated_at", every="3d")) == [
        "updated_at 2026-01-01T00:00:00Z..<2026-01-04T00:00:00Z",
        "updated_at 2026-01-04T00:00:00Z..<2026-01-07T00:00:00Z",
        "updated_at 2026-01-07T00:00:00Z..<2026-01-08T00:00:00Z",
    ]


@some
@given(
    st.timedeltas(timedelta(seconds=1), timedelta(days=4_000)),
    st.timedeltas(timedelta(seconds=1), timedelta(days=900)),
    st.sampled_from([None, NEW_YEAR - 90 * DAY, NEW_YEAR + 5_000 * DAY]),
    st.sampled_from([None, NEW_YEAR]),
    st.sampled_from(["left", "both"]),
)
def test_slices_tile_their_window_and_are_never_too_many(
    length: timedelta, every: timedelta, since: datetime | None, begin: datetime | None, closed: Any
) -> None:
    window = Window(begin, NEW_YEAR + length)
    slices = TimeSlices("updated_at", every=every, since=since, closed=closed, most=50)

    plan = slices.start(window).plan()

    assert plan.scope == "complete"
    assert 1 <= len(plan.partitions) <= 51
    domain = Range.of(updated_at=Bounds(window.from_, window.to, closed))
    assert tiles(domain, [it.range for it in plan.partitions])


def test_a_window_since_ever_has_a_first_slice_without_a_beginning() -> None:
    since_ever = Window(None, NEW_YEAR)

    plan = TimeSlices("updated_at", every="1d", since=NEW_YEAR - 3 * DAY).start(since_ever).plan()

    bounds = [it.range.bounds("updated_at") for it in plan.partitions]
    assert [it.from_ for it in bounds] == [None, NEW_YEAR - 2 * DAY, NEW_YEAR - DAY]
    assert len(TimeSlices("updated_at", every="1d").start(since_ever).plan().partitions) == 1


def test_an_empty_window_has_no_slices() -> None:
    assert names(TimeSlices("updated_at", every="1d"), Window(NEW_YEAR, NEW_YEAR)) == []


def test_a_slice_that_outgrew_its_estimate_is_divided_where_its_rows_are() -> None:
    slices = TimeSlices("updated_at", every="1d", target=100)
    whole = Range.of(updated_at=Bounds(NEW_YEAR, NEW_YEAR + DAY, "left"))
    rush_hour = [NEW_YEAR + timedelta(hours=9, seconds=10 * it) for it in range(300)]
    begun = slices.divide(whole)
    assert begun is not None

    plan = explore(slices, lambda it: sum(it.bounds("updated_at").contains(one) for one in rush_hour), begun)[
        -1
    ].plan()

    assert tiles(whole, [it.range for it in plan.partitions])
    assert [it.estimate for it in plan.partitions if it.estimate] == pytest.approx([100] * 3, abs=20)
    assert slices.divide(Range.of(updated_at=Bounds(None, NEW_YEAR, "left"))) is None


def test_slices_that_cannot_be_are_refused() -> None:
    naive = datetime(2026, 1, 1)  # noqa: DTZ001 - that is the point
    refused: list[dict[str, Any]] = [
        {"every": 0},
        {"every": "1d", "most": 0},
        {"every": "1d", "since": naive},
    ]
    for given_settings in refused:
        with pytest.raises(ConfigurationError):
            TimeSlices("updated_at", **given_settings)


# Key ranges


@some
@given(st.integers(-1_000, 1_000), st.integers(1, 100_000), st.integers(1, 300))
def test_even_ranges_tile_every_key_also_those_that_come_later(low: int, extent: int, pieces: int) -> None:
    plan = KeyRanges.even("id", low, low + extent, pieces).start().plan()

    assert plan.scope == "complete"
    assert tiles(EVERYTHING, [it.range for it in plan.partitions])
    assert len(plan.partitions) == min(pieces, extent)


def test_keys_are_cut_where_one_says() -> None:
    assert names(KeyRanges("sku", ["g", "p"])) == ["sku ..<g", "sku g..<p", "sku p.."]
    assert names(KeyRanges("sku", [10], closed="both")) == ["sku ..10", "sku 10.."]
    assert names(KeyRanges("sku", [])) == ["sku .."]


def test_hexadecimal_texts_are_cut_evenly() -> None:
    cuts = KeyRanges.hexadecimal("uuid", 16).cuts

    assert cuts == tuple(f"{it:x}000" for it in range(1, 16))


def test_a_range_of_numbers_that_outgrew_its_estimate_is_divided_where_its_rows_are() -> None:
    keys = KeyRanges.even("id", 0, 1_000_000, 4)
    inner = keys.start().plan().partitions[1].range
    begun = keys.divide(inner)
    assert begun is not None

    plan = explore(keys, lambda it: sum(it.contains({"id": one}) for one in range(300_000, 309_000)), begun)[
        -1
    ].plan()

    assert tiles(inner, [it.range for it in plan.partitions])
    assert sorted(it.estimate for it in plan.partitions if it.estimate) == pytest.approx([3_000] * 3, rel=0.2)
    assert keys.divide(keys.start().plan().partitions[0].range) is None
    assert KeyRanges("sku", ["g", "p"]).divide(Range.of(sku=Bounds("g", "p", "left"))) is None


def test_cuts_that_do_not_go_upwards_are_refused() -> None:
    refused: list[list[Any]] = [["p", "g"], ["g", "g"], [1, "g"]]
    for cuts in refused:
        with pytest.raises(ConfigurationError):
            KeyRanges("sku", cuts)
    with pytest.raises(ConfigurationError, match="nothing to cut"):
        KeyRanges.even("id", 5, 5, 3)
    with pytest.raises(ConfigurationError, match="pieces"):
        KeyRanges.hexadecimal("uuid", 0)


@pytest.mark.parametrize("number", [0, 2.5, "3", True, float("nan")])
def test_a_number_that_is_none_is_refused(number: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"Heatmap\(target=.*a whole number, 1 or more"):
        Heatmap(Dimension("price", 0, 1_000, 1), target=number)
    with pytest.raises(ConfigurationError, match=r"KeyRanges\(target=.*a whole number, 1 or more"):
        KeyRanges("id", [10], target=number)
    with pytest.raises(ConfigurationError, match=r"TimeSlices\(most=.*a whole number, 1 or more"):
        TimeSlices("updated_at", every="1d", most=number)
    with pytest.raises(ConfigurationError, match="nothing to cut"):
        KeyRanges.even("id", 0, 10, number)
    with pytest.raises(ConfigurationError, match="pieces"):
        KeyRanges.hexadecimal("uuid", number)
