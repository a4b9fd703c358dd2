"""Guards of the claimer and of commits that share a transaction, each taken away once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stepfast.database.connection import Transaction
from stepfast.errors import DatabaseError, UnreachableError
from stepfast.worker import committer
from stepfast.worker.reporter import FULL
from tests.contract.database import test_after_commit
from tests.contract.worker import (
    test_breaking,
    test_database_outages,
    test_reports,
    test_shared_commits,
    test_start,
)
from tests.mutations.mutation import Break, Mutation, replacing, target, without
from tests.unit.jobs import test_judge
from tests.unit.worker import test_claimer

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pytest

    from stepfast.database.dialects import Dialect
    from stepfast.database.statement import Statement
    from stepfast.worker.reporter import Reporter


def _shorten(reporter: Reporter, held: tuple[str, int]) -> None:
    if (unwritten := reporter.unwritten.get(held)) is not None:
        unwritten.shorten(FULL)


def believing(path: str) -> Break:
    """Count every row sent to a statement as matched."""

    def change(patch: pytest.MonkeyPatch, _: Dialect) -> None:
        honest = Transaction.run_many

        def run_many(self: Transaction, sent: Statement, rows: Sequence[Any]) -> int:
            matched = honest(self, sent, rows)
            return len(rows) if sent is target(path) else matched

        patch.setattr(Transaction, "run_many", run_many)

    return Break((path,), change)


END_TOGETHER = committer.end_together


def _finish_without_a_net(self: Any, ended: Any, fence: int | None, *, held: bool) -> None:
    if held and fence is not None:
        self._continue_here(ended, fence)


def only_those_that_stay(*given: Any) -> dict[str, int | None]:
    return {job_id: fence for job_id, fence in END_TOGETHER(*given).items() if fence is not None}


def is_any_outage(error: BaseException, _: int) -> bool:
    return isinstance(error, UnreachableError)


MUTATIONS = [
    # An outage of our own database costs no attempt, and only that.
    Mutation(
        "an outage of a handler's own other database costs nothing",
        replacing("stepfast.jobs.retry:is_outage_of", is_any_outage),
        test_judge.test_an_outage_of_our_database_is_not_charged_and_one_of_another_is,
        only_on=("sqlite",),
    ),
    Mutation(
        "a handler that causes its outages is never charged",
        replacing("stepfast.jobs.retry:OUTAGES_IN_A_ROW", 1_000),
        test_judge.test_a_job_that_meets_one_outage_after_the_other_is_charged_in_the_end,
        only_on=("sqlite",),
    ),
    Mutation(
        "errors do not tell their database",
        replacing("stepfast.database.database:Database._mark", lambda *_: None),
        test_database_outages.test_an_outage_of_our_database_in_a_handler_costs_no_attempt,
    ),
    Mutation(
        "a read-only server counts as a write that it will not take",
        replacing("stepfast.worker.committer:is_read_only_server", lambda _: False),
        test_database_outages.test_a_finished_step_waits_for_a_node_outside_its_cluster,
        {"statement": "INSERT INTO ledger"},
        only_on=("mariadb",),
    ),
    # The hint is never trusted for long.
    Mutation(
        "the whole queue is never asked again",
        replacing("stepfast.worker.claimer:UNHINTED_EVERY", 1e9),
        test_claimer.test_the_whole_queue_is_asked_once_a_second_in_any_case,
        only_on=("sqlite",),
    ),
    # Continuations that share a transaction are all of them written, or none.
    Mutation(
        "a partition that somebody moved on is not missed among others",
        believing("stepfast.runs.partition:ADVANCE_PARTITION"),
        test_shared_commits.test_a_partition_that_somebody_moved_is_looked_at_again_and_the_others_are_written,
        {"change": "seq = seq + 1"},
    ),
    Mutation(
        "a fence that was lost is not missed among others",
        believing("stepfast.jobs.commit:CONTINUE_JOB_HERE"),
        test_shared_commits.test_a_lost_fence_leaves_nothing_and_the_others_are_written,
    ),
    Mutation(
        "a job that was asked to stop goes on among others",
        without("stepfast.jobs.commit:CONTINUE_JOB_HERE", "AND cancel_at IS NULL"),
        test_shared_commits.test_a_cancelled_job_ends_with_its_page_and_the_others_go_on,
    ),
    Mutation(
        "a row that was read before passes for new among others",
        without("stepfast.runs.raw_rows:REMEMBER_NEW", "DO NOTHING", "DO UPDATE SET pass = excluded.pass"),
        test_shared_commits.test_a_row_that_comes_again_makes_only_its_own_page_judged_again,
        only_on=("sqlite", "postgresql"),
    ),
    Mutation(
        "a row that was read before passes for new among others in MariaDB",
        without("stepfast.runs.raw_rows:REMEMBER_NEW", "pass = pass + 1", "pass = VALUES(pass)"),
        test_shared_commits.test_a_row_that_comes_again_makes_only_its_own_page_judged_again,
        only_on=("mariadb",),
    ),
    Mutation(
        "one that is refused takes the others with it",
        replacing("stepfast.worker.committer:Committer._commit_alone", lambda *_: None),
        test_shared_commits.test_a_lost_fence_leaves_nothing_and_the_others_are_written,
    ),
    Mutation(
        "a deadlock is tried again by all of them together",
        replacing("stepfast.worker.committer:end_together", committer._end_together),
        test_shared_commits.test_a_deadlock_parts_the_group_and_nobody_is_charged,
    ),
    Mutation(
        "after a deadlock they share a transaction at once",
        replacing("stepfast.worker.committer:APART", 0.0),
        test_shared_commits.test_a_deadlock_parts_the_group_and_nobody_is_charged,
    ),
    Mutation(
        "chains that share a transaction ignore that their queue is paused",
        replacing("stepfast.worker.committer:more_urgent", lambda *_: False),
        test_shared_commits.test_a_group_does_not_stay_in_the_way,
        {"reason": test_shared_commits.paused},
    ),
    Mutation(
        "the fences of an attempt that was lost are believed",
        replacing("stepfast.worker.committer:end_together", only_those_that_stay),
        test_shared_commits.test_a_group_that_may_not_stay_when_it_is_written_again_does_not,
    ),
    Mutation(
        "what one of them meets after the commit is met by all",
        replacing("stepfast.worker.committer:Committer._finish", _finish_without_a_net),
        test_shared_commits.test_one_that_cannot_be_handed_over_does_not_take_the_others_along,
        or_with=(RuntimeError,),
    ),
    Mutation(
        "what a part that broke has not written stays leased",
        replacing("stepfast.worker.claimer:Claimer.give_back_uncommitted", lambda _: None),
        test_breaking.test_a_worker_of_which_a_part_breaks_gives_everything_back_and_says_so,
        {"part": "commit-batches"},
    ),
    Mutation(
        "a worker that starts does not wait for its database",
        replacing("stepfast.worker.worker:is_outage", lambda _: False),
        test_start.test_a_worker_that_loses_the_database_while_it_starts_comes_up,
        or_with=(DatabaseError,),
    ),
    Mutation(
        "a full buffer of log lines is shortened instead of written",
        replacing("stepfast.worker.reporter:Reporter._make_room", _shorten),
        test_reports.test_a_burst_of_log_lines_is_stored_and_the_progress_with_it,
        {"kind": "plain"},
    ),
    Mutation(
        "events are told before the commit",
        replacing("stepfast.database.connection:Transaction.after_commit", lambda _, act: act()),
        test_after_commit.test_work_that_is_done_again_after_a_deadlock_is_told_once,
    ),
]
