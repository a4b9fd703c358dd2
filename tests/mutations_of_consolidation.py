"""Ways to break consolidation and quarantine, each with the test that must notice."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.runs import applying, consolidation, finishing, pending, replaying, storing
from tests.contract import test_consolidation, test_quarantine
from tests.mutations import Mutation, replacing, without

if TYPE_CHECKING:
    import pytest

    from holdfast.database.dialects import Dialect


def marking_any_content(patch: pytest.MonkeyPatch, dialect: Dialect) -> None:
    guard = (
        "AND content_hash = read.hash" if dialect.name == "postgresql" else "AND content_hash {any_of:hashes}"
    )
    without(pending.MARK, guard)(patch, dialect)


MUTATIONS = [
    Mutation(
        "a row is marked whatever its content is by now",
        marking_any_content,
        test_consolidation.test_what_arrives_between_reading_and_marking_is_applied,
    ),
    Mutation(
        "what was overtaken is written all the same",
        replacing(applying, "mark", lambda *_: None),
        test_consolidation.test_an_older_version_never_replaces_a_newer_one_in_the_target,
    ),
    Mutation(
        "a round is the last",
        replacing(consolidation, "any_pending", lambda *_: False),
        test_consolidation.test_what_arrives_between_reading_and_marking_is_applied,
    ),
    Mutation(
        "the first shard that ends is the last",
        without(consolidation.COUNT, "shards - :ended", "shards * (1 - :ended)"),
        test_consolidation.test_a_short_batch_does_not_end_a_run_while_others_work,
    ),
    Mutation(
        "a step of an older epoch writes",
        without(consolidation.COUNT, "AND epoch = :epoch"),
        test_consolidation.test_a_run_that_was_restarted_while_a_batch_was_mapped_gets_nothing_of_it,
    ),
    Mutation(
        "only rows of this run are looked for",
        replacing(consolidation, "divide", lambda *_: []),
        test_consolidation.test_rows_that_a_cancelled_run_saw_are_applied_by_the_next,
    ),
    Mutation(
        "any number of bad rows is fine",
        replacing(finishing, "overspent", lambda *_: None),
        test_quarantine.test_a_mapper_that_fails_for_every_row_fails_the_run_and_holds_the_watermark,
    ),
    Mutation(
        "a run is judged by what was refused once",
        replacing(finishing, "refused_rows", lambda _, run: run.quarantined),
        test_quarantine.test_after_a_replay_the_run_that_failed_for_its_quality_completes,
    ),
    Mutation(
        "somebody is to blame for a deadlock",
        replacing(storing, "blames_a_row", lambda _: True),
        test_quarantine.test_a_deadlock_is_nobodys_fault,
    ),
    Mutation(
        "a row that the table refused counts as applied",
        replacing(applying, "set_aside", lambda *_: None),
        test_quarantine.test_rows_that_the_table_refuses_are_found_and_their_neighbours_written,
    ),
    Mutation(
        "what was applied before a bad version is taken for applied",
        without(
            pending.MARK_SOME_ASIDE,
            "THEN NULL ELSE content_hash END",
            "THEN applied_hash ELSE content_hash END",
        ),
        test_quarantine.test_a_source_that_goes_back_to_the_version_that_was_applied_settles_the_entry,
    ),
    Mutation(
        "a replay takes any version for the newest",
        replacing(replaying.Entry, "counts", property(lambda _: True)),
        test_quarantine.test_a_newer_version_wins_over_a_replay,
    ),
]
