"""Guards of stepfast.testing (drain, clock, crash points, inline runs), each taken away once."""

from __future__ import annotations

from stepfast.errors import ContentionError
from tests.contract.testing import test_clock, test_crash_points, test_drain, test_inline
from tests.mutations.mutation import Mutation, replacing, without

MUTATIONS = [
    # A test sees what happened, and what would happen.
    Mutation(
        "a jump of the clock kills the living",
        without(
            "stepfast.testing.test_clock:EXTEND_WORKER_LEASES",
            "alive_until + :passed",
            "alive_until + 0 * :passed",
        ),
        test_clock.test_a_worker_that_lives_survives_a_jump,
    ),
    Mutation(
        "a drain does not wait for jobs that run",
        without("stepfast.testing.draining:REMAINING_WORK", "(state = 'leased' AND", "(1 = 0 AND"),
        test_drain.test_a_slow_job_is_waited_for,
    ),
    Mutation(
        "a drain reports what it did not touch",
        without(
            "stepfast.testing.jobs:JOBS_ENDED_SINCE",
            "finished_at >= :since",
            "finished_at >= 0 * :since",
        ),
        test_drain.test_what_was_done_before_is_not_reported_again,
    ),
    Mutation(
        "the deadlock of a job is taken for one of its enqueue",
        replacing("stepfast.testing.inline_run:DatabaseError", ZeroDivisionError),
        test_inline.test_a_handler_that_meets_a_deadlock_is_not_enqueued_again,
        or_with=(ContentionError,),
    ),
    Mutation(
        "the dead go on writing",
        replacing("stepfast.testing.crash:CrashTrigger._refuse", lambda *_: None),
        test_crash_points.test_the_dead_do_not_clean_up,
    ),
]
