"""Guards of starting, planning, reading and completing a run, each taken away once: see tests/mutations/jobs.py."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from stepfast.database.connection import Transaction
from stepfast.jobs import commit
from stepfast.jobs.outcome import Done
from stepfast.runs import alerts, feeds, page, partition
from stepfast.runs import lifecycle as completion
from stepfast.runs import page as division
from stepfast.runs import page as place
from stepfast.runs import page as reading
from stepfast.runs import plan as planning
from stepfast.runs import raw_rows as raw
from stepfast.runs import run as run_row
from stepfast.runs import start as starting
from stepfast.runs.partitioning.contract import Plan
from stepfast.runs.run import RunState
from stepfast.runs.window import Window
from stepfast.worker import committer as settlement
from stepfast.worker import committer as together
from tests.contract.runs import test_completion, test_division, test_flaws_of_paging
from tests.contract.runs import test_page as test_reading
from tests.contract.runs import test_page_position as test_place
from tests.contract.runs import test_plan as test_planning
from tests.contract.runs import test_raw_rows as test_raw
from tests.contract.runs import test_skipped_lookup as test_supposing_new
from tests.contract.runs import test_start as test_starting
from tests.contract.worker import test_shared_commits as test_together
from tests.mutations.jobs import SERVERS, Mutation, both, replacing, without

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pytest

    from stepfast.database.dialects import Dialect
    from stepfast.database.statement import Statement
    from stepfast.runs.run import Run

OPEN = "AND state IN ('ready', 'running')"
NEWER = "WHERE excluded.observed_at > stepfast_raw.observed_at"
counted = test_flaws_of_paging.test_rows_that_are_counted_and_never_shown_become_a_debt


def looks_too_early(tx: Transaction, declared: Any, run_id: str, how: Any, **sums: int) -> None:
    """Asks whether anything is open, and then waits for the run's row."""
    is_open = tx.first(completion.OPEN, id=run_id)
    end, evaluate = completion.partition_ended, completion.evaluate
    completion.evaluate = lambda *_: None
    try:
        end(tx, declared, run_id, how, **sums)
    finally:
        completion.evaluate = evaluate
    if not is_open:
        evaluate(tx, declared, run_id)


def still_planning(tx: Transaction, run_id: str) -> Run:
    return replace(run_row.find_run(tx, run_id), state=RunState.PLANNING)


async def remembers(
    self: place.Places, _step: Any, database: Any, partition_id: str, _epoch: int
) -> place.Place | None:
    _, kept = self._kept.get(partition_id, (0, None))
    return kept or place._look(database, partition_id)


def believing(statement: Statement) -> Callable[[pytest.MonkeyPatch, Dialect], None]:
    """Every row that was sent passes for matched."""

    def break_it(patch: pytest.MonkeyPatch, _: Dialect) -> None:
        honest = Transaction.run_many

        def run_many(self: Transaction, sent: Statement, rows: Sequence[Any]) -> int:
            matched = honest(self, sent, rows)
            return len(rows) if sent is statement else matched

        patch.setattr(Transaction, "run_many", run_many)

    return break_it


END_TOGETHER = together.end_together


def only_those_that_stay(*given: Any) -> dict[str, int | None]:
    return {job_id: fence for job_id, fence in END_TOGETHER(*given).items() if fence is not None}


MUTATIONS = [
    # A page is written by the one request that asked for it.
    Mutation(
        "a page is written whoever has moved the partition on",
        without(partition.ADVANCE, "AND seq = :seq", ""),
        test_reading.test_a_page_that_two_jobs_have_read_is_written_once,
    ),
    Mutation(
        "a page of an older epoch is written",
        without(partition.ADVANCE, "AND epoch = :epoch", ""),
        test_reading.test_an_answer_that_comes_after_a_restart_changes_nothing,
    ),
    Mutation(
        "a partition that has ended is moved on",
        without(partition.ADVANCE, OPEN, ""),
        test_completion.test_in_every_order_of_late_doubled_and_failing_ends_there_is_one_decision,
        only_on=("sqlite",),
    ),
    Mutation(
        "a partition fails as often as somebody says so",
        without(partition.END, OPEN, ""),
        test_completion.test_a_failure_that_is_reported_five_times_is_counted_once,
    ),
    Mutation(
        "what was never heard of is taken for done",
        replacing(reading, "Reject", Done),
        test_reading.test_a_page_of_a_partition_that_does_not_exist_is_a_dead_letter_with_its_reason,
    ),
    Mutation(
        "rows of a page that does not follow are kept",
        replacing(reading, "keeps_rows", lambda _: True),
        test_flaws_of_paging.test_rows_that_leave_behind_the_cursor_make_nobody_skip_others,
        {"at_once": 12},
        only_on=("sqlite",),
    ),
    Mutation(
        "what a process remembers of a partition is believed for ever",
        replacing(place.Places, "find", remembers),
        test_reading.test_the_ledger_says_who_read_each_page,
    ),
    # The last one decides.
    Mutation(
        "who ends looks at the others before it has the run",
        replacing(page, "partition_ended", looks_too_early),
        test_completion.test_the_second_to_end_waits_for_the_first_and_sees_it,
        {"first_fails": False},
        only_on=SERVERS,
    ),
    Mutation(
        "nobody hears that a consolidation was skipped",
        replacing(alerts, "consolidation_skipped", lambda *_: None),
        test_completion.test_a_failed_partition_skips_the_consolidation_and_says_so_once,
    ),
    Mutation(
        "rows of an ended partition are not added up",
        without(completion.COUNT_END, "seen = seen + :seen", "seen = :seen"),
        test_completion.test_the_last_partition_begins_the_consolidation_and_no_other_does,
    ),
    # Debts.
    Mutation(
        "what is not verified is forgotten",
        replacing(page, "open_debt", lambda *_: None),
        counted,
        or_with=(ValueError,),
    ),
    Mutation("a debt that was paid stays open", replacing(page, "close_debt", lambda *_: None), counted),
    Mutation(
        "debts are not read again",
        replacing(planning, "debts_to_read", lambda *_: []),
        counted,
        or_with=(IndexError,),
    ),
    # The newest observation wins.
    Mutation(
        "the last to write wins",
        without(raw.OBSERVE, NEWER, "WHERE true"),
        test_raw.test_an_older_observation_after_a_newer_one_is_ignored,
        only_on=("sqlite", "postgresql"),
    ),
    Mutation(
        "the last to write wins in MariaDB",
        without(
            raw.OBSERVE, "IF(VALUES(observed_at) > observed_at, VALUES(payload), payload)", "VALUES(payload)"
        ),
        test_raw.test_an_older_observation_after_a_newer_one_is_ignored,
        only_on=("mariadb",),
    ),
    Mutation(
        "what comes back unchanged is not consolidated",
        without(raw.OBSERVE, "AND stepfast_raw.gone_at IS NULL", ""),
        test_raw.test_what_was_gone_and_comes_back_unchanged_is_consolidated_again,
        only_on=("sqlite", "postgresql"),
    ),
    Mutation(
        "what comes back unchanged is not consolidated in MariaDB",
        without(raw.OBSERVE, "AND gone_at IS NULL", ""),
        test_raw.test_what_was_gone_and_comes_back_unchanged_is_consolidated_again,
        only_on=("mariadb",),
    ),
    # One run, one plan.
    Mutation(
        "a feed may have two active runs",
        without(run_row.ACTIVE, "active_feed = :feed", "active_feed = :feed AND 1 = 0"),
        test_starting.test_t15_cron_and_a_person_who_start_at_the_same_time_get_one_run,
    ),
    Mutation(
        "whatever keeps a tick from starting is taken for an active run",
        replacing(feeds, "StateError", Exception),
        test_starting.test_a_tick_that_fails_is_not_taken_for_an_active_run,
    ),
    Mutation(
        "the source's clock is ours",
        without(starting.KEEP_SKEW, "SET skew = :skew", "SET skew = 0"),
        test_starting.test_every_request_of_a_run_has_the_same_window_on_the_sources_clock,
        {"ahead": test_starting.SETTLE},
    ),
    Mutation(
        "a plan is written however far the run is",
        both(
            replacing(planning, "lock_run", still_planning), without(run_row.MOVE, "AND state = :source", "")
        ),
        test_planning.test_a_plan_that_comes_twice_writes_its_partitions_once,
    ),
    Mutation(
        "what an older epoch counted is kept",
        without(planning.KEEP, "AND epoch = :epoch", ""),
        test_planning.test_a_plan_that_somebody_restarted_is_not_written,
        {"partitioner": test_planning.COUNTED},
    ),
    Mutation(
        "a plan with a gap passes for everything",
        replacing(Plan, "scope", "complete"),
        test_planning.test_a_plan_with_a_gap_is_partial,
    ),
    Mutation(
        "an empty window is read",
        replacing(Window, "is_empty", None),
        test_planning.test_an_empty_window_is_a_run_that_completes_and_asks_for_nothing,
    ),
    # A partition is divided once.
    Mutation(
        "a partition that outgrew its plan is read whole",
        replacing(reading, "outgrows", lambda *_: False),
        test_division.test_a_partition_that_outgrew_its_plan_is_divided_and_its_pieces_are_read,
        only_on=("sqlite",),
    ),
    Mutation(
        "a partition is divided as often as somebody has counted",
        replacing(division, "end_partition", lambda *_, **__: True),
        test_division.test_a_division_that_two_workers_finish_is_written_once,
        only_on=("sqlite",),
    ),
    Mutation(
        "what was divided is counted with its pieces",
        without(division.FORGET_PARENT, "partitions = partitions - 1", "partitions = partitions"),
        test_division.test_a_partition_that_outgrew_its_plan_is_divided_and_its_pieces_are_read,
        only_on=("sqlite",),
    ),
    # A remembered place is believed only if nothing was committed after it.
    Mutation(
        "what was never committed is remembered",
        replacing(place, "was_written_by", lambda _, place, step: step.cursor[0] == place.partition.seq),
        test_place.test_a_page_that_was_never_committed_is_not_remembered,
    ),
    # Rows that pass for new are new, or nothing is written.
    Mutation(
        "a row that was read before passes for new",
        without(raw.REMEMBER_NEW, "DO NOTHING", "DO UPDATE SET pass = excluded.pass"),
        test_supposing_new.test_a_page_with_a_row_that_was_read_before_is_judged_again_and_charged_to_nobody,
        only_on=("sqlite", "postgresql"),
    ),
    Mutation(
        "MariaDB counts a row that was known as if it were new",
        without(raw.REMEMBER_NEW, "pass = pass + 1", "pass = VALUES(pass)"),
        test_supposing_new.test_a_page_with_a_row_that_was_read_before_is_judged_again_and_charged_to_nobody,
        only_on=("mariadb",),
    ),
    # Continuations that share a transaction are all of them written, or none.
    Mutation(
        "a partition that somebody moved on is not missed among others",
        believing(partition.ADVANCE),
        test_together.test_a_partition_that_somebody_moved_is_looked_at_again_and_the_others_are_written,
        {"change": "seq = seq + 1"},
    ),
    Mutation(
        "a fence that was lost is not missed among others",
        believing(commit.CONTINUE_JOB_HERE),
        test_together.test_a_lost_fence_leaves_nothing_and_the_others_are_written,
    ),
    Mutation(
        "a job that was asked to stop goes on among others",
        without(commit.CONTINUE_JOB_HERE, "AND cancel_at IS NULL"),
        test_together.test_a_cancelled_job_ends_with_its_page_and_the_others_go_on,
    ),
    Mutation(
        "a row that was read before passes for new among others",
        without(raw.REMEMBER_NEW, "DO NOTHING", "DO UPDATE SET pass = excluded.pass"),
        test_together.test_a_row_that_comes_again_makes_only_its_own_page_judged_again,
        only_on=("sqlite", "postgresql"),
    ),
    Mutation(
        "a row that was read before passes for new among others in MariaDB",
        without(raw.REMEMBER_NEW, "pass = pass + 1", "pass = VALUES(pass)"),
        test_together.test_a_row_that_comes_again_makes_only_its_own_page_judged_again,
        only_on=("mariadb",),
    ),
    Mutation(
        "one that is refused takes the others with it",
        replacing(settlement.Settlement, "_settle_alone", lambda *_: None),
        test_together.test_a_lost_fence_leaves_nothing_and_the_others_are_written,
    ),
    Mutation(
        "a deadlock is tried again by all of them together",
        replacing(settlement, "end_together", together._end),
        test_together.test_a_deadlock_parts_the_group_and_nobody_is_charged,
    ),
    Mutation(
        "after a deadlock they share a transaction at once",
        replacing(settlement, "APART", 0.0),
        test_together.test_a_deadlock_parts_the_group_and_nobody_is_charged,
    ),
    Mutation(
        "chains that share a transaction ignore that their queue is paused",
        replacing(together, "more_urgent", lambda *_: False),
        test_together.test_a_group_does_not_stay_in_the_way,
        {"reason": test_together.paused},
    ),
    Mutation(
        "the fences of an attempt that was lost are believed",
        replacing(settlement, "end_together", only_those_that_stay),
        test_together.test_a_group_that_may_not_stay_when_it_is_written_again_does_not,
    ),
    Mutation(
        "what one of them meets after the commit is met by all",
        replacing(settlement.Settlement, "_safely", lambda _self, _ended, act: act()),
        test_together.test_one_that_cannot_be_handed_over_does_not_take_the_others_along,
        or_with=(RuntimeError,),
    ),
]
