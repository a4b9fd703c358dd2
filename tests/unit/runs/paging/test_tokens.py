"""Paging by token and by key: circles are found, empty pages are no end, and a source's word is checked."""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepfast.runs.paging.decide import follow
from stepfast.runs.paging.decision import Answer, EndOfPass, Fail, PageState
from stepfast.runs.paging.paginators import Keyset, Token
from tests.support.paged_source import Source, before_request, by_key, by_token, missed, read, rows

if TYPE_CHECKING:
    from collections.abc import Callable

    from stepfast.runs.paging.decision import Cursor


def numbered(*pages: list[str], then: Callable[[int], Any]) -> Callable[[Cursor], Answer]:
    """A source of these pages by number; `then` names the token after each of them."""

    def fetch(cursor: Cursor) -> Answer:
        number = cursor.after or 0
        return Answer(ids=pages[min(number, len(pages) - 1)], next=then(number))

    return fetch


def by_hidden_offset(source: Source) -> Callable[[Cursor], Answer]:
    """A token that is the number of rows before the page."""

    def fetch(cursor: Cursor) -> Answer:
        offset = cursor.after or 0
        ids = source.page(replace(cursor, offset=offset))
        return Answer(ids=ids, next=offset + len(ids) if ids else None)

    return fetch


# Tokens


@pytest.mark.parametrize("size", [0, 1, 30, 31, 300])
def test_a_feed_by_token_ends_where_its_source_says_and_is_checked_against_the_count(size: int) -> None:
    source = Source(rows(size))

    reading = read(Token(), source, fetch=by_token(source))

    assert (reading.verdict, reading.passes, len(reading.seen)) == ("verified", 1, size)


def test_a_feed_by_token_that_cannot_count_is_believed_when_it_ends_in_order() -> None:
    source = Source(rows(100))

    reading = read(Token(), source, fetch=by_token(source), counts=False)

    assert reading.words[-1] == "verified: 100 rows in order up to the end; the feed does not count"


def test_a_source_that_ends_too_early_is_read_again_and_leaves_a_debt() -> None:
    source = Source(rows(100))

    reading = read(Token(), source, fetch=numbered(["r00000", "r00001"], then=lambda _: None))

    assert reading.verdict == "unverified"
    assert reading.words[-1].startswith("unverified: 2 rows read, but the source counts 100 after 3 passes")


def test_a_token_that_leads_to_itself_is_followed_once() -> None:
    source = Source(rows(100))

    reading = read(Token(), source, fetch=numbered(["a", "b"], ["c", "d"], then=lambda _: 1))

    assert reading.verdict == "unverified"
    assert len(reading.decisions) < 20
    assert any("its token was met before" in it for it in reading.words)


def test_a_circle_of_tokens_whose_pages_are_always_new_ends_all_the_same() -> None:
    names = count()

    reading = read(
        Token(),
        Source(rows(100)),
        fetch=lambda cursor: Answer(ids=[f"x{next(names)}"], next=((cursor.after or 0) + 1) % 10),
    )

    assert isinstance(reading.last, EndOfPass)
    assert reading.verdict == "unverified"
    assert len(reading.decisions) < 120


def test_a_source_that_repeats_its_pages_under_new_tokens_is_left_after_three() -> None:
    source = Source(rows(100))

    reading = read(Token(), source, fetch=numbered(["a", "b"], then=lambda number: number + 1))

    assert reading.verdict == "unverified"
    assert any("3 pages in a row were known" in it for it in reading.words)
    assert len(reading.decisions) < 20


def test_a_circle_of_tokens_is_an_end_like_any_other_if_everything_was_read() -> None:
    """Some sources repeat their last token for ever; two passes that read all that was counted are proof enough."""
    source = Source([(1, "a"), (2, "b"), (3, "c")])

    reading = read(
        Token(), source, fetch=numbered(["a", "b"], ["c"], [], then=lambda number: min(number + 1, 2))
    )

    assert (reading.verdict, reading.passes) == ("verified", 2)


def test_without_a_count_a_circle_is_never_taken_for_the_end() -> None:
    reading = read(Token(), Source([]), fetch=numbered(["a"], then=lambda _: 0), counts=False)

    assert reading.verdict == "unverified"


def test_an_empty_page_with_a_token_is_not_the_end() -> None:
    source = Source([(1, "a"), (2, "b")])
    empty: list[list[str]] = [[] for _ in range(40)]

    reading = read(
        Token(),
        source,
        fetch=numbered(["a"], *empty, ["b"], then=lambda number: number + 1 if number < 41 else None),
    )

    assert (reading.verdict, set(reading.seen)) == ("verified", {"a", "b"})


def test_a_token_that_hides_an_offset_must_be_declared_and_then_two_passes_are_the_proof() -> None:
    def sliding() -> Source:
        return Source(rows(90), change=before_request(3, lambda it: it.leave(0)))

    trusted, declared = sliding(), sliding()

    wrong = read(Token(), trusted, fetch=by_hidden_offset(trusted))
    right = read(Token(stable=False), declared, fetch=by_hidden_offset(declared))

    assert (wrong.verdict, missed(trusted, wrong)) == ("verified", {"r00030"})
    assert (right.verdict, missed(declared, right)) == ("verified", set())
    assert right.passes == 3


@given(st.integers(0, 60), st.integers(1, 60))
def test_a_circle_of_any_length_is_found_with_one_remembered_token(lead: int, length: int) -> None:
    tokens = [*range(lead), *(lead + n % length for n in range(4 * (lead + length) + 4))]
    state, found = PageState(), None
    for number, token in enumerate(tokens):
        state, looped = follow(state, token)
        if looped:
            found = number
            break

    assert found is not None
    assert tokens[found] in tokens[:found]


@given(st.lists(st.one_of(st.integers(), st.text(), st.lists(st.integers())), unique_by=repr))
def test_tokens_that_differ_are_no_circle(tokens: list[Any]) -> None:
    state = PageState()
    for token in tokens:
        state, looped = follow(state, token)
        assert not looped


# Keys


@pytest.mark.parametrize("size", [0, 1, 30, 31, 300])
@pytest.mark.parametrize("counts", [True, False])
def test_a_feed_by_key_ends_with_an_empty_page(size: int, *, counts: bool) -> None:
    source = Source(rows(size))

    reading = read(Keyset(), source, fetch=by_key(source), counts=counts)

    assert (reading.verdict, reading.passes, len(reading.seen)) == ("verified", 1, size)


def test_a_short_page_by_key_is_not_the_end() -> None:
    pages = iter([5, 1, 7])
    source = Source(rows(100), glitch=lambda page: page[: next(pages, len(page))])

    reading = read(Keyset(), source, fetch=by_key(source))

    assert (reading.verdict, len(reading.seen)) == ("verified", 100)


@pytest.mark.parametrize("counts", [True, False])
def test_a_page_by_key_that_comes_empty_once_is_asked_for_again(*, counts: bool) -> None:
    pages = iter([False, True])
    source = Source(rows(100), glitch=lambda page: [] if next(pages, False) else page)

    reading = read(Keyset(), source, fetch=by_key(source), counts=counts)

    assert (reading.verdict, reading.passes, len(reading.seen)) == ("verified", 1, 100)


def test_a_page_with_rows_and_without_a_key_fails_the_partition() -> None:
    """Taken for the end, it would lose everything after the first page."""
    source = Source(rows(100))

    reading = read(Keyset(), source, fetch=lambda cursor: Answer(ids=source.page(cursor)))

    assert isinstance(reading.last, Fail)
    assert reading.last.note.startswith("a page with rows gives no key; answer Page(items, next=")


def test_a_key_that_more_rows_share_than_fit_on_a_page_fails_the_partition() -> None:
    source = Source(rows(100))

    reading = read(Keyset(), source, fetch=lambda cursor: Answer(ids=source.page(cursor), next=17))

    assert isinstance(reading.last, Fail)
    assert "more rows share a key than fit on a page" in reading.last.note


def test_rows_that_leave_move_nothing_where_pages_begin_after_a_key() -> None:
    source = Source(rows(300), change=lambda it: it.leave(0) if it.requests % 2 else None)

    reading = read(Keyset(), source, fetch=by_key(source))

    assert (reading.verdict, reading.passes) == ("verified", 1)
    assert missed(source, reading) == set()
