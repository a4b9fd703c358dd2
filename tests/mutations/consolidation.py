"""Guards of consolidation, quarantine and replay, each taken away once."""

from __future__ import annotations

from stepfast.runs import raw_rows
from tests.contract.runs import (
    test_consolidation,
    test_odd_rows,
    test_quarantine,
    test_remap,
    test_target_keys,
    test_verify,
)
from tests.mutations.mutation import Mutation, both, replacing, without

MUTATIONS = [
    Mutation(
        "a row that was altered to be kept is applied",
        replacing("stepfast.runs.replay:NOT_STORABLE", "never"),
        test_odd_rows.test_what_was_altered_to_be_kept_is_never_applied_by_a_replay,
    ),
    Mutation(
        "a row is marked whatever its content is by now",
        without(
            "stepfast.runs.raw_rows:MARK_APPLIED", lambda dialect: f"AND {raw_rows.READ_HASHES[dialect.name]}"
        ),
        test_consolidation.test_t12_what_arrives_between_reading_and_marking_is_applied,
    ),
    Mutation(
        "what was overtaken is written all the same",
        replacing("stepfast.runs.target:mark_applied", lambda *_: None),
        test_consolidation.test_an_older_version_never_replaces_a_newer_one_in_the_target,
    ),
    Mutation(
        "a round is the last",
        replacing("stepfast.runs.lifecycle:any_pending", lambda *_: False),
        test_consolidation.test_t12_what_arrives_between_reading_and_marking_is_applied,
    ),
    Mutation(
        "the first shard that ends is the last",
        without("stepfast.runs.consolidation:COUNT_BATCH", "shards - :ended", "shards * (1 - :ended)"),
        test_consolidation.test_a_short_batch_does_not_end_a_run_while_others_work,
    ),
    Mutation(
        "a step of an older epoch writes",
        without("stepfast.runs.consolidation:COUNT_BATCH", "AND epoch = :epoch"),
        test_consolidation.test_a_run_that_was_restarted_while_a_batch_was_mapped_gets_nothing_of_it,
    ),
    Mutation(
        "only rows of this run are looked for",
        both(
            replacing("stepfast.runs.consolidation:divide_pending", lambda *_: []),
            replacing("stepfast.runs.lifecycle:any_pending", lambda *_: False),  # else it would look for ever
        ),
        test_consolidation.test_rows_that_a_cancelled_run_saw_are_applied_by_the_next,
    ),
    Mutation(
        "any number of bad rows is fine",
        replacing("stepfast.runs.lifecycle:overspent", lambda *_: None),
        test_quarantine.test_a_mapper_that_fails_for_every_row_fails_the_run_and_holds_the_watermark,
    ),
    Mutation(
        "a run is judged by what was refused once",
        replacing("stepfast.runs.lifecycle:refused_rows", lambda _, run: run.quarantined),
        test_quarantine.test_after_a_replay_the_run_that_failed_for_its_quality_completes,
    ),
    Mutation(
        "somebody is to blame for a deadlock",
        replacing("stepfast.runs.target:blames_a_row", lambda _: True),
        test_quarantine.test_a_deadlock_is_nobodys_fault,
    ),
    Mutation(
        "a row that the table refused counts as applied",
        replacing("stepfast.runs.target:put_applied_aside", lambda *_: None),
        test_quarantine.test_rows_that_the_table_refuses_are_found_and_their_neighbours_written,
    ),
    Mutation(
        "what was applied before a bad version is taken for applied",
        without(
            "stepfast.runs.raw_rows:MARK_SOME_ROWS_ASIDE",
            "THEN NULL ELSE content_hash END",
            "THEN applied_hash ELSE content_hash END",
        ),
        test_quarantine.test_a_source_that_goes_back_to_the_version_that_was_applied_settles_the_entry,
    ),
    Mutation(
        "a replay takes any version for the newest",
        replacing("stepfast.runs.replay:ReplayEntry.counts", property(lambda _: True)),
        test_quarantine.test_a_newer_version_wins_over_a_replay,
    ),
    Mutation(
        "any table will do",
        replacing("stepfast.runs.target:is_unique", lambda *_: True),
        test_target_keys.test_a_unique_index_over_some_rows_is_not_enough,
    ),
    Mutation(
        "the last of several rows with one key wins in silence",
        replacing("stepfast.runs.target:_one_for_each_key", lambda _, __, rows, ___: rows),
        test_target_keys.test_of_items_that_are_mapped_to_one_key_all_but_the_last_are_put_aside,
    ),
    Mutation(
        "a remap lets rows wait that count as applied",
        without("stepfast.runs.raw_rows:MAKE_PENDING_AGAIN", ", applied_hash = NULL"),
        test_remap.test_a_row_that_is_seen_again_meanwhile_is_mapped_again_all_the_same,
    ),
    Mutation(
        "a remap brings back what is gone",
        without("stepfast.runs.raw_rows:MAKE_PENDING_AGAIN", "AND gone_at IS NULL"),
        test_remap.test_rows_that_are_gone_stay_gone_and_those_in_quarantine_are_tried,
    ),
    Mutation(
        "a verify looks only at what has changed",
        replacing("stepfast.runs.page:make_pending_to_compare", lambda *_: None),
        test_verify.test_rows_that_are_missing_or_differ_are_counted_and_repaired,
    ),
    Mutation(
        "a verify counts nothing",
        replacing("stepfast.runs.target:differences", lambda *_: 0),
        test_verify.test_rows_that_are_missing_or_differ_are_counted_and_repaired,
    ),
]
