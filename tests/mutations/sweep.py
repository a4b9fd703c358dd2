"""Guards of the sweep that marks gone rows, each taken away once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import httpx

from stepfast.runs import sweep_rows as sweep
from tests.contract.runs import test_sweep, test_sweep_confirmation
from tests.mutations.mutation import Mutation, both, replacing, without
from tests.support.feeds import Confirming

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from stepfast.jobs.outcome import Outcome
    from stepfast.runs.breaker import Breaker


async def _nobody(*_: object) -> frozenset[str]:
    return frozenset()


async def _unguarded(_: Breaker, __: object, ___: object, work: Coroutine[Any, Any, Outcome]) -> Outcome:
    return await work


def _whoever_has_enough_strikes(*given: Any) -> sweep.StrikeCounts:
    return sweep.strike_rows(*given[:-1])


MUTATIONS = [
    Mutation(
        "every run may sweep",
        replacing("stepfast.runs.lifecycle:may_sweep", lambda *_: True),
        test_sweep.test_a_run_that_shows_nothing_may_not_sweep_even_if_it_is_asked_to,
        arguments={"changes": {"unverified": 1}},
    ),
    Mutation(
        "what nobody could verify is taken for gone",
        replacing("stepfast.runs.lifecycle:open_debts", lambda *_: []),
        test_sweep.test_nobody_is_struck_while_a_debt_is_open_that_the_run_does_not_cover,
    ),
    Mutation(
        "a fuse that never blows",
        replacing("stepfast.runs.feed:Sweep.holds", lambda *_: None),
        test_sweep.test_more_than_the_fuse_allows_waits_for_a_person,
    ),
    Mutation(
        "a row that was observed meanwhile is struck",
        without("stepfast.runs.sweep_rows:LOCK_UNSEEN", "AND observed_at < :before", "AND :before > 0"),
        test_sweep.test_a_row_that_is_observed_after_it_was_found_is_not_struck,
    ),
    Mutation(
        "a row is taken for gone by the run that saw it",
        without("stepfast.runs.sweep_rows:COUNT_STRETCH", "AND run_id <> :run_id", ""),
        test_sweep.test_what_a_run_has_seen_itself_is_never_struck_whatever_the_clocks_say,
    ),
    Mutation(
        "a run strikes a row twice",
        both(
            without(
                "stepfast.runs.sweep_rows:COUNT_STRETCH", "struck_by IS NULL OR struck_by <> :run_id", "1 = 1"
            ),
            both(
                without(
                    "stepfast.runs.sweep_rows:FIND_UNSEEN",
                    "struck_by IS NULL OR struck_by <> :run_id",
                    "1 = 1",
                ),
                without(
                    "stepfast.runs.sweep_rows:LOCK_UNSEEN",
                    "struck_by IS NULL OR struck_by <> :run_id",
                    "1 = 1",
                ),
            ),
        ),
        test_sweep.test_no_run_strikes_a_row_twice_however_often_its_sweep_begins,
    ),
    Mutation(
        "a row that comes back as it was stays marked",
        without("stepfast.runs.sweep_rows:MARK_GONE", ", applied_hash = NULL", ""),
        test_sweep.test_a_row_that_is_seen_again_is_back,
        arguments={"price": None},
    ),
    Mutation(
        "who was not counted goes with those who were",
        replacing("stepfast.runs.sweep:_counting_anew", lambda it: it.then(unseen=2**60)),
        test_sweep.test_more_rows_than_were_counted_are_counted_again_and_held_again,
    ),
    Mutation(
        "a sweep goes on from where it is not any more",
        without("stepfast.runs.sweep_rows:KEEP_SWEEP", "AND frontier = :was", "AND :was = :was"),
        test_sweep.test_a_step_that_was_overtaken_writes_nothing,
    ),
    Mutation(
        "undoing brings back what others removed",
        both(
            without("stepfast.runs.sweep_rows:FIND_GONE", "struck_by = :run_id", ":run_id = :run_id"),
            without("stepfast.runs.sweep_rows:LOCK_GONE", "struck_by = :run_id", ":run_id = :run_id"),
        ),
        test_sweep.test_everything_that_a_run_marked_as_gone_can_be_brought_back,
    ),
    Mutation(
        "what the source still has goes all the same",
        replacing("stepfast.runs.sweep:still_at_source", _nobody),
        test_sweep_confirmation.test_a_row_that_two_full_runs_have_missed_stays_if_the_source_still_has_it,
        {"feed": Confirming},
    ),
    Mutation(
        "the source is asked, and everybody goes",
        replacing("stepfast.runs.sweep:strike_rows", _whoever_has_enough_strikes),
        test_sweep_confirmation.test_it_is_told_how_many_are_still_there,
    ),
    Mutation(
        "the source is asked about all of them at once",
        replacing("stepfast.runs.sweep:first_to_confirm", lambda _, found: found),
        test_sweep_confirmation.test_the_source_is_asked_about_a_few_at_a_time_and_about_each_once,
        only_on=("sqlite",),
    ),
    Mutation(
        "a source in trouble costs the attempts of a sweep",
        replacing("stepfast.runs.breaker:Breaker.guard", _unguarded),
        test_sweep_confirmation.test_a_source_that_fails_meanwhile_is_asked_again_and_nothing_is_half_done,
        only_on=("sqlite",),
        or_with=(httpx.HTTPStatusError,),
    ),
]
