"""Guards of the pause that a failing source gets, each taken away once."""

from __future__ import annotations

from datetime import timedelta

import httpx

from stepfast.runs.breaker import SourceError, SourceErrorKind
from tests.contract.runs import test_breaker
from tests.mutations.mutation import Mutation, replacing, without

MUTATIONS = [
    # A source in trouble is left alone by everybody, and a run that stopped is noticed.
    Mutation(
        "everybody who meets trouble begins a pause",
        without("stepfast.runs.breaker:BEGIN_PAUSE", "AND (paused_until IS NULL OR paused_until <= {now})"),
        test_breaker.test_many_who_meet_the_same_trouble_count_as_one,
    ),
    Mutation(
        "any good answer ends any pause",
        without(
            "stepfast.runs.breaker:END_PAUSE", "AND troubles = :troubles AND paused_until = :paused_until"
        ),
        test_breaker.test_a_good_answer_does_not_end_a_pause_that_began_after_its_request,
    ),
    Mutation(
        "the first wait that a source asks for is the last word",
        without(
            "stepfast.runs.breaker:LENGTHEN_PAUSE",
            "paused_until < {now} + :pause",
            "paused_until < {now} - :pause",
        ),
        test_breaker.test_the_longest_of_several_waits_that_the_source_asks_for_is_kept,
    ),
    Mutation(
        "whoever met the trouble asks first",
        replacing("stepfast.runs.breaker:BeginPause._probe", lambda self, _: self.job_id),
        test_breaker.test_when_the_pause_is_over_one_asks_first_and_not_the_one_who_met_it,
    ),
    Mutation(
        "a pause is for the one who met it",
        replacing("stepfast.runs.breaker:pause_left", lambda *_: timedelta(0)),
        test_breaker.test_who_comes_during_the_pause_does_not_ask,
    ),
    Mutation(
        "every error of a source costs an attempt",
        replacing("stepfast.runs.breaker:classify", lambda *_: SourceError(SourceErrorKind.BUG)),
        test_breaker.test_planning_waits_for_its_source_too,
        or_with=(httpx.HTTPStatusError,),
    ),
]
