"""The tests of the simulator bite: with one of its rules taken out, one of them fails."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Any

import pytest

from stepfast_diamonds.simulator import faults, service
from stepfast_diamonds.simulator import search as listing
from stepfast_diamonds.simulator import search as selection
from stepfast_diamonds.simulator import service as answering
from stepfast_diamonds.simulator.history import History
from stepfast_diamonds.simulator.search import Blocks, Ghosts
from stepfast_diamonds.simulator.session import Sessions, Throttle
from tests.diamonds import (
    test_simulator_behaviour,
    test_simulator_faults,
    test_simulator_history,
    test_simulator_index,
    test_simulator_quirks,
)

see_everything = History.reveal


@pytest.mark.parametrize(
    ("owner", "name", "instead", "noticed_by"),
    [
        pytest.param(
            History,
            "reveal",
            lambda history, _: see_everything(history, 2**62),
            test_simulator_history.test_searches_see_a_change_when_the_index_has_caught_up_and_not_before,
            id="searches see a change at once",
        ),
        pytest.param(
            History,
            "_moved",
            lambda *_: {},
            test_simulator_history.test_the_oracle_remembers_every_instant,
            id="the oracle tells what searches see",
        ),
        pytest.param(
            History,
            "count",
            lambda history, filter_, _=None: history.index.count(filter_),
            test_simulator_behaviour.test_a_count_may_be_old,
            id="a count is never old",
        ),
        pytest.param(
            listing,
            "shuffled",
            lambda place, *_: place,
            test_simulator_quirks.test_b11_ties_change_places_between_two_requests,
            id="ties keep their places",
        ),
        pytest.param(
            selection.Selection,
            "change",
            lambda *_: None,
            test_simulator_index.test_the_index_stays_right_while_stones_change,
            id="what is kept does not follow changes",
        ),
        pytest.param(
            Blocks,
            "count_both",
            lambda blocks, first, *_: blocks.count(first),
            test_simulator_index.test_rectangles_and_boxes_are_counted_like_everything_else,
            id="a second range is not looked at",
        ),
        pytest.param(
            selection.Selection,
            "_outside",
            lambda *_: array("I"),
            test_simulator_index.test_rectangles_and_boxes_are_counted_like_everything_else,
            id="a range leaves nothing out",
        ),
        pytest.param(
            Ghosts,
            "_missing",
            lambda *_: 0,
            test_simulator_behaviour.test_a_page_after_the_filter_lacks_what_does_not_exist,
            id="no place of the index is empty",
        ),
        pytest.param(
            Sessions,
            "revoke_all",
            lambda _: None,
            test_simulator_behaviour.test_tokens_can_be_revoked_in_the_middle,
            id="tokens cannot be revoked",
        ),
        pytest.param(
            Throttle,
            "wall",
            lambda *_: 0.0,
            test_simulator_quirks.test_b13_too_many_requests_meet_the_firewall,
            id="the firewall forgets at once",
        ),
        pytest.param(
            Throttle,
            "leave",
            lambda *_: None,
            test_simulator_faults.test_too_many_at_once_are_refused,
            id="who is answered stays under way",
        ),
        pytest.param(
            faults,
            "_break_enum",
            lambda *_: True,
            test_simulator_quirks.test_b15_a_value_that_cannot_be_told_is_null_and_an_error_or_takes_its_item_along,
            id="every value can be told",
        ),
        pytest.param(
            service,
            "_after",
            lambda reply, *_: reply,
            test_simulator_faults.test_a_connection_may_break_after_the_answer_was_made,
            id="no connection breaks",
        ),
        pytest.param(
            answering,
            "spoil_page",
            lambda *_: [],
            test_simulator_faults.test_one_item_may_come_twice,
            id="items are never spoilt",
        ),
    ],
)
def test_a_rule_that_is_taken_out_is_missed(
    owner: Any, name: str, instead: Any, noticed_by: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner, name, instead)
    if noticed_by.__module__ == test_simulator_index.__name__:
        monkeypatch.setattr(selection, "SCANNED", 20)

    with pytest.raises((AssertionError, KeyError, pytest.fail.Exception, ExceptionGroup)):
        noticed_by()
