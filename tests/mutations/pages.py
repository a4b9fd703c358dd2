"""Guards of reading a page, each taken away once: its commit, raw rows, debts, the division of a partition."""

from __future__ import annotations

from typing import Any

from stepfast.jobs.outcome import Done
from stepfast.runs import page
from tests.contract.runs import (
    test_completion,
    test_division,
    test_flaws_of_paging,
    test_odd_rows,
    test_page,
    test_page_position,
    test_raw_rows,
    test_skipped_lookup,
)
from tests.mutations.mutation import Mutation, replacing, without

NEWER = "WHERE excluded.observed_at > stepfast_raw.observed_at"


_advancing = page.PageCommit.advancing
counted = test_flaws_of_paging.test_rows_that_are_counted_and_never_shown_become_a_debt


async def remembers(
    self: page.PagePositions, _step: Any, database: Any, row_id: str, _epoch: int
) -> page.PagePosition | None:
    _, kept = self._kept.get(row_id, (0, None))
    return kept or page._find_position(database, row_id)


MUTATIONS = [
    Mutation(
        "a number that JSON does not know becomes null",
        replacing("stepfast.runs.page:is_finite", lambda _: True),
        test_odd_rows.test_a_row_that_cannot_be_kept_as_it_is_goes_to_quarantine_and_the_others_go_on,
        arguments={"odd": lambda it: it | {"weight": float("nan")}, "reason": "NaN"},
    ),
    Mutation(
        "a row without identity counts each time it is read",
        replacing("stepfast.runs.page:_rejected", lambda _, __, asked: asked.page.rejected),
        test_odd_rows.test_a_row_without_identity_counts_once_however_often_it_is_read,
    ),
    # A page is written by the one request that asked for it.
    Mutation(
        "a page is written whoever has moved the partition on",
        without("stepfast.runs.partition:ADVANCE_PARTITION", "AND seq = :seq", ""),
        test_page.test_a_page_that_two_jobs_have_read_is_written_once,
    ),
    Mutation(
        "a page of an older epoch is written",
        without("stepfast.runs.partition:ADVANCE_PARTITION", "AND epoch = :epoch", ""),
        test_page.test_an_answer_that_comes_after_a_restart_changes_nothing,
    ),
    Mutation(
        "what was never heard of is taken for done",
        replacing("stepfast.runs.page:Reject", Done),
        test_page.test_a_page_of_a_partition_that_does_not_exist_is_a_dead_letter_with_its_reason,
    ),
    Mutation(
        "rows of a page that does not follow are kept",
        replacing("stepfast.runs.page:keeps_rows", lambda _: True),
        test_flaws_of_paging.test_rows_that_leave_behind_the_cursor_make_nobody_skip_others,
        {"at_once": 12},
        only_on=("sqlite",),
    ),
    Mutation(
        "what a process remembers of a partition is believed for ever",
        replacing("stepfast.runs.page:PagePositions.find", remembers),
        test_page.test_the_ledger_says_who_read_each_page,
    ),
    Mutation(
        "a partition names its first worker for all its pages",
        without(
            "stepfast.runs.partition:ADVANCE_PARTITION",
            "worker_id = :worker_id",
            "worker_id = COALESCE(worker_id, :worker_id)",
        ),
        test_page.test_a_partition_names_the_worker_that_read_it_last,
    ),
    Mutation(
        "a partition names a worker that never read it",
        replacing(
            "stepfast.runs.page:PageCommit.advancing",
            lambda self: _advancing(self) | {"worker_id": "somebody"},
        ),
        test_page.test_a_partition_names_the_worker_that_read_it_last,
        only_on=("sqlite",),
    ),
    Mutation(
        "a partition has the rows of its last page",
        without("stepfast.runs.partition:ADVANCE_PARTITION", "seen = seen + :fresh", "seen = :fresh"),
        test_completion.test_rows_of_a_partition_count_once_in_the_run,
    ),
    Mutation(
        "a page leaves it to the watchdog to find the next one",
        replacing("stepfast.runs.page:Continue", lambda _, effects: Done(effects=effects)),
        test_page.test_a_partition_is_a_chain_of_short_steps_with_one_request_each,
    ),
    # Debts.
    Mutation(
        "what is not verified is forgotten",
        replacing("stepfast.runs.page:open_debt", lambda *_: None),
        counted,
        or_with=(ValueError,),
    ),
    Mutation(
        "a debt that was paid stays open",
        replacing("stepfast.runs.page:close_debt", lambda *_: None),
        counted,
    ),
    Mutation(
        "debts are not read again",
        replacing("stepfast.runs.plan:debts_to_read", lambda *_: []),
        counted,
        or_with=(IndexError,),
    ),
    # The newest observation wins.
    Mutation(
        "the last to write wins",
        without("stepfast.runs.raw_rows:OBSERVE_ROWS", NEWER, "WHERE true"),
        test_raw_rows.test_an_older_observation_after_a_newer_one_is_ignored,
        only_on=("sqlite", "postgresql"),
    ),
    Mutation(
        "the last to write wins in MariaDB",
        without(
            "stepfast.runs.raw_rows:OBSERVE_ROWS",
            "IF(VALUES(observed_at) > observed_at, VALUES(payload), payload)",
            "VALUES(payload)",
        ),
        test_raw_rows.test_an_older_observation_after_a_newer_one_is_ignored,
        only_on=("mariadb",),
    ),
    Mutation(
        "what comes back unchanged is not consolidated",
        without("stepfast.runs.raw_rows:OBSERVE_ROWS", "AND stepfast_raw.gone_at IS NULL", ""),
        test_raw_rows.test_what_was_gone_and_comes_back_unchanged_is_consolidated_again,
        only_on=("sqlite", "postgresql"),
    ),
    Mutation(
        "what comes back unchanged is not consolidated in MariaDB",
        without("stepfast.runs.raw_rows:OBSERVE_ROWS", "AND gone_at IS NULL", ""),
        test_raw_rows.test_what_was_gone_and_comes_back_unchanged_is_consolidated_again,
        only_on=("mariadb",),
    ),
    # A partition is divided once.
    Mutation(
        "a partition that outgrew its plan is read whole",
        replacing("stepfast.runs.page:outgrows", lambda *_: False),
        test_division.test_a_partition_that_outgrew_its_plan_is_divided_and_its_pieces_are_read,
        only_on=("sqlite",),
    ),
    Mutation(
        "a partition is divided as often as somebody has counted",
        replacing("stepfast.runs.page:end_partition", lambda *_, **__: True),
        test_division.test_a_division_that_two_workers_finish_is_written_once,
        only_on=("sqlite",),
    ),
    Mutation(
        "what was divided is counted with its pieces",
        without(
            "stepfast.runs.page:UNCOUNT_DIVIDED", "partitions = partitions - 1", "partitions = partitions"
        ),
        test_division.test_a_partition_that_outgrew_its_plan_is_divided_and_its_pieces_are_read,
        only_on=("sqlite",),
    ),
    Mutation(
        "what a sample found too dense is read by one",
        replacing("stepfast.runs.plan:FanOut._division", lambda *_: None),
        test_division.test_a_value_that_a_sample_found_too_dense_is_divided_by_its_own_job,
        only_on=("sqlite",),
        or_with=(ValueError,),
    ),
    # A remembered place is believed only if nothing was committed after it.
    Mutation(
        "what was never committed is remembered",
        replacing(
            "stepfast.runs.page:was_written_by", lambda _, place, step: step.cursor[0] == place.partition.seq
        ),
        test_page_position.test_a_page_that_was_never_committed_is_not_remembered,
    ),
    # Rows that pass for new are new, or nothing is written.
    Mutation(
        "a row that was read before passes for new",
        without("stepfast.runs.raw_rows:REMEMBER_NEW", "DO NOTHING", "DO UPDATE SET pass = excluded.pass"),
        test_skipped_lookup.test_a_page_with_a_row_that_was_read_before_is_judged_again_and_charged_to_nobody,
        only_on=("sqlite", "postgresql"),
    ),
    Mutation(
        "MariaDB counts a row that was known as if it were new",
        without("stepfast.runs.raw_rows:REMEMBER_NEW", "pass = pass + 1", "pass = VALUES(pass)"),
        test_skipped_lookup.test_a_page_with_a_row_that_was_read_before_is_judged_again_and_charged_to_nobody,
        only_on=("mariadb",),
    ),
]
