"""Guards of dependencies and groups of jobs, each taken away once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepfast.errors import StateError
from stepfast.jobs import archive, commit
from tests.contract.jobs import test_dependencies, test_groups
from tests.mutations.mutation import SERVERS, Mutation, both, replacing, without

if TYPE_CHECKING:
    from stepfast.database.connection import Transaction
    from stepfast.jobs.lease import Lease


NEEDED = "WHERE d.parent_id = stepfast_archive.id"

FINISH = commit.finish


def _released_at_once(tx: Transaction, lease: Lease, result: str | None) -> bool | None:
    awaited = FINISH(tx, lease, result)
    if awaited:
        archive.parents_ended(tx, [lease.job_id], "done")
    return False if awaited else awaited


MUTATIONS = [
    Mutation(
        "an edge does not mark its parent",
        replacing("stepfast.jobs.dependencies:mark_parents", lambda *_: None),
        test_dependencies.test_a_job_waits_until_all_that_it_comes_after_are_done,
        or_with=(ValueError,),
    ),
    Mutation(
        "of a batch nobody is told",
        replacing("stepfast.jobs.archive:_release_or_fail", lambda *_: []),
        test_dependencies.test_whoever_ends_jobs_in_a_batch_lets_go_who_waits_for_them,
    ),
    Mutation(
        "a child is let go although others are not done",
        without("stepfast.jobs.archive:STILL_WAITING", "AND state = 'open'", "AND 1 = 0"),
        test_dependencies.test_a_job_waits_until_all_that_it_comes_after_are_done,
    ),
    Mutation(
        "two parents that end at once overlook each other",
        without("stepfast.jobs.archive:LOCK_CHILDREN", "{for_update}"),
        test_dependencies.test_who_ends_a_parent_waits_for_who_is_ending_another,
        only_on=SERVERS,
    ),
    Mutation(
        "whoever adds an edge does not hold the parent",
        both(
            without("stepfast.jobs.dependencies:LOCK_LIVE_JOBS", "{for_update}"),
            replacing("stepfast.jobs.dependencies:mark_parents", lambda *_: None),
        ),
        test_dependencies.test_a_job_waits_until_all_that_it_comes_after_are_done,
        or_with=(ValueError,),  # there is nothing to take
    ),
    Mutation(
        "a child starts before its own time",
        without(
            "stepfast.jobs.archive:RELEASE_CHILDREN",
            "WHEN ready_at > {now} THEN 'scheduled'",
            "WHEN 1 = 0 THEN 'scheduled'",
        ),
        test_dependencies.test_a_job_that_waits_keeps_its_own_time,
    ),
    Mutation(
        "nobody fails with a parent",
        without("stepfast.jobs.archive:OPEN_EDGES_TO", "AND state = 'open'", "AND 1 = 0"),
        test_dependencies.test_a_failure_goes_down_the_whole_chain,
    ),
    Mutation(
        "who runs all the same waits for ever",
        without("stepfast.jobs.archive:MEET_EDGES_ANYWAY", "AND on_dead = 'run'", "AND on_dead = 'never'"),
        test_dependencies.test_a_child_of_a_job_that_was_cancelled_while_it_waited_is_told,
    ),
    Mutation(
        "what failed with a parent is not known to have",
        without("stepfast.jobs.archive:BREAK_EDGES", "SET state = 'broken'", "SET state = 'open'"),
        test_dependencies.test_what_failed_because_of_a_parent_is_revived_with_it_and_waits_again,
    ),
    Mutation(
        "a revived parent forgets who waits for it",
        both(
            without(
                "stepfast.jobs.dead_letters:REVIVE_JOBS",
                "WHERE parent_id = stepfast_archive.id",
                "WHERE 1 = 0",
            ),
            replacing("stepfast.jobs.dependencies:mark_parents", lambda *_: None),
        ),
        test_dependencies.test_who_waits_for_a_dead_parent_goes_on_when_that_one_is_revived_and_done,
    ),
    Mutation(
        "a revived child does not look at its parents again",
        replacing("stepfast.jobs.dead_letters:wait_again", lambda *_: None),
        test_dependencies.test_who_waits_for_a_dead_letter_that_is_purged_dies_of_it,
    ),
    Mutation(
        "a revived child runs before its parents",
        without("stepfast.jobs.dead_letters:REVIVE_JOBS", "AND state <> 'met'", "AND 1 = 0"),
        test_dependencies.test_dead_letters_that_are_all_revived_wait_for_each_other,
    ),
    Mutation(
        "whoever waits for a purged letter is not told",
        without("stepfast.jobs.archive:AWAITED_PARENTS", "AND state = 'open'", "AND 1 = 0"),
        test_dependencies.test_who_waits_for_a_dead_letter_that_is_purged_dies_of_it,
    ),
    Mutation(
        "what an unfinished job needs is forgotten",
        both(  # the look for old jobs, and the second one under their locks
            replacing("stepfast.worker.maintenance:not_needed", lambda _, ids: ids),
            replacing("stepfast.results.outcome:not_needed", lambda _, ids: ids),
            without("stepfast.worker.maintenance:OLD_JOBS", NEEDED, "WHERE 1 = 0"),
            without("stepfast.results.outcome:EXPIRED_RESULTS", NEEDED, "WHERE 1 = 0"),
        ),
        test_dependencies.test_what_an_unfinished_job_needs_is_kept_beyond_its_time,
    ),
    Mutation(
        "a replaced job keeps what it came after",
        replacing("stepfast.jobs.dependencies:drop_edges", lambda *_: None),
        test_dependencies.test_a_replaced_job_comes_after_what_the_new_payload_does,
        or_with=(Exception,),
    ),
    Mutation(
        "nobody looks for cycles",
        replacing("stepfast.jobs.dependencies:refuse_cycle", lambda *_: None),
        test_dependencies.test_jobs_that_would_wait_for_each_other_are_refused_with_their_names,
    ),
    Mutation(
        "what is cancelled with its tree does not come back with it",
        replacing("stepfast.jobs.dead_letters:BREAK_TREE_EDGES", archive.MEET_EDGES_ANYWAY),
        test_dependencies.test_a_tree_is_cancelled_and_revived_as_a_whole,
        or_with=(Exception,),
    ),
    Mutation(
        "a group completes before the effects of its last member",
        replacing("stepfast.jobs.commit:finish", _released_at_once),
        test_groups.test_an_effect_adds_members_although_its_step_was_the_last,
        only_on=("sqlite", "postgresql"),  # on MariaDB effects come first
        or_with=(StateError,),
    ),
    Mutation(
        "a group that has completed takes members in",
        replacing("stepfast.jobs.groups:lock_waiting", lambda _, ids: ids),
        test_groups.test_a_group_that_has_completed_takes_nobody_in,
        or_with=(Exception,),
    ),
    Mutation(
        "a group that is empty waits for ever",
        replacing("stepfast.jobs.groups:release_children", lambda *_: 0),
        test_groups.test_an_empty_group_completes_when_it_is_closed,
        or_with=(ValueError,),
    ),
]
