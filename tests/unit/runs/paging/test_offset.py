"""Paging by offset over rows that come and go: nothing is skipped, nothing goes on for ever, nothing ends silently."""

from __future__ import annotations

import statistics
from random import Random

import pytest

from stepfast.runs.paging import decision
from stepfast.runs.paging.decide import FURTHEST, decide
from stepfast.runs.paging.decision import (
    Advance,
    Answer,
    EndOfPass,
    Fail,
    PageState,
    RestartPass,
    StepBack,
    next_request,
)
from stepfast.runs.paging.paginators import Offset
from tests.support.paged_source import Change, Source, before_request, departures, missed, naively, read, rows

SEEDS = range(20)


def leaving(count: int, place: int = 0) -> Change:
    """So many rows leave, one after the other, at this place."""

    def change(source: Source) -> None:
        for _ in range(count):
            source.leave(place)

    return change


def arriving(count: int, key: int) -> Change:
    """So many rows arrive from this key on, each at a place of its own."""

    def change(source: Source) -> None:
        for n in range(count):
            source.arrive(key + n, f"new{source.requests}-{n:05}")

    return change


# Rows that leave behind us must not make us skip others.


@pytest.mark.parametrize("page_size", [30, 50])
@pytest.mark.parametrize("leave", [6, 30, 126])
def test_rows_that_leave_during_a_scan_make_the_naive_reader_skip_others_and_us_none(
    leave: int, page_size: int
) -> None:
    """120 scans of 4,000 rows: 3 numbers of departures, 2 page sizes, 20 seeds."""
    requests = 4_000 // page_size
    ours, naive = list[int](), list[int]()
    for seed in SEEDS:
        source = Source(rows(4_000), change=departures(leave, requests, seed))
        reading = read(Offset(), source, page_size)
        assert reading.verdict == "verified"
        ours.append(len(missed(source, reading)))
        another = Source(rows(4_000), change=departures(leave, requests, seed))
        naive.append(len(another.always - naively(another, page_size)))

    assert sum(ours) == 0
    assert leave / 4 < statistics.mean(naive) < leave * 3 / 4  # half of them leave behind the reader


@pytest.mark.parametrize(("page_size", "more"), [(30, 0.111), (50, 0.064)])
def test_the_overlap_costs_this_many_requests_more(page_size: int, more: float) -> None:
    naive, ours = Source(rows(16_000)), Source(rows(16_000))

    naively(naive, page_size)
    read(Offset(), ours, page_size)

    ends = (4, 1)  # we count twice and look at the end twice; the naive reader looks once
    assert (ours.requests - ends[0]) / (naive.requests - ends[1]) == pytest.approx(1 + more, abs=0.002)


def test_a_row_that_leaves_behind_us_is_noticed_and_the_next_one_read() -> None:
    source = Source(rows(100), change=before_request(4, leaving(10)))

    reading = read(Offset(), source)

    assert missed(source, reading) == set()
    assert reading.verdict == "verified"
    assert [it.state.offset for it in reading.decisions if isinstance(it, StepBack)] == [51, 45]
    assert "the page at offset 54 does not begin with rows that were read before" in reading.words[3]


def test_rows_of_a_page_that_does_not_follow_are_not_kept() -> None:
    """They would pass for our place on the next page."""
    source = Source(rows(100), change=before_request(4, leaving(10)))
    before = read(Offset(), Source(rows(100)))

    reading = read(Offset(), source)

    assert all(it.fresh for it in reading.decisions[1:3] if isinstance(it, Advance))
    assert sum(it.fresh for it in reading.decisions if isinstance(it, Advance | EndOfPass)) == len(
        reading.seen
    )
    assert set(reading.seen) == set(before.seen)


@pytest.mark.parametrize("leave", [100, 500, 1_500])
def test_after_many_rows_left_at_once_our_place_is_found_in_a_few_requests(leave: int) -> None:
    source = Source(rows(3_000), change=before_request(100, leaving(leave)))

    reading = read(Offset(), source)

    steps = [it for it in reading.decisions if isinstance(it, StepBack)]
    assert (reading.verdict, reading.passes) == ("verified", 1)
    assert missed(source, reading) == set()
    assert len(steps) <= 20
    assert reading.last.state.requests < 3_000 / 27 + 30


def test_when_more_rows_left_than_we_ever_step_back_the_pass_starts_again() -> None:
    source = Source(rows(9_000), change=before_request(300, leaving(2 * FURTHEST - 500)))

    reading = read(Offset(), source)

    restarts = [it for it in reading.decisions if isinstance(it, RestartPass)]
    assert len(restarts) == 1
    assert restarts[0].note.endswith("nor does any up to 4,096 rows before it")
    assert (reading.verdict, reading.passes) == ("verified", 2)
    assert missed(source, reading) == set()


def test_rows_that_leave_past_the_end_are_found_again_before_the_end_is_believed() -> None:
    """We stand behind the end of a set that shrank: an empty page there proves nothing."""
    source = Source(rows(62), change=before_request(4, leaving(10)))

    reading = read(Offset(), source)

    assert missed(source, reading) == set()
    assert reading.verdict == "verified"


def test_rows_that_arrive_behind_us_are_no_reason_to_end_or_to_read_again() -> None:
    source = Source(rows(300), change=before_request(5, arriving(40, -100)))

    reading = read(Offset(), source)

    assert (reading.verdict, reading.passes) == ("verified", 1)
    assert missed(source, reading) == set()


def test_rows_that_arrive_behind_us_and_others_that_leave_before_us_are_no_reason_to_read_again() -> None:
    """Fewer rows are read than were counted before and after, and yet none was missed: the end is where it should be."""
    source = Source(rows(300), change=before_request(5, arriving(20, -100), leaving(10, -1)))

    reading = read(Offset(), source)

    assert len(reading.seen) == 290
    assert (reading.verdict, reading.passes) == ("verified", 1)
    assert missed(source, reading) == set()


def test_a_burst_of_rows_that_arrive_behind_us_ends_no_pass_as_proven() -> None:
    """Page after page of rows that we know looks like a source that goes round in circles."""
    source = Source(rows(1_000), change=before_request(30, arriving(300, -1_000)))

    reading = read(Offset(), source)

    assert (reading.verdict, reading.passes) == ("verified", 2)
    assert missed(source, reading) == set()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_busy_source_that_cuts_pages_short_is_verified_in_one_pass(seed: int) -> None:
    dice = Random(seed)
    leave = departures(30, 115, seed)

    def change(source: Source) -> None:
        leave(source)
        if source.requests % 6 == 0:
            source.arrive(
                dice.choice([dice.randrange(30_000) * 10 + 5, 1_000_000 + source.requests]),
                f"new{source.requests}",
            )

    def glitch(page: list[str]) -> list[str]:
        return page[: -dice.randint(1, 5)] if len(page) == 30 and dice.random() < 0.02 else page

    source = Source(rows(3_000), change=change, glitch=glitch, overrun=True)

    reading = read(Offset(), source)

    assert (reading.verdict, reading.passes) == ("verified", 1)
    assert missed(source, reading) == set()
    assert source.requests < 3_000 / 27 + 15


def test_a_row_that_leaves_while_the_end_is_looked_at_costs_a_count_and_not_a_pass() -> None:
    source = Source(rows(40), change=before_request(6, leaving(1)))

    reading = read(Offset(), source)

    assert (reading.verdict, reading.passes, source.requests) == ("verified", 1, 7)


# A page says nothing by its length.


def test_a_short_page_never_ends_a_partition() -> None:
    """One page of 36,413 rows once came back with 35, and the rest was lost."""
    pages = iter([35])
    source = Source(rows(1_000), glitch=lambda page: page[: next(pages, len(page))])

    reading = read(Offset(), source, 40)

    assert (reading.verdict, len(reading.seen)) == ("verified", 1_000)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_source_that_cuts_two_pages_of_a_hundred_short_loses_nothing(seed: int) -> None:
    dice = Random(seed)
    source = Source(
        rows(1_000),
        glitch=lambda page: page[: len(page) - dice.randint(1, 5)] if dice.random() < 0.02 else page,
    )

    reading = read(Offset(), source)

    assert (reading.verdict, len(reading.seen)) == ("verified", 1_000)


@pytest.mark.parametrize("served", [7, 10, 25])
def test_a_source_that_gives_fewer_rows_than_it_is_asked_for_is_read_to_its_end(served: int) -> None:
    source = Source(rows(500), served=served)

    reading = read(Offset(), source, 50)

    assert (reading.verdict, len(reading.seen)) == ("verified", 500)


def test_an_empty_page_in_the_middle_is_asked_for_again() -> None:
    pages = iter([False, False, True])
    source = Source(rows(200), glitch=lambda page: [] if next(pages, False) else page)

    reading = read(Offset(), source)

    assert (reading.verdict, len(reading.seen)) == ("verified", 200)
    assert "the page at offset 54 is empty; looks for its place at offset 51" in reading.words


def test_an_empty_page_below_the_count_is_gone_past() -> None:
    """Rows that are counted and never shown make a hole, and there are others behind it."""
    hidden = frozenset(f"r{n:05}" for n in range(40, 110))
    source = Source(rows(300), hidden=hidden)

    reading = read(Offset(), source)

    assert set(reading.seen) == source.always - hidden
    assert reading.verdict == "unverified"


def test_a_first_page_that_comes_empty_once_is_asked_for_again() -> None:
    pages = iter([True])
    source = Source(rows(50), glitch=lambda page: [] if next(pages, False) else page)

    reading = read(Offset(), source)

    assert (reading.verdict, len(reading.seen)) == ("verified", 50)


@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 29, 30, 31, 33, 57, 60])
def test_a_partition_of_any_size_is_read_once_and_verified(count: int) -> None:
    source = Source(rows(count))

    reading = read(Offset(), source)

    assert (reading.verdict, reading.passes, len(reading.seen)) == ("verified", 1, count)
    assert source.requests <= max(2, 5 + count / 27)


def test_a_range_without_rows_is_a_success_of_two_requests() -> None:
    source = Source([])

    reading = read(Offset(), source)

    assert (reading.words[-1], source.requests) == ("verified: there are no rows", 2)


# What is complete is shown, what is not is said.


KNOWN = {f"r{n:05}": 1 for n in range(100)}


@pytest.mark.parametrize(
    ("first", "last", "shown"),
    [
        (97, 100, 1),  # the last rows that were read, and nothing after them
        (90, 100, 1),
        (70, 100, 0),  # a full page of known rows: there may be others after it
        (80, 83, 0),  # known rows, but not the last ones: the source answers past its end
        (0, 0, 0),
    ],
)
def test_the_end_is_shown_by_the_last_rows_and_nothing_after_them(first: int, last: int, shown: int) -> None:
    state = PageState(
        offset=97,
        position=100,
        read=100,
        seen=100,
        widest=30,
        tail=("r00097", "r00098", "r00099"),
        count_before=100,
        count=100,
        streak=2,
    )
    page = Answer(ids=[f"r{n:05}" for n in range(first, last)], seen=KNOWN)

    decision = decide(Offset(), state, next_request(Offset(), state, 30), page)

    assert isinstance(decision, Advance)
    assert decision.state.shown == shown


def test_rows_that_the_source_counts_and_does_not_show_are_never_passed_over_in_silence() -> None:
    source = Source(rows(500), hidden=frozenset({"r00250", "r00333"}))

    reading = read(Offset(), source)

    assert reading.verdict == "unverified"
    assert (
        reading.words[-1]
        == "unverified: 498 rows read, but the source counts 500 after 3 passes; what was read is kept, "
        "and the range is a debt that the next run reads again"
    )


def test_a_source_that_counts_too_many_rows_leaves_a_debt() -> None:
    reading = read(Offset(), Source(rows(200), miscounts=lambda count: count + 5))

    assert (reading.verdict, reading.passes, len(reading.seen)) == ("unverified", 3, 200)


def test_a_source_that_counts_too_few_rows_is_read_to_its_end_all_the_same() -> None:
    """One that counted 51,906 rows served pages at offset 89,850: stopping at the count loses what is behind it."""
    reading = read(Offset(), Source(rows(1_700), miscounts=lambda count: count * 10 // 17))

    assert (reading.verdict, reading.passes, len(reading.seen)) == ("verified", 1, 1_700)


def test_a_partition_that_grows_while_it_is_read_is_read_to_its_new_end() -> None:
    source = Source(rows(200), change=before_request(6, arriving(900, 10_000)))

    reading = read(Offset(), source)

    assert (reading.verdict, len(reading.seen)) == ("verified", 1_100)


def test_a_source_that_shows_no_more_than_its_first_rows_is_not_verified() -> None:
    reading = read(Offset(), Source(rows(600), deepest=300))

    assert reading.verdict == "unverified"
    assert len(reading.seen) < 600


def test_what_one_pass_cannot_reach_a_pass_backwards_can() -> None:
    """But rows that only one of the two passes read are no proof that there are no others."""
    reading = read(Offset(reversible=True), Source(rows(500), deepest=300))

    assert (reading.verdict, len(reading.seen)) == ("unverified", 500)


# Nothing goes on for ever.


def test_a_source_that_keeps_answering_after_its_end_is_left() -> None:
    source = Source(rows(100), overrun=True)

    reading = read(Offset(), source)

    assert (reading.verdict, len(reading.seen)) == ("verified", 100)
    assert source.requests < 12


def test_a_source_that_keeps_answering_past_an_end_that_came_nearer_is_not_believed() -> None:
    """The pages there show rows that we know, and two that we do not know are behind us."""
    source = Source(rows(112), overrun=True, change=before_request(6, leaving(40)))

    reading = read(Offset(), source)

    assert missed(source, reading) == set()
    assert (reading.verdict, reading.passes) == ("verified", 1)


def test_a_source_that_answers_every_offset_with_the_same_page_is_left_after_three() -> None:
    source = Source(rows(1_000))
    first = [name for _, name in source.rows[:30]]

    reading = read(Offset(), Source(rows(1_000), glitch=lambda _: first))

    assert reading.verdict == "unverified"
    assert len(reading.decisions) < 30


def test_a_source_that_never_stops_giving_new_rows_fails_the_partition_loudly() -> None:
    source = Source(rows(100))
    numbers = iter(range(1_000_000))
    endless = Source(rows(100), glitch=lambda page: [*page[:3], *(f"x{next(numbers)}" for _ in range(27))])

    reading = read(Offset(ties=None), endless)

    assert isinstance(reading.last, Fail)
    assert reading.last.note.endswith("rows read where the source counts 100; the range is not what it seems")
    assert endless.requests < 40
    assert len(source.rows) == 100


def test_a_pass_has_a_hard_bound_on_its_requests() -> None:
    reading = read(Offset(most_requests=10), Source(rows(1_000)))

    assert isinstance(reading.last, Fail)
    assert reading.last.note == "10 requests in one pass, as many as most_requests allows"


def test_a_source_that_hides_nearly_everything_is_not_asked_for_ever() -> None:
    reading = read(Offset(), Source(rows(20_000), deepest=300))

    assert isinstance(reading.last, Fail)
    assert "brought no new row" in reading.last.note
    assert len(reading.decisions) < 100


# Rows that share a place in the order.


@pytest.mark.parametrize("ties", [2, 3])
def test_rows_that_share_a_place_may_be_shuffled_if_the_feed_says_how_many(ties: int) -> None:
    for seed in SEEDS:
        source = Source(rows(400, ties), shuffles=Random(seed), change=departures(20, 15, seed))

        reading = read(Offset(ties=ties), source)

        assert missed(source, reading) == set()
        assert (reading.verdict, reading.passes) == ("verified", 1)


@pytest.mark.parametrize("ties", [3, 5, 30, 400])
def test_an_order_that_is_not_what_the_feed_says_is_noticed(ties: int) -> None:
    """No theorem helps a feed that is wrong about its source, but nothing passed for complete that was not."""
    for seed in SEEDS:
        source = Source(rows(400, ties), shuffles=Random(seed), change=departures(20, 15, seed))

        reading = read(Offset(), source)

        assert reading.verdict == "unverified" or not missed(source, reading)


def test_in_an_order_that_nobody_knows_two_passes_and_the_count_are_the_proof() -> None:
    source = Source(rows(400, 400), shuffles=None)

    reading = read(Offset(ties=None), source)

    assert (reading.verdict, reading.passes) == ("verified", 2)
    assert reading.words[-1].endswith(
        "two passes read the same 400 rows, as many as the source counted between them"
    )


def test_a_source_without_any_order_is_not_asked_for_its_last_page_for_ever() -> None:
    source = Source(rows(400, 400), shuffles=Random(1))

    reading = read(Offset(ties=None), source)

    assert reading.verdict == "unverified"
    assert source.requests <= 3 * (400 / 27 + 4)


def test_two_passes_that_agree_on_more_rows_than_were_counted_prove_nothing() -> None:
    """A count that is too low would let as many rows be missed."""
    reading = read(Offset(ties=None), Source(rows(100), miscounts=lambda count: count - 5))

    assert reading.verdict == "unverified"


def test_a_count_that_hides_a_missed_row_behind_one_that_left_is_not_enough() -> None:
    """100 rows: one is read and leaves, another is moved behind us and never read. 99 are there, 99 were read."""
    source = Source(rows(100), change=before_request(4, lambda it: it.leave(0), lambda it: it.move(-1, -10)))

    reading = read(Offset(ties=None, passes=2), source)

    first = next(it for it in reading.decisions if isinstance(it, EndOfPass))
    assert first.note == "99 rows read in an order that proves nothing yet"
    assert "r00099" in reading.seen  # by the second pass


@pytest.mark.parametrize(("before", "after", "proven"), [(30, 30, False), (30, 29, True), (29, 30, True)])
def test_a_row_less_than_counted_proves_nothing_where_the_count_stood_still(
    before: int, after: int, proven: int
) -> None:
    """Rows came and left, or a source shuffled rows that are equal in its order: only a changed count tells."""
    state = PageState(
        counts=True, counted=True, count_before=before, count=after, read=28, seen=28, position=30,
        ordered=True, smooth=True, shown=2,
    )  # fmt: skip

    assert (decision._proof(Offset(), state) is not None) == bool(proven)
