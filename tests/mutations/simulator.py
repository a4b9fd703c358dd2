"""Rules of the simulator of Nivoda, each taken away once."""

from __future__ import annotations

from array import array

from stepfast_diamonds.simulator.history import History
from tests.diamonds import (
    test_simulator_behaviour,
    test_simulator_faults,
    test_simulator_history,
    test_simulator_index,
    test_simulator_quirks,
)
from tests.mutations.mutation import Mutation, both, replacing

see_everything = History.reveal
SCANNED = replacing("stepfast_diamonds.simulator.search:SCANNED", 20)

MUTATIONS = [
    Mutation(
        "searches see a change at once",
        replacing(
            "stepfast_diamonds.simulator.history:History.reveal",
            lambda history, _: see_everything(history, 2**62),
        ),
        test_simulator_history.test_searches_see_a_change_when_the_index_has_caught_up_and_not_before,
    ),
    Mutation(
        "the oracle tells what searches see",
        replacing("stepfast_diamonds.simulator.history:History._moved", lambda *_: {}),
        test_simulator_history.test_the_oracle_remembers_every_instant,
    ),
    Mutation(
        "a count is never old",
        replacing(
            "stepfast_diamonds.simulator.history:History.count",
            lambda history, filter_, _=None: history.index.count(filter_),
        ),
        test_simulator_behaviour.test_a_count_may_be_old,
    ),
    Mutation(
        "ties keep their places",
        replacing("stepfast_diamonds.simulator.search:shuffled", lambda place, *_: place),
        test_simulator_quirks.test_b11_ties_change_places_between_two_requests,
    ),
    Mutation(
        "what is kept does not follow changes",
        both(replacing("stepfast_diamonds.simulator.search:Selection.change", lambda *_: None), SCANNED),
        test_simulator_index.test_the_index_stays_right_while_stones_change,
    ),
    Mutation(
        "a second range is not looked at",
        both(
            replacing(
                "stepfast_diamonds.simulator.search:Blocks.count_both",
                lambda blocks, first, *_: blocks.count(first),
            ),
            SCANNED,
        ),
        test_simulator_index.test_rectangles_and_boxes_are_counted_like_everything_else,
    ),
    Mutation(
        "a range leaves nothing out",
        both(
            replacing("stepfast_diamonds.simulator.search:Selection._outside", lambda *_: array("I")), SCANNED
        ),
        test_simulator_index.test_rectangles_and_boxes_are_counted_like_everything_else,
    ),
    Mutation(
        "no place of the index is empty",
        replacing("stepfast_diamonds.simulator.search:Ghosts._missing", lambda *_: 0),
        test_simulator_behaviour.test_a_page_after_the_filter_lacks_what_does_not_exist,
    ),
    Mutation(
        "tokens cannot be revoked",
        replacing("stepfast_diamonds.simulator.session:Sessions.revoke_all", lambda _: None),
        test_simulator_behaviour.test_tokens_can_be_revoked_in_the_middle,
    ),
    Mutation(
        "the firewall forgets at once",
        replacing("stepfast_diamonds.simulator.session:Throttle.wall", lambda *_: 0.0),
        test_simulator_quirks.test_b13_too_many_requests_meet_the_firewall,
    ),
    Mutation(
        "who is answered stays under way",
        replacing("stepfast_diamonds.simulator.session:Throttle.leave", lambda *_: None),
        test_simulator_faults.test_too_many_at_once_are_refused,
    ),
    Mutation(
        "every value can be told",
        replacing("stepfast_diamonds.simulator.faults:_break_enum", lambda *_: True),
        test_simulator_quirks.test_b15_a_value_that_cannot_be_told_is_null_and_an_error_or_takes_its_item_along,
    ),
    Mutation(
        "no connection breaks",
        replacing("stepfast_diamonds.simulator.service:_fault_after_answer", lambda reply, *_: reply),
        test_simulator_faults.test_a_connection_may_break_after_the_answer_was_made,
    ),
    Mutation(
        "items are never spoilt",
        replacing("stepfast_diamonds.simulator.service:spoil_page", lambda *_: []),
        test_simulator_faults.test_one_item_may_come_twice,
    ),
]
