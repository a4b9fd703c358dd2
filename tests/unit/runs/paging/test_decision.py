"""Decisions about pages: what is stale, what ends a partition, and what an operator reads about it."""

from __future__ import annotations

import json

import pytest
from msgspec.structs import replace

from stepfast.runs.paging.decide import decide
from stepfast.runs.paging.decision import (
    Advance,
    Answer,
    Ask,
    Decision,
    EndOfPass,
    Fail,
    PageState,
    RestartPass,
    StaleAnswer,
    StepBack,
    Verdict,
    explain,
    first_state,
    keeps_rows,
    ledger_word,
    next_request,
    state_of_partition,
    with_fresh_budget,
)
from stepfast.runs.paging.paginators import Keyset, Offset, Token
from stepfast.runs.partition import PartitionState
from tests.support.paged_source import Source, read, rows

DEBT = "what was read is kept, and the range is a debt that the next run reads again"
ENDED = PageState(seq=5, ended=Verdict.VERIFIED)
EVERY: list[Decision] = [
    Advance(state=PageState(offset=27), note="30 rows"),
    StepBack(state=PageState(offset=21), note="the page at offset 27 is empty"),
    RestartPass(state=PageState(pass_=2), note="our place is lost"),
    EndOfPass(state=ENDED, verdict=Verdict.VERIFIED, note="9 rows"),
    EndOfPass(state=ENDED, verdict=Verdict.UNVERIFIED, note="9 rows read, but the source counts 10"),
    EndOfPass(state=PageState(pass_=2), verdict=Verdict.ANOTHER_PASS, note="9 rows read"),
    Fail(state=PageState(), note="the source goes round in circles"),
    StaleAnswer(note="request 3 was answered before"),
]


def ask(state: PageState, answer: Answer, paging: Offset | Token | Keyset | None = None) -> Decision:
    paging = paging or Offset()
    return decide(paging, state, next_request(paging, state, 30), answer)


def names(first: int, last: int) -> list[str]:
    return [f"r{n:05}" for n in range(first, last)]


def test_the_answer_to_a_request_that_was_answered_before_ends_nothing_and_moves_nothing() -> None:
    """A duplicate that is taken for the last page would end its partition early."""
    state = first_state()
    request = next_request(Offset(), state, 30)
    first = decide(Offset(), state, request, Answer(count=100))
    assert isinstance(first, Advance)

    second = decide(Offset(), first.state, request, Answer(count=0))

    assert isinstance(second, StaleAnswer)
    assert state_of_partition(second) is None
    assert not keeps_rows(second)


def test_an_answer_that_comes_after_the_end_is_stale() -> None:
    assert isinstance(ask(ENDED, Answer(ids=names(0, 30))), StaleAnswer)


def test_the_last_page_moves_the_cursor_and_ends_the_partition_in_one_decision() -> None:
    """Two writes, of which the second looks for a cursor that the first has moved, would never end it."""
    reading = read(Offset(), Source(rows(40)))

    *earlier, last = reading.decisions
    assert isinstance(last, EndOfPass)
    assert (last.state.ended, last.state.position) == (Verdict.VERIFIED, 40)
    assert state_of_partition(last) is PartitionState.DONE
    assert {state_of_partition(it) for it in earlier} == {PartitionState.RUNNING}


def test_every_decision_moves_the_sequence_by_one_whatever_the_cursor_does() -> None:
    source = Source(rows(100), glitch=lambda page: page[:20])

    reading = read(Offset(), source)

    states = [it.state.seq for it in reading.decisions if not isinstance(it, StaleAnswer)]
    assert states == list(range(1, len(states) + 1))


@pytest.mark.parametrize(
    ("decision", "state", "kept"),
    [
        (EVERY[0], PartitionState.RUNNING, True),
        (EVERY[1], PartitionState.RUNNING, False),
        (EVERY[2], PartitionState.RUNNING, False),
        (EVERY[3], PartitionState.DONE, True),
        (EVERY[4], PartitionState.DONE_UNVERIFIED, True),
        (EVERY[5], PartitionState.RUNNING, True),
        (EVERY[6], PartitionState.FAILED, False),
        (EVERY[7], None, False),
    ],
    ids=[ledger_word(it) for it in EVERY],
)
def test_every_decision_has_one_state_of_the_partition(
    decision: Decision, state: PartitionState | None, *, kept: bool
) -> None:
    assert state_of_partition(decision) is state
    assert keeps_rows(decision) is kept


def test_an_operator_reads_what_happened_and_what_follows() -> None:
    assert [explain(it) for it in EVERY] == [
        "30 rows; goes on at offset 27",
        "the page at offset 27 is empty; looks for its place at offset 21",
        "our place is lost; pass 2 begins at the start",
        "verified: 9 rows",
        "unverified: 9 rows read, but the source counts 10; " + DEBT,
        "9 rows read; pass 2 begins",
        "failed: the source goes round in circles",
        "request 3 was answered before; nothing was written",
    ]


def test_a_whole_reading_can_be_told() -> None:
    assert read(Offset(), Source(rows(40))).words == [
        "the source counts 40 rows; goes on at offset 0",
        "offset 0: 30 rows, 30 of them new; goes on at offset 27",
        "offset 27: 13 rows, 10 of them new; goes on at offset 37",
        "nothing new up to row 40; asks the source for its count",
        "nothing new up to row 40; goes on at offset 37",
        "verified: 40 rows in order up to the end; the source counted 40 before and 40 after",
    ]


def test_a_state_is_json_and_comes_back_as_it_was() -> None:
    state = PageState(
        seq=7,
        pass_=2,
        ask=Ask.COUNT,
        ended=Verdict.UNVERIFIED,
        after={"key": [1, "a"]},
        tail=("a", "b"),
        beyond=4,
        count=9,
    )

    assert PageState.from_json(json.loads(json.dumps(state.to_json()))) == state


def test_the_same_state_asks_for_the_same_however_often() -> None:
    state = PageState(seq=3, offset=27, position=30)

    assert next_request(Offset(), state, 30) == next_request(Offset(), state, 30)


def test_a_partition_that_failed_asks_again_for_the_page_whose_rows_were_not_kept() -> None:
    paging = Offset(most_requests=4)
    failed = read(paging, Source(rows(100)))
    assert isinstance(failed.last, Fail)

    state = with_fresh_budget(failed.last.state)
    decision = ask(state, Answer(ids=names(54, 84), seen=failed.seen), paging)

    assert (state.offset, state.read, state.requests) == (54, len(failed.seen), 0)
    assert isinstance(decision, Advance)
    assert (decision.state.read, decision.fresh) == (84, 27)


def test_a_source_that_cannot_count_after_all_fails_the_partition() -> None:
    for count in (None, -1, True, "many"):
        decision = ask(first_state(), Answer(count=count))  # type: ignore[arg-type]
        assert isinstance(decision, Fail)
        assert "it must answer how many rows are there" in decision.note


def test_every_second_pass_is_read_backwards_where_the_feed_can() -> None:
    second = PageState(pass_=2)

    assert next_request(Offset(reversible=True), second, 30).cursor.descending
    assert not next_request(Offset(reversible=True), replace(second, pass_=3), 30).cursor.descending
    assert not next_request(Offset(), second, 30).cursor.descending


def test_a_token_that_the_source_forgot_starts_the_pass_again_and_keeps_what_was_read() -> None:
    state = PageState(after="abc", requests=4, seen=90, read=90, count=200, count_before=200)

    decision = ask(state, Answer(expired=True), Token())

    assert isinstance(decision, RestartPass)
    assert (decision.state.pass_, decision.state.after, decision.state.seen) == (2, None, 90)
    assert decision.state.ask is Ask.COUNT
    assert explain(decision) == "the source no longer knows where we were; pass 2 begins at the start"


def test_a_source_that_forgets_its_tokens_again_and_again_leaves_a_debt() -> None:
    state = PageState(pass_=3, after="abc", requests=4)

    decision = ask(state, Answer(expired=True), Token())

    assert isinstance(decision, EndOfPass)
    assert decision.verdict is Verdict.UNVERIFIED
    assert state_of_partition(decision) is PartitionState.DONE_UNVERIFIED
