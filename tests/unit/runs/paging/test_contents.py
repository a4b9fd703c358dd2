"""The rows of a page, each once, whatever the source answered."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from stepfast.runs.paging.decide import decide
from stepfast.runs.paging.decision import (
    LONGEST_ID,
    Advance,
    Answer,
    EndOfPass,
    PageState,
    next_request,
    page_contents,
)
from stepfast.runs.paging.paginators import Offset
from tests.support.paged_source import Source, read, rows


def by_id(item: Any) -> str:
    identity: str = item["id"]
    return identity


def test_a_row_that_is_twice_on_a_page_is_written_once_and_the_last_wins() -> None:
    """Two rows of one key in one statement would make the page fail for ever."""
    first, second, other = {"id": "a", "price": 1}, {"id": "a", "price": 2}, {"id": "b", "price": 3}

    page = page_contents([first, other, second], by_id)

    assert page.rows == {"a": second, "b": other}
    assert (page.duplicates, page.ids) == (1, ["a", "b", "a"])


def test_holes_are_counted_and_keep_their_places() -> None:
    page = page_contents([None, {"id": "a"}, None], by_id)

    assert (page.holes, page.rejected, page.ids, list(page.rows)) == (2, 2, [None, "a", None], ["a"])


def test_a_row_that_cannot_be_identified_is_put_aside_with_the_reason() -> None:
    page = page_contents(
        [{"id": "a"}, {"name": "x"}, {"id": 5}, {"id": ""}, {"id": "x" * (LONGEST_ID + 1)}], by_id
    )

    assert page.ids == ["a", None, None, None, None]
    assert [it.reason for it in page.unidentified] == [
        "identify() raised KeyError: 'id'",
        "identify() answered 5; a row's identity is a text",
        "identify() answered ''; a row's identity is a text",
        f"identify() answered {LONGEST_ID + 1} characters; at most {LONGEST_ID} fit",
    ]
    assert page.rejected == 4


def test_identities_that_a_database_could_confuse_or_refuse_are_put_aside() -> None:
    """MariaDB compares without spaces at the end, and PostgreSQL stores no NUL."""
    page = page_contents([{"id": "a"}, {"id": "a "}, {"id": "a\0"}, {"id": " a"}], by_id)

    assert page.ids == ["a", None, None, " a"]
    assert all("no identity ends with a space or has a NUL in it" in it.reason for it in page.unidentified)


@given(st.lists(st.one_of(st.none(), st.fixed_dictionaries({"id": st.sampled_from(["a", "b", "c", ""])}))))
def test_every_place_of_a_page_is_accounted_for(items: list[Any]) -> None:
    page = page_contents(items, by_id)

    assert len(page.ids) == len(items) == len(page.rows) + page.duplicates + page.rejected


def test_a_duplicate_takes_two_places_of_the_page_and_counts_as_one_row() -> None:
    state = PageState(count=10, count_before=10)

    decision = decide(Offset(), state, next_request(Offset(), state, 30), Answer(ids=["a", "b", "a"]))

    assert isinstance(decision, Advance)
    assert (decision.got, decision.fresh, decision.state.position) == (3, 2, 3)


def test_a_row_without_an_identity_was_not_read_so_the_pass_is_no_proof() -> None:
    """A row of which we only know that it is there must not be taken for gone."""
    source = Source(rows(60), change=_one_more_at_the_end)

    def fetch(cursor: Any) -> Answer:
        ids = [None if it == "r00010" else it for it in source.page(cursor)]
        return Answer(ids=ids)

    reading = read(Offset(), source, fetch=fetch)

    assert isinstance(reading.last, EndOfPass)
    assert reading.verdict == "unverified"


def _one_more_at_the_end(source: Source) -> None:
    """Enough rows in any case, as far as counting goes."""
    if source.requests == 3:
        source.arrive(10_000, "new")
