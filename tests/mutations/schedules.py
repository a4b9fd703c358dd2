"""Guards of schedules, each taken away once."""

from __future__ import annotations

from tests.contract.schedules import test_declared_schedules, test_schedules
from tests.mutations.mutation import SERVERS, Mutation, replacing, without

MUTATIONS = [
    # A tick becomes one job.
    Mutation(
        "whoever meant to fire a tick fires it",
        without("stepfast.schedules.schedule:MOVE_SCHEDULE", "AND next_at = :due AND revision = :revision"),
        test_schedules.test_of_two_who_mean_to_fire_the_same_tick_one_does,
    ),
    Mutation(
        "a tick that was fired is not remembered",
        replacing(
            "stepfast.schedules.schedule:remember_key", lambda _tx, _scope, _key, job_id, _keep: job_id
        ),
        test_schedules.test_a_plan_that_begins_anew_after_the_clock_was_set_back_fires_nothing_twice,
    ),
    Mutation(
        "a schedule is fired as it was before it was changed",
        without("stepfast.schedules.schedule:MOVE_SCHEDULE", "AND revision = :revision"),
        test_schedules.test_a_schedule_that_was_changed_after_somebody_meant_to_fire_it_fires_as_it_is_now,
    ),
    Mutation(
        "a change does not wait for the tick that is being fired",
        without("stepfast.schedules.schedule:LOCK_SCHEDULE", "{for_update}"),
        test_schedules.test_a_pause_waits_for_a_tick_that_is_being_fired,
        only_on=SERVERS,
    ),
    Mutation(
        "a one-off that the code declares is forgotten, and declared anew",
        without("stepfast.schedules.schedule:FORGET_SCHEDULES", "AND declared IS NULL "),
        test_declared_schedules.test_a_declared_one_off_that_is_over_is_not_forgotten,
    ),
]
