"""Guards of rate and concurrency limits, each taken away once."""

from __future__ import annotations

from stepfast.errors import ContentionError
from stepfast.limits import limit_rows as slots
from tests.contract.jobs import test_limits
from tests.mutations.mutation import SERVERS, Mutation, replacing, without

FENCE = "AND fence = :fence"

MUTATIONS = [
    # Limits are asked under a lock, and a slot lives as long as its fence.
    Mutation(
        "who asks a limit locks nothing",
        without("stepfast.limits.limit_rows:LOCK_LIMITS", "{for_update}"),
        test_limits.test_who_asks_waits_for_the_answer_of_who_asked_before,
        only_on=SERVERS,
        or_with=(ContentionError,),
    ),
    Mutation(
        "a held job keeps its fence",
        without("stepfast.limits.limit_rows:HOLD_JOBS", "fence = :new_fence, "),
        test_limits.test_a_job_that_was_put_aside_is_no_longer_its_claimers,
    ),
    Mutation(
        "anyone is put aside",
        without(
            "stepfast.limits.limit_rows:HOLD_JOBS",
            "fence = :fence AND cancel_at IS NULL",
            "cancel_at IS NULL",
        ),
        test_limits.test_a_job_that_somebody_else_has_meanwhile_is_not_put_aside,
        only_on=("sqlite", "postgresql"),
    ),
    Mutation(
        "a slot is freed by anyone",
        without("stepfast.limits.limit_rows:FREE_SLOTS", FENCE),
        test_limits.test_a_replaced_owner_does_not_free_the_slot_of_its_successor,
    ),
    Mutation(
        "the slots of the dead are never free",
        without("stepfast.limits.limit_rows:DROP_STALE_SLOTS", "AND NOT EXISTS", "AND 1 = 0 AND NOT EXISTS"),
        test_limits.test_a_slot_whose_fence_has_moved_on_is_free,
    ),
    Mutation(
        "nobody looks when a worker has died",
        without("stepfast.limits.limit_rows:LOOK_AT_LIMITS_OF_JOBS", "due_at IS NOT NULL AND", "1 = 0 AND"),
        test_limits.test_the_slots_of_a_dead_worker_come_back_with_it,
    ),
    # What operators do is written down, in the same transaction.
    Mutation(
        "a slot that was freed while a job was put aside is found half a minute later",
        replacing("stepfast.limits.limit_rows:LOOK_SOON", slots.LOOK_AGAIN),
        test_limits.test_a_slot_that_is_freed_while_a_job_is_put_aside_is_found_soon,
        only_on=("postgresql",),
    ),
    Mutation(
        "a drain leaves who is held beside a free slot",
        without("stepfast.testing.draining:REMAINING_WORK", "l.due_at IS NOT NULL AND", "1 = 0 AND"),
        test_limits.test_a_drain_does_not_leave_a_held_job_beside_a_free_slot,
    ),
]
