"""Guards of watermarks, their export and debts, each taken away once."""

from __future__ import annotations

from tests.contract.runs import test_debts, test_watermark, test_watermark_export
from tests.mutations.mutation import Mutation, replacing, without

MUTATIONS = [
    # Nothing lies between two windows, and nobody is taken for gone who was not looked for.
    Mutation(
        "a watermark is moved by who read another one",
        without("stepfast.runs.watermark:MOVE_WATERMARK", "AND version = :version", ""),
        test_watermark.test_who_decided_about_another_watermark_moves_nothing,
    ),
    Mutation(
        "a watermark goes back",
        replacing("stepfast.runs.watermark:watermark_after", lambda _, window_to: window_to),
        test_watermark.test_an_older_run_that_ends_last_does_not_take_the_watermark_back,
    ),
    Mutation(
        "a run jumps over what an operator wanted to be read again",
        replacing("stepfast.runs.watermark:leaves_a_gap", lambda *_: False),
        test_watermark.test_a_run_that_began_behind_a_watermark_that_was_set_back_does_not_skip_what_lies_between,
    ),
    Mutation(
        "an older document is written over a newer one",
        replacing("stepfast.outbox.exports:_read_mark", lambda _: None),
        test_watermark_export.test_an_export_that_is_repeated_late_does_not_bring_an_older_watermark_back,
    ),
    Mutation(
        "a document that was edited is replaced without a word",
        replacing("stepfast.outbox.exports:_foreign_text", lambda *_: None),
        test_watermark_export.test_a_document_that_was_edited_is_noticed,
        or_with=(ValueError,),
    ),
    Mutation(
        "a debt is read for ever",
        replacing("stepfast.runs.debts:MOST_TRIES", 100),
        test_debts.test_after_three_tries_somebody_is_told_and_nobody_reads_it_any_more,
    ),
    Mutation(
        "a try is counted although a person has closed the debt",
        without("stepfast.runs.debts:COUNT_TRY", "AND state = 'open'", ""),
        test_debts.test_a_try_of_a_debt_that_is_closed_is_not_counted,
    ),
    Mutation(
        "a later debt is one more debt",
        replacing("stepfast.runs.debts:_absorb", lambda *_: 0),
        test_debts.test_a_later_debt_of_the_same_range_takes_the_place_of_the_one_that_it_covers,
    ),
    Mutation(
        "a debt is left to a run that does not cover it",
        replacing("stepfast.runs.debts:covers", lambda *_: True),
        test_debts.test_the_next_run_reads_a_debt_in_the_window_in_which_it_was_missed,
        or_with=(ValueError,),
    ),
]
