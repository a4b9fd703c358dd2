"""Prices and ratings of stones. Pure."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepfast_diamonds.mapping import RejectedError, map_offer
from stepfast_diamonds.money import from_cents, rounded, stored
from stepfast_diamonds.pricing import Prices, PricingRule, StoneType, markup
from stepfast_diamonds.rating import RatingRule, Ratings, Span
from stepfast_diamonds.rules import RuleSet, default_rules, problems
from tests.diamonds.offers import offer

if TYPE_CHECKING:
    from stepfast_diamonds.stone import Stone


def stone(
    cents: int = 100_000, *, feed: str = "nivoda-natural", lab_grown: bool = False, **certificate: Any
) -> Stone:
    return map_offer(offer(cents=cents, **certificate), feed, lab_grown=lab_grown)


def tier(low: str, high: str | None, modifier: str = "0", priority: int = 10, **more: Any) -> PricingRule:
    ends: dict[str, Any] = {"price_min": Decimal(low), "price_max": None if high is None else Decimal(high)}
    return PricingRule(priority=priority, margin_modifier=Decimal(modifier), **ends, **more)


def price(rules: RuleSet, it: Stone) -> str:
    return str(rules.quote(it).price_model_price)


# The default tiers


@pytest.mark.parametrize(
    ("cents", "ratio"),
    [
        (1, "1.4600"),
        (499_99, "1.4600"),
        (500_00, "1.4600"),
        (999_99, "1.4600"),
        (1_000_00, "1.4300"),
        (2_999_99, "1.4300"),
        (3_000_00, "1.4000"),
        (5_999_99, "1.4000"),
        (6_000_00, "1.3600"),
        (9_999_99, "1.3600"),
        (10_000_00, "1.3100"),
        (19_999_99, "1.3100"),
        (20_000_00, "1.2600"),
        (99_999_999_99, "1.2600"),
    ],
)
def test_the_default_tiers_begin_where_the_last_one_ends(cents: int, ratio: str) -> None:
    assert str(default_rules().quote(stone(cents)).markup_ratio) == ratio


def test_a_base_margin_belongs_to_the_type_of_the_stone() -> None:
    rules = default_rules()

    assert str(rules.quote(stone(300_000)).markup_ratio) == "1.4000"
    assert str(rules.quote(stone(300_000, lab_grown=True)).markup_ratio) == "1.7900"
    assert str(rules.quote(stone(300_000, color="FANCY", f_color="PINK")).markup_ratio) == "1.4000"
    grown = stone(300_000, lab_grown=True, color="FANCY", f_color="PINK")
    assert str(rules.quote(grown).markup_ratio) == "1.4000"


def test_the_price_is_the_feeds_price_times_the_ratio_to_the_cent() -> None:
    assert price(default_rules(), stone(100_000)) == "1430.00"
    assert price(default_rules(), stone(123_456)) == "1765.42"


def test_the_default_rules_have_no_problem() -> None:
    assert problems(default_rules()) == []


@given(st.integers(1, 9_999_999_999), st.sampled_from(StoneType))
def test_every_price_has_exactly_one_tier(cents: int, kind: StoneType) -> None:
    """F35: 499.995 fell between two of them."""
    holding = [it for it in default_rules().pricing if it.stone_type is kind and it.holds(from_cents(cents))]

    assert len(holding) == 1


# Money


def test_half_a_cent_is_rounded_up() -> None:
    assert rounded(Decimal("12.345")) == Decimal("12.35")
    assert rounded(Decimal("12.355")) == Decimal("12.36")
    assert rounded(Decimal("12.3449999")) == Decimal("12.34")
    assert markup(Decimal("33.335"), Decimal(0)) == Decimal("1.3334")


@given(st.integers(0, 999_999_999_999))
def test_a_price_survives_a_database_that_gives_floats(cents: int) -> None:
    exact = from_cents(cents)

    assert stored(float(exact)) == exact
    assert stored(str(exact)) == stored(exact) == exact


# First match


def test_the_first_rule_by_priority_decides() -> None:
    rules = [tier("0", None, "5", priority=20), tier("0", None, "-5", priority=10, feed="nivoda-natural")]
    prices = Prices(default_rules().margins, rules)

    assert prices.of(stone()).markup_ratio == Decimal("1.3500")
    assert prices.of(stone(feed="demo")).markup_ratio == Decimal("1.4500")


def test_a_stone_that_no_rule_is_for_is_rejected() -> None:
    """F35: it would be sold at a margin that was never chosen."""
    with pytest.raises(RejectedError, match="no pricing rule is for natural stones of feed nivoda-natural"):
        RuleSet(pricing=(tier("0", "500"),)).quote(stone(500_00))


def test_a_set_that_is_declared_empty_gives_the_base_margin() -> None:
    assert RuleSet(empty=True).quote(stone(lab_grown=True)).markup_ratio == Decimal("1.7900")


def test_the_rating_of_a_tier_is_told() -> None:
    rules = RuleSet(pricing=(tier("0", None, rating=8),))

    assert rules.quote(stone()).pricing_rating == 8


# Problems of a set


def problems_of(*rules: PricingRule, **more: Any) -> list[str]:
    return problems(RuleSet(pricing=rules, **more))


def test_an_empty_set_is_refused_unless_it_is_declared() -> None:
    """F35."""
    assert problems_of() == [
        'there is no pricing rule; if base margins are meant for all stones, declare it: "empty": true'
    ]
    assert problems_of(empty=True) == []
    assert problems_of(tier("0", None), empty=True) == ["it is declared to be empty and has 1 pricing rules"]


def test_a_gap_is_found_wherever_it_is() -> None:
    found = problems_of(tier("5", "10"), tier("12", "20"), tier("20", "30"))

    assert [it for it in found if "natural" in it] == [
        "no pricing rule is for natural stones of any feed from 0 to 5",
        "no pricing rule is for natural stones of any feed from 10 to 12",
        "no pricing rule is for natural stones of any feed from 30 and above",
    ]
    assert len(found) == 9


def test_the_old_inclusive_tiers_are_gaps() -> None:
    """F35: 0 to 499.99 and 500 to … have no rule for 499.995."""
    assert any("from 499.99 to 500" in it for it in problems_of(tier("0", "499.99"), tier("500", None)))


def test_two_tiers_for_the_same_stones_may_not_overlap() -> None:
    assert problems_of(tier("0", "500.01"), tier("500", None, priority=11)) == [
        "pricing rules 1 [0, 500.01) and 2 [500, …) overlap, both for all stones of any feed"
    ]


def test_between_a_general_and_a_special_rule_the_priority_decides_and_must_differ() -> None:
    general = tier("0", None, priority=20)
    special = tier("100", "200", priority=10, feed="nivoda-natural", stone_type=StoneType.NATURAL)

    assert problems_of(general, special) == []
    assert problems_of(general, replace(special, priority=20)) == [
        "pricing rules 1 [0, …) and 2 [100, 200) are for the same stones and have the same priority, 20"
    ]


def test_a_special_rule_without_a_general_one_must_cover_everything() -> None:
    kinds = [tier("0", None, stone_type=it) for it in (StoneType.NATURAL, StoneType.FANCY)]
    found = problems_of(*kinds, tier("0", "100", stone_type=StoneType.LAB, feed="nivoda-labgrown"))

    assert found == ["no pricing rule is for lab stones of feed nivoda-labgrown from 100 and above"]
    assert problems_of(*kinds) == ["there is no pricing rule for lab stones"]


def test_stones_that_there_are_must_have_a_rule() -> None:
    rules = RuleSet(pricing=tuple(tier("0", None, feed="nivoda-natural", stone_type=it) for it in StoneType))

    assert problems(rules) == []
    assert problems(rules, {("demo", StoneType.LAB)}) == [
        "no pricing rule is for lab stones of feed demo from 0 and above"
    ]


def test_everything_that_is_wrong_is_said_at_once() -> None:
    found = problems_of(
        tier("-1", "0", "-150", priority=-3, rating=11),
        fallback=0,
        rating=(RatingRule(priority=1, rating=0),),
    )

    for part in (
        "less than nothing",
        "rating 11",
        "priority -3",
        "-0.1000 times",
        "rating_fallback 0",
        "rating rule 1",
    ):
        assert any(part in it for it in found), part


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 30)), max_size=6))
def test_a_set_without_a_problem_has_one_tier_for_every_price_and_any_other_has_not(
    spans: list[tuple[int, int]],
) -> None:
    """Compared with looking at every price."""
    rules = [
        tier(str(low), None if low + wide > 30 else str(low + wide), priority=n)
        for n, (low, wide) in enumerate(spans)
    ]
    found = [sum(it.holds(Decimal(cents) / 2) for it in rules) for cents in range(80)]

    assert (problems_of(*rules) == []) == (bool(rules) and set(found) == {1})


# Ratings


def rating(*rules: RatingRule, **certificate: Any) -> int:
    return Ratings(rules).of(stone(**certificate))


def test_a_stone_that_meets_no_rule_gets_the_fallback() -> None:
    assert rating() == 5
    assert Ratings((), fallback=3).of(stone()) == 3


def test_the_first_rating_rule_by_priority_decides() -> None:
    rules = [
        RatingRule(priority=20, rating=2),
        RatingRule(priority=10, rating=9, words={"shape": frozenset({"ROUND"})}),
    ]

    assert rating(*rules) == 9
    assert rating(*rules, shape="OVAL") == 2


@pytest.mark.parametrize("said", ["EX", "EXCELLENT", "excellent"])
@pytest.mark.parametrize("wanted", ["EX", "Excellent"])
def test_a_grade_has_several_names(said: str, wanted: str) -> None:
    assert rating(RatingRule(priority=1, rating=10, words={"cut": frozenset({wanted})}), cut=said) == 10


def test_a_rule_asks_for_all_of_its_conditions() -> None:
    rule = RatingRule(
        priority=1,
        rating=10,
        feed="nivoda-natural",
        lab_grown=False,
        ranges={"carats": Span(Decimal("1.00"), Decimal("2.00")), "price": Span(Decimal(500), None)},
        words={
            "color": frozenset({"D", "G"}),
            "fluorescence": frozenset({"FAINT"}),
            "lab": frozenset({"GIA"}),
        },
    )

    assert rating(rule) == 10
    assert rating(rule, carats=2.0) == 5
    assert rating(rule, carats=1.99) == 10
    assert rating(rule, color="H") == 5
    assert rating(rule, floInt="STG") == 5
    assert rating(rule, lab="IGI") == 5
    assert Ratings([rule]).of(stone(lab_grown=True)) == 5
    assert Ratings([rule]).of(stone(feed="demo")) == 5
    assert Ratings([rule]).of(stone(499_99)) == 5


def test_what_is_not_known_meets_no_condition() -> None:
    narrow = RatingRule(priority=1, rating=9, ranges={"ratio": Span(None, Decimal(2))})

    assert rating(narrow) == 9
    assert rating(narrow, length="0") == 5
    assert rating(RatingRule(priority=1, rating=9, words={"girdle": frozenset({"THIN"})}), girdle=None) == 5
