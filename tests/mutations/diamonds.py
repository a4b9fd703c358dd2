"""Guards of the diamonds application (rules, repricing, the client of Nivoda, its feed, the demo), each taken away once."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import msgspec

from stepfast import Dimension, Rate, sql
from stepfast.clock import new_id
from stepfast.runs.sweep_rows import UnseenBy
from stepfast.runs.target import TargetColumn
from stepfast_diamonds import client, feed, pace, query, repricing, rule_sets, rules, token
from stepfast_diamonds.repricing import ALL_STONES
from tests.contract.runs import test_feed_hooks, test_plan
from tests.diamonds import (
    test_acceptance,
    test_client,
    test_demo,
    test_demo_comparison,
    test_feed,
    test_found,
    test_heatmap,
    test_incidents,
    test_repricing,
    test_rules,
    test_source,
    test_token,
)
from tests.diamonds.worlds import World
from tests.mutations.mutation import Mutation, both, replacing, replacing_item, without

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest

    from stepfast import Stepfast

_gaps = rules._gaps


def in_a_world(test: Callable[[World], None]) -> Callable[..., None]:
    """Run a test of a small world on the given database."""

    def run(app: Stepfast) -> None:
        with World(app.database.url) as world:
            test(world)

    return run


def in_a_world_with_patches(test: Callable[[World, pytest.MonkeyPatch], None]) -> Callable[..., None]:
    """Like `in_a_world`, for a test that also patches something."""

    def run(app: Stepfast, monkeypatch: pytest.MonkeyPatch) -> None:
        with World(app.database.url) as world:
            test(world, monkeypatch)

    return run


def on_its_database(test: Callable[..., None], **given: Any) -> Callable[..., None]:
    """Run a test that makes its own world on the given database."""

    def run(app: Stepfast) -> None:
        test(database_url=app.database.url, **given)

    return run


async def _asks_once(self: client.Client, documents: client.Documents, **variables: Any) -> Any:
    return await self._ask_with(await self._tokens.get(), documents, variables)


def _half_open(given: Any) -> dict[str, Any]:
    asked = query._prices("dollar_per_carat")(given)["dollar_per_carat"]
    return {"dollar_per_carat": {"from": asked["from"], "to": max(asked["from"], asked["to"] - 1)}}


def _keep_unsealed(self: token.TokenRows, kept: str, seconds: float) -> None:
    self._end(token.KEEP_TOKEN, sealed=kept, lasts=int(seconds * 1_000_000))


async def _get(self: token.Tokens, refused: str | None = None) -> str:  # noqa: ARG001 - as it is called
    return (await self._login()).token


def _with_a_hole(given: Any) -> dict[str, Any]:
    low, high = given.from_, given.to
    return {
        "dollar_per_carat": {
            "from": int(low or 0),
            "to": query.LARGEST_INT if high is None else int(high) - 1,
        }
    }


def _without_what_is_above(*given: Any, **named: Any) -> Dimension:
    return Dimension(*given, **named | {"above": False})


def _unshared_limits(known: Any) -> list[Any]:
    return [replace(it, name=new_id()) for it in _limits_of(known)]


_judged = token.TokenRows._judged
_limits_of = feed.limits_of


MUTATIONS = [
    Mutation(
        "a run is priced by whatever counts",
        replacing("stepfast_diamonds.feed:version_of", lambda tx, _: rule_sets.active_version(tx)),
        test_rules.test_a_run_keeps_the_set_that_counted_when_it_began,
    ),
    Mutation(
        "a run that ends under newer rules says nothing",
        replacing("stepfast_diamonds.feed:pinned", lambda *_: None),
        test_rules.test_a_run_that_ends_under_newer_rules_asks_for_a_repricing,
    ),
    Mutation(
        "rules that were changed by hand are used",
        replacing("stepfast_diamonds.rule_sets:load_rules", rule_sets.find_rules),
        test_rules.test_rules_that_vanish_in_the_middle_hold_the_run_and_leave_no_mixed_prices,
        arguments={"damage": test_rules.DAMAGES["one rule is gone"]},
    ),
    Mutation(
        "a number of rules is given twice",
        replacing(
            "stepfast_diamonds.rule_sets:LAST_VERSION", sql("SELECT max(version) FROM pricing_rule_sets")
        ),
        test_rules.test_a_run_without_rules_is_held_and_goes_on_after_the_import,
        arguments={"damage": test_rules.DAMAGES["the set is gone"]},
    ),
    Mutation(
        "every run reprices everything",
        replacing("stepfast_diamonds.feed:RepricingScope", lambda *_: ALL_STONES),
        test_rules.test_a_run_that_ends_under_newer_rules_reprices_what_it_wrote_and_nothing_else,
    ),
    Mutation(
        "a stone that has a price again stays stale",
        without("stepfast_diamonds.repricing:KEEP_PRICE", ", " + repricing._FRESH),
        test_repricing.test_a_stone_that_has_a_rule_again_is_no_longer_stale,
        arguments={"modifier": 3},
    ),
    Mutation(
        "a plan asks for as many ranges as it likes",
        replacing(
            "stepfast.runs.plan:reserve_starts", lambda _tx, _limits, _scope, most, _within: [0.0] * most
        ),
        test_plan.test_a_step_of_a_limited_plan_asks_for_as_many_as_its_limits_have_places_for,
        arguments={"limits": [Rate(1, per="1m")], "asked": 1},
        only_on=("sqlite",),
    ),
    Mutation(
        "a look at the heatmap slows everybody down",
        replacing("stepfast_diamonds.source:PaceKeeper", lambda rows, rate, **_: pace.PaceKeeper(rows, rate)),
        lambda app: test_heatmap.test_a_firewall_that_stops_it_stops_nobody_else(app, app.database.url),
        only_on=("sqlite",),
    ),
    Mutation(
        "a set with holes may be used",
        replacing("stepfast_diamonds.rules:_gaps", lambda *_: iter(())),
        test_rules.test_a_stored_set_with_a_hole_is_not_activated,
    ),
    Mutation(
        "stones that are there need no rules",
        replacing("stepfast_diamonds.rules:_gaps", lambda given, _: _gaps(given, frozenset())),
        test_rules.test_a_set_without_rules_for_stones_that_are_there_is_not_activated,
    ),
    Mutation(
        "a stone is repriced whatever was written meanwhile",
        replacing("stepfast_diamonds.repricing:is_unchanged", lambda *_: True),
        test_repricing.test_a_stone_that_a_run_writes_meanwhile_is_not_overwritten_with_what_was_read,
    ),
    Mutation(
        "the end of the table is the end of a repricing",
        replacing("stepfast_diamonds.repricing:any_behind", lambda *_: False),
        test_repricing.test_what_a_run_with_older_rules_writes_meanwhile_is_taken_in_another_pass,
    ),
    Mutation(
        "a stone that was written since gets its old price back",
        replacing("stepfast_diamonds.repricing:was_last_to_write", lambda *_: True),
        test_repricing.test_a_stone_that_was_written_since_is_not_restored_but_priced_anew,
    ),
    Mutation(
        "a repricing is taken back under other rules",
        replacing("stepfast_diamonds.repricing:active_version", lambda _: 2),
        test_repricing.test_what_cannot_be_taken_back_is_refused_with_the_reason,
    ),
    Mutation(
        "a feed marks rows of others in its table",
        replacing(
            "stepfast.runs.target:target_column",
            lambda declared, column: TargetColumn(declared.table, declared.item_column or "", column),
        ),
        test_feed_hooks.test_a_feed_marks_no_row_of_another_in_the_same_table,
    ),
    Mutation(
        "everybody may log in at once",
        without("stepfast_diamonds.token:TAKE_TURN", "AND (turn_until IS NULL OR turn_until <= {now})"),
        test_token.test_a_turn_is_one_processs_until_it_ends,
    ),
    Mutation(
        "whoever was too late replaces the token of the others",
        without("stepfast_diamonds.token:KEEP_TOKEN", "AND turn_of = :me"),
        test_token.test_a_turn_is_one_processs_until_it_ends,
    ),
    Mutation(
        "a token is kept as it is",
        replacing("stepfast_diamonds.token:TokenRows.keep", _keep_unsealed),
        test_token.test_what_is_kept_is_sealed,
    ),
    Mutation(
        "a login that failed is tried again at once",
        replacing("stepfast_diamonds.token:rest_after", lambda _: timedelta(0)),
        test_token.test_a_login_that_failed_is_not_tried_by_the_next,
    ),
    Mutation(
        "what one process learnt about the pace is its own business",
        replacing("stepfast_diamonds.pace:PaceInDatabase.change", lambda *_: None),
        test_source.test_b13_other_processes_and_feeds_leave_it_alone_as_well,
    ),
    Mutation(
        "a throttle slows nobody down",
        replacing("stepfast_diamonds.pace:Pace.gap_at", lambda *_: 0),
        test_source.test_b13_while_it_is_slow_every_request_takes_its_place_in_one_stream,
    ),
    Mutation(
        "everybody in a process logs in for himself",
        replacing("stepfast_diamonds.token:Tokens.get", _get),
        test_token.test_t17_twenty_workers_make_one_login,
    ),
    Mutation(
        "a token that was refused is taken from the row again",
        replacing("stepfast_diamonds.token:TokenRows._judged", lambda self, row, _: _judged(self, row, None)),
        test_token.test_a_token_that_was_refused_is_not_given_again,
    ),
    Mutation(
        "neighbours leave a dollar out between them",
        replacing_item("stepfast_diamonds.query:_WRITERS", "dollar_per_carat", _with_a_hole),
        test_source.test_b07_bounds_are_whole_and_the_last_has_no_end,
    ),
    Mutation(
        "half a page is a page",
        replacing("stepfast_diamonds.source:_is_about_a_stone", lambda _: True),
        test_source.test_b15_half_a_page_is_none,
    ),
    Mutation(
        "more stones than were asked for are taken",
        replacing(
            "stepfast_diamonds.source:_items", lambda answer, _: answer.field("diamonds_by_query")["items"]
        ),
        test_source.test_a_page_that_is_longer_than_was_asked_for_is_refused,
    ),
    Mutation(
        "what the source repeats is quoted",
        replacing("stepfast_diamonds.client:Client._hidden", lambda _, text: text),
        test_client.test_neither_credentials_nor_tokens_are_in_what_the_source_is_quoted_with,
    ),
    Mutation(
        "a feed without a single stone is a good one",
        replacing("stepfast_diamonds.feed:NivodaFeed.may_be_empty", "whatever"),
        test_feed.test_a_feed_without_a_stone_is_not_planned,
    ),
    Mutation(
        "a page with holes is taken at once",
        replacing("stepfast_diamonds.source:RepeatedFailures.arise", lambda *_: False),
        test_source.test_b15_a_value_that_fails_only_once_is_not_lost,
    ),
    # What lost stones in production.
    Mutation(
        "offsets are added up, and the last page is believed",
        both(
            both(
                replacing("stepfast.runs.paging.decide:_anchors", lambda *_: 0),
                replacing(
                    "stepfast.runs.paging.decide:_aimed",
                    lambda _, state: msgspec.structs.replace(state, offset=state.position),
                ),
            ),
            replacing("stepfast.runs.paging.decision:_proof", lambda *_: "the offsets say so"),
        ),
        on_its_database(test_acceptance.test_t5_stones_that_leave_take_no_others_with_them, per_second=0.2),
        only_on=("sqlite",),
    ),
    Mutation(
        "neighbours do not share their bound",
        replacing_item("stepfast_diamonds.query:_WRITERS", "dollar_per_carat", _half_open),
        on_its_database(test_incidents.test_no_price_falls_between_two_partitions),
        only_on=("sqlite",),
    ),
    Mutation(
        "the heatmap of the feed ends at its dearest price",
        replacing("stepfast_diamonds.heatmap:Dimension", _without_what_is_above),
        on_its_database(test_incidents.test_no_price_falls_between_two_partitions),
        only_on=("sqlite",),
    ),
    Mutation(
        "the feeds have no limits",
        replacing("stepfast_diamonds.feed:limits_of", lambda _: []),
        test_incidents.test_both_feeds_with_many_workers_stay_below_the_limit_of_the_source,
        only_on=("sqlite",),
    ),
    Mutation(
        "the feeds have no rate",
        replacing("stepfast_diamonds.feed:limits_of", lambda known: _limits_of(known)[1:]),
        test_incidents.test_both_feeds_with_many_workers_stay_below_the_limit_of_the_source,
        only_on=("sqlite",),
    ),
    Mutation(
        "the feeds ask as much at the same time as they like",
        replacing("stepfast_diamonds.feed:limits_of", lambda known: _limits_of(known)[:1]),
        test_incidents.test_both_feeds_with_many_workers_stay_below_the_limit_of_the_source,
        only_on=("sqlite",),
    ),
    Mutation(
        "each feed has limits of its own",
        replacing("stepfast_diamonds.feed:limits_of", _unshared_limits),
        test_incidents.test_both_feeds_with_many_workers_stay_below_the_limit_of_the_source,
        only_on=("sqlite",),
    ),
    Mutation(
        "the watermark is the time at which a run ended",
        replacing(
            "stepfast.runs.watermark:watermark_after", lambda _, window_to: window_to + 20 * 60 * 1_000_000
        ),
        in_a_world(test_incidents.test_what_changes_while_a_run_reads_and_consolidates_is_read_by_the_next),
        only_on=("sqlite",),
    ),
    Mutation(
        "one full run that misses a stone is enough",
        replacing(
            "stepfast.runs.sweep:_unseen_by",
            lambda run, state: UnseenBy(run.feed, run.id, state.before, 1),
        ),
        in_a_world(test_incidents.test_a_stone_that_was_sold_does_not_stay_on_sale),
        only_on=("sqlite",),
    ),
    Mutation(
        "an older page undoes a newer one",
        without(
            "stepfast.runs.raw_rows:OBSERVE_ROWS", "WHERE excluded.observed_at > stepfast_raw.observed_at"
        ),
        on_its_database(
            test_acceptance.test_t13_an_older_page_of_a_backfill_does_not_undo_what_was_read_since
        ),
        only_on=("sqlite", "postgresql"),
    ),
    Mutation(
        "a token that has ended is shown again and again",
        replacing("stepfast_diamonds.client:Client.ask", _asks_once),
        on_its_database(
            test_acceptance.test_t17_twenty_processes_whose_token_ends_log_in_once, how="revocation"
        ),
        only_on=("sqlite",),
    ),
    Mutation(
        "a cancelled run is read on",
        both(
            replacing("stepfast.runs.page:PagePosition.may_go_on", lambda *_: True),
            replacing("stepfast.runs.repair:cancel_jobs", lambda *_: None),
        ),
        in_a_world(test_incidents.test_nobody_asks_the_source_for_a_cancelled_run),
        only_on=("sqlite",),
    ),
    Mutation(
        "what a forced run lacks is not owed",
        replacing("stepfast.runs.repair:open_debts_for", lambda *_: (0, 0)),
        on_its_database(test_acceptance.test_t7_what_was_forced_is_owed_until_it_is_read),
        only_on=("sqlite",),
    ),
    Mutation(
        "the demo takes every row for the newest",
        replacing("stepfast_diamonds.demo.comparison:Row.tells", lambda *_: True),
        test_demo_comparison.test_a_stone_with_other_values_is_stale,
        arguments={"values": {"price": 1000.51}},
        only_on=("sqlite",),
    ),
    Mutation(
        "the demo fills whatever database it is given",
        replacing("stepfast_diamonds.demo.folder:refuse_used_database", lambda _: None),
        test_demo.test_a_database_that_holds_something_is_refused,
    ),
    Mutation(
        "the source's clock may go back",
        without(
            "stepfast.runs.start:KEEP_SKEW",
            "(skew < :skew OR (skew > :skew AND NOT EXISTS (SELECT 1 FROM stepfast_raw r WHERE r.feed = :feed)))",
            "skew <> :skew",
        ),
        in_a_world_with_patches(test_found.test_what_a_source_shows_after_its_clock_was_set_back_is_believed),
    ),
    Mutation(
        "a stone that one full run has not met is gone",
        both(
            replacing(
                "stepfast.runs.sweep:_unseen_by",
                lambda run, state: UnseenBy(run.feed, run.id, state.before, 1),
            ),
            replacing("stepfast_diamonds.feed:NivodaFeed.confirm_gone", value=False),
        ),
        in_a_world(
            test_found.test_a_stone_that_moves_into_a_range_that_was_read_is_missed_once_and_not_taken_for_gone
        ),
        only_on=("sqlite",),
    ),
    Mutation(
        "nobody asks Nivoda before a stone goes",
        replacing("stepfast_diamonds.feed:NivodaFeed.confirm_gone", value=False),
        in_a_world(test_found.test_a_stone_that_two_full_runs_in_a_row_met_on_its_way_is_not_taken_for_gone),
        only_on=("sqlite",),
    ),
    Mutation(
        "a stone that exists is on offer",
        replacing("stepfast_diamonds.source:fits_base_query", lambda *_, **__: True),
        in_a_world(test_incidents.test_a_stone_that_was_sold_does_not_stay_on_sale),
        only_on=("sqlite",),
    ),
]
