"""Ways to break what is refused, promised and reported about runs, each with the test that must notice."""

from __future__ import annotations

from holdfast.admin import run_plan
from holdfast.runs import instead, planning
from holdfast.testing import left
from tests.contract import test_planning, test_run_repair, test_watermark
from tests.mutations import Mutation, replacing, without

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
]
