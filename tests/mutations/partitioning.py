"""Guards of plans and partitions, each taken away once."""

from __future__ import annotations

from stepfast.runs.partitioning.ranges import Bounds
from tests.mutations.mutation import Mutation, replacing
from tests.support.paged_source import NATURAL
from tests.unit.runs.partitioning import test_estimate, test_heatmap, test_sample

MUTATIONS = [
    Mutation(
        "a sample counts as often as it likes",
        replacing("stepfast.runs.partitioning.sample:Sample.left", property(lambda _: 1_000)),
        test_sample.test_half_a_million_rows_are_planned_with_sixty_counts,
        arguments={"profile": NATURAL},
        only_on=("sqlite",),
    ),
    # Partitions leave nothing out.
    Mutation(
        "bounds end before the next ones begin",
        replacing(
            "stepfast.runs.partitioning.dimension:Dimension.part",
            lambda self, first, last: Bounds(first, max(first, last - 1), self.closed),
        ),
        test_heatmap.test_no_price_lies_between_two_partitions_or_beyond_the_last,
        only_on=("sqlite",),
    ),
    Mutation(
        "every plan is complete",
        replacing("stepfast.runs.partitioning.contract:Plan.gap", property(lambda _: None)),
        test_heatmap.test_a_capped_plan_says_that_it_is_partial_and_what_it_leaves_out,
        only_on=("sqlite",),
    ),
    Mutation(
        "a partition is replaced by pieces that do not tile it",
        replacing("stepfast.runs.partitioning.contract:Plan.gap", property(lambda _: None)),
        test_estimate.test_pieces_that_do_not_tile_their_parent_replace_nothing,
        only_on=("sqlite",),
    ),
    Mutation(
        "rows that a second dimension does not know are forgotten",
        replacing("stepfast.runs.partitioning.heatmap:loses_rows", lambda *_: False),
        test_heatmap.test_a_second_dimension_that_loses_rows_is_not_used,
        only_on=("sqlite",),
    ),
    Mutation(
        "a price that is too dense is left as it is",
        replacing("stepfast.runs.partitioning.heatmap:_other_axis", lambda *_: None),
        test_heatmap.test_partitions_of_the_lab_grown_profile_are_within_a_fifth_of_the_target,
        {"target": 3_000},
        only_on=("sqlite",),
    ),
    Mutation(
        "any answer is a count",
        replacing("stepfast.runs.partitioning.heatmap:checked", lambda counts: counts),
        test_heatmap.test_an_answer_that_is_no_count_is_refused,
        {"answer": -1},
        only_on=("sqlite",),
    ),
    Mutation(
        "shrunken partitions of the last run are kept apart",
        replacing("stepfast.runs.partitioning.heatmap:join_small", lambda regions, _: regions),
        test_heatmap.test_prior_partitions_that_have_shrunk_are_joined,
        only_on=("sqlite",),
    ),
    Mutation(
        "partitions may be as many as they like",
        replacing("stepfast.runs.partitioning.heatmap:join_to_at_most", lambda regions, *_: regions),
        test_heatmap.test_indivisible_prices_do_not_break_the_limit_of_partitions,
        only_on=("sqlite",),
    ),
]
