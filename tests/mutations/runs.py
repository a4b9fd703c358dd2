"""Guards of the life of a run, each taken away once: its start, its plan, its completion."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from stepfast.runs import lifecycle, run
from stepfast.runs.run import RunState
from tests.contract.runs import test_completion, test_plan, test_start, test_watermark
from tests.mutations.mutation import SERVERS, Mutation, both, replacing, without

if TYPE_CHECKING:
    from stepfast.database.connection import Transaction
    from stepfast.runs.partition import Partition
    from stepfast.runs.run import Run

OPEN = "AND state IN ('ready', 'running')"


def looks_too_early(tx: Transaction, declared: Any, partition: Partition, error: str | None) -> None:
    """Asks whether anything is open, and then waits for the run's row."""
    is_open = tx.first(lifecycle.COUNT_OPEN_PARTITIONS, id=partition.run_id)
    end, end_fetching = lifecycle.partition_ended, lifecycle._end_fetching
    lifecycle._end_fetching = lambda *_: None
    try:
        end(tx, declared, partition, error)
    finally:
        lifecycle._end_fetching = end_fetching
    if not is_open:
        lifecycle.end_fetching(tx, declared, partition.run_id)


def still_planning(tx: Transaction, run_id: str) -> Run:
    return replace(run.find_run(tx, run_id), state=RunState.PLANNING)


MUTATIONS = [
    Mutation(
        "a partition that has ended is moved on",
        without("stepfast.runs.partition:ADVANCE_PARTITION", OPEN, ""),
        test_completion.test_in_every_order_of_late_doubled_and_failing_ends_there_is_one_decision,
        only_on=("sqlite",),
    ),
    Mutation(
        "a partition fails as often as somebody says so",
        without("stepfast.runs.partition:END_PARTITION", OPEN, ""),
        test_completion.test_a_failure_that_is_reported_five_times_is_counted_once,
    ),
    # The last one decides.
    Mutation(
        "who ends looks at the others before it has the run",
        replacing("stepfast.runs.page:partition_ended", looks_too_early),
        test_completion.test_the_second_to_end_waits_for_the_first_and_sees_it,
        {"first_fails": False},
        only_on=SERVERS,
    ),
    Mutation(
        "nobody hears that a consolidation was skipped",
        replacing("stepfast.runs.alerts:consolidation_skipped", lambda *_: None),
        test_completion.test_a_failed_partition_skips_the_consolidation_and_says_so_once,
    ),
    Mutation(
        "rows of an ended partition are not added up",
        without("stepfast.runs.lifecycle:COUNT_ENDED_PARTITION", "seen = seen + :seen", "seen = :seen"),
        test_completion.test_the_last_partition_begins_the_consolidation_and_no_other_does,
    ),
    # One run, one plan.
    Mutation(
        "a feed may have two active runs",
        without("stepfast.runs.run:FIND_ACTIVE_RUN", "active_feed = :feed", "active_feed = :feed AND 1 = 0"),
        test_start.test_t15_cron_and_a_person_who_start_at_the_same_time_get_one_run,
    ),
    Mutation(
        "whatever keeps a tick from starting is taken for an active run",
        replacing("stepfast.runs.start:StateError", Exception),
        test_start.test_a_tick_that_fails_is_not_taken_for_an_active_run,
    ),
    Mutation(
        "the source's clock is ours",
        without("stepfast.runs.start:KEEP_SKEW", "SET skew = :skew", "SET skew = 0"),
        test_start.test_every_request_of_a_run_has_the_same_window_on_the_sources_clock,
        {"ahead": test_start.SETTLE},
    ),
    Mutation(
        "a plan is written however far the run is",
        both(
            replacing("stepfast.runs.plan:lock_run", still_planning),
            without("stepfast.runs.run:MOVE_RUN", "AND state = :source", ""),
        ),
        test_plan.test_a_plan_that_comes_twice_writes_its_partitions_once,
    ),
    Mutation(
        "what an older epoch counted is kept",
        without("stepfast.runs.plan:KEEP_FRONTIER", "AND epoch = :epoch", ""),
        test_plan.test_a_plan_that_somebody_restarted_is_not_written,
        {"partitioner": test_plan.COUNTED},
    ),
    Mutation(
        "a plan with a gap passes for everything",
        replacing("stepfast.runs.partitioning.contract:Plan.scope", "complete"),
        test_plan.test_a_plan_with_a_gap_is_partial,
    ),
    Mutation(
        "an empty window is read",
        replacing("stepfast.runs.window:Window.is_empty", None),
        test_plan.test_an_empty_window_is_a_run_that_completes_and_asks_for_nothing,
    ),
    Mutation(
        "a plan without partitions passes for a reading of everything",
        replacing("stepfast.runs.plan:plan_of", lambda frontier, *_: frontier.plan()),
        test_watermark.test_a_partitioner_that_finds_no_partition_fails_the_plan_too,
        only_on=("sqlite",),
    ),
    Mutation(
        "a trial counts before it is capped",
        replacing("stepfast.admin.runs:plan_of", lambda frontier, *_: frontier.plan()),
        test_plan.test_a_trial_reads_what_its_plan_says,
        {"partitioner": test_plan.COUNTED},
        only_on=("sqlite",),
    ),
    Mutation(
        "a clock that is hours ahead is believed",
        replacing("stepfast.runs.start:refuse_ahead", lambda *_: None),
        test_start.test_a_source_whose_clock_is_far_ahead_begins_no_run,
    ),
]
