"""Guards of paging decisions, each taken away once."""

from __future__ import annotations

from msgspec.structs import replace

from tests.mutations.mutation import Mutation, replacing
from tests.unit.runs.paging import test_offset, test_tokens

MUTATIONS = [
    # A page counts only where it belongs, and an end only with its proof.
    Mutation(
        "a page that skips rows is taken for the next one",
        replacing("stepfast.runs.paging.decide:_anchors", lambda *_: 0),
        test_offset.test_a_row_that_leaves_behind_us_is_noticed_and_the_next_one_read,
        only_on=("sqlite",),
    ),
    Mutation(
        "one known row is enough where several share a place",
        replacing(
            "stepfast.runs.paging.decide:_anchors",
            lambda paging, state: int(state.ordered and bool(paging.ties)),
        ),
        test_offset.test_rows_that_share_a_place_may_be_shuffled_if_the_feed_says_how_many,
        {"ties": 3},
        only_on=("sqlite",),
    ),
    Mutation(
        "one page is believed that it is the last",
        replacing("stepfast.runs.paging.decide:SURE", 1),
        test_offset.test_a_partition_of_any_size_is_read_once_and_verified,
        {"count": 40},
        only_on=("sqlite",),
    ),
    Mutation(
        "any number of rows is enough",
        replacing("stepfast.runs.paging.decision:_enough", lambda *_: True),
        test_offset.test_rows_that_the_source_counts_and_does_not_show_are_never_passed_over_in_silence,
        only_on=("sqlite",),
    ),
    Mutation(
        "a pass may take as many requests as it likes",
        replacing("stepfast.runs.paging.decide:over_budget", lambda *_: None),
        test_offset.test_a_pass_has_a_hard_bound_on_its_requests,
        only_on=("sqlite",),
    ),
    Mutation(
        "a circle of tokens is followed",
        replacing(
            "stepfast.runs.paging.decide:follow", lambda state, token: (replace(state, after=token), False)
        ),
        test_tokens.test_a_token_that_leads_to_itself_is_followed_once,
        only_on=("sqlite",),
    ),
]
