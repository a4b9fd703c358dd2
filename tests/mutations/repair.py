"""Guards of what operators do to a run (retry, resume, restart, cancel), each taken away once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stepfast.errors import ConstraintError, StateError
from stepfast.runs import partition
from stepfast.runs.run import lock_run
from tests.contract.runs import test_repair
from tests.mutations.mutation import Mutation, both, replacing, without

if TYPE_CHECKING:
    from stepfast.database.connection import Transaction


def _locked_without_a_second_look(tx: Transaction, run_id: str) -> Any:
    return partition.lock_partitions(tx, run_id), lock_run(tx, run_id)


MUTATIONS = [
    # What operators do to a run happens once, and forgets nothing.
    Mutation(
        "a page is believed whatever its epoch",
        without("stepfast.runs.partition:ADVANCE_PARTITION", "AND epoch = :epoch "),
        test_repair.test_the_late_page_of_an_earlier_epoch_changes_nothing,
    ),
    Mutation(
        "a restart has the epoch of what it restarts",
        without("stepfast.runs.repair:RESTART_PARTITION", "epoch = epoch + 1, "),
        test_repair.test_a_retry_goes_on_where_the_partition_stopped,
    ),
    Mutation(
        "a restart begins at the first page",
        replacing("stepfast.runs.repair:_with_fresh_budget", lambda _: None),
        test_repair.test_a_retry_goes_on_where_the_partition_stopped,
    ),
    Mutation(
        "what was seen is believed from the start",
        without("stepfast.runs.repair:FORGET_SEEN", "WHERE", "WHERE 1 = 0 AND"),
        test_repair.test_from_the_start_means_that_nothing_is_believed,
    ),
    Mutation(
        "a restarted partition is still counted as failed",
        replacing("stepfast.runs.repair:recount_run", lambda *_: None),
        test_repair.test_a_retry_does_not_wait_for_the_others,
    ),
    Mutation(
        "a reopened run counts what it counted before",
        replacing("stepfast.runs.repair:recount_run", lambda *_: None),
        test_repair.test_only_the_partitions_that_are_named_are_read_again,
    ),
    Mutation(
        "a dead letter waits although its work is done",
        without("stepfast.jobs.dead_letters:CANCEL_DEAD", "AND state = 'dead'", "AND state = 'gone'"),
        test_repair.test_the_job_of_a_retry_is_another_one,
    ),
    Mutation(
        "a run is reopened beside a newer one",
        replacing("stepfast.runs.repair:blocked_by", lambda *_: None),
        test_repair.test_a_run_that_was_overtaken_is_not_reopened_but_owed,
        or_with=(ConstraintError,),
    ),
    Mutation(
        "a debt is owed once more for each who asks",
        without("stepfast.runs.repair:FIND_OPEN_DEBTS", "WHERE", "WHERE 1 = 0 AND"),
        test_repair.test_a_run_that_was_overtaken_is_not_reopened_but_owed,
    ),
    Mutation(
        "what a later run has read is owed",
        without("stepfast.runs.repair:LATER_WINDOWS", "WHERE", "WHERE 1 = 0 AND"),
        test_repair.test_what_a_later_run_has_read_is_not_owed,
    ),
    Mutation(
        "a forced run owes nothing",
        replacing("stepfast.runs.repair:open_debts_for", lambda *_: (0, 0)),
        test_repair.test_a_failed_partition_withholds_consolidation_until_it_is_forced,
    ),
    Mutation(
        "a partition is taken from the job that reads it",
        replacing("stepfast.runs.repair:readers_of", lambda *_: {}),
        test_repair.test_a_partition_that_is_read_is_left_alone_and_the_refusal_says_by_whom,
    ),
    Mutation(
        "the job of a partition that is begun anew goes on",
        replacing("stepfast.runs.repair:cancel_jobs", lambda *_: None),
        test_repair.test_an_open_partition_is_begun_anew,
        {"lost": False},
    ),
    Mutation(
        "a run that has some of its shards is taken for one that has all",
        replacing("stepfast.runs.repair:has_its_jobs", lambda *_: True),
        test_repair.test_a_consolidation_that_lost_some_of_its_shards_is_resumed,
        or_with=(StateError,),
    ),
    Mutation(
        "the jobs of a cancelled run go on",
        replacing("stepfast.runs.repair:live_jobs", lambda *_: []),
        test_repair.test_a_cancelled_run_leaves_nothing_that_works_for_it,
    ),
    Mutation(
        "a cancel overlooks partitions that it has not locked",
        both(
            replacing("stepfast.runs.repair:lock_run_with_partitions", _locked_without_a_second_look),
            without(
                "stepfast.runs.repair:LIVE_JOBS", "p.run_id = :run_id", "p.run_id = :run_id AND p.number < 0"
            ),
        ),
        test_repair.test_a_cancel_does_not_overlook_partitions_that_are_just_being_written,
        only_on=("postgresql",),
    ),
    Mutation(
        "a drain waits for a sweep that waits for a person",
        without(
            "stepfast.testing.draining:NEXT_JOB_DUE",
            "r.frontier LIKE :held",
            "1 = 0 AND r.frontier LIKE :held",
        ),
        test_repair.test_a_held_sweep_is_cancelled_and_held_again,
        only_on=("sqlite",),
        or_with=(TimeoutError,),
    ),
    Mutation(
        "nobody says that a sweep waits for a person",
        replacing("stepfast.runs.lifecycle:is_held", lambda _: False),
        test_repair.test_a_held_sweep_is_cancelled_and_held_again,
        only_on=("sqlite",),
    ),
]
