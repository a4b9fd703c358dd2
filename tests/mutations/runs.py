"""Ways to break what is refused, promised and reported about runs, each with the test that must notice."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import httpx

from stepfast.admin import runs as run_plan
from stepfast.runs import lifecycle as instead
from stepfast.runs import plan as planning
from stepfast.runs import start as starting
from stepfast.runs import sweep as gone
from stepfast.runs import sweep_step as sweeping
from stepfast.runs.breaker import Breaker
from stepfast.testing import draining as left
from tests.contract.runs import test_plan as test_planning
from tests.contract.runs import test_repair as test_run_repair
from tests.contract.runs import test_start as test_starting
from tests.contract.runs import test_sweep_confirmation, test_watermark
from tests.mutations.jobs import Mutation, replacing, without
from tests.support.feeds import Confirming

if TYPE_CHECKING:
    from stepfast.jobs.outcome import Outcome
    from stepfast.runs.breaker import Work


async def _nobody(*_: object) -> frozenset[str]:
    return frozenset()


async def _unguarded(_: Breaker, __: object, ___: object, work: Work) -> Outcome:
    return await work()


def _whoever_has_enough_strikes(*given: Any) -> gone.Struck:
    return gone.strike(*given[:-1])


MUTATIONS = [
    Mutation(
        "a plan without partitions passes for a reading of everything",
        replacing(planning, "planned", lambda frontier, *_: frontier.plan()),
        test_watermark.test_a_partitioner_that_finds_no_partition_fails_the_plan_too,
        only_on=("sqlite",),
    ),
    Mutation(
        "a trial counts before it is capped",
        replacing(run_plan, "planned", lambda frontier, *_: frontier.plan()),
        test_planning.test_a_trial_reads_what_its_plan_says,
        {"partitioner": test_planning.COUNTED},
        only_on=("sqlite",),
    ),
    Mutation(
        "a drain waits for a sweep that waits for a person",
        without(left.NEXT_JOB, "r.frontier LIKE :held", "1 = 0 AND r.frontier LIKE :held"),
        test_run_repair.test_a_held_sweep_is_cancelled_and_held_again,
        only_on=("sqlite",),
        or_with=(TimeoutError,),
    ),
    Mutation(
        "nobody says that a sweep waits for a person",
        replacing(instead, "is_held", lambda _: False),
        test_run_repair.test_a_held_sweep_is_cancelled_and_held_again,
        only_on=("sqlite",),
    ),
    Mutation(
        "what the source still has goes all the same",
        replacing(sweeping, "not_gone", _nobody),
        test_sweep_confirmation.test_a_row_that_two_full_runs_have_missed_stays_if_the_source_still_has_it,
        {"feed": Confirming},
    ),
    Mutation(
        "the source is asked, and everybody goes",
        replacing(sweeping, "strike", _whoever_has_enough_strikes),
        test_sweep_confirmation.test_it_is_told_how_many_are_still_there,
    ),
    Mutation(
        "the source is asked about all of them at once",
        replacing(sweeping, "at_once", lambda _, found: found),
        test_sweep_confirmation.test_the_source_is_asked_about_a_few_at_a_time_and_about_each_once,
        only_on=("sqlite",),
    ),
    Mutation(
        "a source in trouble costs the attempts of a sweep",
        replacing(Breaker, "guard", _unguarded),
        test_sweep_confirmation.test_a_source_that_fails_meanwhile_is_asked_again_and_nothing_is_half_done,
        only_on=("sqlite",),
        or_with=(httpx.HTTPStatusError,),
    ),
    Mutation(
        "a clock that is hours ahead is believed",
        replacing(starting, "refuse_ahead", lambda *_: None),
        test_starting.test_a_source_whose_clock_is_far_ahead_begins_no_run,
    ),
]
